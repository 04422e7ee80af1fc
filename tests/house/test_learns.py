"""The *learns* tests: each method of the RL family finds the target words that it has no chance to guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinprompt import running
from tests.house.tiny import TARGET, FindTheWords, recipe

LOW = {"learning_rate": 3e-4}
SOFT = {"alpha": 0.2, "learning_rate": 3e-3, "steps": 150}

METHODS: dict[str, dict[str, Any]] = {
    "pin": {"q_learning": {"target": "bootstrap"}},
    "pin-monte-carlo": {"method": "pin", "q_learning": {"target": "monte-carlo", **LOW}},
    "pin-no-fluency": {"q_learning": {"target": "monte-carlo", **LOW}},
    "rlprompt": {"q_learning": {**SOFT, "top_q": 32}},
    "rlprompt-fluency": {"q_learning": {**SOFT, "alpha": 0.05}, "policy": {"k": 300}},
    "rlprompt-rb": {"q_learning": SOFT},
    "rlprompt-rb-fluency": {"q_learning": SOFT, "policy": {"k": 300}},
}


@pytest.mark.parametrize("name", METHODS)
def test_finds_the_words(name: str, lm_folder: Path, tmp_path: Path) -> None:
    result = running.run(
        recipe(lm_folder, **{"method": name, **METHODS[name]}), tmp_path / "run", task=FindTheWords(), device="cpu"
    )
    assert result.score >= len(TARGET) - 1, result.prompt
    # 20 words in 3 places: a blind search of as many distinct prompts would have a chance of about 1 in 8.
    assert result.data["prompts"] < 1000
