"""The end of a run: what result.json says of the answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pinprompt.run import running
from pinprompt.values import Prompt, Score
from tests.house.race_child import in_heats


def test_a_hand_written_answer_of_a_method_that_learns_has_words_and_no_q(lm_folder: Path) -> None:
    """With `scoring.choose = "rows"` a prompt that no writer wrote can win, and there are no ids to explain."""
    asked: list[str] = []

    def score(prompts: list[Prompt], report: bool) -> list[Score]:
        assert report
        asked.extend(prompt.text for prompt in prompts)
        return [Score(float(len(prompt.text)), 1) for prompt in prompts]

    def writer() -> Any:
        raise AssertionError("the writer was asked about a prompt that it did not write")

    search: Any = SimpleNamespace(evaluator=SimpleNamespace(score=score))
    recipe = in_heats(lm_folder, "pin", scoring={"choose": "rows"})
    assert running._tokens(recipe, search, Prompt("It was"), writer) == [
        {"token": "It", "score_without": 3.0},
        {"token": "was", "score_without": 2.0},
    ]
    assert asked == ["was", "It"]
