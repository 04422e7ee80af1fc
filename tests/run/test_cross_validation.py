"""Without a test split, figures are cross-validated: no row is read by a prompt that was chosen with its help."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pinprompt.methods.protocol import Candidate, Finalist
from pinprompt.run.running import FOLDS, cross_validated
from pinprompt.values import Evaluation, Prompt, Score


def searched(correct: np.ndarray) -> tuple[Any, list[Finalist]]:
    """A finished search whose finalists are right on these rows, [P, N]."""
    scores = {str(place): Score(float(own.mean()), own, tuple(range(len(own)))) for place, own in enumerate(correct)}
    evaluator = SimpleNamespace(
        known=lambda prompt, split: scores[prompt.text],
        evaluate=lambda prompts, split: [
            Evaluation(split, {}, len(correct[0]), outcomes={"accuracy": tuple(scores[one.text].values)})
            for one in prompts
        ],
    )
    task = SimpleNamespace(info=SimpleNamespace(primary="accuracy", stochastic=False))
    finalists = [Finalist(Candidate(Prompt(name), "pool", 0.0), score.value) for name, score in scores.items()]
    return SimpleNamespace(evaluator=evaluator, task=task), finalists


def test_it_is_the_accuracy_of_prompts_chosen_without_the_row() -> None:
    """By hand: prompt 0 is better on every four fifths but those that leave out its only good fifth."""
    rows = 10 * FOLDS
    folds = np.arange(rows) % FOLDS
    good_on_one = (folds == 0).astype(float)  # right on one fifth, wrong on the others
    steady = (np.arange(rows) < 4).astype(float)  # right on four rows
    search, finalists = searched(np.stack([good_on_one, steady]))
    # Read without the first fifth, the steady prompt is chosen (one of its four rows is in that fifth); else the other.
    expected = (steady[folds == 0].sum() + good_on_one[folds != 0].sum()) / rows
    assert cross_validated(search, finalists) == pytest.approx(expected)


def test_chance_is_not_taken_for_skill() -> None:
    """Of forty prompts that guess, the best looks good; cross-validated it is a guess (mean of fifty searches)."""
    random, best, found = np.random.default_rng(0), [], []
    for _ in range(50):
        guesses = (random.random((40, 100)) < 0.5).astype(float)
        best.append(guesses.mean(axis=1).max())
        found.append(cross_validated(*searched(guesses)) or 0.0)
    assert np.mean(best) > 0.58
    assert np.mean(found) < 0.54


def test_without_a_choice_there_is_no_figure() -> None:
    search, finalists = searched(np.ones((1, 40)))
    assert cross_validated(search, finalists) is None


def test_seven_rows_are_enough() -> None:
    search, finalists = searched(np.stack([np.ones(7), np.zeros(7)]))
    assert cross_validated(search, finalists) == 1.0
