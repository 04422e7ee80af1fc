"""Every recipe and sweep that comes with the project can be read; the sweeps do what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pinprompt.cli import app
from pinprompt.errors import SettingError
from pinprompt.models import sources
from pinprompt.needs import Known, missing
from pinprompt.sweeps import read_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted([*(ROOT / "recipes").rglob("*.toml"), *(ROOT / "tools" / "search_trials").glob("*.toml")])


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_sweeps_that_come_along_can_be_read(path: Path) -> None:
    sweep = read_sweep(path)
    assert sweep.cells
    assert len({cell.folder for cell in sweep.cells}) == len(sweep.cells)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text('[base.task]\nkind = "custom"\nfunction = "a:b"\n' + text)
    return path


def test_grid_zip_and_where(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
[grid]
method = ["pin", "rlprompt"]
"policy.length" = [3, 4]
[zip]
seed = [1, 2]
q_learning.batch = [10, 20]
[[where]]
when = {method = "rlprompt"}
set = {"q_learning.steps" = 5}
""",
    )
    cells = read_sweep(path).cells
    assert len(cells) == 2 * 2 * 2
    assert {(cell.recipe.seed, cell.recipe.q_learning.batch) for cell in cells} == {(1, 10), (2, 20)}
    assert {cell.recipe.q_learning.steps for cell in cells if cell.recipe.method == "rlprompt"} == {5}
    assert {cell.recipe.q_learning.steps for cell in cells if cell.recipe.method == "pin"} == {6000}
    assert [cell.recipe for cell in read_sweep(path).cells] == [cell.recipe for cell in cells]
    assert all(cell.recipe.hash in cell.folder.name for cell in cells)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gird]\nseed = [1]\n", "did you mean 'grid'"),
        ("[grid]\nseed = 1\n", "must be a list"),
        ("[zip]\nseed = [1, 2]\nmethod = ['pin']\n", "equally long"),
        ("[grid]\nseeed = [1]\n", "did you mean 'seed'"),
    ],
)
def test_a_mistake_in_a_sweep_gives_an_error_message(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        read_sweep(write(tmp_path, text))


def varied(tmp_path: Path) -> Path:
    path = tmp_path / "varied.toml"
    path.write_text(
        """
[base.task]
kind = "inversion"
[grid]
method = ["pin", "random", "beam"]
"task.images" = [["a.png"], ["b.png"]]
[zip]
seed = [13, 21]
policy.k = [100, 200]
"""
    )
    return path


@pytest.mark.parametrize(
    ("only", "left"),
    [
        ({"method": ["pin"]}, 4),
        ({"method": ["pin", "beam"], "seed": [21]}, 4),
        ({"task.images": [["b.png"]], "policy.k": [100], "method": ["random"]}, 1),
    ],
)
def test_a_part_of_a_sweep_has_the_folders_of_the_whole(tmp_path: Path, only: dict[str, list[Any]], left: int) -> None:
    path = varied(tmp_path)
    part, whole = read_sweep(path, only=only).cells, read_sweep(path).cells
    assert (len(part), len(whole)) == (left, 12)
    assert {cell.folder for cell in part} <= {cell.folder for cell in whole}
    assert all(cell.varied[name] in values for cell in part for name, values in only.items())


def test_a_part_is_chosen_on_the_command_line(tmp_path: Path) -> None:
    asked = ["sweep", str(varied(tmp_path)), "--dry-run", "--json"]
    asked += ["--only", "method=pin", "--only", "method=beam", "--only", "seed=13", "--only", 'task.images=["a.png"]']
    cells = json.loads(CliRunner().invoke(app, asked).stdout)["cells"]
    assert [cell["varied"]["method"] for cell in cells] == ["pin", "beam"]
    assert {(cell["varied"]["seed"], *cell["varied"]["task.images"]) for cell in cells} == {(13, "a.png")}


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ({"metod": ["pin"]}, "does not vary 'metod': did you mean 'method'"),
        ({"q_learning.batch": [8]}, "does not vary 'q_learning.batch'"),
        ({"method": ["pin", "pez"]}, "no run has method=pez; its values: pin, random, beam"),
        ({"seed": [13], "policy.k": [200]}, "no run has all of these values"),
    ],
)
def test_only_without_a_match_gives_an_error_message(tmp_path: Path, only: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        read_sweep(varied(tmp_path), only=only)


@pytest.mark.parametrize("settings", [{"method": "pin"}, {"seed": 5}, {"task": {"images": ["c.png"]}}])
def test_a_setting_that_varies_is_chosen_and_not_set(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"varies '.*'; --only .* chooses among its values"):
        read_sweep(varied(tmp_path), settings=settings)


def test_the_command_line_has_the_last_word_on_what_does_not_vary(tmp_path: Path) -> None:
    path = write(tmp_path, "[base.q_learning]\nbatch = 8\n[[where]]\nwhen = {}\nset = {'q_learning.steps' = 5}\n")
    (cell,) = read_sweep(path, settings={"q_learning": {"batch": 32, "steps": 7}}).cells
    assert (cell.recipe.q_learning.batch, cell.recipe.q_learning.steps) == (32, 7)
    (cell,) = read_sweep(path).cells
    assert (cell.recipe.q_learning.batch, cell.recipe.q_learning.steps) == (8, 5)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_small_recipes_need_no_hub_and_paper_recipes_say_what_is_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)  # recipes name pictures from the top of the repository
    monkeypatch.setattr(sources, "unreachable", lambda: "the hub is down")
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    known = Known()
    told = {sentence for cell in read_sweep(path).cells for sentence in missing(cell.recipe, known)}
    if path.parent.name in ("small", "search_trials"):
        assert told == set(), "a fresh clone and pip are enough"
    else:
        assert told, "the paper's models and data are nobody's by default"
        assert all(sentence.split(" ")[0].rstrip(":") in ("model", "data", "texts", "picture") for sentence in told)
