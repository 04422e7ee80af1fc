"""The benchmark's own parts, on a tiny model; what it measures is never a timed test."""

from __future__ import annotations

from typing import Any

import pytest
from label_toys import TEXTS, make

from benchmarks import score
from pinprompt.models import loading


def test_every_stage_is_measured_and_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, device: str = "cpu", precision: Any = None) -> tuple[Any, Any]:
        return make("llama")

    monkeypatch.setattr(loading, "load_causal_lm", load)
    monkeypatch.setattr(score, "_texts", lambda count: TEXTS[:count])
    monkeypatch.setattr(
        score, "_whole_words", lambda tokenizer: ["this", "film", "was", "great", "and", "the", "story", "felt", "good"]
    )
    found = score.measure("toy", inputs=4, prompts=12)
    assert list(found["prompts_per_second"]) == [
        "plain",
        "careful",
        "last position and label words only",
        "inputs read once",
    ]
    assert found["speedup"] == found["speedups"]["inputs read once"] > 0
    assert found["largest_difference"] < 1e-4
    assert found["gradient_speedup"] > 0
    assert found["speedup_to_careful"] > 0
