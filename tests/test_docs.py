"""The documentation keeps up with the code: generated pages, public names, README's commands, examples."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import pinprompt
from pinprompt.answers import memo
from pinprompt.cli import app
from pinprompt.methods.table import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DOCS = {path.relative_to(ROOT / "docs").as_posix(): path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["recipe.md", "cli.md", "data.md", "howto/notebook.md"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert load(ROOT / "tools" / "make_docs.py").PAGES[name]() == DOCS[name], "run `make docs`"


def test_the_notebook_shows_what_its_code_gave() -> None:
    """`make notebook` executes it; a cell that changed since has outputs that are not its own."""
    book = json.loads((ROOT / "examples" / "tickets.ipynb").read_text("utf-8"))
    assert book["metadata"]["pinprompt"]["code"] == load(ROOT / "tools" / "notebook_page.py").code_hash(book)
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    assert not [one for cell in cells for one in cell["outputs"] if one["output_type"] == "error"]


def test_the_readme_takes_its_figures_from_the_results() -> None:
    """A figure that a new table no longer has is stale."""
    part = README.partition("\n## Results\n")[2].partition("\n## ")[0]
    figures = re.findall(r"(?<![\d.,])\d+\.\d\b", part)
    assert figures
    assert not [one for one in figures if one not in re.findall(r"\d+\.\d+", DOCS["results.md"])]


def test_every_public_name_is_documented_and_exists() -> None:
    for name in pinprompt.__all__:
        assert getattr(pinprompt, name).__doc__, name
        assert re.search(rf"\b{name}\b", DOCS["reference.md"]), name


def test_every_method_is_documented() -> None:
    for name in METHODS:
        assert f"`{name}`" in README + DOCS["method.md"], name


def commands(text: str) -> list[list[str]]:
    """The pinprompt commands in a page's code blocks."""
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, flags=re.S)
    joined = "\n".join(blocks).replace("\\\n", " ")
    lines = [line.split("  #")[0].strip().removeprefix("$ ") for line in joined.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("pinprompt ", ".venv/bin/pinprompt "))]


@pytest.mark.parametrize("page", ["README.md", *sorted(DOCS)])
def test_commands_in_the_docs_parse(page: str) -> None:
    """Verbs and options exist; what they do is tested elsewhere."""
    group: Any = get_command(app)
    for words in commands(README if page == "README.md" else DOCS[page]):
        verb, rest = words[1], words[2:]
        assert verb in group.commands, words
        known = {name for parameter in group.commands[verb].params for name in parameter.opts} | {"--help"}
        for word in rest:
            if word.startswith("--"):
                assert word.split("=")[0] in known, words


def test_links_between_pages_lead_somewhere() -> None:
    for name, text in {"README.md": README, **{f"docs/{name}": text for name, text in DOCS.items()}}.items():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert ((ROOT / name).parent / target).exists(), (name, target)


@pytest.fixture(autouse=True)
def _own_memo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples read and write no answers of the user's."""
    monkeypatch.setattr(memo, "Memo", functools.partial(_at, memo.Memo, tmp_path / "memo.sqlite"))


def _at(kind: Any, path: Path, _: Path, **more: Any) -> Any:
    return kind(path, **more)


def test_the_example_of_an_own_task_runs(tmp_path: Path) -> None:
    result = load(ROOT / "examples" / "own_task.py").main(steps=1, out=str(tmp_path / "run"))
    assert result.prompt
    assert result.report.exists()


def test_the_example_of_classification_runs(tmp_path: Path) -> None:
    rows = [("a moving, funny and clever film", 1), ("dull and far too long", 0), ("I loved it", 1), ("a mess", 0)]
    more = [(f"{text}, part {number}", label) for number in range(1, 5) for text, label in rows]
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows + more), "utf-8")
    result = load(ROOT / "examples" / "classify.py").main(str(path), calls=120, out=str(tmp_path / "run"))
    assert result.calls <= 120
    assert 0 <= result.dev["accuracy"] <= 1
