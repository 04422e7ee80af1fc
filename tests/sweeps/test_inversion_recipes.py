"""The paper's analyses of textual inversion as they come along: cells of them run, and figures over pictures drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
from PIL import Image

from pinprompt.recipe import recipe as recipes
from pinprompt.reports.compare import compare
from pinprompt.reports.figures import ablation, learning_curves, write_figures
from pinprompt.sweeps import Cell, read_sweep, run_inline
from tests.house.tiny import make_lm

RECIPES = Path(__file__).parents[2] / "recipes" / "small"
PICTURES = ("octopus", "pizza", "rocket")
SHORT = ["policy.hidden=16", "budget.calls=24", "q_learning.prompts=8", "q_learning.batch=8", "scoring.memo=false",
         "policy.context=A picture of"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "setting", "values"),
    [
        ("inversion-length", "policy.length", {4, 8, 16, 32}),
        ("inversion-k", "policy.k", {100, 256, 1024, 10_000, 20_000, 49_152}),
        ("inversion-scale", "q_learning.alpha", {1.0, 0.2, 0.05, 0.0125}),
        ("inversion-filter", "method", {"pin", "pin-no-fluency"}),
    ],
)
def test_each_varies_one_thing_over_the_same_pictures(name: str, setting: str, values: set[object]) -> None:
    cells = read_sweep(RECIPES / f"{name}.toml").cells
    assert {cell.varied[setting] for cell in cells} == values
    for method in {cell.recipe.method for cell in cells}:
        own = [cell for cell in cells if cell.recipe.method == method]
        for value in {cell.varied[setting] for cell in own}:
            shown = {cell.recipe.task.images for cell in own if cell.varied[setting] == value}  # type: ignore[union-attr]
            assert shown == {(f"recipes/small/noto/{picture}.png",) for picture in PICTURES}
    assert {cell.recipe.policy.model for cell in cells} == {"smollm2"}
    assert {cell.recipe.task.model for cell in cells} == {"emoji-clip"}  # type: ignore[union-attr]
    assert len({cell.recipe.budget.calls for cell in cells}) == 1, "runs of other budgets share no table"
    assert min(cell.recipe.budget.calls or 0 for cell in cells) >= 1000, "fewer prompts say nothing of learning"
    order = [cell.recipe.task.images for cell in cells]  # type: ignore[union-attr]
    assert len(list(groupby(order))) == len(PICTURES), "picture by picture: what is finished is a whole table"


def test_the_filter_is_what_the_filter_recipe_varies() -> None:
    cells = read_sweep(RECIPES / "inversion-filter.toml").cells
    filters = {cell.recipe.method: (cell.recipe.q_learning.filter, cell.recipe.policy.k) for cell in cells}
    assert filters["pin-no-fluency"] == ("off", None)
    assert filters["pin"][0] != "off"
    assert filters["pin"][1] == 100


def test_the_length_recipe_gives_means_over_pictures_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    for place, name in enumerate(PICTURES):
        path = tmp_path / "recipes" / "small" / "noto" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), ("red", "blue", "lime", "gold", "grey")[place]).save(path)
    over = [f"policy.model={make_lm(tmp_path)}", "policy.constraints.no_repeats=off", *SHORT]
    sweep = read_sweep(RECIPES / "inversion-length.toml", settings=recipes.parse_overrides([*over, "policy.k=50"]))

    def wanted(cell: Cell) -> bool:
        picture = Path(cell.varied["task.images"][0]).stem
        return cell.varied["policy.length"] in (4, 8) and picture in PICTURES[:2] and cell.recipe.method == "pin"

    outcomes = run_inline(replace(sweep, cells=[cell for cell in sweep.cells if wanted(cell)]), lambda *_: None, "cpu")
    assert len(outcomes) == 4
    assert not [outcome for outcome in outcomes.values() if outcome.startswith("failed")], outcomes
    [table] = compare([sweep.out]).tables
    assert table.columns == ("pictures",)
    assert table.rows == ("pin (length=4)", "pin (length=8)")
    values: dict[int, list[float]] = {4: [], 8: []}
    for path in sorted(sweep.out.glob("*/result.json")):
        length = 4 if "length = 4\n" in (path.parent / "recipe.toml").read_text() else 8
        values[length].append(json.loads(path.read_text())["train"]["similarity"])
    [curve] = ablation(table, "pictures", "length")
    assert (curve.x, curve.runs) == ([4, 8], 4)
    for place, length in enumerate((4, 8)):
        one, two = values[length]
        assert curve.mean[place] == pytest.approx((one + two) / 2)
        assert curve.error[place] == pytest.approx(abs(one - two) / 2)  # of two: |a - b| / sqrt(2) / sqrt(2)
    assert [line.runs for line in learning_curves(table, "pictures")] == [2, 2]
    names = {path.name for path in write_figures([sweep.out], tmp_path / "figures")}
    assert {"ablation-length.svg", "curve-calls.svg"} <= names
    for name in ("ablation-length", "curve-calls"):
        assert '<polygon class="band' in (tmp_path / "figures" / f"{name}.svg").read_text(), (
            "the standard error is shaded"
        )
