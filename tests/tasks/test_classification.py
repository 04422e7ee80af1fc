"""The whole task on tiny models saved in real formats, and what it says to bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_toys import WORDS, save

from pinprompt.errors import DataError, PinpromptError, SettingError
from pinprompt.recipe.task_sections import ClassificationSettings
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.protocol import calls, check_task, split_rows, splits
from pinprompt.values import Answers, Prompt

GOOD = [
    "the story felt good",
    "a truly wonderful drama",
    "this film was great",
    "a big heart",
    "a little drama felt good",
    "a good heart",
]
BAD = [
    "dull , slow and awful",
    "the plot felt bad",
    "this film was terrible",
    "slow from the start",
    "awful to the end",
    "a bad start",
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


def asked(task: ClassificationTask, prompt: Prompt = PROMPTS[0], split: str = "train") -> Answers:
    return task.ask([prompt], split_rows(task, split))[0]


def value(task: ClassificationTask, prompt: Prompt = PROMPTS[0], split: str = "train") -> float:
    """A prompt's score on a split."""
    return float(task.values(asked(task, prompt, split), split_rows(task, split)).mean())


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_keeps_its_contract(folder: Path, model: str) -> None:
    task = build(folder, model)
    assert splits(task) == ("train", "dev", "test")
    assert [calls(task, split_rows(task, split)) for split in ("train", "test")] == [4, 4]
    assert check_task(task, [prompt.text for prompt in PROMPTS]) == []
    assert any("4 for training, 4 for choosing, 4 for the report" in note for note in task.info.notes)


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_the_reward_is_the_papers(folder: Path, model: str) -> None:
    task = build(folder, model)
    texts = [example.text for example in task.data.splits["train"]]
    truth = [example.label for example in task.data.splits["train"]]
    expected = []
    for (_, chances), label in zip(task.predict(PROMPTS[0], texts), truth, strict=True):
        gap = chances[label] - max(p for other, p in chances.items() if other != label)
        expected.append(gap * (200 if gap > 0 else 180))
    assert task.values(asked(task), split_rows(task, "train")) == pytest.approx(expected, abs=2e-2)
    assert value(build(folder, model, reward="accuracy")) == np.mean([one > 0 for one in expected])
    chosen = [chances[label] for (_, chances), label in zip(task.predict(PROMPTS[0], texts), truth, strict=True)]
    assert value(build(folder, model, reward="log-likelihood")) == pytest.approx(np.mean(np.log(chosen)), abs=1e-4)


def test_an_answer_is_the_log_probabilities_of_the_labels(folder: Path) -> None:
    task = build(folder)
    rows = split_rows(task, "dev")
    chances = task.predict(PROMPTS[0], [task.rows[row].input for row in rows])
    expected = [[one["neg"], one["pos"]] for _, one in chances]
    assert np.exp(asked(task, split="dev").on(rows)) == pytest.approx(np.array(expected), abs=1e-5)
    assert task.probabilities(asked(task, split="dev"), rows) == pytest.approx(np.array(expected), abs=1e-5)


def test_evaluation(folder: Path) -> None:
    task = build(folder)
    rows = split_rows(task, "dev")
    found = task.metrics(asked(task, split="dev"), rows)
    assert found.tables["confusion"]["counts"] == task.confusion(asked(task, split="dev"), rows).tolist()
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
def test_drafts_are_prompts_like_any_other(folder: Path, model: str) -> None:
    task = build(folder, model, instruction="in this task the answer is one word")
    drafts = {draft.name: draft.text for draft in task.drafts()}
    assert list(drafts) == ["default", "instructions", "in-context"]  # nobody wrote the first one
    assert drafts["default"] == "It was"
    assert drafts["instructions"].startswith("in this task the answer is one word {text}")
    assert "terrible" in drafts["in-context"]
    assert "great" in drafts["in-context"]
    assert len({value(task, Prompt(text)) for text in drafts.values()}) == 3
    assert not any(asked(task, Prompt(text)).failures for text in drafts.values())
    assert {draft.name: draft.text for draft in task.drafts()} == drafts


