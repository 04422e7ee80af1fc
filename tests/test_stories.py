"""The how-tos, carried out: every command and every piece of Python of each page, in order, in a fresh folder.

The models that pip brings are replaced by small ones of the real classes, in the place where the cache has the real
ones; everything else is as the reader would have it.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from remote_servers import Action, refuse, reply, serving
from small_aliases import DATA, make_home
from typer.testing import CliRunner

from pinprompt.cli import app

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "howto"
LABELS = ("billing", "delivery", "account")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which smollm2 and minilm are small."""
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def fresh(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A fresh folder with the example data, and the addresses that a browser was asked to open."""
    for path in DATA.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.setenv("PINPROMPT_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)
    return opened


def carry_out(page: str, **other: str) -> dict[str, str]:
    """Do what a page says; returns what each command printed. `other` words stand in for some of the page's."""
    text = (PAGES / page).read_text("utf-8")
    for old, new in other.items():
        assert old in text
        text = text.replace(old, new)
    said: dict[str, str] = {}
    names: dict[str, Any] = {}
    for kind, title, block in re.findall(r"```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)```", text, flags=re.S):
        if kind == "python":
            exec(compile(block, page, "exec"), names)
        elif kind == "toml":
            Path(title).write_text(block, "utf-8")
        elif kind == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "pinprompt", line
                done = CliRunner().invoke(app, words)
                assert done.exit_code == 0, (line, done.output, done.exception)
                said[" ".join(words)] = done.stdout
    assert said or names
    return said


def test_tickets(fresh: list[str]) -> None:
    said = carry_out("tickets.md")
    with open("labelled.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ticket"] for row in rows] == [str(2001 + place) for place in range(6)]
    assert {row["label"] for row in rows if row["body"]} <= set(LABELS)
    assert rows[3]["label"] == ""
    assert [Path(address).name for address in fresh] == ["report.html"]
    assert "I was charged twice" not in Path("runs/tickets/report.html").read_text("utf-8")
    assert any("finished" in words or "accuracy" in words for command, words in said.items() if command == "ls runs")
    assert json.loads(Path("promptfooconfig.json").read_text("utf-8"))["prompts"]


GERMAN = {
    "Rechnung": "Ich habe die Rechnung {} doppelt bezahlt und möchte mein Geld zurück.",
    "Lieferung": "Das Paket {} ist seit zwei Wochen unterwegs und noch immer nicht da.",
    "Konto löschen": "Bitte löschen Sie mein Konto {} und alle meine Daten sofort.",
}


