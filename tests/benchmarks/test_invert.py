"""The benchmark's own parts, on a tiny writer; what it measures is never a timed test."""

from __future__ import annotations

from pathlib import Path

from tests.house.tiny import make_lm

from benchmarks.invert import measure


def test_every_search_is_counted_from_its_first_step_to_its_answer(tmp_path: Path) -> None:
    short = {"policy": {"length": 3, "k": 20, "context": "none", "hidden": 16, "constraints": {"no_repeats": "off"}}}
    searches = {
        "guided": {**short, "method": "guided", "guided": {"rounds": 1, "revisions": 0, "beams": 2, "tokens": 5}},
        "pin": {**short, "method": "pin", "q_learning": {"steps": 3, "prompts": 8, "batch": 8}},
    }
    found = measure(str(make_lm(tmp_path)), searches)
    assert set(found) == {f"{name}_{what}" for name in searches for what in ("prompts", "prompts_per_second")}
    assert 0 < found["guided_prompts"] <= 10  # two beams with five tokens each behind the first step
    assert 0 < found["pin_prompts"] <= 2 * 8 + 1
    assert all(value > 0 for value in found.values())
