"""Which room may import which, read from the source: the rules in docs/architecture.md, enforced."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pinprompt"
FILES = sorted(SOURCE.rglob("*.py"))
TOOLS = sorted(path for name in ("tools", "examples") for path in (SOURCE.parents[1] / name).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The modules that a file imports, lazily or not, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


PLAIN = "methods.table"
"""Data that every room may read, so it is a room of its own here."""


def room(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    if parts == ("methods", "table.py"):
        return PLAIN
    return parts[0] if len(parts) > 1 else path.stem


def ours(path: Path) -> set[str]:
    """The rooms of ours that a file imports."""
    found = {name.removeprefix("pinprompt.") for name in imports(path) if name.startswith("pinprompt.")}
    names = {name.split(".")[0] for name in found if not f"{name}.".startswith(f"{PLAIN}.")}
    return {name for name in names if (SOURCE / name).exists() or (SOURCE / f"{name}.py").exists()}


MAY_KNOW: dict[str, set[str]] = {
    "values": set(),
    "errors": set(),
    "files": {"errors"},
    "english": set(),
    PLAIN: set(),
    "recipe": {"recipe", "errors"},
    "maths": {"maths", "errors"},
    "data": {"data", "models", "errors", "files", "values"},
    "models": {"models", "recipe", "errors", "files", "values", "english"},
    "remote": {"remote", "models", "judges", "recipe", "errors", "values"},
    "judges": {"judges", "models", "data", "recipe", "errors", "files", "values"},
    "policy": {"policy", "maths", "models", "recipe", "errors", "values", "data", "english"},
    "tasks": {"tasks", "models", "judges", "remote", "data", "recipe", "errors", "values"},
    "scoring": {"scoring", "tasks", "models", "recipe", "errors", "files", "values"},
    "methods": {
        "methods",
        "english",
        "policy",
        "maths",
        "scoring",
        "tasks",
        "models",
        "recipe",
        "errors",
        "files",
        "values",
    },
    "records": {"records", "maths", "errors", "values", "recipe", "english", "files"},
    "bench": {
        "bench",
        "policy",
        "maths",
        "models",
        "methods",
        "tasks",
        "data",
        "recipe",
        "errors",
        "values",
        "run",
        "remote",
        "scoring",
        "sweeps",
    },
    "sweeps": {"run", "recipe", "errors", "values", "doctor"},
}
"""What each room may import of ours, beside the table of methods.

Rooms that are not listed (api, run, cli, doctor) assemble the others.
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_know_only_whom_they_may(path: Path) -> None:
    allowed = MAY_KNOW.get(room(path))
    if allowed is not None:
        assert ours(path) <= allowed, f"{path.name} imports {sorted(ours(path) - allowed)}"


def test_the_algorithm_does_not_know_that_records_exist() -> None:
    for path in (SOURCE / "methods").rglob("*.py"):
        assert "records" not in ours(path), path.name


def test_policy_and_tasks_never_meet() -> None:
    for path in (SOURCE / "policy").rglob("*.py"):
        assert "tasks" not in ours(path), path.name
    for path in (SOURCE / "tasks").rglob("*.py"):
        assert "policy" not in ours(path), path.name


def test_only_the_verbs_know_the_studio() -> None:
    for path in FILES:
        assert "studio" not in ours(path) or room(path) in ("api", "cli", "studio"), path.name


def test_methods_know_no_concrete_task() -> None:
    for path in (SOURCE / "methods").rglob("*.py"):
        tasks = {name for name in imports(path) if name.startswith("pinprompt.tasks.")}
        assert all(name.startswith("pinprompt.tasks.protocol") for name in tasks), (path.name, tasks)


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("transformers", ("policy/backbone.py", "models/", "judges/", "bench/", "methods/baselines/pez.py")),
        ("diffusers", ("models/images.py",)),
        ("sklearn", ("sklearn.py",)),
        ("ray", ("scoring/executors.py", "sweeps.py")),
        ("matplotlib", ("records/",)),
        ("typer", ("cli/",)),
        ("rich", ("cli/", "records/tables.py")),
        ("starlette", ("studio/",)),
        ("uvicorn", ("studio/",)),
    ],
)
def test_a_library_is_imported_only_at_home(library: str, homes: tuple[str, ...]) -> None:
    for path in FILES:
        if any(name.split(".")[0] == library for name in imports(path)):
            place = path.relative_to(SOURCE).as_posix()
            assert place.startswith(homes), f"{place} imports {library}"


def test_no_pickle_is_read_or_written() -> None:
    for path in FILES:
        assert not imports(path) & {"pickle", "dill", "joblib", "shelve", "marshal"}, path.name
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        assert not any(ast.unparse(call.func) in ("torch.load", "torch.save", "eval", "exec") for call in calls), (
            path.name
        )


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if room(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write")), (
                path.name
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_is_no_longer_than_an_idea(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 500


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.name)
def test_what_tools_and_examples_import_exists(path: Path) -> None:
    """No other test runs them all."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "pinprompt":
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_no_drawer_for_odds_and_ends() -> None:
    assert not {path.stem for path in FILES} & {"utils", "common", "helpers", "base", "misc"}


def test_the_hops_of_a_search_are_files_that_exist_and_fewer_than_fifty() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    hops = page.partition("## A search from the command to the report")[2].partition("At run time,")[0]
    found, folder = set(), ""
    for name in re.findall(r"`([a-z_/]+\.py)`", hops):
        folder = name.rpartition("/")[0] or folder  # a bare name belongs to the folder that was named before it
        place = SOURCE / folder / name.rpartition("/")[2]
        place = place if place.exists() else SOURCE / name
        assert place.exists(), name
        found.add(place)
    assert f"({len(found)} of them)" in hops
    assert 40 < len(found) < 50
