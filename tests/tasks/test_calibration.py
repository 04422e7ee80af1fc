"""Calibration: a prompt's label offsets are measured on its own training rows, in tasks, searches and results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_toys import save

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.answers.memo import Memo
from pinprompt.api import evaluate, predict, tune
from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.maths.readout import calibrated
from pinprompt.recipe.recipe import resolve
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.recipe.task_sections import ClassificationSettings, ModelSettings
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.protocol import check_task, report_fit_rows, split_rows
from pinprompt.values import Answers, Draw, Prompt, derive

GOOD = [
    "the story felt good",
    "a truly wonderful drama",
    "this film was great",
    "a big heart",
    "a drama felt good",
    "ok",
]
BAD = [
    "dull , slow and awful",
    "the plot felt bad",
    "this film was terrible",
    "slow from the start",
    "awful to the end",
    "a bad start",
]
PROMPT = Prompt(" the answer is")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("calibration")
    for name in ("llama", "roberta"):
        save(name, place / name)
    rows = [f'"{text}",pos' for text in GOOD] + [f'"{text}",neg' for text in BAD]
    (place / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return place


def build(folder: Path, model: str = "llama", **more: Any) -> ClassificationTask:
    given: dict[str, Any] = {
        "train": str(folder / "train.csv"),
        "words": {"neg": "terrible", "pos": "great"},
        "model": str(folder / model),
        "shots": 2,
        "test_rows": 2,
        "labels": "calibrated",
    }
    return ClassificationTask.build(ClassificationSettings(**{**given, **more}))


def raw_logs(folder: Path, split: str, **more: Any) -> np.ndarray:
    """The label log-probabilities that the model itself gives, row by row."""
    task = build(folder, labels="words", **more)
    texts = [example.text for example in task.data.splits[split]]
    return np.log([list(chances.values()) for _, chances in task.predict(PROMPT, texts)])


def asked(task: ClassificationTask, prompt: Prompt = PROMPT) -> Answers:
    """The answers on every row of the task."""
    return task.ask([prompt], range(len(task.rows)))[0]


def offsets_of(
    task: ClassificationTask, fit: tuple[int, ...] | None = None, prompt: Prompt = PROMPT
) -> tuple[float, ...]:
    """The label offsets of a prompt: its mean log-odds on the rows of `fit`, by default train and dev."""
    fit = report_fit_rows(task) if fit is None else fit
    logs = np.asarray(asked(task, prompt).on(fit), dtype=np.float64)
    means = [logs[task.targets(fit) == label].mean(axis=0) for label in range(2)]
    offsets = np.mean(means, axis=0) - np.log(task.prior)
    return tuple(offsets - offsets.mean())


def evaluated(task: Any, calls: int | None = 100, memo: Memo | None = None) -> Evaluator:
    return Evaluator(task, Budget(BudgetSettings(calls=calls)), memo=memo)


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_a_calibrated_task_keeps_its_contract(folder: Path, model: str) -> None:
    assert check_task(build(folder, model), ["It was", PROMPT.text]) == []


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_scores_on_every_split_use_the_offsets_of_train(folder: Path, model: str) -> None:
    task = build(folder, model)
    train = raw_logs(folder, "train", model=str(folder / model))
    expected = (train[:, 0] - train[:, 1]).mean() / 2
    answers = asked(task)
    assert offsets_of(task, task.fit_rows) == pytest.approx((expected, -expected), abs=1e-5)
    rows, fit = split_rows(task, "dev"), task.fit_rows
    moved = raw_logs(folder, "dev", model=str(folder / model)) - np.array([expected, -expected])
    gaps = [
        1 - 2 / (1 + np.exp(row[label] - row[1 - label])) for row, label in zip(moved, task.targets(rows), strict=True)
    ]
    values = [gap * (200 if gap > 0 else 180) for gap in gaps]
    assert task.values(answers, rows, fit) == pytest.approx(values, abs=2e-2)
    accuracy = np.mean([gap > 0 for gap in gaps])
    assert task.metrics(answers, rows, fit).metrics["accuracy"] == accuracy
    assert np.trace(task.confusion(answers, rows, fit)) == accuracy * len(rows)


def test_offsets_can_be_measured_on_some_rows(folder: Path) -> None:
    """As in a race, which knows a prompt on a few rows only: those of the rows themselves."""
    task = build(folder)
    rows = task.fit_rows[:2]
    logs = raw_logs(folder, "train")[:2]
    weights = [1.0, 1.0] if len(set(task.targets(rows))) == 2 else [0.5, 0.5]
    mean = np.average(logs[:, 0] - logs[:, 1], weights=weights) / 2
    found = task.probabilities(asked(task), rows, rows)
    assert np.log(found[:, 0] / found[:, 1]) == pytest.approx(logs[:, 0] - logs[:, 1] - 2 * mean, abs=1e-4)
    assert task.probabilities(asked(task), rows) == pytest.approx(np.exp(logs), abs=1e-5)


def test_a_prior_moves_the_labels_to_it(folder: Path) -> None:
    even, odd = build(folder), build(folder, prior={"neg": 1, "pos": 3})
    moved = np.subtract(offsets_of(even), offsets_of(odd))
    assert moved == pytest.approx([-np.log(3) / 2, np.log(3) / 2], abs=1e-5)
    assert even.info.fingerprint != odd.info.fingerprint
    with pytest.raises(SettingError, match="no share for pos"):
        build(folder, prior={"neg": 1})
    with pytest.raises(SettingError, match="'poz', which is not a label"):
        build(folder, prior={"neg": 1, "poz": 1})
    with pytest.raises(SettingError, match=r"needs task\.labels"):
        build(folder, labels="words", prior={"neg": 1, "pos": 1})


def test_few_rows_are_said_to_be_few(folder: Path, tmp_path: Path) -> None:
    assert any("4 training rows, 2 of the rarest class" in note for note in build(folder).info.notes)
    rows = [f"good {number},pos\nbad {number},neg" for number in range(20)]
    (tmp_path / "many.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    many = build(folder, train=str(tmp_path / "many.csv"), shots=8)
    assert not any("rarest class" in note for note in many.info.notes)


def test_an_evaluation_has_both_figures(folder: Path) -> None:
    task, plain = build(folder), build(folder, labels="words")
    rows = split_rows(task, "dev")
    found = task.metrics(asked(task), rows, task.fit_rows)
    raw = plain.metrics(asked(plain), rows)
    assert {name: found.metrics[f"raw_{name}"] for name in raw.metrics} == dict(raw.metrics)
    assert found.intervals["raw_accuracy"] == raw.intervals["accuracy"]
    offsets = offsets_of(task, task.fit_rows)
    assert found.tables["readout"]["offsets"] == pytest.approx(
        dict(zip(("neg", "pos"), offsets, strict=True)), abs=1e-5
    )
    assert "raw_accuracy" not in raw.metrics


def noted(task: ClassificationTask) -> list[tuple[set[str], list[str]]]:
    """The splits and prompts of every question from now on."""
    seen: list[tuple[set[str], list[str]]] = []
    ask = task.ask

    def asked(prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        seen.append(({task.rows[row].split for row in rows}, [prompt.text for prompt in prompts]))
        return ask(prompts, rows, draws)

    task.ask = asked  # type: ignore[method-assign]
    return seen


def test_the_evaluator_pays_for_offsets_once(folder: Path) -> None:
    task = build(folder)
    seen, evaluator = noted(task), evaluated(task)
    evaluator.score([PROMPT])
    evaluator.score([PROMPT, Prompt("It was")], "dev")
    evaluator.evaluate([PROMPT], "test")
    evaluator.evaluate([Prompt("so")], "test")
    assert seen == [
        ({"train"}, [PROMPT.text]),
        ({"train"}, ["It was"]),
        ({"dev"}, [PROMPT.text, "It was"]),
        ({"test"}, [PROMPT.text]),
        ({"train", "dev"}, ["so"]),
        ({"test"}, ["so"]),
    ]
    assert evaluator.charged_calls == 4 * 4
    assert evaluator.report_calls == 2 * 2 + 8


def test_an_evaluation_of_known_answers_is_not_asked_for(folder: Path) -> None:
    task = build(folder)
    seen, evaluator = noted(task), evaluated(task)
    other = Prompt("It was")
    evaluator.score([PROMPT, other], "dev")
    before = len(seen)
    found = evaluator.evaluate([PROMPT, other], "dev")
    assert (len(seen), evaluator.report_calls) == (before, 0)
    plain = build(folder)
    for prompt, evaluation in zip((PROMPT, other), found, strict=True):
        rows, seed = split_rows(plain, "dev"), derive(0, "task", "evaluation", "dev")
        alone = plain.metrics(asked(plain, prompt), rows, report_fit_rows(plain), seed)
        assert evaluation.metrics == pytest.approx(alone.metrics, abs=1e-3)
        assert evaluation.intervals == alone.intervals
        assert evaluation.outcomes == alone.outcomes
    together = evaluator.evaluate([PROMPT, other, PROMPT], "test")
    assert seen[before:] == [({"test"}, [PROMPT.text, other.text])]
    assert together[0] == together[2]


def test_a_budget_that_cannot_pay_for_train_scores_fewer(folder: Path) -> None:
    evaluator = evaluated(build(folder), calls=7)
    evaluator.score([PROMPT])
    with pytest.raises(BudgetSpent, match="4 needed") as spent:  # what the second prompt needs on train
        evaluator.score([PROMPT, Prompt("It was")], "test")
    assert len(spent.value.scores) == 1
    assert evaluator.charged_calls == 4 + 2


def test_the_memo_does_not_change_a_run(folder: Path, tmp_path: Path) -> None:
    def seen(memo: Memo | None) -> list[Any]:
        evaluator = evaluated(build(folder), memo=memo)
        (score,), found = evaluator.score([PROMPT], "dev"), evaluator.evaluate([Prompt("so")], "test")
        figures = [evaluator.charged_calls, evaluator.report_calls, evaluator.requests_made, evaluator.prompts_table()]
        evaluator.close()
        return [score.value, score.values.tolist(), found, *figures]

    without = seen(None)
    assert seen(Memo(tmp_path / "memo.sqlite")) == without
    assert seen(Memo(tmp_path / "memo.sqlite")) == without


def test_answers_are_shared_by_tasks_that_only_count_differently(folder: Path, tmp_path: Path) -> None:
    """A reward or a calibration is arithmetic: the memo's answers serve all of them, and no other model."""

    def paid(prompt: Prompt = PROMPT, **more: Any) -> int:
        evaluator = evaluated(build(folder, **more), memo=Memo(tmp_path / "memo.sqlite"))
        evaluator.score([prompt], "test")
        return evaluator.paid_calls

    assert paid() == 4 + 2
    for same in ({}, {"labels": "words"}, {"reward": "accuracy"}, {"prior": {"neg": 1, "pos": 3}}):
        assert paid(**same) == 0
    assert paid(labels="words", template="{text} : {prompt}") == 2
    assert paid(words={"neg": "bad", "pos": "good"}) == 6
    assert paid(Prompt("so")) == 6
    prints = {build(folder).info.fingerprint, build(folder, labels="words").info.fingerprint}
    assert len(prints | {build(folder, reward="accuracy").info.fingerprint}) == 3


