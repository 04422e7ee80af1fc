"""The table of methods: its rows fit the recipe and the code, and a method is added by the steps in CONTRIBUTING."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
from tests.house.tiny import make_lm

from pinprompt.methods.table import METHODS, SECTIONS
from pinprompt.recipe.recipe import QUICK_TASKS, TASKS, Recipe, resolve

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"`(src/[\w/.]+)`[^`]*?```python\n(.*?)```", flags=re.S)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_names_a_function_a_section_and_tasks_that_exist(name: str) -> None:
    row = METHODS[name]
    module, _, function = row.function.partition(":")
    assert list(inspect.signature(getattr(import_module(module), function)).parameters) == ["search", "settings"]
    assert row.section is None or row.section in Recipe.model_fields
    assert (row.section is None) == (row.kind == "handwritten")
    assert set(row.on_task) | set(row.quick_on_task) <= set(TASKS) == set(QUICK_TASKS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gets_its_own_settings_and_no_others_count(name: str) -> None:
    recipe, section = resolve({"method": name}), METHODS[name].section
    assert recipe.method_settings is (None if section is None else getattr(recipe, section))
    assert recipe.other_methods == {other for other in SECTIONS if other != section}


PLACES = {
    "sections.py": "\n\n# Settings of budget, memo and workers.",
    "recipe.py": "    budget: ",
    "table.py": ")\n\nMETHODS = ",
}
"""What stands behind the new code in a file that exists already."""


def test_a_method_is_added_by_the_steps_in_contributing(tmp_path: Path) -> None:
    """The code blocks of the page go into a copy of the sources, each where the page says; then the method runs."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    steps = STEP.findall(page.partition("## Adding a method")[2].partition("\n## ")[0])
    assert [Path(name).name for name, _ in steps] == ["annealed.py", *PLACES]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, code in steps:
        path = tmp_path / name
        if path.name not in PLACES:
            path.write_text(code, "utf-8")
            continue
        text, behind = path.read_text("utf-8"), PLACES[path.name]
        assert text.count(behind) == 1, name
        if path.name == "recipe.py":  # a field of a class
            code = textwrap.indent(code, "    ")
        elif path.name == "table.py":  # an item of a tuple
            code = textwrap.indent(code.rstrip() + ",\n", "    ")
        path.write_text(text.replace(behind, code + behind), "utf-8")
    (tmp_path / "own.py").write_text("def worth(prompt):\n    return float(len(prompt))\n", "utf-8")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "method = 'annealed'\n[task]\nkind = 'custom'\nfunction = 'own:worth'\n"
        f"[policy]\nmodel = '{make_lm(tmp_path)}'\nlength = 3\nk = 'none'\n[annealed]\nsteps = 4\nbatch = 5\n"
        "[scoring]\nmemo = false\n",
        "utf-8",
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pinprompt",
            "tune",
            str(recipe),
            "--quiet",
            "--trust",
            "--out",
            str(tmp_path / "run"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(tmp_path)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    assert (result["method"], result["steps"], result["stopped"]) == ("annealed", 4, "finished")
    assert result["top"][0]["source"] == "annealed"
    told = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text("utf-8").splitlines()]
    assert [row["temperature"] for row in told if row["event"] == "step"] == [2.0, 1.96, 1.9208, 1.882384]
