"""The whole task on tiny models saved in real formats, and what it says to bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_toys import save

from pinprompt.errors import DataError, PinpromptError, SettingError
from pinprompt.recipe.task_sections import ClassificationSettings
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.protocol import check_task
from pinprompt.values import Prompt

GOOD = [
    "the story felt good",
    "a truly wonderful drama",
    "this film was great",
    "a big heart",
    "a little drama felt good",
]
BAD = [
    "dull , slow and awful",
    "the plot felt bad",
    "this film was terrible",
    "slow from the start",
    "awful to the end",
]
PROMPTS = [Prompt("It was"), Prompt(" the answer is"), Prompt(" It was truly")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("classification")
    for name in ("llama", "roberta"):
        save(name, place / name)
    rows = [f"{text},pos" if "," not in text else f'"{text}",pos' for text in GOOD]
    rows += [f'"{text}",neg' for text in BAD]
    (place / "train.csv").write_text("review,stars\r\n" + "\r\n".join(rows) + "\r\n", encoding="utf-8")
    return place


def settings(folder: Path, model: str = "llama", **more: Any) -> ClassificationSettings:
    given: dict[str, Any] = {
        "train": str(folder / "train.csv"),
        "text_column": "review",
        "label_column": "stars",
        "words": {"neg": "terrible", "pos": "great"},
        "model": str(folder / model),
        "shots": 2,
    }
    return ClassificationSettings(**{**given, **more})


def build(folder: Path, model: str = "llama", **more: Any) -> ClassificationTask:
    return ClassificationTask.build(settings(folder, model, **more))


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_keeps_its_contract(folder: Path, model: str) -> None:
    task = build(folder, model)
    assert task.splits == ("train", "dev", "test")
    assert (task.calls("train"), task.calls("test")) == (4, 2)
    assert check_task(task, [prompt.text for prompt in PROMPTS]) == []
    assert any("rest of the training file" in note for note in task.notes)


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_the_reward_is_the_papers(folder: Path, model: str) -> None:
    task = build(folder, model)
    texts = [example.text for example in task.data.splits["train"]]
    truth = [example.label for example in task.data.splits["train"]]
    expected = []
    for (_, chances), label in zip(task.predict(PROMPTS[0], texts), truth, strict=True):
        gap = chances[label] - max(p for other, p in chances.items() if other != label)
        expected.append(gap * (200 if gap > 0 else 180))
    score = task.score(PROMPTS[:1], [0])[0]
    assert score.value == pytest.approx(np.mean(expected), abs=2e-2)
    assert score.details["accuracy"] == np.mean([value > 0 for value in expected])
    accuracy = build(folder, model, reward="accuracy").score(PROMPTS[:1], [0])[0]
    assert accuracy.value == score.details["accuracy"]
    likelihood = build(folder, model, reward="log-likelihood").score(PROMPTS[:1], [0])[0]
    assert likelihood.value == pytest.approx(score.details["log_likelihood"])


def test_calibration_makes_content_free_texts_even(folder: Path) -> None:
    task = build(folder, calibrate="content-free")
    assert task.calls("train") == 4 + 3
    plain = build(folder)
    free = np.mean([[p[1]["neg"], p[1]["pos"]] for p in [plain.predict(PROMPTS[0], ["N/A"])[0]]], axis=0)
    assert free.sum() == pytest.approx(1)
    one = plain.predict(PROMPTS[0], ["the plot"])[0][1]
    three = np.exp(plain._ask(PROMPTS[:1], plain.model.prepare(["N/A", "", "[MASK]"]))[0]).mean(axis=0)
    odds = (one["neg"] / three[0]) / (one["pos"] / three[1])
    calibrated = task.predict(PROMPTS[0], ["the plot"])[0][1]
    assert calibrated["neg"] / calibrated["pos"] == pytest.approx(odds, rel=1e-4)


def test_evaluation(folder: Path) -> None:
    task = build(folder)
    found = task.evaluate(PROMPTS[0], "dev")
    table = np.array(found.tables["confusion"]["counts"])
    assert found.rows == table.sum() == 4
    assert table.sum(axis=1).tolist() == [2, 2]
    assert found.metrics["accuracy"] == np.trace(table) / 4
    right = [row["label"] == row["predicted"] for row in found.tables["examples"]]
    assert sorted(found.outcomes["accuracy"]) == sorted(map(float, right))
    low, high = found.intervals["accuracy"]
    assert low <= found.metrics["accuracy"] <= high
    assert found.tables["confusion"]["labels"] == ["neg", "pos"]
    assert {"text", "label", "predicted", "probability"} <= set(found.tables["examples"][0])


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_baselines_are_prompts_like_any_other(folder: Path, model: str) -> None:
    task = build(folder, model, instruction="in this task the answer is one word")
    baselines = task.baselines()
    assert list(baselines) == ["manual", "instructions", "in-context"]
    assert baselines["manual"] == "It was"
    assert baselines["instructions"].startswith("in this task the answer is one word {text}")
    assert "terrible" in baselines["in-context"]
    assert "great" in baselines["in-context"]
    scores = task.score([Prompt(text) for text in baselines.values()], [0] * 3)
    assert len({score.value for score in scores}) == 3
    assert not any(score.failures for score in scores)
    assert task.baselines() == baselines


@pytest.mark.parametrize("template", ["{text} {prompt}", "{prompt} {text} so"])
def test_a_score_does_not_depend_on_what_was_scored_before(folder: Path, template: str) -> None:
    first, second = build(folder, template=template), build(folder, template=template)
    baselines = [Prompt(text) for text in second.baselines().values()]
    second.score([*baselines, Prompt("it")], [0] * (len(baselines) + 1))
    assert [s.value for s in first.score(PROMPTS, [0] * 3)] == [s.value for s in second.score(PROMPTS, [0] * 3)]


def test_context_ends_where_a_prompt_would_be_written(folder: Path) -> None:
    task = build(folder, context_examples=1)
    lines = task.context().split("\n")
    assert len(lines) == 3
    assert sorted(line.rsplit(" ", 1)[1] for line in lines[:2]) == ["great.", "terrible."]
    assert lines[2] in {example.text for example in task.data.splits["train"]}
    assert build(folder, context_examples=0).context() == ""


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_vectors_of_a_prompts_tokens_score_as_the_prompt(folder: Path, model: str) -> None:
    task = build(folder, model)
    view = task.differentiable()
    ids = view.tokenizer(" It was", add_special_tokens=False)["input_ids"]
    vectors = view.embeddings[ids].clone().requires_grad_(True)
    for split in ("train", "dev"):
        expected = task.score(PROMPTS[:1], [0], split)[0]
        assert view.score_vectors(vectors.detach(), split).value == pytest.approx(expected.value, abs=2e-2)
    loss = view.loss(vectors, range(view.rows("train")))
    assert loss.item() == pytest.approx(-task.score(PROMPTS[:1], [0])[0].details["log_likelihood"], abs=1e-4)
    (gradient,) = torch.autograd.grad(loss, vectors)
    step = torch.randn_like(gradient) * 1e-2
    with torch.no_grad():
        change = view.loss(vectors + step, range(4)) - view.loss(vectors - step, range(4))
    assert change.item() == pytest.approx(2 * (gradient * step).sum().item(), rel=0.1, abs=1e-4)


def test_the_fingerprint_changes_with_what_a_score_depends_on(folder: Path) -> None:
    prints = [
        build(folder).fingerprint,
        build(folder, reward="accuracy").fingerprint,
        build(folder, split=14).fingerprint,
        build(folder, template="{text} : {prompt}").fingerprint,
        build(folder, words={"neg": "bad", "pos": "good"}).fingerprint,
        build(folder, "roberta").fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    assert build(folder).fingerprint == prints[0]


def test_a_prompt_that_fills_the_window_is_a_recorded_failure(folder: Path) -> None:
    task = build(folder)
    bad, good = task.score([Prompt("It was " * 200), PROMPTS[0]], [0, 0])
    assert math.isnan(bad.value)
    assert "no room for a text" in bad.failures[0]
    assert good.value == task.score(PROMPTS[:1], [0])[0].value


def test_test_rows_and_notes_on_long_texts(folder: Path, tmp_path: Path) -> None:
    long = "the story felt good and " * 60
    rows = [f"{long}{i},pos" for i in range(3)] + [f"bad {i},neg" for i in range(3)]
    (tmp_path / "test.csv").write_text("review,stars\n" + "\n".join(rows), encoding="utf-8")
    task = build(folder, test=str(tmp_path / "test.csv"), test_rows=4)
    assert task.evaluate(PROMPTS[0], "test").rows == 4
    assert any(note.startswith("test: ") and "truncated to fit" in note and "128" in note for note in task.notes)


def test_non_ascii(folder: Path) -> None:
    task = build(folder)
    label, chances = task.predict(Prompt("C'était «génial» 日本"), ["ein überaus schöner Film 🎬"])[0]
    assert label in chances
    assert sum(chances.values()) == pytest.approx(1)
    with pytest.raises(SettingError, match="empty"):
        task.predict(PROMPTS[0], ["  "])


@pytest.mark.parametrize(
    ("content", "more", "match"),
    [
        ("text,label\na,x\nb,x\n", {"words": {"x": "great", "y": "bad"}}, "bad.csv: all examples have the label 'x'"),
        ("text,label\na,x\nb,y\nc,z\n", {"words": {"x": "great", "y": "bad"}}, "bad.csv:4: the label 'z'"),
        ("text,label\na,x\n,y\n", {}, "bad.csv:3: the text is empty"),
        ("txt,label\na,x\nb,y\n", {}, "bad.csv:1: there is no column 'text'"),
        ("text,label\na,x\nb,y\n", {"words": {}}, "no label words"),
        ("text,label\na,x\nb,y\nc,y\n", {}, "bad.csv:2: the label 'x' has only one example"),
        ("text,label\na,x\nb,x\nc,y\nd,y\n", {"words": {"x": "great", "y": "great"}}, "the same word"),
        ("text,label\na,x\nb,x\nc,y\nd,y\n", {"template": "{mask} {prompt} {text}"}, "only says what comes next"),
        ("text,label\na,x\nb,x\nc,y\nd,y\n", {"dataset": "sst-2"}, "give one"),
        (
            "text,label\na,x\nb,x\nc,y\nd,y\n",
            {"strict_words": True, "words": {"x": "zzzq", "y": "bad"}},
            "strict_words",
        ),
    ],
)
def test_bad_input_is_refused_before_any_call(
    folder: Path, tmp_path: Path, content: str, more: dict[str, Any], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    def called(*given: Any, **named: Any) -> None:
        raise AssertionError("the model was called")

    monkeypatch.setattr(LlamaForCausalLM, "forward", called)
    (tmp_path / "bad.csv").write_text(content, encoding="utf-8")
    given = {"words": {"x": "great", "y": "bad"}, "text_column": "text", "label_column": "label", **more}
    with pytest.raises(PinpromptError) as error:
        build(folder, train=str(tmp_path / "bad.csv"), **given)
    assert match in str(error.value)


def test_a_test_file_with_unseen_labels(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text('review\tstars\n"a\tb"\tpos\nc\tneutral\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"test\.tsv:3: the label 'neutral'"):
        build(folder, test=str(tmp_path / "test.tsv"))


def test_no_data_and_an_unknown_split(folder: Path) -> None:
    with pytest.raises(SettingError, match="no data"):
        ClassificationTask.build(ClassificationSettings())
    with pytest.raises(SettingError, match="no split"):
        build(folder).score(PROMPTS, [0] * 3, "validation")