def test_the_precision_and_the_rows_make_another_task_but_other_rows_the_same_answers(folder: Path) -> None:
    def marks(train: str = "train.csv", **models: Any) -> tuple[str, str]:
        given = {"train": str(folder / train), "words": {"neg": "terrible", "pos": "great"}, "shots": 5}
        settings = ClassificationSettings(**given, model=str(folder / "llama"))
        info = ClassificationTask.build(settings, models=ModelSettings(**models)).info
        return info.fingerprint, info.answered_by

    rows = (folder / "train.csv").read_text(encoding="utf-8")
    (folder / "changed.csv").write_text(rows.replace("a big heart", "no big heart"), encoding="utf-8")
    whole, rounded, changed = marks(), marks(precision="bf16"), marks("changed.csv")
    assert len({whole[0], rounded[0], changed[0]}) == 3
    assert whole[1] == changed[1]  # the same text gets the same answer, whatever other rows there are
    assert whole[1] != rounded[1]


def test_profiles_decide_and_settings_overrule() -> None:
    def of(**more: Any) -> str:
        task = {"dataset": "sst-2", **more.pop("task", {})}
        return str(resolve({"task": task, **more}).task.labels)  # type: ignore[union-attr]

    assert of(profile="quick") == "learnt"
    assert of(profile="quick", method="pin") == "calibrated"
    assert of(profile="paper") == "words"
    assert of(profile="quick", task={"labels": "words"}) == "words"
    with pytest.raises(SettingError, match="content-free"):
        of(task={"labels": "content-free"})
    with pytest.raises(SettingError, match="above 0"):
        of(task={"prior": {"0": 0.0, "1": 1.0}})


