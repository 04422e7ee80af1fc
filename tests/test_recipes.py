"""Every recipe and sweep that comes with the project can be read; the sweeps of sweeps/grid.py do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprompt.errors import SettingError
from pinprompt.estimating import rough
from pinprompt.sweeps.grid import read_sweep

ROOT = Path(__file__).parents[1]
SWEEPS = sorted((ROOT / "recipes").rglob("*.toml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_sweeps_that_come_along_can_be_read(path: Path) -> None:
    sweep = read_sweep(path)
    assert sweep.cells
    assert len({cell.folder for cell in sweep.cells}) == len(sweep.cells)
    assert all(rough(cell.recipe)["prompts"] > 0 for cell in sweep.cells)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text('[base.task]\nkind = "custom"\nfunction = "a:b"\n' + text)
    return path


def test_grid_zip_random_and_where(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
[grid]
method = ["pin", "rlprompt"]
"policy.length" = [3, 4]
[zip]
seed = [1, 2]
q_learning.batch = [10, 20]
[random]
samples = 2
q_learning.learning_rate = {low = 1e-5, high = 1e-3, log = true}
policy.k = [7]
[[where]]
when = {method = "rlprompt"}
set = {"q_learning.steps" = 5}
""",
    )
    cells = read_sweep(path).cells
    assert len(cells) == 2 * 2 * 2 * 2
    assert {(cell.recipe.seed, cell.recipe.q_learning.batch) for cell in cells} == {(1, 10), (2, 20)}
    assert {cell.recipe.q_learning.steps for cell in cells if cell.recipe.method == "rlprompt"} == {5}
    assert {cell.recipe.q_learning.steps for cell in cells if cell.recipe.method == "pin"} == {6000}
    rates = {cell.recipe.q_learning.learning_rate for cell in cells}
    assert len(rates) == 2
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)
    assert [cell.recipe for cell in read_sweep(path).cells] == [cell.recipe for cell in cells]
    assert all(cell.recipe.hash in cell.folder.name for cell in cells)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gird]\nseed = [1]\n", "did you mean 'grid'"),
        ("[grid]\nseed = 1\n", "must be a list"),
        ("[zip]\nseed = [1, 2]\nmethod = ['pin']\n", "equally long"),
        ("[random]\nsamples = 1\nseed2 = 3\n", "list of choices"),
        ("[grid]\nseeed = [1]\n", "did you mean 'seed'"),
        ("[random]\nsamples = 1\n'policy.k' = {low = 5, high = 2}\n", "low must be below high"),
    ],
)
def test_a_mistake_in_a_sweep_is_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        read_sweep(write(tmp_path, text))
