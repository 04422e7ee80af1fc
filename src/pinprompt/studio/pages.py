"""The studio's pages as HTML. A run's page is its report (same template and charts), updated while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pinprompt.errors import PinpromptError, RunError
from pinprompt.files import is_held
from pinprompt.folder.reading import RunRecord, inside, mapping, number, read_run
from pinprompt.maths.bootstrap import compare_rows, mcnemar, mcnemar_interval
from pinprompt.reports import report, report_parts
from pinprompt.reports.charts import Series, line_chart
from pinprompt.reports.compare import compare
from pinprompt.reports.figures import progress
from pinprompt.reports.tables import Grid, grids
from pinprompt.reports.usage import TOOLS
from pinprompt.run.verdict import outcomes_of, reported_split, shown_p
from pinprompt.studio.runs import Card, Library, Place, RunList, what_happened
from pinprompt.wording import LOWER_IS_BETTER, by_role, metric, plain, shown_prompt, text, title

PAGE = 60
SORTS = {"when": "latest first", "figure": "best metric first", "name": "by name"}
STATES = ("finished", "running", "stopped", "broken")
COMPARED = 12
ROWS = ("kind", "dataset", "data", "train", "dev", "test", "source", "target", "split", "shots", "test_rows", "images")
"""Settings of a task that determine which rows its metrics are measured on."""


@cache
def _engine() -> Any:
    def own(name: str) -> str:
        file = resources.files("pinprompt.studio").joinpath("templates", name)
        return file.read_text(encoding="utf-8") if file.is_file() else report.template(name)

    engine = report.engine(own)
    engine.filters["address"] = lambda value: quote(str(value), safe="/", errors="replace")
    engine.filters["ago"] = ago
    engine.filters["by_role"] = by_role
    return engine


def page(name: str, root: str, opened: Path, **values: Any) -> str:
    """Render a template; `root` is the address of the studio's first page without the trailing slash."""
    return str(_engine().get_template(name).render(root=root, folder_name=text(opened.name, 80), **values))


def runs_page(run_list: RunList, root: str, query: Mapping[str, str]) -> str:
    """The cards of a folder's runs, and of the sweeps in it."""
    group, sought, sort = query.get("group", ""), query.get("q", "").strip().lower(), query.get("sort", "when")
    state = query.get("state", "")
    places = run_list.places()
    inside_group = [place for place in places if not group or place.group == group or place.id.startswith(group + "/")]
    groups = [] if group or sought or state else _groups(places)
    grouped = {place.id for one in groups for place in one["places"]}
    shown = [place for place in inside_group if place.id not in grouped]
    if sought or state or sort == "figure":
        every = {place: run_list.card(place) for place in shown}
        shown = [place for place in shown if _matches(every[place], sought, state)]
        if sort == "figure":
            shown.sort(key=lambda place: (every[place].value is None, -(every[place].value or 0.0)))
    if sort == "name":
        shown.sort(key=lambda place: place.id)
    total = len(shown)
    first = _first(query, total)
    cards = [run_list.card(place) for place in shown[first : first + PAGE]]
    return page(
        "runs.html.j2", root, run_list.root, where="runs", cards=cards, groups=groups, group=group,
        sought=query.get("q", ""), sort=sort if sort in SORTS else "when", sorts=SORTS, state=state, states=STATES,
        total=total, first=first, size=PAGE, any_runs=bool(places),
    )  # fmt: skip


def _first(query: Mapping[str, str], total: int) -> int:
    given = query.get("from", "0")
    first = int(given) if given.isdecimal() and len(given) < 9 else 0
    return first if first < max(total, 1) else 0


def _groups(places: Sequence[Place]) -> list[dict[str, Any]]:
    """Folders with several runs, such as a sweep."""
    found: dict[str, list[Place]] = {}
    for place in places:
        if place.group:
            found.setdefault(place.group, []).append(place)
    groups = []
    for name, inner in found.items():
        if len(inner) > 1:
            done = sum((place.path / "result.json").is_file() for place in inner)
            when = max(place.when for place in inner)
            groups.append({"name": name, "places": inner, "count": len(inner), "finished": done, "when": when})
    return sorted(groups, key=lambda one: -one["when"])


def _matches(card: Card, sought: str, state: str) -> bool:
    if state and card.state != state:
        return False
    said = " ".join((card.id, card.task, card.data, card.method, card.prompt, card.happened)).lower()
    return all(word in said for word in sought.split())


def run_page(run_list: RunList, root: str, run: str, library: Library, job: dict[str, Any] | None) -> str:
    """A run's page: its report, actions, and the matrix of prompts and rows."""
    folder = run_list.path(run)
    try:
        # Read before the record: what is written in between is sent twice rather than lost.
        events_size = (folder / "events.jsonl").lstat().st_size
    except OSError:
        events_size = 0
    record = _record(folder)
    return page(
        "run.html.j2", root, run_list.root, where="run", run=run, job=job, events_size=events_size,
        **_alive(folder, record, library),
    )  # fmt: skip


def live_part(run_list: RunList, root: str, run: str, library: Library, job: dict[str, Any] | None) -> str:
    """The part of a run's page that changes while it runs."""
    folder = run_list.path(run)
    return page("run_body.html.j2", root, run_list.root, run=run, job=job, **_alive(folder, _record(folder), library))


def _record(folder: Path) -> RunRecord:
    try:
        return read_run(folder)
    except RunError as error:
        # A run's page shows what is wrong with the run.
        return RunRecord(folder, notes=(text(str(error), 600),))


