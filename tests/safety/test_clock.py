"""Time limits hold inside long passes, what was scored is kept, and an estimate ends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import label_runs
import pytest

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import BudgetSpent
from pinprompt.models.label_text import Frame
from pinprompt.models.labels import CausalLabels, Inputs
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.run import build, estimating
from pinprompt.tasks import label_models
from pinprompt.values import Prompt

PROMPTS = [Prompt(f"it was{' so' * number}") for number in range(16)]


def test_the_clock_is_looked_at_inside_passes_and_what_is_scored_is_kept(tmp_path: Path) -> None:
    """Each look at the clock takes a second: the model has dozens of layers to look from."""
    raw = recipes.resolve(label_runs.settings_of(tmp_path))

    def score(minutes: float) -> int:
        seconds = itertools.count()
        Evaluator(task, Budget(BudgetSettings(minutes=minutes), clock=lambda: float(next(seconds)))).score(PROMPTS)
        return next(seconds)

    task = build.build_task(raw, "cpu")
    whole = score(10**6)
    task = build.build_task(raw, "cpu")
    with pytest.raises(BudgetSpent, match="minutes") as ended:
        score(0.6 * whole / 60)
    kept = ended.value.scores
    assert 0 < len(kept) < len(PROMPTS)
    # What was interrupted leaves nothing wrong behind: the same task gives the same scores again, and all others.
    again = Evaluator(task, Budget(BudgetSettings())).score(PROMPTS)
    fresh = Evaluator(build.build_task(raw, "cpu"), Budget(BudgetSettings())).score(PROMPTS)
    assert [score.value for score in again] == [score.value for score in fresh]
    assert [score.value for score in kept] == [score.value for score in fresh[: len(kept)]]


def test_an_estimate_ends_whatever_the_texts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimating, "PROBE_SECONDS", 0.0)  # as if a single prompt took too long
    figures = estimating.estimate(recipes.resolve(label_runs.settings_of(tmp_path, method="random")), "cpu")
    assert figures["minutes"] is None
    assert "take more than" in figures["note"]
    assert figures["calls"] > 0


def test_only_the_beginnings_of_texts_are_read_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time limit applies while the task opens: label words and words to learn are chosen by beginnings."""
    monkeypatch.setattr(label_models, "OPENING_TOKENS", 4)
    read, log_probs = list[str](), CausalLabels.log_probs

    def watched(self: CausalLabels, frames: Sequence[Frame], inputs: Inputs, words: Any = None) -> Any:
        read.extend(inputs.texts)
        return log_probs(self, frames, inputs, words)

    monkeypatch.setattr(CausalLabels, "log_probs", watched)
    settings = label_runs.settings_of(tmp_path)
    task = {key: value for key, value in settings["task"].items() if key != "words"}
    opened: Any = build.build_task(recipes.resolve({**settings, "task": {**task, "labels": "learnt"}}), "cpu")
    encoder = opened.model.encoder
    assert read
    assert max(len(encoder.pieces([row.input])[0]) for row in opened.rows) > 4
    assert max(len(ids) for ids in encoder.pieces(read)) <= 4
