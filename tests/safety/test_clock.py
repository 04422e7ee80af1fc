"""Time limits hold inside long passes, what was scored is kept, and an estimate ends."""

from __future__ import annotations

import itertools
from pathlib import Path

import label_runs
import pytest

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import BudgetSpent
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.run import build, estimating
from pinprompt.values import Prompt

PROMPTS = [Prompt(f"it was{' so' * number}") for number in range(16)]


@pytest.mark.parametrize("read", ["prompts", "prefixes"])
def test_the_clock_is_looked_at_inside_passes_and_what_is_scored_is_kept(tmp_path: Path, read: str) -> None:
    """Each look at the clock takes a second: the model has dozens of layers to look from."""
    raw = recipes.resolve(label_runs.settings_of(tmp_path, models={"read": read}))

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
