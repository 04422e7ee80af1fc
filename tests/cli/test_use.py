"""A run stands on its own: without its data, elsewhere, zipped; its prompt works in code and in other tools."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import pinprompt
from pinprompt.cli import app
from pinprompt.errors import RunError, SettingError
from pinprompt.recipe import recipe as recipes
from pinprompt.reports.usage import TOOLS, Sent, export, sent_of, snippets
from pinprompt.run import running
from tests.toys.label_runs import ROWS, make_run, settings_of

TEXT = 'the plot felt "bad" {text} it\'s'


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("use")
    made = make_run(folder, task={"labels": "calibrated"})
    (folder / "reviews.csv").unlink()  # nothing below may need the training data
    return made


def test_the_result_says_what_is_sent(run: Path) -> None:
    sent = json.loads((run / "result.json").read_text())["sent"]
    assert sent["before"] + "a film" + sent["after"] == "a film It was"
    assert sent["words"] == {"neg": "terrible", "pos": "great"}
    assert set(sent["offsets"]) == {"neg", "pos"}
    assert sent["revision"]
    assert "{text} It was" in (run / "report.html").read_text("utf-8")


def test_a_copied_run_labels_as_the_first(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pinprompt.predict(run, [TEXT])
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "copy")
    assert pinprompt.predict("copy", [TEXT]) == expected
    assert pinprompt.use("copy", TEXT) == pinprompt.use(run, TEXT)


def test_texts_come_as_lists_arrays_and_series(run: Path) -> None:
    expected = pinprompt.predict(run, [TEXT])
    for texts in (np.array([TEXT]), pd.Series([TEXT]), (TEXT,)):
        found = pinprompt.predict(run, texts)  # type: ignore[arg-type]
        assert found == expected
        assert type(found[0]["text"]) is str
    with pytest.raises(SettingError, match="text 2 of 2 is a NoneType"):
        pinprompt.predict(run, [TEXT, None])  # type: ignore[list-item]


def test_a_run_is_evaluated_on_another_file(run: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS[:6], columns=["body", "queue"])
    frame.to_csv(tmp_path / "other.csv", sep=";", index=False)
    words = ("--test", tmp_path / "other.csv", "--text-column", "body", "--label-column", "queue", "--json", "--quiet")
    done = call("evaluate", run, *words)
    assert done.exit_code == 0, done.output
    (facts,) = json.loads(done.stdout)["models"].values()
    said = [one["label"] for one in pinprompt.predict(run, list(frame["body"]))]
    right = [label == one for (_, label), one in zip(ROWS[:6], said, strict=True)]
    assert facts["rows"] == 6
    assert facts["accuracy"] == pytest.approx(sum(right) / 6)
    (same,) = pinprompt.evaluate(run, test=frame, text_column="body", label_column="queue").values()
    assert same.metrics["accuracy"] == facts["accuracy"]
    said_aloud = call("evaluate", run, *words[:-2]).stderr
    assert "texts were used by the search: too optimistic" in said_aloud


def test_without_its_data_a_run_asks_for_a_file(run: Path) -> None:
    done = call("evaluate", run, "--trust")
    assert done.exit_code == 2
    assert "no such file" in done.stderr
    assert "--test FILE" in done.stderr


def test_the_snippet_for_transformers_gives_the_same_probabilities(run: Path) -> None:
    code = pinprompt.use(run, TEXT)["snippets"]["transformers"]
    names: dict[str, Any] = {}
    exec(compile(code, "snippet", "exec"), names)
    (expected,) = pinprompt.predict(run, [TEXT])
    assert names["probabilities"](TEXT) == pytest.approx(expected["probabilities"], abs=1e-4)


def test_the_plain_snippet_applies_the_offsets() -> None:
    sent = Sent("classification", "p", "a ", " b", "m", words={"x": "one", "y": "two"}, offsets={"x": 1.0, "y": -1.0})
    names: dict[str, Any] = {}
    exec(compile(snippets(sent, "t")["python"], "snippet", "exec"), names)
    assert names["full_text"](" t ") == "a t b"
    assert names["label"]({"x": -0.5, "y": -2.0}) == "y"  # -1.5 against -1.0


def test_a_strangers_result_puts_no_code_into_a_snippet() -> None:
    nasty = "'''\"; raise SystemExit(3) #\n"
    values = {"words": {nasty: nasty}, "word_ids": {nasty: [1]}, "kind": "causal", "source": "folder"}
    sent = sent_of({"task": "classification", "sent": {"before": nasty, "after": nasty, "model": nasty, **values}})
    for name, code in snippets(sent, nasty).items():
        if name != "curl":
            compile(code, name, "exec")
    names: dict[str, Any] = {}
    exec(compile(snippets(sent, nasty)["python"], "snippet", "exec"), names)
    assert names["BEFORE"] == nasty


def test_chats_are_shown_as_messages() -> None:
    content = "a {text} b ...\n\nOne word"
    sent = sent_of({"sent": {"before": "a ", "after": " b", "messages": [{"role": "user", "content": content}]}})
    assert sent.messages_for("{text} x") == [{"role": "user", "content": "a {text} x b ...\n\nOne word"}]
    assert "messages" in json.loads(export(sent, "openai")[1])


SYSTEM = [{"role": "system", "content": "Sort {it}."}, {"role": "user", "content": "{text}\n\nWhich label?"}]


def test_a_system_message_and_the_text_are_in_everything_that_is_sent() -> None:
    sent = Sent("classification", "Sort {it}.", "Sort {it}.\n\n", "", "m", words={"a": "one"}, messages=SYSTEM)
    asked = [SYSTEM[0], {"role": "user", "content": "my text\n\nWhich label?"}]
    assert sent.messages_for(" my text ") == asked
    names: dict[str, Any] = {}
    exec(compile(snippets(sent, "t")["python"], "snippet", "exec"), names)
    assert names["chat"]("my text") == asked
    assert "my text" in snippets(sent, "my text")["curl"]
    prompt = json.loads(json.loads(export(sent, "promptfoo")[1])["prompts"][0])
    assert prompt[1]["content"] == "{{text}}\n\nWhich label?"
    assert json.loads(export(sent, "langchain")[1])["template"] == "Sort {{it}}.\n\n{text}\n\nWhich label?"
    assert json.loads(export(sent, "dspy")[1])["signature"]["instructions"].startswith("Sort {it}.")


@pytest.mark.parametrize("tool", TOOLS)
def test_every_export_is_written(run: Path, tmp_path: Path, tool: str) -> None:
    done = call("export", run, "--to", tool, "--output", tmp_path / "out.json")
    assert done.exit_code == 0, done.output
    assert "It was" in (tmp_path / "out.json").read_text()
    with pytest.raises(SettingError, match="did you mean"):
        pinprompt.export(run, tool + "x")


def test_use_prints_text_and_code(run: Path) -> None:
    done = call("use", run, "--text", "a [/film]")
    assert done.exit_code == 0, done.output
    assert "a [/film] It was" in done.stdout
    assert "curl" in done.stdout
    with pytest.raises(RunError, match="does not say what was sent"):
        sent_of({"prompt": "x"})


def test_a_private_run_keeps_no_text_of_the_data(run: Path, tmp_path: Path) -> None:
    texts = [text for text, _ in ROWS]
    assert any(text in (run / "report.html").read_text("utf-8") for text in texts)  # so that the search below can fail
    private = make_run(tmp_path, private=True, task={"labels": "calibrated"})
    for path in (path for path in private.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not [text for text in texts if text.encode() in content], path
    assert not (private / "rows.json").exists()
    assert "does not show texts and pictures" in (private / "report.html").read_text("utf-8")
    assert pinprompt.predict(private, texts) == pinprompt.predict(run, texts)


def test_the_report_of_any_run_can_be_made_private(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    page = tmp_path / "run" / "report.html"
    assert call("report", tmp_path / "run", "--private").exit_code == 0
    assert not [text for text, _ in ROWS if text in page.read_text("utf-8")]
    assert "Confusion matrix" in page.read_text("utf-8")
    assert call("report", tmp_path / "run").exit_code == 0
    assert [text for text, _ in ROWS if text in page.read_text("utf-8")]


def test_open_shows_the_page_that_it_has_written(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run, tmp_path / "run")
    page = tmp_path / "run" / "report.html"
    page.write_text("<script>a stranger's</script>")
    asked: list[str] = []
    for answer in (True, False):
        monkeypatch.setattr("webbrowser.open", lambda address, answer=answer: asked.append(address) or answer)
        done = call("open", tmp_path / "run", "--json")
        assert json.loads(done.stdout) == {"report": str(page.resolve()), "opened": answer}
        assert ("no browser" in done.stderr) is not answer
    assert asked == [page.resolve().as_uri()] * 2
    assert "a stranger's" not in page.read_text("utf-8")


def test_data_that_changed_since_are_noticed_and_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_run(tmp_path, task={"train": "reviews.csv"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    same = call("evaluate", made, "--split", "dev", "--trust")
    assert same.exit_code == 0, same.output
    assert "changed" not in same.stderr
    path = tmp_path / "reviews.csv"
    path.write_text(path.read_text("utf-8").replace("wonderful", "strange"), "utf-8")
    other = call("evaluate", made, "--split", "dev", "--trust")
    assert other.exit_code == 0, other.output
    assert "has changed since the run" in other.stderr
    assert "reviews.csv" in other.stderr


def test_a_run_is_resumed_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    raw = settings_of(tmp_path / "home", task={"train": "reviews.csv"})
    made = running.run(recipes.resolve(raw), Path("runs/one"), report=False).folder.resolve()
    recipe = (made / "recipe.toml").read_text("utf-8")
    monkeypatch.chdir(tmp_path / "elsewhere")
    asked = call("resume", made)
    assert asked.exit_code == 2  # the file lies neither here nor in the run folder
    assert "--trust" in asked.stderr
    done = call("resume", made, "--trust", "--json", "--quiet")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"] == str(made / "report.html")
    assert (made / "report.html").is_file()
    assert (made / "recipe.toml").read_text("utf-8") == recipe
    again = call("resume", made, "--json", "--quiet")  # finished: there is nothing to do, and nothing is read
    assert again.exit_code == 0, again.output
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_masked_model_gets_a_snippet_where_its_label_words_are_single_tokens() -> None:
    words = {"neg": "bad", "pos": "good"}
    masked = Sent(
        "classification", "p", "", " It was [MASK].", "m", kind="masked", words=words,
        word_ids={"neg": [5], "pos": [6]},
    )  # fmt: skip
    code = snippets(masked, "a film")["transformers"]
    assert "AutoModelForMaskedLM" in code
    assert "openai" not in snippets(masked, "a film"), "no such server answers for a masked model"
    compile(code, "snippet", "exec")
    longer = replace(masked, word_ids={"neg": [5], "pos": [6, 7]})
    assert "transformers" not in snippets(longer, "a film")


def test_a_chat_is_exported_to_promptfoo_as_messages() -> None:
    messages = [{"role": "user", "content": "Review: {text} It was"}]
    chat = Sent("classification", "p", "Review: ", " It was", "m", words={"neg": "bad"}, messages=messages)
    exported = json.loads(export(chat, "promptfoo")[1])
    assert json.loads(exported["prompts"][0]) == [{"role": "user", "content": "Review: {{text}} It was"}]
    assert exported["providers"][0]["id"] == "openai:chat:m"
