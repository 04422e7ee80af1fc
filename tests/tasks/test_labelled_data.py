"""Label words from the names of the labels, and the hand-written prompt that fits them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from label_toys import save
from tests.toys.label_runs import settings_of

from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.task_sections import ClassificationSettings
from pinprompt.run import running
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.labelled_data import LabelledData, chosen, fitting_prompt, load_data, proposed


@pytest.mark.parametrize(
    ("labels", "first"),
    [
        (["neg", "pos"], {"neg": "terrible", "pos": "great"}),
        (["Positive", "NEGATIVE", "neutral"], {"Positive": "great", "NEGATIVE": "terrible", "neutral": "okay"}),
        (["1", "2", "3", "4", "5"], {"1": "terrible", "2": "bad", "3": "okay", "4": "good", "5": "great"}),
        (["Sports", "World"], {"Sports": "sports", "World": "world"}),
        (["billing_issue", "LoginProblem"], {"billing_issue": "billing", "LoginProblem": "login"}),
        (["sci.space", "rec.autos"], {"sci.space": "space", "rec.autos": "autos"}),
    ],
)
def test_names_become_words(labels: list[str], first: dict[str, str]) -> None:
    found = proposed(labels)
    assert {label: words[0] for label, words in found.items()} == first


@pytest.mark.parametrize("labels", [["0", "1"], ["A", "B"], ["1", "2", "3"], ["x1", "x2"], ["", "yes"]])
def test_names_that_say_nothing_get_no_words(labels: list[str]) -> None:
    assert proposed(labels) == {}


def test_labels_that_share_a_word_get_different_ones() -> None:
    found = proposed(["billing question", "billing complaint"])
    assert found["billing question"][0] != found["billing complaint"][0]


def test_the_choice_is_the_pair_that_makes_the_labels_likeliest() -> None:
    candidates = {"neg": ("terrible", "bad"), "pos": ("great", "good")}
    words = ["terrible", "bad", "great", "good"]
    random = np.random.default_rng(0)
    targets = np.array([0, 1] * 20)
    telling = np.where(targets[:, None] == np.array([0, 0, 1, 1]), 2.0, 0.0)
    useless = np.array([0.0, 1.0, 1.0, 0.0])  # only "bad" and "great" know the label
    logs = telling * useless + 0.1 * random.standard_normal((40, 4)) - 5.0
    assert chosen(candidates, words, logs, targets) == {"neg": "bad", "pos": "great"}
    # What a word has for every row alike is calibrated away: it changes no choice.
    assert chosen(candidates, words, logs + np.array([0.0, -9.0, 0.0, 4.0]), targets) == {"neg": "bad", "pos": "great"}


def test_words_of_two_labels_stay_different() -> None:
    candidates = {"a": ("one", "both"), "b": ("two", "both")}
    logs = np.array([[0.0, 0.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, -3.0], [0.0, 0.0, -3.0]])
    found = chosen(candidates, ["one", "two", "both"], logs, np.array([0, 0, 1, 1]))
    assert len(set(found.values())) == 2


@pytest.mark.parametrize(
    ("words", "column", "prompt"),
    [
        (["great", "terrible"], "label", "It was"),
        (["yes", "no"], "spam?", "The answer is"),
        (["billing", "login"], "queue", "Queue:"),
        (["billing", "login"], "ticket_type", "Ticket type:"),
        (["billing", "login"], "label", "Category:"),
        (["billing", "login"], "c1", "Category:"),
    ],
)
def test_the_prompt_fits_the_words(words: list[str], column: str, prompt: str) -> None:
    assert fitting_prompt(words, column) == prompt


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_the_task_tries_the_words_on_its_training_rows(tmp_path: Path, model: str) -> None:
    save(model, tmp_path / model)
    rows = [("the story felt good", "pos"), ("this film was great", "pos"), ("a big heart", "pos"),
            ("the plot felt bad", "neg"), ("slow from the start", "neg"), ("awful to the end", "neg")]  # fmt: skip
    (tmp_path / "train.csv").write_text("text,mood\n" + "\n".join(f"{a},{b}" for a, b in rows) + "\n")
    settings = ClassificationSettings(
        train=str(tmp_path / "train.csv"), label_column="mood", model=str(tmp_path / model), shots=2
    )
    task = ClassificationTask.build(settings)
    assert set(task.data.words) == {"neg", "pos"}
    assert task.data.words["pos"] in ("great", "good", "positive")
    assert list(task.model.words.words.values()) == list(task.data.words.values())
    assert any("label words from the labels' names" in note and "6 words" in note for note in task.info.notes)
    again = settings.model_copy(update={"words": dict(task.data.words)})
    assert ClassificationTask.build(again).info.fingerprint == task.info.fingerprint


def test_a_run_stores_its_words_and_resumes_without_them(tmp_path: Path) -> None:
    tree = settings_of(tmp_path, method="random", budget={"calls": 40})
    del tree["task"]["words"]
    first = running.run(recipes.resolve(tree), tmp_path / "run", device="cpu", threads=1)
    words = running.recipe_of(tmp_path / "run").task.words  # type: ignore[union-attr]
    assert set(words) == {"neg", "pos"}
    assert first.data["sent"]["words"] == words
    more = recipes.resolve({**tree, "budget": {"calls": 80}})
    again = running.run(more, tmp_path / "run", device="cpu", threads=1, resume=True)
    assert again.calls > first.calls
    assert running.recipe_of(tmp_path / "run").task.words == words  # type: ignore[union-attr]


def own_file(folder: Path, counts: dict[str, int], more: str = "") -> ClassificationSettings:
    """A file with the given number of rows of each label."""
    rows = [f"{label} text {number},{label}" for label, count in counts.items() for number in range(count)]
    (folder / "own.csv").write_text("text,label\n" + "\n".join(rows) + "\n" + more)
    return ClassificationSettings(train=str(folder / "own.csv"), words={label: label for label in counts})


def sizes(data: LabelledData) -> dict[str, int]:
    return {name: len(rows) for name, rows in data.splits.items()}


def test_a_rare_label_does_not_shrink_the_others(tmp_path: Path) -> None:
    data = load_data(own_file(tmp_path, {"billing": 30, "delivery": 30, "account": 22, "privacy": 3}))
    assert sizes(data) == {"train": 10 + 10 + 7 + 1, "dev": 10 + 10 + 7 + 1, "test": 10 + 10 + 8 + 1}
    assert {row.label for row in data.splits["train"]} == {"billing", "delivery", "account", "privacy"}
    assert any("privacy (3)" in note for note in data.notes)
    assert any("28 for training, 28 for choosing, 29 for the report" in note for note in data.notes)


def test_few_rows_are_all_used_without_a_tiny_test_split(tmp_path: Path) -> None:
    data = load_data(own_file(tmp_path, {"a": 9, "b": 8, "c": 1}))
    assert sum(sizes(data).values()) == 18
    assert "test" not in data.splits
    assert any("too few for a test split" in note for note in data.notes)


def test_blank_repeated_and_contradicting_rows_are_left_out_and_listed(tmp_path: Path) -> None:
    settings = own_file(tmp_path, {"a": 40, "b": 40}, "  ,a\n,b\na text 0,a\nb text 1,a\n")
    data = load_data(settings)
    assert sum(sizes(data).values()) == 80
    said = " ".join(data.notes)
    assert "2 rows (lines 82, 83) left out: no text" in said
    assert "1 row (line 84) left out: repeats an earlier text" in said
    assert "1 row (line 85) left out: gives an earlier text another label" in said
