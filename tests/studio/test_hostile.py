"""Runs and tables of strangers in a real Chromium: nothing that they wrote may run, and nothing may be fetched."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import run_samples as sample
from test_report_browser import PAYLOADS, RAN, Server

from pinprompt.answers.table import pack_answers
from pinprompt.values import Answers
from tests.studio.conftest import Studio, until
from tests.studio.test_guard import ask, own

pytestmark = pytest.mark.timeout(1200)

NAMES = [
    "<script>document.documentElement.dataset.ran=1<,script>", "\"><img src=x onerror=alert(1)>", "a b%20c#d?e&f=g",
    "'; DROP TABLE runs; --", "日本語 \u202e txt", "javascript:alert(1)", "{{ 7*7 }}", "h..idden", "-rf", "a'b\"c",
]  # fmt: skip


@pytest.fixture
def stranger() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def payloads(url: str) -> list[str]:
    script = RAN.format(url=url)
    return [payload.format(js=script, url=url) for payload in PAYLOADS]


def hostile(folder: Path, attacks: list[str], finished: bool) -> Path:
    """A run in which everything that a page could show is an attack, answers and rows included."""
    sample.classification(folder)
    every = " ".join(attacks)
    quoted = [attack.replace("'", "").replace("\x00", "") for attack in attacks]
    events = [
        {"event": a, "step": a, "best_prompt": a, "reason": a, "name": a, "split": a, "method": a} for a in attacks
    ]
    events += [
        {"event": "step", "step": n, "score_best": n, "best_prompt": a, "calls": n} for n, a in enumerate(attacks)
    ]
    answers = pack_answers(Answers(tuple(range(len(attacks))), np.log([[0.9, 0.1]] * len(attacks))))
    lines = [
        {"request": n, "report": False, "draw": "", "text": a, "ids": [], **answers} for n, a in enumerate(attacks)
    ]
    shown = [{"text": a, "label": n % 2, "split": "train"} for n, a in enumerate(attacks)]
    rows = {"labels": attacks[:2], "rows": shown, "reward": ["gap", 1.0, 1.0]}
    metrics = dict.fromkeys(attacks[:4], 0.5) | {"accuracy": 0.7, "intervals": {"accuracy": [0.6, 0.8]}}
    result: dict[str, Any] = {
        "method": attacks[0], "task": attacks[1], "seed": attacks[2], "prompt": every, "score": 1.0,
        "primary": "accuracy", "test": metrics, "stopped": attacks[3], "calls": 3, "seconds": 2.0,
        "top": [{"prompt": a, "source": a, "score": 1.0, "perplexity": 5.0 + n} for n, a in enumerate(attacks)],
        "baselines": {attack: {"prompt": attack, "test": metrics} for attack in attacks},
        "tables": {"notes": attacks, "examples": [{"text": a, "label": a, "predicted": a} for a in attacks]},
    }  # fmt: skip
    task = {"kind": "classification", "train": quoted[0], "model": quoted[1]}
    sample.write(folder, {
        "events.jsonl": events, "answers.jsonl": lines, "rows.json": rows, "result.json": result,
        "recipe.toml": sample.recipe(quoted[4], 0, task=task), "environment.json": {a: a for a in attacks},
    })  # fmt: skip
    if not finished:
        (folder / "result.json").unlink()
    return folder


def test_a_strangers_runs_run_nothing(browser: Any, studio: Studio, stranger: Server) -> None:
    attacks = payloads(stranger.url)
    for place, name in enumerate(NAMES):
        hostile(studio.folder / name, attacks, finished=place % 2 == 0)
    context = browser.new_context()
    page = context.new_page()
    spoken: list[str] = []
    page.on("dialog", lambda dialog: (spoken.append(dialog.message), dialog.dismiss()))
    page.goto(studio.url)
    assert page.locator(".card").count() == len(NAMES)  # odd names are shown, not lost
    addresses = [link.get_attribute("href") for link in page.locator(".card h2 a").all()]
    assert len(set(addresses)) == len(NAMES)
    compared = "compare?" + "&".join(f"run={quote(name, safe='')}" for name in NAMES)
    origin = studio.url.split(f"/{studio.token}")[0]
    for address in [
        *(origin + one for one in addresses),
        *(origin + one.replace("/run/", "/try/") for one in addresses),
        studio.url + compared,
    ]:
        response = page.goto(address)
        assert response.status == 200, address
        if "/run/" in address:
            until(page, "!document.querySelector('#matrix').hidden")
            page.focus("#matrix-frame")
            page.keyboard.press("ArrowDown")
            assert "right" in page.inner_text("#matrix-cell")
        assert page.evaluate("document.documentElement.hasAttribute('data-ran')") is False, address
        loaded = page.evaluate("[...document.querySelectorAll('script, link')].map((one) => one.src || one.href)")
        assert all(one.startswith((studio.url, "data:,")) for one in loaded), address
        assert page.locator("iframe, object, embed, base").count() == 0
    assert spoken == []
    assert stranger.asked == []
    context.close()


def test_a_strangers_runs_are_pages_and_tables_without_markup(studio: Studio, stranger: Server) -> None:
    """The same without a browser: every page is there, and no attack stands in it as it was written."""
    attacks = payloads(stranger.url)
    hostile(studio.folder / "finished", attacks, finished=True)
    hostile(studio.folder / "killed", attacks, finished=False)
    marked = [attack for attack in attacks if "<" in attack]
    for page in ("", "run/finished", "run/killed", "try/finished", "compare?run=finished&run=killed"):
        status, content, _ = ask(studio, own(studio, page))
        assert status == 200, page
        assert not [attack for attack in marked if attack in content.decode()], page
    for name in ("finished", "killed"):
        status, content, headers = ask(studio, own(studio, f"matrix/{name}"))
        matrix = json.loads(content)
        assert (status, headers["content-type"]) == (200, "application/json")
        assert len(matrix["columns"]) == len(set(attacks))
        assert all(set(column["cells"]) <= set("0123456789abcdef-") for column in matrix["columns"])
    assert stranger.asked == []


def test_a_strangers_table_runs_nothing(browser: Any, studio: Studio, stranger: Server, tmp_path: Path) -> None:
    attacks = [attack.replace("\x00", "") for attack in payloads(stranger.url)]
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow([attacks[0], attacks[4]])
    writer.writerows([attack, attacks[place % 2]] for place, attack in enumerate(attacks * 4))
    path = tmp_path / "<img src=x onerror=document.documentElement.dataset.ran=1>.csv"
    path.write_text(lines.getvalue(), "utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(studio.url + "new")
    page.set_input_files("#table", str(path))
    page.wait_for_selector("#labels input")
    assert page.locator("#table-rows tr").count() == 8
    assert page.input_value('select[name="text_column"]') == attacks[0].strip()
    page.wait_for_selector("#problem:not([hidden])")  # such labels make no command, and the page says why
    assert "has no word" in page.inner_text("#problem") or "contains '='" in page.inner_text("#problem")
    assert page.evaluate("document.documentElement.hasAttribute('data-ran')") is False
    assert stranger.asked == []
    context.close()


def test_the_policy_holds_where_escaping_would_fail(browser: Any, studio: Studio, stranger: Server) -> None:
    """The second wall alone: the same attacks put into the page as HTML do not run there."""
    attacks = [attack for attack in payloads(stranger.url) if "http-equiv" not in attack]
    context = browser.new_context()
    page = context.new_page()
    page.goto(studio.url)
    page.evaluate(
        """() => { window.refused = [];
        document.addEventListener("securitypolicyviolation", event => refused.push(event.effectiveDirective)); }"""
    )
    page.evaluate("html => document.querySelector('main').insertAdjacentHTML('beforeend', html)", "".join(attacks))
    # The browser says what it refused: once it has come to each kind, nothing is left to wait for.
    kinds = ["script-src-attr", "style-src-elem", "base-uri", "img-src", "media-src", "object-src"]
    until(page, "kinds => kinds.every(kind => refused.includes(kind))", kinds)
    assert page.evaluate("document.documentElement.hasAttribute('data-ran')") is False
    assert stranger.asked == []
    # On a page without a policy the same does run, so the browser is one that would.
    page.goto("about:blank")
    page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", attacks[4])
    until(page, "document.documentElement.hasAttribute('data-ran')")
    context.close()


def test_damaged_runs_are_cards_that_say_so(tab: Any, studio: Studio) -> None:
    for name, content in {"torn": "{", "list": "[]", "deep": "[" * 5000, "bytes": "\x00\x01"}.items():
        folder = sample.classification(studio.folder / name)
        (folder / "result.json").write_text(content)
        (folder / "answers.jsonl").write_text(
            '{"report": false}\n[]\nnonsense\n{"report": false, "text": "a", "rows": 4, "contents": {}}\n'
        )
        (folder / "rows.json").write_text(json.dumps({"rows": [3, {"text": 4, "label": 99}], "labels": "x"}))
    tab.goto(studio.url)
    assert tab.locator(".card.broken").count() == 4
    for name in ("torn", "list", "deep", "bytes"):
        assert tab.goto(studio.url + f"run/{name}").status == 200
        assert "result.json" in tab.inner_text("main")
