"""The table of docs/claims.md from the rows of its CSV files, worked by hand."""

from __future__ import annotations

from tools import claims


def cell(row: str, unit: str, best: float, curve: str = "") -> dict[str, str]:
    known = {"row": row, "unit": unit, "seed": "0", "best": str(best), "mean_curve": curve, "updates": "8"}
    return {**dict.fromkeys(claims.FIELDS, ""), **known}


def test_rows_are_paired_and_units_that_a_row_lacks_are_left_out() -> None:
    rows = [cell("pin", "a", 0.5, "0.1 0.3"), cell("pin", "b", 0.9, "0.2 0.7"), cell("pin", "c", 9.0, "9.0")]
    rows += [cell("random", "a", 0.4, "0.1 0.1"), cell("random", "b", 0.4, "0.1 0.1")]
    shown = claims.table(rows)
    assert "| pin | 8 |  | 0.700 | 0.500 |  |  |" in shown
    # Differences of 0.1 and 0.5 give the means 0.1, 0.3, 0.3, 0.5: the quantiles lie 0.075 of a step from the ends.
    assert "+0.300 [+0.115, +0.485] | +0.400 [+0.215, +0.585] |" in shown
    assert "2 units, 2 cells a row: a, b" in shown
