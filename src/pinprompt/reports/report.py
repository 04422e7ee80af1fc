"""Writes report.html, a single file that needs no network.

All text of prompts, data and models is escaped by the template engine. The page's content security policy (which only
allows its own style sheet and script by hash, and pictures in data URIs) is a second line of defence.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pinprompt.files import write_atomically
from pinprompt.folder.identity import refresh
from pinprompt.folder.reading import WITH_TEXTS, RunRecord, mapping, read_run
from pinprompt.reports import report_parts as parts
from pinprompt.reports import usage
from pinprompt.wording import text

RECIPE_SHOWN = 60_000
PARTS: tuple[Callable[[RunRecord], Any], ...] = (
    parts.header, parts.verdict, parts.facts, parts.top, parts.tokens, parts.pictures, parts.judges, parts.judgements,
    parts.rewrites, parts.answers, parts.examples, parts.confusion, parts.remarks, parts.environment, parts.command,
)  # fmt: skip
"""The parts that the template shows as they are, each under the name of its function."""


def write_report(folder: Path | str, *, private: bool = False) -> Path:
    """Read a run folder and rewrite its report.html; returns the file's path.

    `private` leaves out texts and pictures of the data, as for a private run.
    """
    record = read_run(folder)
    if private:
        shown = {name: value for name, value in record.result.items() if name not in ("tables", "images", "drawings")}
        tables = {name: table for name, table in mapping(record.result.get("tables")).items() if name not in WITH_TEXTS}
        record = replace(record, result={**shown, "tables": tables, "private": True})
    path = record.folder / "report.html"
    write_atomically(path, render(record))
    refresh(record.folder, path.name)
    return path


def render(record: RunRecord) -> str:
    """The report of a record as HTML, with the parts that the run has."""
    from markupsafe import Markup

    css, script = template("report.css"), template("report.js")
    page: str = _page().render(
        css=Markup(css),  # nosec B704  # our own style sheet
        script=Markup(script),  # nosec B704  # our own script
        style_hash=_hash(css),
        script_hash=_hash(script),
        **contents(record),
    )
    return page


@cache
def _page() -> Any:
    """The compiled template, cached: compiling takes longer than rendering."""
    return engine(template).get_template("report.html.j2")


def engine(load: Callable[[str], str]) -> Any:
    """The template engine, with templates as `load` gives them by name; every value is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    loader = FunctionLoader(load)
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader)


def _hash(content: str) -> str:
    """The hash of a style sheet or script for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def contents(record: RunRecord) -> dict[str, Any]:
    """The template variables of `report_body.html.j2`, for the report and for the studio's page of a run."""
    from markupsafe import Markup

    # Only SVG written by charts.py is marked as safe; all text in it is escaped.
    curves = [dict(part, svg=Markup(part["svg"])) for part in parts.curves(record)]  # nosec B704
    scores = parts.scores(record)
    private = record.result.get("private") is True
    problems = [text(event.get("reason"), 600) for event in record.of("problem")[-3:]]
    return {
        **{part.__name__: part(record) for part in PARTS},
        "scores": None if scores is None else dict(scores, chart=Markup(scores["chart"])),  # nosec B704
        "sent": usage.shown(record),
        "curves": curves,
        "front": Markup(parts.front(record)),  # nosec B704
        "front_title": "Score against readability",
        "recipe": text(record.recipe_text, RECIPE_SHOWN),
        "notes": [
            *problems,
            *record.notes,
            *(["This page does not show texts and pictures of the data (private)."] * private),
        ],
        "rows_place": False,  # the studio inserts its matrix of prompts and rows here
    }


def template(name: str) -> str:
    """The text of a template, style sheet or script of the report."""
    return resources.files("pinprompt.reports").joinpath("templates", name).read_text(encoding="utf-8")
