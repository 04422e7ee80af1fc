"""Answers as people read them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from pinprompt.cli.shown import shown_result
from pinprompt.run.running import Result


def printed(data: dict[str, Any]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, markup=False)
    result = Result("found words", 1.0, None, None, 0, 0.0, Path("run"), data)
    for part in shown_result(result):
        console.print(part)
    return out.getvalue()


def test_a_style_run_shows_ten_texts_before_and_after_and_who_judged() -> None:
    rewrites = [
        {"source": f"bad thing {place}", "rewrite": f"[b]good[/b] thing {place}", "content": 71.4, "style": 100.0}
        for place in range(12)
    ]
    shown = printed({"tables": {"rewrites": rewrites}, "judges": {"style": "trained, held-out accuracy 0.912"}})
    assert sum("bad thing" in line for line in shown.splitlines()) == 10
    assert "[b]good[/b] thing 9" in shown  # a model's words are never taken for markup
    assert "held-out accuracy 0.912" in shown


def test_a_verdict_is_as_plain_when_nothing_was_won() -> None:
    worse = {"accuracy": 0.5, "outcomes": {"accuracy": "1" * 10 + "0" * 10}}
    manual = {"accuracy": 0.55, "outcomes": {"accuracy": "1" * 11 + "0" * 9}}
    shown = printed(
        {"primary": "accuracy", "test": worse, "baselines": {"manual": {"prompt": "It was", "test": manual}}}
    )
    assert "The found prompt is not significantly better than the manual prompt on test (p = 1.00)." in shown
    assert "before" not in shown


def test_calibrated_runs_show_both_figures() -> None:
    found = {"accuracy": 0.84, "raw_accuracy": 0.61, "rows": 50, "intervals": {}}
    manual = {"accuracy": 0.79, "raw_accuracy": 0.52, "rows": 50, "intervals": {}}
    shown = printed(
        {"primary": "accuracy", "test": found, "baselines": {"manual": {"prompt": "It was", "test": manual}}}
    )
    assert "raw accuracy on test" in shown
    for number in ("0.840", "0.610", "0.790", "0.520"):
        assert number in shown


def test_the_score_of_a_function_is_of_no_examples() -> None:
    shown = printed({"primary": "score", "task": "custom", "train": {"score": -10.0, "rows": 1}, "prompt": "x"})
    assert "score by the function" in shown
    assert "Score by the function: -10.0" in shown
    assert "training examples" not in shown
    assert "row" not in shown
