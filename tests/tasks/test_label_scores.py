"""Numbers of labels: rewards, metrics and intervals by hand; calibration on small models, in runs and in journals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_toys import save

from pinprompt.api import evaluate, predict, tune
from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.recipe.recipe import resolve
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.recipe.task_sections import ClassificationSettings, ModelSettings
from pinprompt.scoring.budget import Budget
from pinprompt.scoring.evaluator import Evaluator
from pinprompt.scoring.journal import Journal, pack_score, unpack_score
from pinprompt.scoring.memo import Memo
from pinprompt.tasks import label_scores
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.protocol import check_task
from pinprompt.values import Prompt, derive

P = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2]])
Y = np.array([0, 0, 1])


def test_gap_reward_by_hand() -> None:
    assert label_scores.gaps(P, Y) == pytest.approx([0.5, -0.3, 0.0])
    assert label_scores.gap_reward(P, Y, 180, 200) == pytest.approx([100.0, -54.0, 0.0])
    assert label_scores.correct(P, Y).tolist() == [True, False, False]


def test_a_tie_is_never_a_win() -> None:
    even = np.array([[0.5, 0.5], [0.5, 0.5]])
    labels = np.array([0, 1])
    assert label_scores.gap_reward(even, labels, 180, 200).tolist() == [0.0, 0.0]
    assert label_scores.predictions(even, labels).tolist() == [1, 0]


def test_log_likelihood_stays_finite() -> None:
    found = label_scores.log_likelihood(np.array([[0.0, 1.0]]), np.array([0]))
    assert np.isfinite(found).all()
    assert found[0] < -700


def test_metrics_of_many_tables_are_those_of_each() -> None:
    tables = np.random.default_rng(0).integers(0, 4, size=(50, 3, 3))
    tables[0] = 0  # no rows at all
    tables[1, :, 2] = tables[1, 2] = 0  # a class that neither occurs nor is predicted
    for metric in (label_scores.accuracy, label_scores.macro_f1):
        assert metric(tables).tolist() == pytest.approx([float(metric(table)) for table in tables])


def test_confusion_and_macro_f1_against_sklearn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    table = label_scores.confusion(y, p, 4)
    assert table.tolist() == sklearn.confusion_matrix(y, p).tolist()
    assert label_scores.macro_f1(table) == pytest.approx(sklearn.f1_score(y, p, average="macro"))
    assert label_scores.accuracy(table) == pytest.approx(sklearn.accuracy_score(y, p))


def test_intervals_against_the_binomial() -> None:
    y = np.zeros(400, dtype=np.int64)
    p = np.array([0] * 300 + [1] * 100)
    found = label_scores.intervals(y, p, 2, {"accuracy": label_scores.accuracy}, seed=3)
    spread = 1.96 * np.sqrt(0.75 * 0.25 / 400)
    assert found["accuracy"] == pytest.approx((0.75 - spread, 0.75 + spread), abs=0.01)
    assert found == label_scores.intervals(y, p, 2, {"accuracy": label_scores.accuracy}, seed=3)


@pytest.mark.filterwarnings("error")
def test_what_is_not_a_number_is_packed_as_no_probability() -> None:
    rows = np.array([[np.nan, np.nan], [0.25, 0.75]])
    assert label_scores.packed(rows, np.array([0, 1])) == "0100" + "40be"  # 64 and 190 of 254; a prediction stands out


FLAT = np.array([0.5, 0.5])
GOOD = ["the story felt good", "a truly wonderful drama", "this film was great", "a big heart", "a drama felt good"]
BAD = [
    "dull , slow and awful",
    "the plot felt bad",
    "this film was terrible",
    "slow from the start",
    "awful to the end",
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
        "calibrate": "batch",
    }
    return ClassificationTask.build(ClassificationSettings(**{**given, **more}))


def raw_logs(folder: Path, split: str, **more: Any) -> np.ndarray:
    """The label log-probabilities that the model itself gives, row by row."""
    task = build(folder, calibrate="none", **more)
    texts = [example.text for example in task.data.splits[split]]
    return np.log([list(chances.values()) for _, chances in task.predict(PROMPT, texts)])


def test_batch_offsets_by_hand() -> None:
    logs = np.log([[0.8, 0.2], [0.5, 0.5]])
    offsets = label_scores.batch_offsets(logs, np.array([0, 1]), FLAT)
    # The mean difference of the two classes is (log 4 + log 1) / 2 = log 2, half of it on either side.
    assert offsets == pytest.approx([np.log(2) / 2, -np.log(2) / 2], abs=1e-6)
    found = label_scores.calibrated(logs, offsets)
    assert found == pytest.approx(np.array([[2 / 3, 1 / 3], [1 / 3, 2 / 3]]), abs=1e-5)


def test_content_free_offsets_by_hand() -> None:
    offsets = label_scores.content_free_offsets(np.log([[0.9, 0.1], [0.6, 0.4]]), FLAT)
    found = label_scores.calibrated(np.log([[0.6, 0.4]]), offsets)
    assert found[0] == pytest.approx([0.8 / 2.4, 1.6 / 2.4], abs=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_a_prompts_liking_for_a_label_does_not_change_what_it_says(classes: int) -> None:
    random = np.random.default_rng(classes)
    labels = np.concatenate([np.arange(classes), random.integers(0, classes, 20)])
    logs = random.normal(size=(len(labels), classes))
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    liking = random.normal(size=classes) * 5
    flat = np.full(classes, 1 / classes)
    plain = label_scores.calibrated(logs, label_scores.batch_offsets(logs, labels, flat))
    biased = label_scores.calibrated(logs + liking, label_scores.batch_offsets(logs + liking, labels, flat))
    assert biased == pytest.approx(plain, abs=1e-5)
    prior = random.dirichlet(np.ones(classes) * 3)
    moved = label_scores.batch_offsets(logs, labels, prior)
    even = label_scores.batch_offsets(logs, labels, flat)
    odds = label_scores.calibrated(logs, moved) / label_scores.calibrated(logs, even) / prior
    assert odds == pytest.approx(np.repeat(odds[:, :1], classes, axis=1), rel=1e-4)


def test_a_class_with_more_rows_weighs_no_more() -> None:
    one = np.log([[0.9, 0.1], [0.3, 0.7]])
    many = np.concatenate([np.repeat(one[:1], 9, axis=0), one[1:]])
    offsets = label_scores.batch_offsets(many, np.array([0] * 9 + [1]), FLAT)
    assert offsets == pytest.approx(label_scores.batch_offsets(one, np.array([0, 1]), FLAT), abs=1e-6)


def test_answers_come_back_as_they_were() -> None:
    logs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32).astype(np.float64)
    assert (label_scores.unpack_rows(label_scores.pack_rows(logs), 3) == logs).all()


@pytest.mark.parametrize("model", ["llama", "roberta"])
@pytest.mark.parametrize("calibrate", ["batch", "content-free"])
def test_a_calibrated_task_keeps_its_contract(folder: Path, model: str, calibrate: str) -> None:
    assert check_task(build(folder, model, calibrate=calibrate), ["It was", PROMPT.text]) == []


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_scores_on_every_split_use_the_offsets_of_train(folder: Path, model: str) -> None:
    task = build(folder, model)
    train = raw_logs(folder, "train", model=str(folder / model))
    expected = (train[:, 0] - train[:, 1]).mean() / 2
    [score] = task.score([PROMPT])
    assert score.offsets == pytest.approx((expected, -expected), abs=1e-5)
    assert score.calls == task.calls("train") == len(train)
    logs = raw_logs(folder, "dev", model=str(folder / model))
    moved = logs - np.array([expected, -expected])
    [dev] = task.score([Prompt(PROMPT.text, offsets=score.offsets)], split="dev")
    right = [bool(row[label] > row[1 - label]) for row, label in zip(moved, task.targets("dev"), strict=True)]
    assert dev.details["accuracy"] == np.mean(right)
    assert dev.calls == task.calls("dev") == len(logs)
    assert np.mean(task.row_values(dev, "dev")) == pytest.approx(dev.value, abs=1e-3)
    # Without offsets they are measured, and the calls for it are owned up to.
    [alone] = task.score([PROMPT], split="dev")
    assert (alone.value, alone.calls) == (dev.value, dev.calls + score.calls)
    assert task.score([PROMPT], split="dev")[0].calls == dev.calls


def test_a_prior_moves_the_labels_to_it(folder: Path) -> None:
    even, [odd] = build(folder).score([PROMPT])[0], build(folder, prior={"neg": 1, "pos": 3}).score([PROMPT])
    assert np.subtract(even.offsets, odd.offsets) == pytest.approx([-np.log(3) / 2, np.log(3) / 2], abs=1e-5)
    assert build(folder).fingerprint != build(folder, prior={"neg": 1, "pos": 3}).fingerprint
    with pytest.raises(SettingError, match="no share for pos"):
        build(folder, prior={"neg": 1})
    with pytest.raises(SettingError, match="'poz', which is not a label"):
        build(folder, prior={"neg": 1, "poz": 1})
    with pytest.raises(SettingError, match=r"needs task\.calibrate"):
        build(folder, calibrate="none", prior={"neg": 1, "pos": 1})


def test_few_rows_are_said_to_be_few(folder: Path, tmp_path: Path) -> None:
    assert any("4 training rows, 2 of the rarest class" in note for note in build(folder).notes)
    rows = [f"good {number},pos\nbad {number},neg" for number in range(20)]
    (tmp_path / "many.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    assert not any("calibrate" in note for note in build(folder, train=str(tmp_path / "many.csv"), shots=8).notes)


def test_an_evaluation_has_both_figures(folder: Path) -> None:
    task, plain = build(folder), build(folder, calibrate="none")
    [score] = task.score([PROMPT])
    found = task.evaluate(Prompt(PROMPT.text, offsets=score.offsets), "dev")
    raw = plain.evaluate(PROMPT, "dev")
    assert {name: found.metrics[f"raw_{name}"] for name in raw.metrics} == dict(raw.metrics)
    assert found.intervals["raw_accuracy"] == raw.intervals["accuracy"]
    assert found.tables["calibration"]["offsets"] == dict(zip(("neg", "pos"), score.offsets, strict=True))
    assert "raw_accuracy" not in raw.metrics
    assert found.calls == task.calls("dev")


def test_a_score_survives_the_journal(folder: Path) -> None:
    [score] = build(folder).score([PROMPT])
    assert unpack_score(pack_score(score)) == score
    with pytest.raises(ValueError, match="offset is not finite"):
        unpack_score(pack_score(score) | {"offsets": [float("nan"), 0.0]})


class Counting:
    """A task that writes down what is asked of its model."""

    def __init__(self, task: ClassificationTask) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def score(self, prompts: list[Prompt], seeds: list[int], split: str = "train") -> Any:
        self.asked.append((split, tuple(prompt.text for prompt in prompts)))
        return self._task.score(prompts, seeds, split)

    def evaluate_many(self, prompts: list[Prompt], split: str, seed: int = 0) -> Any:
        self.asked.append((f"evaluate {split}", tuple(prompt.text for prompt in prompts)))
        assert all(prompt.offsets for prompt in prompts)
        return self._task.evaluate_many(prompts, split, seed)


def test_the_evaluator_pays_for_offsets_once(folder: Path, tmp_path: Path) -> None:
    task = Counting(build(folder))
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=100)), journal=Journal(tmp_path / "scores.jsonl"))  # type: ignore[arg-type]
    evaluator.score([PROMPT])
    evaluator.score([PROMPT, Prompt("It was")], "dev")
    evaluator.evaluate(PROMPT, "test")
    evaluator.evaluate(Prompt("so"), "test")
    assert task.asked == [
        ("train", (PROMPT.text,)),
        ("train", ("It was",)),
        ("dev", (PROMPT.text, "It was")),
        ("evaluate test", (PROMPT.text,)),
        ("train", ("so",)),
        ("evaluate test", ("so",)),
    ]
    assert evaluator.charged_calls == 4 * 4
    assert evaluator.report_calls == 2 * 2 + 4
    evaluator.close()


def test_an_evaluation_that_follows_from_a_score_is_not_asked_for(folder: Path) -> None:
    task = Counting(build(folder))
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=100)))  # type: ignore[arg-type]
    other = Prompt("It was")
    evaluator.score([PROMPT, other], "dev")
    asked = len(task.asked)
    found = evaluator.evaluate_all([PROMPT, other], "dev")
    assert len(task.asked) == asked
    assert evaluator.report_calls == 0
    plain = build(folder)
    for prompt, evaluation in zip((PROMPT, other), found, strict=True):
        asked_for = plain.evaluate(prompt, "dev", derive(0, "task", "evaluation", "dev"))
        assert evaluation.metrics == asked_for.metrics
        assert evaluation.intervals == asked_for.intervals
        assert evaluation.outcomes == asked_for.outcomes
    together = evaluator.evaluate_all([PROMPT, other, PROMPT], "test")
    assert task.asked[asked:] == [("evaluate test", (PROMPT.text, other.text))]
    assert together[0] == together[2]
    alone = plain.evaluate(PROMPT, "test", derive(0, "task", "evaluation", "test"))
    assert together[0].metrics == alone.metrics


def test_a_budget_that_cannot_pay_for_train_scores_fewer(folder: Path) -> None:
    evaluator = Evaluator(build(folder), Budget(BudgetSettings(calls=7)))
    evaluator.score([PROMPT])
    with pytest.raises(BudgetSpent, match="4 needed") as spent:  # what the second prompt needs on train
        evaluator.score([PROMPT, Prompt("It was")], "test")
    assert len(spent.value.scores) == 1
    assert evaluator.charged_calls == 4 + 2


def test_the_memo_does_not_change_a_run(folder: Path, tmp_path: Path) -> None:
    def seen(memo: Memo | None) -> list[Any]:
        evaluator = Evaluator(build(folder), Budget(BudgetSettings(calls=100)), memo)
        found = [evaluator.score([PROMPT], "dev")[0], evaluator.evaluate(Prompt("so"), "test")]
        figures = [evaluator.charged_calls, evaluator.report_calls, evaluator.requests, evaluator.prompts_table()]
        evaluator.close()
        return found + figures

    without = seen(None)
    assert seen(Memo(tmp_path / "memo.sqlite")) == without
    assert seen(Memo(tmp_path / "memo.sqlite")) == without


def test_memo_keys_know_the_calibration_and_the_training_rows(folder: Path) -> None:
    tasks = [build(folder), build(folder, calibrate="none"), build(folder, calibrate="content-free")]
    assert len({task.fingerprints["test"] for task in tasks}) == 3
    rows = (folder / "train.csv").read_text(encoding="utf-8")
    (folder / "other.csv").write_text(rows.replace("a big heart", "one big heart"), encoding="utf-8")
    (folder / "test.csv").write_text("text,label\nfine,pos\npoor,neg\n", encoding="utf-8")
    given = {"test": str(folder / "test.csv"), "shots": 5, "dev": str(folder / "train.csv")}
    for calibrate, same in (("batch", False), ("none", True)):
        one = build(folder, calibrate=calibrate, **given)
        other = build(folder, calibrate=calibrate, **given | {"train": str(folder / "other.csv")})
        assert (one.fingerprints["test"] == other.fingerprints["test"]) is same


def test_runs_are_comparable_however_their_prompts_are_read(folder: Path) -> None:
    """Q-learning reads prompts token by token: other last bits, so other scores in the memo, but the same task."""

    def marks(train: str = "train.csv", **models: Any) -> tuple[str, str]:
        given = {"train": str(folder / train), "words": {"neg": "terrible", "pos": "great"}, "shots": 5}
        settings = ClassificationSettings(**given, model=str(folder / "llama"))
        task = ClassificationTask.build(settings, models=ModelSettings(**models))
        return task.fingerprint, task.data_fingerprint

    rows = (folder / "train.csv").read_text(encoding="utf-8")
    (folder / "changed.csv").write_text(rows.replace("a big heart", "no big heart"), encoding="utf-8")
    whole, by_prefix, rounded, changed = marks(), marks(read="prefixes"), marks(precision="bf16"), marks("changed.csv")
    assert len({whole[0], by_prefix[0], rounded[0], changed[0]}) == 4
    assert whole[1] == by_prefix[1]
    assert len({whole[1], rounded[1], changed[1]}) == 3


def test_profiles_and_old_recipes() -> None:
    def of(**more: Any) -> str:
        task = {"dataset": "sst-2", **more.pop("task", {})}
        return str(resolve({"task": task, **more}).task.calibrate)  # type: ignore[union-attr]

    assert of(profile="quick") == "batch"
    assert of(profile="paper") == "none"
    assert of(profile="quick", task={"calibrate": "none"}) == "none"
    assert of(task={"calibrate": True}) == "content-free"
    assert of(profile="quick", task={"calibrate": False}) == "none"
    with pytest.raises(SettingError, match="above 0"):
        of(task={"prior": {"0": 0.0, "1": 1.0}})


def test_offsets_belong_to_the_answer(folder: Path, tmp_path: Path) -> None:
    """Found, stored, used by predict without the training file, and measured again on another model."""
    data = tmp_path / "rows.csv"
    data.write_text((folder / "train.csv").read_text(encoding="utf-8"), encoding="utf-8")
    words = {"neg": "terrible", "pos": "great"}
    task = {"train": str(data), "words": words, "model": str(folder / "llama"), "shots": 2, "calibrate": "batch"}
    settings = {
        "policy": {"model": str(folder / "llama"), "k": None},
        "scoring": {"memo": False},
        "task": {"instruction": "in this task the answer is one word"},
    }
    result = tune(task, out=tmp_path / "run", method="manual", settings=settings)
    measured = build(folder, train=str(data), instruction="in this task the answer is one word")
    expected = measured.score([Prompt("It was")])[0].offsets
    stored = result.data["calibration"]
    assert stored["kind"] == "batch"
    assert stored["offsets"] == dict(zip(words, expected, strict=True))
    other = result.data["baselines"]["instructions"]
    assert other["calibration"]["offsets"] != stored["offsets"]
    for facts in (result.data["test"], other["test"], other["dev"]):
        assert {"accuracy", "raw_accuracy"} <= set(facts)
    page = result.report.read_text(encoding="utf-8")
    assert "Labels are calibrated" in page
    assert f"pos {expected[1]:+.3f}" in page

    own = evaluate(result.folder)[str(folder / "llama")]
    assert own.metrics["accuracy"] == result.data["test"]["accuracy"]
    assert own.calls == measured.calls("test")
    carried = evaluate(result.folder, task_models=[str(folder / "roberta")])[str(folder / "roberta")]
    again = build(folder, "roberta", train=str(data)).score([Prompt("It was")])[0].offsets
    assert carried.tables["calibration"]["offsets"] == dict(zip(words, again, strict=True))

    data.unlink()
    chances = predict(result.folder, ["a big drama"])[0]["probabilities"]
    assert chances == pytest.approx(measured.predict(Prompt("It was", offsets=expected), ["a big drama"])[0][1])
    plain = build(folder, calibrate="none").predict(Prompt("It was"), ["a big drama"])[0][1]
    odds = np.log(chances["pos"] / chances["neg"]) - np.log(plain["pos"] / plain["neg"])
    assert odds == pytest.approx(expected[0] - expected[1], abs=1e-4)
