"""docs/benchmarks.md is written by tools/benchmarks.py: a place and rows for every bench, figures where they belong."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from pinprompt.bench import BENCHES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("benchmarks", ROOT / "tools" / "benchmarks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(figures: dict[str, Any]) -> dict[str, Any]:
    on = {"cpu": "A CPU", "cores": 3, "flags": ["avx2"], "torch": "9.9", "gpu": None, "date": "2031-02-03"}
    return {"figures": figures, "threads": 2, "machine": on, "load_before": 0.1, "load_after": 7.5, "took": 12}


def test_every_bench_has_rows_and_a_place_on_the_page(tool: Any) -> None:
    assert set(tool.ROWS) == set(BENCHES)
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    changed = tool.written(page, {name: found({}) for name in BENCHES})
    assert changed.count("2031-02-03") == len(BENCHES)
    assert tool.written(changed, {}) == changed


def test_a_table_has_the_figures_and_says_where_they_were_measured(tool: Any) -> None:
    figures = {"slowdown": 1.2345, "slowdown_spinning": 1234.5}
    page = "a\n<!-- bench neighbour -->\nold\n<!-- end neighbour -->\nb\n"
    changed = tool.written(page, {"neighbour": found(figures)})
    assert changed.startswith("a\n")
    assert changed.endswith("\nb\n")
    assert "old" not in changed
    assert "| slowdown beside a busy core | 1.2 |" in changed
    assert "| the same with threads that spin | 1,234 |" in changed
    for fact in ("A CPU", "3 cores", "avx2", "2 threads", "load 0.1 before and 7.5 after", "12 s"):
        assert fact in changed


def test_figures_are_found_in_lists_and_missing_ones_are_a_dash(tool: Any) -> None:
    assert tool.at({"a": [{"b": 2}, {"b": 3}]}, "a.1.b") == 3
    assert tool.at({"a": [{"b": 2}]}, "a.1.b") is None
    assert tool.at({"int8": None}, "int8.speedup") is None
    assert [tool.shown(value) for value in (None, 0.01234, 12.34, 12345.6)] == ["-", "0.0123", "12.3", "12,346"]


def test_a_page_without_a_place_is_an_error(tool: Any) -> None:
    with pytest.raises(SystemExit, match="no place for 'clip'"):
        tool.written("nothing here", {"clip": found({})})


def test_the_machine_is_described(tool: Any) -> None:
    on = tool.machine()
    assert on["cpu"]
    assert on["cores"] >= 1
    assert "." in on["torch"]


def test_a_bench_that_fails_does_not_stop_the_others(
    tool: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- bench {name} -->\n<!-- end {name} -->\n" for name in ("clip", "neighbour")), "utf-8")

    def measured(name: str, threads: int) -> dict[str, Any]:
        if name == "clip":
            raise RuntimeError("bench clip failed: no pictures here")
        return found({"slowdown": 3.25})

    for name, value in {
        "ROOT": tmp_path,
        "PAGE": page,
        "KEPT": tmp_path / "b" / "kept.json",
        "measured": measured,
    }.items():
        monkeypatch.setattr(tool, name, value)
    monkeypatch.setattr("sys.argv", ["benchmarks.py", "--only", "clip", "neighbour"])
    with pytest.raises(SystemExit, match="no pictures here"):
        tool.main()
    assert "| slowdown beside a busy core | 3.2 |" in page.read_text("utf-8")
    monkeypatch.setattr("sys.argv", ["benchmarks.py", "--from", str(tmp_path / "b" / "kept.json")])
    tool.main()
    assert page.read_text("utf-8").count("A CPU") == 1
