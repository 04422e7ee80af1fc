"""How far a run has come, and a notebook's bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.house.tiny import recipe

from pinprompt.reports.trackers import Bar, in_notebook, share
from pinprompt.values import Event

STEP = {"score_best": 0.5, "best_prompt": "<b>it</b>", "distinct": 3, "calls": 30}


def test_the_bar_shows_where_the_search_stands(tmp_path: Path) -> None:
    shown: list[str] = []

    def show(html: str) -> Any:
        shown.append(html)
        return shown.append

    bar = Bar(recipe(tmp_path, budget={"calls": 60}, q_learning={"steps": 1000}), show)
    bar(Event("step", 0, STEP))
    assert 'value="0.500"' in shown[-1]
    assert "&lt;b&gt;it" in shown[-1]
    bar(Event("evaluating", 1, {"name": "found", "split": "test"}))
    assert "evaluating found on test" in shown[-1]
    bar(Event("end", 1, {}))
    assert 'value="1.000"' in shown[-1]


def test_a_kernel_shows_the_bar_and_the_result(tmp_path: Path) -> None:
    assert not in_notebook()
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    made = recipe(tmp_path, task={"function": "tests.cli.scoring:vowels"}, q_learning={"steps": 2, "eval_every": 2})
    code = "import pinprompt\nfrom pinprompt.recipe import recipe as recipes\nimport json\n"
    code += f"made = recipes.validate(json.loads({made.model_dump_json()!r}))\n"
    code += f"pinprompt.tune(made, out={str(tmp_path / 'run')!r})"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    here = {"metadata": {"path": str(Path(__file__).parents[2])}}
    client.NotebookClient(book, timeout=None, kernel_name="python3", resources=here).execute()
    html = [one["data"].get("text/html", "") for one in book.cells[0].outputs if "data" in one]
    assert any("<progress" in one and 'value="1.000"' in one for one in html), book.cells[0].outputs
    assert any("<table>" in one and "report.html" in one for one in html)


EVENTS = [
    Event("start", 0, {"method": "pin", "seed": 3}),
    Event(
        "step", 0, {"score_mean": 1.5, "support": [4.0, 2.0, None], "best_prompt": "x", "loss": None}, {"write": 0.25}
    ),
    Event("evaluation", 1, {"name": "found", "split": "dev", "metrics": {"accuracy": 0.75}, "intervals": {}}),
    Event("selected", 1, {"prompt": "It was", "score": 2.0}),
    Event("end", 1, {"stopped": "finished", "calls": 12}),
]


def test_a_limit_on_minutes_alone_moves_the_bar(tmp_path: Path) -> None:
    timed = recipe(tmp_path, method="random", budget={"minutes": 10})
    assert share(timed, Event("step", 3, STEP), 2.5) == 0.25
    assert share(timed, Event("step", 3, STEP), 50.0) == 1.0


def test_steps_that_follow_each_other_closely_are_not_all_drawn(tmp_path: Path) -> None:
    shown: list[str] = []

    def show(html: str) -> Any:
        return shown.append

    bar = Bar(recipe(tmp_path, budget={"calls": 60}, q_learning={"steps": 1000}), show)
    for step in range(500):
        bar(Event("step", step, STEP))
    assert len(shown) < 500
    drawn = len(shown)
    bar(Event("restart", 500, {}))
    assert len(shown) == drawn, "what the bar has no words for is not drawn"
    bar(Event("end", 500, {}))
    assert len(shown) == drawn + 1
