"""benchmarks/run.py writes docs/benchmarks.md: a place and rows for every benchmark, figures where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import BENCHES, run

ROOT = Path(__file__).parents[2]


def found(figures: dict[str, Any]) -> dict[str, Any]:
    on = {"cpu": "A CPU", "cores": 3, "torch": "9.9, AVX2", "gpu": None, "date": "2031-02-03"}
    return {"figures": figures, "threads": 2, "machine": on, "load_before": 0.1, "load_after": 7.5, "took": 12}


def test_every_benchmark_has_rows_and_a_place_on_the_page() -> None:
    assert set(run.ROWS) == set(BENCHES)
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    changed = run.written(page, {name: found({}) for name in BENCHES})
    assert changed.count("2031-02-03") == len(BENCHES)
    assert run.written(changed, {}) == changed


def test_a_table_has_the_figures_and_says_where_they_were_measured() -> None:
    figures = {"slowdown": 1.2345, "slowdown_spinning": 1234.5}
    page = "a\n<!-- bench neighbour -->\nold\n<!-- end neighbour -->\nb\n"
    changed = run.written(page, {"neighbour": found(figures)})
    assert changed.startswith("a\n")
    assert changed.endswith("\nb\n")
    assert "old" not in changed
    assert "| slowdown beside a busy core | 1.2 |" in changed
    assert "| the same with threads that spin | 1,234 |" in changed
    for fact in ("A CPU", "3 cores", "AVX2", "2 threads", "load 0.1 before and 7.5 after", "12 s"):
        assert fact in changed


def test_figures_are_found_in_lists_and_missing_ones_are_a_dash() -> None:
    assert run.at({"a": [{"b": 2}, {"b": 3}]}, "a.1.b") == 3
    assert run.at({"a": [{"b": 2}]}, "a.1.b") is None
    assert [run.shown(value) for value in (None, 0.01234, 12.34, 12345.6)] == ["-", "0.0123", "12.3", "12,346"]


def test_a_benchmark_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- bench {name} -->\n<!-- end {name} -->\n" for name in ("clip", "neighbour")), "utf-8")

    def measured(name: str, threads: int) -> dict[str, Any]:
        if name == "clip":
            raise RuntimeError("the benchmark clip failed: no pictures here")
        return found({"slowdown": 3.25})

    for name, value in {
        "PAGE": page,
        "MEASURED": tmp_path / "b" / "kept.json",
        "measured": measured,
    }.items():
        monkeypatch.setattr(run, name, value)
    monkeypatch.setattr("sys.argv", ["run.py", "clip", "neighbour"])
    with pytest.raises(SystemExit, match="no pictures here"):
        run.main()
    assert "| slowdown beside a busy core | 3.2 |" in page.read_text("utf-8")