@pytest.mark.parametrize("template", ["{text} {prompt}", "{prompt} {text} so"])
def test_an_answer_does_not_depend_on_what_was_asked_before(folder: Path, template: str) -> None:
    first, second = build(folder, template=template), build(folder, template=template)
    rows = split_rows(first, "train")
    second.ask([*(Prompt(draft.text) for draft in second.drafts()), Prompt("it")], rows)
    for one, other in zip(first.ask(PROMPTS, rows), second.ask(PROMPTS, rows), strict=True):
        np.testing.assert_array_equal(one.contents, other.contents)


def test_context_ends_where_a_prompt_would_be_written(folder: Path) -> None:
    task = build(folder)
    lines = task.context().split("\n")
    assert len(lines) == 5
    assert sorted(line.rsplit(" ", 1)[1] for line in lines[:4]) == ["great.", "great.", "terrible.", "terrible."]
    assert lines[4] in {example.text for example in task.data.splits["train"]}


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_vectors_of_a_prompts_tokens_score_as_the_prompt(folder: Path, model: str) -> None:
    task = build(folder, model)
    view = task.differentiable()
    ids = view.tokenizer(" It was", add_special_tokens=False)["input_ids"]
    vectors = view.embeddings[ids].clone().requires_grad_(True)
    for split in ("train", "dev"):
        rows = split_rows(task, split)
        found = task.values(view.answers(vectors.detach(), rows), rows)
        assert found == pytest.approx(task.values(asked(task, split=split), rows), abs=2e-2)
    loss = view.loss(vectors, split_rows(task, "train"))
    assert loss.item() == pytest.approx(-value(build(folder, model, reward="log-likelihood")), abs=1e-4)
    (gradient,) = torch.autograd.grad(loss, vectors)
    step = torch.randn_like(gradient) * 1e-2
    with torch.no_grad():
        change = view.loss(vectors + step, range(4)) - view.loss(vectors - step, range(4))
    assert change.item() == pytest.approx(2 * (gradient * step).sum().item(), rel=0.1, abs=1e-4)