def test_offsets_belong_to_the_answer(folder: Path, tmp_path: Path) -> None:
    """Found, stored, used by predict without the training file, and measured again on another model."""
    data = tmp_path / "rows.csv"
    data.write_text((folder / "train.csv").read_text(encoding="utf-8"), encoding="utf-8")
    words = {"neg": "terrible", "pos": "great"}
    task = {"train": str(data), "words": words, "model": str(folder / "llama"), "shots": 2, "labels": "calibrated"}
    task["embeddings"] = None
    settings = {
        "policy": {"model": str(folder / "llama"), "k": None},
        "scoring": {"memo": False},
        "task": {"instruction": "in this task the answer is one word"},
    }
    result = tune(task, out=tmp_path / "run", method="manual", settings=settings)
    measured = build(folder, train=str(data), instruction="in this task the answer is one word")
    expected = offsets_of(measured, prompt=Prompt("It was"))
    stored = result.data["readout"]
    assert stored["kind"] == "calibrated"
    assert stored["offsets"] == pytest.approx(dict(zip(words, expected, strict=True)), abs=1e-5)
    other = result.data["baselines"]["instructions"]
    assert other["readout"]["offsets"] != stored["offsets"]
    for facts in (result.data["test"], other["test"], other["dev"]):
        assert {"accuracy", "raw_accuracy"} <= set(facts)
    page = result.report.read_text(encoding="utf-8")
    assert "Labels are read by calibrated label words" in page
    assert f"pos {expected[1]:+.3f}" in page

    own = evaluate(result.folder)[str(folder / "llama")]
    assert own.metrics["accuracy"] == result.data["test"]["accuracy"]
    carried = evaluate(result.folder, task_models=[str(folder / "roberta")])[str(folder / "roberta")]
    other_model = build(folder, "roberta", train=str(data))
    again = offsets_of(other_model, prompt=Prompt("It was"))
    assert carried.tables["readout"]["offsets"] == pytest.approx(dict(zip(words, again, strict=True)), abs=1e-5)

    data.unlink()
    chances = predict(result.folder, ["a big drama"])[0]["probabilities"]
    assert chances == pytest.approx(measured.predict(Prompt("It was"), ["a big drama"], calibrated(expected))[0][1])
    plain = build(folder, labels="words").predict(Prompt("It was"), ["a big drama"])[0][1]
    odds = np.log(chances["pos"] / chances["neg"]) - np.log(plain["pos"] / plain["neg"])
    assert odds == pytest.approx(expected[0] - expected[1], abs=1e-4)