def test_german_labels_with_spaces(fresh: list[str]) -> None:
    """The rows decide how labels are read, and both the terminal and the report say what they decided."""
    rows = [[text.format(number), label] for number in range(24) for label, text in GERMAN.items()]
    with open("anfragen.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["Text", "Art"], *rows])
    command = "classify --train anfragen.csv --text-column Text --label-column Art --calls 300 --out runs/de"
    assert "forward passes, as label words" in CliRunner().invoke(app, shlex.split(command + " --estimate")).stdout
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output
    result = json.loads(Path("runs/de/result.json").read_text("utf-8"))
    learnt, bias = result["readout"]["words"], result["readout"]["bias"]
    assert list(bias) == sorted(GERMAN)
    way = f"from the label words and {len(learnt)} other words of the same answers"
    if not learnt:
        way = "by calibrated label words, " if any(bias.values()) else "by the label words as they are"
    said = f"Labels are read {way}"
    why = f": of learnt, calibrated and raw label words, the most likely on the {result['readout']['rows']} labelled"
    for shown in (" ".join(done.stdout.split()), Path("runs/de/report.html").read_text("utf-8")):
        assert said in shown
        assert why in shown


def test_messages_that_misled_are_gone() -> None:
    """What users quoted; the notebook and the gallery are records of earlier runs."""
    quoted = ("Which word comes next", "none of 18 prompts", "0.000 [0.000, 0.000]", "p = 0.500", "601 seconds")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.*")]
    shown = [path for path in pages if path.suffix in (".md", ".py", ".js", ".j2", ".toml") and path.stem != "notebook"]
    assert len(shown) > 150
    said = {path: path.read_text("utf-8") for path in shown}
    assert [(path.name, one) for path, text in said.items() for one in quoted if one in text] == []


def test_answers(fresh: list[str]) -> None:
    # A model with random weights never gives the number: a judge of the answer's form is met by some prompts.
    words = {"--metric exact": "--pattern '^[^a]*$'", "--calls 300": "--calls 120"}
    said = carry_out("answers.md", **words)
    assert "answer" in said["predict runs/orders My order B12345 is late."]
    with open("answered.csv", encoding="utf-8", newline="") as file:
        assert len([row["answer"] for row in csv.DictReader(file)]) == 60
    assert json.loads(Path("promptfooconfig.json").read_text("utf-8"))["prompts"]


def test_python(fresh: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    carry_out("python.md")
    assert "without text: ['row 4']" in capsys.readouterr().out


def test_a_papers_table(fresh: list[str]) -> None:
    said = carry_out("paper-table.md")
    found = json.loads(said["compare runs/table --json"])
    rows = " ".join(cell["row"] for table in found["tables"] for cell in table["cells"])
    assert all(method in rows for method in ("manual", "random", "race"))
    assert "\\begin{tabular}" in said["compare runs/table --format latex"]
    assert list(Path("figures").glob("*.svg"))


def test_a_picture(fresh: list[str]) -> None:
    pytest.importorskip("PIL")
    # The small model that stands in for smollm2 here has fewer tokens than the filter of a picture's words keeps.
    said = carry_out("picture.md", **{"--calls 800": "--calls 800 --set policy.k=200"})
    shown = said["invert sun.png --calls 800 --set policy.k=200 --out runs/sun"]
    assert "similarity to the picture" in shown
    assert "rows" not in shown


def test_a_model_behind_an_api(fresh: list[str]) -> None:
    def labels(number: int, path: str, body: dict[str, Any]) -> Action:
        if path != "/v1/completions" or not isinstance(body.get("logprobs"), int):
            return refuse(404, "no such path")
        text = body["prompt"]
        tops = {f" {label}": -1.0 - len(set(label) - set(text)) / 10 for label in LABELS}
        usage = {"prompt_tokens": 30, "completion_tokens": 1}
        return reply({"choices": [{"text": " account", "logprobs": {"top_logprobs": [tops]}}], "usage": usage})

    with serving(labels) as server:
        carry_out("remote-model.md", **{"http://localhost:8000/v1": server.url})
        assert len(server.seen) > 100
    assert len(Path("labelled.csv").read_text("utf-8").splitlines()) == 7


def test_a_style(fresh: list[str]) -> None:
    # An encoder with random weights tells no styles apart; the judge is used all the same.
    said = carry_out("style.md", **{"--calls 600": "--calls 600 --force-judge"})
    assert any(command.startswith("rewrite") and "content" in words for command, words in said.items())
    for name in ("casual.txt", "formal.txt"):
        Path(name).unlink()
    done = CliRunner().invoke(app, ["rewrite", "runs/formal", "see you there", "--json", "--quiet"])
    assert json.loads(done.stdout)["rewrites"][0]["text"] == "see you there"


def test_the_notebook(fresh: list[str], tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(ROOT / "examples" / "tickets.ipynb", as_version=4)
    shutil.copytree(DATA, "data")
    here = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(book, timeout=None, kernel_name="python3", resources=here).execute()
    html = [
        one["data"]["text/html"]
        for cell in book.cells
        if cell.cell_type == "code"
        for one in cell.outputs
        if "text/html" in one.get("data", {})
    ]
    assert any("<progress" in one for one in html)
    assert any("probability_billing" in one for one in html)