def _alive(folder: Path, record: RunRecord, library: Library) -> dict[str, Any]:
    scored, busy = library.prompts_of(folder), is_held(folder)
    contents = report.contents(record)
    header = contents["header"]
    if not record.result:
        best = scored.best()
        if best and not header["prompt"]:
            header["prompt"] = shown_prompt(best[0].prompt)
        contents["top"] = _best_so_far(best, [text(event.get("score_is") or "", 400) for event in record.of("start")])
    return {
        **contents,
        "rows_place": True,
        "exports": TOOLS if mapping(record.result.get("sent")) else (),
        "busy": busy,
        "state": "running" if busy else "finished" if record.result else "stopped",
        "happened": "" if record.result else what_happened(folder, busy),
        "prompts": len(scored.columns),
        "budget": {
            name: "no limit" if (value := number(inside(record.recipe, "budget", name))) is None else plain(value)
            for name in ("calls", "minutes")
        },
    }


def _best_so_far(best: Sequence[Any], score_is: Sequence[str]) -> dict[str, Any] | None:
    if not best:
        return None
    names = ["score"] + [name for name in ("accuracy", "dev") if any(getattr(row, name) is not None for row in best)]
    rows = [
        {
            "prompt": shown_prompt(row.prompt),
            "source": "",
            "cells": [metric(name if name == "accuracy" else "score", getattr(row, name)) for name in names],
        }
        for row in best
    ]
    shown = ["dev score" if name == "dev" else name for name in names]
    return {"names": shown, "rows": rows, "sources": False, "score_is": "".join(score_is[:1])}


def try_page(run_list: RunList, root: str, run: str) -> str:
    folder = run_list.path(run)
    record = _record(folder)
    prompts = [("found", record.result.get("prompt"))]
    for name, baseline in list(mapping(record.result.get("baselines")).items())[:4]:
        prompts.append((text(name, 40), inside(baseline, "prompt")))
    known = [{"name": name, "prompt": prompt} for name, prompt in prompts if isinstance(prompt, str) and prompt]
    kind = inside(record.recipe, "task", "kind")
    kind = kind if isinstance(kind, str) else ""
    return page("try.html.j2", root, run_list.root, where="run", run=run, kind=kind, prompts=known)


def compare_page(run_list: RunList, root: str, runs: Sequence[str], folder: str) -> str:
    """Comparison of runs: metrics with intervals, the tables of `pinprompt compare`, prompts, cost and curves."""
    places = run_list.places()
    chosen = [place for place in places if place.id in runs]
    if folder:
        chosen = [place for place in places if place.group == folder or place.id.startswith(folder + "/")]
    cards = [run_list.card(place) for place in chosen]
    tables: list[Grid] = []
    notes: list[str] = []
    if chosen:
        try:
            found = compare([place.path for place in chosen])
            tables = [grid for table in found.tables for grid in grids(table)]
            notes = [text(note.replace(str(run_list.root) + "/", ""), 300) for note in found.notes]
        except PinpromptError as error:
            notes = [text(str(error).replace(str(run_list.root) + "/", ""), 600)]
    offered = [] if chosen else [run_list.card(place) for place in places[:200]]
    return page(
        "compare.html.j2", root, run_list.root, where="compare", cards=cards[:100], tables=tables, notes=notes,
        offered=[card for card in offered if card.state == "finished"], pairs=_row_by_row(chosen[:COMPARED]),
        chart=_curves(chosen[:COMPARED]), runs=[place.id for place in chosen] if not folder else [], folder=folder,
    )  # fmt: skip


def _row_by_row(places: Sequence[Place]) -> list[dict[str, str]]:
    """The best run against each other run that was tested on the same rows, row by row."""
    groups: dict[tuple[Any, ...], list[tuple[float, str, list[float]]]] = {}
    for place in places:
        record = _record(place.path)
        name = report_parts.primary_of(record)
        split = reported_split(record.result, name)
        metrics = mapping(record.result.get(split)) if split else {}
        value, outcomes = number(metrics.get(name)), outcomes_of(metrics, name)
        if value is None or not outcomes:
            continue
        # The same rows: the same data, drawn the same way.
        data = tuple(str(record.setting("task", key)) for key in ROWS)
        group = groups.setdefault((name, split, len(outcomes), *data), [])
        group.append((value, text(place.id.rpartition("/")[2], 60), outcomes))
    found = []
    for (name, split, rows, *_), group in groups.items():
        sign = -1 if name in LOWER_IS_BETTER else 1
        (best, ours, right), *others = sorted(group, key=lambda one: -sign * one[0])
        for value, theirs, wrong in others:
            difference = compare_rows(right, wrong)
            exact = set(right) | set(wrong) <= {0.0, 1.0}
            low, high = mcnemar_interval(right, wrong) if exact else (difference.low, difference.high)
            found.append(
                {
                    "first": f"{ours}: {metric(name, best)}",
                    "second": f"{theirs}: {metric(name, value)}",
                    "difference": metric(name, difference.mean),
                    "interval": f"{metric(name, low + 0.0)} to {metric(name, high + 0.0)}",
                    "p": shown_p(mcnemar(right, wrong) if exact else difference.p),
                    "rows": f"{plain(rows)} rows of {split}, {title(name)}",
                }
            )
    return found


def _curves(places: Sequence[Place]) -> Any:
    from markupsafe import Markup

    series = []
    for place in places:
        points = progress(_record(place.path))
        series.append(Series(text(place.id.rpartition("/")[2], 40), points, dots=len(points) == 1))
    drawn = line_chart(series, title="Best score against calls", x="calls", y="best score so far")
    return Markup(drawn)  # nosec B704  # charts.py escapes every text


def ago(moment: float) -> str:
    """How long ago something was, as text."""
    seconds = max(0.0, time.time() - moment)
    for size, name in ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{plain(count)} {name}{'s' if count > 1 else ''} ago"
    return "just now"
