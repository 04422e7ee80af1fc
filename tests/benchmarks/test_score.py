"""The benchmark's own parts, on a tiny model; what it measures is never a timed test."""

from __future__ import annotations

from typing import Any

import pytest
from label_toys import TEXTS, make

from benchmarks import score
from pinprompt.models import loading


def test_every_stage_is_measured_and_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, device: str = "cpu") -> tuple[Any, Any]:
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
        "whole prompts",
        "shared prefixes",
    ]
    assert found["speedup"] == found["speedups"]["shared prefixes"] > 0
    assert found["largest_difference"] < 1e-4
    assert found["gradient_speedup"] > 0
    assert found["speedup_to_careful_late"] > 0
    assert found["speedup_to_careful_early"] > 0


def test_late_prompts_share_their_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"w{i}" for i in range(60)]
    monkeypatch.setattr(score, "_whole_words", lambda tokenizer: words)
    late, apart = score._late(None, 32), score._apart(None, 6)
    assert len(set(late)) == 32
    nodes = {tuple(prompt.split()[:n]) for prompt in late for n in range(1, 6)}
    assert len(nodes) < 3 * len(late)
    assert len({prompt.split()[0] for prompt in apart}) == 6
