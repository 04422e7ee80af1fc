"""The site of docs/: built without a warning, all its links lead somewhere, nothing comes from outside, and it fits."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("material", reason="pip install mkdocs-material mkdocstrings-python")

ROOT = Path(__file__).parents[1]
PATIENCE = 900_000
PAGES = ("index.html", "gallery.html", "howto/tickets.html", "howto/notebook.html", "reference.html", "recipe.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Page(HTMLParser):
    """What a page links to and loads, and the names that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("img", "script", "iframe", "source", "video") and "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "modulepreload", "preconnect"):
            self.loads.append(given["href"])


def pages(site: Path) -> dict[Path, Page]:
    ours = [path for path in site.rglob("*.html") if path.name != "404.html" and path.parent.name != "gallery"]
    return {path: Page(path) for path in ours}


def test_links_lead_somewhere_and_nothing_comes_from_outside(site: Path) -> None:
    found = pages(site)
    assert found
    for path, page in found.items():
        for target in page.loads:
            parts = urlsplit(target)
            assert not parts.scheme or parts.scheme == "data", (path.name, target)
            assert not parts.netloc, (path.name, target)
            assert parts.scheme == "data" or (path.parent / unquote(parts.path)).is_file(), (path.name, target)
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target in ("", "#", "#__skip"):
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            assert goal.is_file(), (path.name, target)
            if parts.fragment and goal in found:
                assert unquote(parts.fragment) in found[goal].names, (path.name, target)


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """The site behind a server on this machine, as on the web."""
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Says nothing."""

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.mark.parametrize("place", ["disk", "server"])
def test_a_word_is_searched_for_and_found(site: Path, browser: Any, place: str) -> None:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with served(site) if place == "server" else contextlib.nullcontext(site.as_uri()) as address:
        page.goto(f"{address}/index.html")
        page.locator("input.md-search__input").first.click()
        page.keyboard.type("promptfoo")
        hit = page.locator(".md-search-result__item a[href*='howto/tickets.html']").first
        hit.wait_for()
        hit.click()
        page.wait_for_url("**/howto/tickets.html*")
        assert "promptfoo" in page.locator("article").inner_text()
        page.goto(f"{address}/howto/style.html")  # a page one folder down finds the index too
        page.locator("input.md-search__input").first.click()
        page.keyboard.type("sparsemax")
        page.locator(".md-search-result__item a[href*='method.html']").first.wait_for()
        context.close()
    assert not [url for url in asked if not url.startswith(("data:", "blob:", "about:", address))]


@pytest.mark.parametrize("width", [1200, 390])
def test_pages_fit_a_screen_and_a_phone_and_load_nothing_from_elsewhere(site: Path, browser: Any, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in PAGES:
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.locator("h1").first.is_visible(), name
        sizes = page.evaluate("Array.from(document.images, (image) => image.complete && image.naturalWidth)")
        assert all(sizes), name
    context.close()
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
