"""Labelling files: all columns kept, order kept, blank texts reported; names of files are not texts."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import pinprompt
from pinprompt.cli import app
from pinprompt.errors import SettingError
from pinprompt.recipe import recipe as recipes
from pinprompt.run import running
from tests.toys.label_runs import ROWS, make_run, settings_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("labels"))


def call(*words: str | Path, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter=delimiter))


def test_a_table_keeps_its_columns_its_order_and_its_blank_rows(run: Path, tmp_path: Path) -> None:
    texts = [text for text, _ in ROWS]
    lines = ["ticket;t;label", *(f'{n};"{text}";x' for n, text in enumerate([*texts[:3], " ", *texts[3:]]))]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    done = call("predict", run, "--input", tmp_path / "x.csv", "--text-column", "t", "--output", tmp_path / "y.csv")
    assert done.exit_code == 0, done.output
    assert "1 of 9 rows have no text" in done.stderr
    assert "line 5" in done.stderr
    rows = table(tmp_path / "y.csv", ";")
    assert [row["ticket"] for row in rows] == [str(n) for n in range(9)]
    assert {row["label"] for row in rows} == {"x"}  # the column that was there is left alone
    assert rows[3]["predicted_label"] == rows[3]["probability_pos"] == ""
    expected = pinprompt.predict(run, texts)
    filled = [row for row in rows if row["predicted_label"]]
    for row, one in zip(filled, expected, strict=True):
        assert row["predicted_label"] == one["label"]
        assert float(row["probability_pos"]) == pytest.approx(one["probabilities"]["pos"])


def test_other_formats_stdin_and_frames_say_the_same(run: Path, tmp_path: Path) -> None:
    texts = [text for text, _ in ROWS[:3]]
    expected = [one["label"] for one in pinprompt.predict(run, texts)]
    told = json.loads(call("predict", run, *texts, "--json", "--quiet").stdout)["predictions"]
    assert told == pinprompt.predict(run, texts)  # the same shape from Python and as JSON
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"review": text}) + "\n" for text in texts))
    words = ("predict", run, "--json", "--quiet")
    by_column = json.loads(call(*words, "--input", tmp_path / "x.jsonl").stdout)["predictions"]
    assert [row["label"] for row in by_column] == expected  # the column of the run's own data
    piped = json.loads(call(*words, "--input", "-", stdin="\n".join(texts)).stdout)["predictions"]
    assert [row["label"] for row in piped] == expected
    dashed = json.loads(call(*words, "-", stdin="\n".join(texts)).stdout)["predictions"]
    assert dashed == told  # a dash is stdin, not a text
    found = pinprompt.predict_table(run, pd.DataFrame({"id": [1, 2, 3], "review": texts}))
    assert found.labels == expected
    assert [row["id"] for row in found.rows] == [1, 2, 3]
    shown = call("predict", run, "--input", tmp_path / "x.jsonl")
    assert texts[0] in shown.stdout


def test_an_unfinished_run_is_resumed_not_removed(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "cut")
    for name in ("result.json", "run.json"):
        (tmp_path / "cut" / name).unlink()
    done = call("predict", tmp_path / "cut", "a text")
    assert done.exit_code == 2
    assert "pinprompt resume" in done.stderr
    assert "--force" not in done.stderr


def test_a_file_name_given_as_text_is_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("review\nfine\n")
    for given in (file, "reviews.csv", tmp_path):
        done = call("predict", run, given)
        assert done.exit_code == 2
        assert f"--input {given}" in done.stderr
    assert call("predict", run, "a text. with dots").exit_code == 0
    assert "not both" in call("predict", run, "text", "--input", file).stderr
    assert "need --input" in call("predict", run, "text", "--output", tmp_path / "y.csv").stderr
    with pytest.raises(SettingError, match="must be a list of texts"):
        pinprompt.predict(run, "a text")


def test_a_search_takes_a_data_frame(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    settings = settings_of(run.parent)
    frame = pd.DataFrame(ROWS, columns=["review", "stars"])
    frame["stars"] = frame["stars"].map({"neg": 0, "pos": 1})
    task = {**settings.pop("task"), "train": frame, "words": {0: "terrible", 1: "great"}}
    del settings["method"]
    found = pinprompt.tune(task, method="manual", out=tmp_path / "run", settings=settings)
    (said,) = pinprompt.predict(found.folder, ["the plot felt bad"])
    assert set(said["probabilities"]) == {"0", "1"}
    assert said["label"] in said["probabilities"]


def test_square_brackets_are_text_not_markup(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    words = {"[/neg]": "terrible", "[bold]pos": "great"}
    settings["task"] |= {"words": words, "train": str(bracketed(tmp_path))}
    made = running.run(recipes.resolve(settings), tmp_path / "run").folder
    done = call("predict", made, "a [/b] text")
    assert done.exit_code == 0, done.output
    assert "[/neg]" in done.stdout or "[bold]pos" in done.stdout
    assert "a [/b] text" in done.stdout


def bracketed(folder: Path) -> Path:
    path = folder / "brackets.csv"
    names = {"neg": "[/neg]", "pos": "[bold]pos"}
    path.write_text("review,stars\n" + "".join(f'"{text}",{names[label]}\n' for text, label in ROWS))
    return path


def test_a_start_that_fails_leaves_no_folder_and_nothing_to_resume_is_said(tmp_path: Path) -> None:
    words = ("classify", "--train", tmp_path / "none.csv", "--word", "a=b", "--word", "c=d", "--out", tmp_path / "run")
    done = call(*words, "--resume")
    assert done.exit_code == 2
    assert "no run to resume" in done.stderr
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    call(*words)
    assert (tmp_path / "run").is_dir()  # it was there before


def test_a_result_shows_itself_in_a_notebook(run: Path) -> None:
    page = running.result_of(run)._repr_html_()
    assert "<td>It was</td>" in page
    assert "accuracy on dev" in page


def test_a_runs_own_files_are_not_written_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text\na fine film\n")
    before = (run / "prompts.csv").read_bytes()
    for name in ("prompts.csv", "events.jsonl", "answers.jsonl"):
        done = call("predict", run, "--input", tmp_path / "x.csv", "--output", run / name)
        assert done.exit_code == 2
        assert "is a file of a run" in done.stderr
    assert (run / "prompts.csv").read_bytes() == before
    assert call("predict", run, "--input", tmp_path / "x.csv", "--output", run / "mine.csv").exit_code == 0


def test_a_blank_text_gets_no_label_from_python_and_from_the_command_line(run: Path) -> None:
    text = ROWS[0][0]
    blank, one = pinprompt.predict(run, [" ", text])
    assert (blank["label"], blank["probabilities"]) == (None, {})
    assert one == pinprompt.predict(run, [text])[0]
    done = call("predict", run, "", text, "--json", "--quiet")
    assert done.exit_code == 0, done.output
    assert [row["label"] for row in json.loads(done.stdout)["predictions"]] == [None, one["label"]]
