"""Who may import whom, read from the source: the rules of docs/architecture.md."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pinprompt"
FILES = sorted(SOURCE.rglob("*.py"))
TOOLS = sorted(path for name in ("tools", "examples", "benchmarks") for path in (ROOT / name).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports(path: Path) -> set[str]:
    """The modules that a file imports, lazily or not, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def room(path: Path) -> str:
    """The package or top-level module that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rooms(path: Path) -> set[str]:
    """The other rooms that a file imports; the table of methods is plain data that every room may read."""
    found = {name.removeprefix("pinprompt.") for name in imports(path) if name.startswith("pinprompt.")}
    return {name.split(".")[0] for name in found if not name.startswith("methods.table")} - {room(path)}


ASSEMBLY = {"api", "cli", "studio", "reports", "run", "sweeps", "doctor", "sklearn"}
"""Rooms that put the others together; nothing below imports them."""
NOTHING_BUT = {
    "values": set(),
    "errors": set(),
    "english": set(),
    "files": {"errors"},
    "maths": {"errors"},
    "recipe": {"errors"},
}
NEVER = {
    "policy": {"tasks"},  # they share prompts: text for the task, ids for the policy
    "tasks": {"policy"},
    "answers": {"methods", "policy"},
    "run": {"api", "cli", "studio", "reports"},  # the report reads what a run wrote, never the reverse
    "sweeps": {"api", "cli", "studio"},
}


def test_rooms_import_only_what_is_below_them() -> None:
    wrong = []
    for path in FILES:
        own, others = room(path), rooms(path)
        bad = NEVER.get(own, set()) & others
        if own not in (*ASSEMBLY, "__init__", "__main__"):
            bad |= ASSEMBLY & others
        if own in NOTHING_BUT:
            bad |= others - NOTHING_BUT[own]
        if own == "methods":
            tasks = {name for name in imports(path) if name.startswith("pinprompt.tasks.")}
            bad |= {name for name in tasks if not name.startswith("pinprompt.tasks.protocol")}
        wrong += [f"{path.relative_to(SOURCE)} imports {name}" for name in sorted(bad)]
    assert not wrong


HOMES = {
    "transformers": ("policy/backbone.py", "models/", "judges/", "methods/baselines/pez.py"),
    "diffusers": ("models/images.py",),
    "sklearn": ("sklearn.py",),
    "ray": ("answers/executors.py", "sweeps.py"),
    "typer": ("cli/",),
    "rich": ("cli/", "reports/tables.py"),
    "starlette": ("studio/",),
    "uvicorn": ("studio/",),
}
"""Where a library may be imported, so that it can be replaced, or missing, in one place."""


def test_libraries_are_imported_only_where_they_belong() -> None:
    wrong = []
    for path in FILES:
        place = path.relative_to(SOURCE).as_posix()
        libraries = {name.split(".")[0] for name in imports(path)}
        wrong += [
            f"{place} imports {name}" for name in HOMES if name in libraries and not place.startswith(HOMES[name])
        ]
    assert not wrong


def calls(path: Path) -> set[str]:
    """The functions that a file calls, as they are written there."""
    return {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}


def test_no_pickle_is_read_or_written() -> None:
    for path in FILES:
        assert not imports(path) & {"pickle", "dill", "joblib", "shelve", "marshal"}, path
        assert not calls(path) & {"torch.load", "torch.save", "eval", "exec"}, path


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        assert room(path) == "cli" or not calls(path) & {"print", "sys.stdout.write"}, path


def test_names_that_tools_examples_and_benchmarks_import_exist() -> None:
    """No other test runs them all."""
    for node in (node for path in TOOLS for node in ast.walk(tree(path))):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ("pinprompt", "benchmarks"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_files_that_the_architecture_page_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    known = {path.relative_to(SOURCE).as_posix() for path in FILES} | {path.name for path in FILES}
    named = set(re.findall(r"`([a-z_/]+\.py)`", page))
    assert not named - known
