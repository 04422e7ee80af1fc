"""The report opened in a real browser: no script of a hostile run may run, no request may leave.

Each test has its counterpart: the same payloads on a page that neither escapes nor forbids do run and do fetch, so a
browser that silently did nothing could not pass.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import run_samples as sample

from pinprompt.reports.report import template, write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")

RAN = "document.documentElement.setAttribute('data-ran','1');document.title='ran';fetch('{url}/fetch')"
PAYLOADS = (
    "<script>{js}</script>",
    "</title><script>{js}</script>",
    "</style><script>{js}</script>",
    "</textarea></script><script>{js}</script>",
    '<img src="{url}/img" onerror="{js}">',
    '\'"><img src=x onerror="{js}">',
    '" onmouseover="{js}" autofocus onfocus="{js}" x="',
    '<svg onload="{js}"><image href="{url}/svg"/></svg>',
    "]]></title></svg><svg/onload={js}>",
    '<iframe src="{url}/frame" srcdoc="<script>parent.{js}</script>"></iframe>',
    '<meta http-equiv="refresh" content="0;url={url}/refresh">',
    '<link rel="stylesheet" href="{url}/css"><style>@import "{url}/import";body{{background:url({url}/bg)}}</style>',
    '<object data="{url}/object"></object><embed src="{url}/embed">',
    '<base href="{url}/"><form action="{url}/form"><input autofocus onfocus="{js}"></form>',
    '<a href="javascript:{js}">x</a><details open ontoggle="{js}">',
    '<video><source onerror="{js}"></video><audio src=x onerror="{js}">',
    "{{{{ ''.__class__ }}}}{{% for x in [1] %}}<script>{js}</script>{{% endfor %}}",
    "&lt;script&gt;{js}&lt;/script&gt;",
    "\u202e<script>{js}</script>\x00<scr\x00ipt>{js}</script>",
    "<!-- --><script>{js}</script><!--",
    "data:text/html,<script>{js}</script>",
)


class Server:
    """Counts what is asked of it."""

    def __init__(self) -> None:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.asked = asked
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def payloads(url: str) -> list[str]:
    script = RAN.format(url=url)
    return [payload.format(js=script, url=url) for payload in PAYLOADS]


def opened(page: Path, tmp_path: Path) -> str:
    """The document after the browser has had its time with it."""
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    run = subprocess.run(command, capture_output=True, check=True)
    return run.stdout.decode("utf-8", "replace")


def hostile(folder: Path, url: str) -> Path:
    """A run in which every text that anyone could choose is an attack."""
    attacks = payloads(url)
    every = " ".join(attacks)
    sample.classification(folder)
    quoted = [attack.replace("'", "").replace("\x00", "") for attack in attacks]
    toml = "".join(f"value_{place} = '{attack}'\n" for place, attack in enumerate(quoted))
    task = "".join(f"[task.words]\n'{quoted[0]}' = '{quoted[4]}'\n")
    metrics = dict.fromkeys(attacks[:6], 0.5) | {"accuracy": 0.7, "intervals": {"accuracy": [0.6, 0.8]}}
    result = {
        "method": attacks[0], "task": attacks[1], "seed": attacks[2], "prompt": every, "score": 1.0,
        "primary": "accuracy",
        "test": metrics, "dev": metrics, "stopped": attacks[3], "calls": 3, "seconds": 2.0, "fingerprint": every,
        "top": [{"prompt": a, "source": a, "score": 1.0, "in_text": 5.0 + n} for n, a in enumerate(attacks)],
        "baselines": {attack: {"prompt": attack, "test": metrics} for attack in attacks},
        "tokens": [{"token": a, "rank": a, "q": 1.0, "runners_up": [[a, 0.5]], "score_without": 0.5} for a in attacks],
        "readability": dict.fromkeys(attacks, 1.0),
        "judges": {attack: attack for attack in attacks},
        "tables": {
            "notes": attacks,
            "confusion": {"labels": attacks, "counts": [[1] * len(attacks)] * len(attacks)},
            "examples": [{"text": a, "label": a, "predicted": b} for a in attacks for b in (a, "x")],
            "rewrites": [{"source": a, "rewrite": a, "content": 1.0} for a in attacks],
        },
        "images": [{"name": a, "data_uri": a} for a in attacks] + [{"name": every, "data_uri": sample.png(8)}],
        "drawings": [{"name": a, "data_uri": sample.png(8), "prompt": a, "similarity": 0.5} for a in attacks],
        "nearest_words": attacks, "command": every,
    }  # fmt: skip
    return sample.write(
        folder,
        {"result.json": result, "environment.json": {a: a for a in attacks}, "recipe.toml": toml + task},
    )


def test_nothing_runs_and_nothing_is_sent(tmp_path: Path, server: Server) -> None:
    page = write_report(hostile(tmp_path / "run", server.url))
    dom = opened(page, tmp_path)
    assert dom.count(f"<script>{template('report.js')}</script>") == 1  # the page's own, and no other below
    dom = dom.replace(template("report.js"), "").replace("<script></script>", "", 1)
    assert "Contribution of each token" in dom  # the page was really laid out, to its end
    assert "nothing is fetched" in dom
    assert not re.search(r"<html[^>]*data-ran", dom)
    found = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert found is not None
    assert unescape(found[1]).startswith("pinprompt: ")
    assert not re.search(r"<(script|iframe|object|embed|base|form|link|video|audio)\b", dom)
    assert server.asked == []


def test_the_same_attacks_work_on_an_unprotected_page(tmp_path: Path, server: Server) -> None:
    works = 0
    for attack in ("<script>{js}</script>", '<img src="{url}/img" onerror="{js}">'):
        page = tmp_path / "careless.html"
        page.write_text("<!doctype html><body>" + attack.format(js=RAN.format(url=server.url), url=server.url))
        works += bool(re.search(r"<html[^>]*data-ran", opened(page, tmp_path)))
    assert works == 2
    assert {"/fetch", "/img"} <= set(server.asked)


def test_the_policy_holds_where_escaping_would_fail(tmp_path: Path, server: Server) -> None:
    """The second wall alone: attacks put into the finished page as they are, behind its content policy."""
    page = write_report(sample.classification(tmp_path / "run"))
    # Without the refresh, which leaves the page as a click would: a policy has no word on where a page may go.
    raw = "".join(attack for attack in payloads(server.url) if "http-equiv" not in attack)
    html = page.read_text("utf-8").replace("<main>", "<main>" + raw)
    assert raw in html
    page.write_text(html, "utf-8")
    dom = opened(page, tmp_path)
    assert not re.search(r"<html[^>]*data-ran", dom)
    assert server.asked == []
