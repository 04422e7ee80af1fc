"""The table of methods: its rows fit the recipe and the code, and a method is added by the steps in CONTRIBUTING."""

from __future__ import annotations

import csv
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.house.tiny import make_lm

from pinprompt import api
from pinprompt.errors import SettingError
from pinprompt.methods.protocol import Cost, Search
from pinprompt.methods.table import METHODS, SECTIONS
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import KINDS, Recipe, presets, resolve
from pinprompt.values import Prompt

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", METHODS)
def test_a_row_names_a_function_a_section_and_tasks_that_exist(name: str) -> None:
    row = METHODS[name]
    module, _, function = row.function.partition(":")
    assert list(inspect.signature(getattr(import_module(module), function)).parameters)[:2] == ["search", "settings"]
    assert row.section is None or row.section in Recipe.model_fields
    assert (row.section is None) == (row.kind == "handwritten")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gets_its_own_settings_and_no_others_count(name: str) -> None:
    recipe, section = resolve({"method": name}), METHODS[name].section
    assert recipe.method_settings is (None if section is None else getattr(recipe, section))
    assert recipe.other_methods == {other for other in (*SECTIONS, "own") if other != section}


def test_presets_are_of_methods_tasks_and_styles_that_exist() -> None:
    known = presets()
    assert set(known["methods"]) <= set(METHODS)
    for own in known["methods"].values():
        assert set(own) <= {"always", "tasks", "quick", "quick-tasks"}
        assert {*own.get("tasks", ()), *own.get("quick-tasks", ())} <= set(KINDS)
    assert {*known["tasks"], *known["quick-tasks"], *known["quick-methods"]} <= set(KINDS)


def annealed_source() -> str:
    """The example of CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Adding a method")[2]
    return page.partition("```python\n")[2].partition("```")[0]


def test_the_method_of_contributing_runs_without_touching_the_package(tmp_path: Path) -> None:
    (tmp_path / "annealed.py").write_text(annealed_source(), "utf-8")
    (tmp_path / "own.py").write_text("def worth(prompt):\n    return float(len(prompt))\n", "utf-8")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "method = 'annealed:annealed'\n[task]\nkind = 'custom'\nfunction = 'own:worth'\n"
        f"[policy]\nmodel = '{make_lm(tmp_path)}'\nlength = 3\nk = 'none'\n[budget]\ncalls = 60\n"
        "[scoring]\nmemo = false\n",
        "utf-8",
    )
    command = [sys.executable, "-m", "pinprompt", "tune", str(recipe), "--quiet", "--out", str(tmp_path / "run")]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "method = 'annealed:annealed'" in refused.stderr  # a stranger's method is shown before it runs
    done = subprocess.run([*command, "--trust"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert result["method"] == "annealed:annealed"
    assert result["calls"] <= 60
    with (tmp_path / "run" / "prompts.csv").open(encoding="utf-8") as file:
        assert max(len(row["prompt"]) for row in csv.DictReader(file)) == len(result["prompt"])


def test_a_method_may_be_a_function_or_an_object_with_settings_and_a_cost(tmp_path: Path) -> None:
    def first_ten(search: Search) -> list[Prompt]:
        return search.write(10)

    class Repeated(BaseModel):
        times: int = 1

    class Writes:
        settings = Repeated

        def __call__(self, search: Search, settings: Repeated) -> list[Prompt]:
            return search.write(2 * settings.times)

        def cost(self, task: object, settings: object, calls: int | None, length: int) -> Cost:
            return Cost(calls=7, enough=9, few="seven only")

    over = {"policy": {"model": str(make_lm(tmp_path)), "length": 3, "k": None, "context": "none"}}
    one = api.tune(len, method=first_ten, calls=50, out=tmp_path / "one", settings=over)
    assert len(one.top) > 1
    notes: list[str] = []
    own = recipes.merge(over, {"own": {"times": 4}})
    two = api.tune(len, method=Writes(), calls=8, out=tmp_path / "two", settings=own, notes=notes.append)
    assert two.calls <= 8
    assert any("8 calls are few (seven only); 9 are enough" in note for note in notes)
    with pytest.raises(SettingError, match="own"):
        api.tune(len, method=first_ten, calls=50, out=tmp_path / "three", settings=own)
    with pytest.raises(SettingError, match="returned a float"):
        api.tune(len, method=lambda search: [0.5], calls=50, out=tmp_path / "four", settings=over)