def test_the_fingerprint_changes_with_what_a_score_depends_on(folder: Path) -> None:
    prints = [
        build(folder).info.fingerprint,
        build(folder, reward="accuracy").info.fingerprint,
        build(folder, split=14).info.fingerprint,
        build(folder, template="{text} : {prompt}").info.fingerprint,
        build(folder, words={"neg": "bad", "pos": "good"}).info.fingerprint,
        build(folder, "roberta").info.fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    assert build(folder).info.fingerprint == prints[0]


def test_a_prompt_that_fills_the_window_is_a_recorded_failure(folder: Path) -> None:
    task = build(folder)
    rows = split_rows(task, "train")
    bad, good = task.ask([Prompt("It was " * 200), PROMPTS[0]], rows)
    assert np.isnan(task.values(bad, rows)).all()
    assert set(bad.failures) == set(rows)
    assert "no room for a text" in bad.failures[0]
    np.testing.assert_array_equal(good.contents, asked(task).contents)


def test_test_rows_and_notes_on_long_texts(folder: Path, tmp_path: Path) -> None:
    long = "the story felt good and " * 60
    rows = [f"{long}{i},pos" for i in range(3)] + [f"bad {i},neg" for i in range(3)]
    (tmp_path / "test.csv").write_text("review,stars\n" + "\n".join(rows), encoding="utf-8")
    task = build(folder, test=str(tmp_path / "test.csv"), test_rows=4)
    assert task.metrics(asked(task, split="test"), split_rows(task, "test")).rows == 4
    assert any(note.startswith("test: ") and "truncated to fit" in note and "128" in note for note in task.info.notes)


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
        ("text,label\na,x\n,y\n", {}, "bad.csv: all examples have the label 'x'"),
        ("txt,label\na,x\nb,y\n", {}, "bad.csv:1: there is no column 'text'"),
        ("text,label\na,x\nb,y\n", {"words": {}}, "no label words"),
        ("text,label\na,x\nb,y\n", {}, "bad.csv: every label has only one example"),
        ("text,label\na,x\nb,x\nc,y\nd,y\n", {"words": {"x": "great", "y": "great"}}, "the same word"),
        ("text,label\na,x\nb,x\nc,y\nd,y\n", {"template": "{mask} {prompt} {text}"}, "only says what comes next"),
        ("text,label\na,x\nb,x\nc,y\nd,y\n", {"dataset": "sst-2"}, "give one"),
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
        split_rows(build(folder), "validation")


def test_with_macro_f1_every_class_counts_equally(tmp_path: Path) -> None:
    """A prompt that gets the rare class right is worth more than one that gets as many rows of the common one right."""
    texts = [f"a big film number {number}" for number in range(12)]
    rows = [f"{text},{'pos' if place < 9 else 'neg'}" for place, text in enumerate(texts)]
    (tmp_path / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    model = str(save("llama", tmp_path / "llama"))
    settings = {
        "train": str(tmp_path / "train.csv"),
        "dev": str(tmp_path / "train.csv"),
        "words": WORDS,
        "model": model,
    }
    plain, even = (
        ClassificationTask.build(ClassificationSettings(**settings, reward="accuracy", metric=metric))
        for metric in ("accuracy", "macro-f1")
    )
    common, rare = (np.log([[0.1, 0.9]] * 12), np.log([[0.9, 0.1]] * 12))  # everything pos, everything neg
    labels = list(plain.labels)
    if labels[0] == "pos":
        common, rare = rare, common
    answers = [Answers(tuple(range(24)), np.concatenate([logs, logs])) for logs in (common, rare)]
    scores = [[float(task.values(one, range(24)).mean()) for one in answers] for task in (plain, even)]
    assert scores[0] == [pytest.approx(0.75), pytest.approx(0.25)]
    assert scores[1] == [pytest.approx(0.5), pytest.approx(0.5)]
    assert even.info.primary == "macro_f1"
    found = even.metrics(answers[0], split_rows(even, "dev"))
    assert np.mean(found.outcomes["macro_f1"]) == pytest.approx(found.metrics["macro_f1"], abs=0.1)


@pytest.mark.parametrize("given", ["keep.csv", "important"])
def test_examples_that_must_stay_right_decide(tmp_path: Path, given: str) -> None:
    """A prompt that gets one of them wrong loses against one that gets many others wrong."""
    rows = [f"a big film number {number},{'pos' if number % 2 else 'neg'},{'yes' if number == 1 else ''}"
            for number in range(16)]  # fmt: skip
    (tmp_path / "train.csv").write_text("text,label,important\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "keep.csv").write_text("text,label\na big film number 1,pos\n", encoding="utf-8")
    model = str(save("llama", tmp_path / "llama"))
    named = given if given == "important" else str(tmp_path / given)
    settings = {"train": str(tmp_path / "train.csv"), "words": WORDS, "model": model, "shots": 4, "keep_right": named}
    task = ClassificationTask.build(ClassificationSettings(**settings))
    train = split_rows(task, "train")
    kept = [row for row in train if task.rows[row].input == "a big film number 1"]
    assert len(kept) == 1
    assert sum(row.input == "a big film number 1" for row in task.rows) == 1, "it is not in dev or test"
    sides = np.log([[0.9, 0.1], [0.1, 0.9]])
    right = np.array([sides[task.rows[row].target] for row in train])
    place = train.index(kept[0])
    broken, poor = right.copy(), right[:, ::-1].copy()
    broken[place] = right[place, ::-1]  # all right but this one
    poor[place] = right[place]  # all wrong but this one
    values = [task.values(Answers(train, logs), train).mean() for logs in (right, poor, broken)]
    assert values[0] > values[1] > values[2]
    notes = task.metrics(Answers(train, broken), train).tables["notes"]
    line = 2 if given == "keep.csv" else 3
    assert f"1 of 1 examples that must stay right are wrong (line {line})" in notes
