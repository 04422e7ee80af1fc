"""The studio's views: the response of each page and action. A view takes the shared state and its request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pinprompt.files import is_held
from pinprompt.folder.reading import MARKS, number, read_json, read_run, read_text
from pinprompt.reports import report
from pinprompt.reports.usage import TOOLS, export, sent_of
from pinprompt.studio import forms, pages, trying
from pinprompt.studio.guard import Refused, bounded_body
from pinprompt.studio.jobs import Jobs, ask_once
from pinprompt.studio.runs import Library, RunList, Tail
from pinprompt.wording import by_role, shown_prompt, text

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

FORM = 1 << 20
ESTIMATE_SECONDS = 180.0
BEAT = 0.4
"""Seconds between two checks of a run folder."""
COLUMNS = 2000
"""Maximum number of prompts of the matrix in one response."""
STATIC = ("studio.js", "run.js", "matrix.js", "new.js", "try.js", "runs.js", "studio.css")
EVENT_FIELDS = (
    "event", "step", "calls", "score_best", "score_mean", "best_prompt", "distinct", "name", "split", "reason",
    "stopped",
)  # fmt: skip
TAKEN = {"prompts": "prompts.csv", "result": "result.json", "recipe": "recipe.toml", "events": "events.jsonl"}


@dataclass
class Studio:
    """The state shared by all requests."""

    root: Path
    token: str
    run_list: RunList
    jobs: Jobs
    library: Library = field(default_factory=Library)
    worker: trying.TryWorker = field(default_factory=trying.TryWorker)
    closing: Callable[[], bool] = lambda: False
    left: list[str] = field(default_factory=list)
    """Commands of searches that were still queued when the studio ended."""

    @property
    def address(self) -> str:
        return "/" + self.token

    def job(self, run: str) -> dict[str, Any] | None:
        """The latest search of a run that this studio started."""
        job = self.jobs.of(run)
        return None if job is None else job.data()


async def _html(render: Callable[..., str], *values: Any) -> Response:
    from starlette.responses import HTMLResponse

    # Names of folders may be any bytes, which are lone surrogates here.
    return HTMLResponse((await asyncio.to_thread(render, *values)).encode("utf-8", "replace"))


async def _runs(studio: Studio, request: Request) -> Response:
    return await _html(pages.runs_page, studio.run_list, studio.address, dict(request.query_params))


async def _run(studio: Studio, request: Request) -> Response:
    run = request.path_params["run"]
    job = studio.job(run)
    if job is not None and job["state"] in ("waiting", "running", "failed", "withdrawn", "stopping"):
        folder = studio.root / run
        if not any((folder / name).is_file() for name in MARKS):
            # The search has not written anything yet, so its page waits.
            return await _html(
                lambda: pages.page("waiting.html.j2", studio.address, studio.root, where="run", run=run, job=job)
            )
    return await _html(pages.run_page, studio.run_list, studio.address, run, studio.library, job)


async def _live(studio: Studio, request: Request) -> Response:
    run = request.path_params["run"]
    return await _html(pages.live_part, studio.run_list, studio.address, run, studio.library, studio.job(run))


async def _try(studio: Studio, request: Request) -> Response:
    return await _html(pages.try_page, studio.run_list, studio.address, request.path_params["run"])


async def _new(studio: Studio, request: Request) -> Response:
    def render() -> str:
        from pinprompt.data.datasets import lookup
        from pinprompt.data.packaged import PILES
        from pinprompt.methods.table import METHODS
        from pinprompt.models.sources import catalogue_of_models

        models = [{"name": row["name"], "purpose": row.get("purpose", "")} for row in catalogue_of_models()]
        datasets = [{"name": name, "words": list(lookup(name).words.values())} for name in PILES]
        return pages.page(
            "new.html.j2", studio.address, studio.root, where="new", models=models, methods=list(METHODS),
            datasets=datasets, defaults=forms.defaults(),
        )  # fmt: skip

    return await _html(render)


async def _compare(studio: Studio, request: Request) -> Response:
    runs, folder = request.query_params.getlist("run"), request.query_params.get("folder", "")
    return await _html(pages.compare_page, studio.run_list, studio.address, runs, folder)


async def _static(studio: Studio, request: Request) -> Response:
    from starlette.responses import Response

    name = request.path_params["name"]
    kind = "text/css" if name.endswith("css") else "text/javascript"
    if name in ("report.css", "report.js"):
        return Response(report.template(name), media_type=kind)
    if name not in STATIC:
        raise Refused(404, "There is no such file.")
    content = resources.files("pinprompt.studio").joinpath("static", name).read_bytes()
    return Response(content, media_type=kind)


async def _stream(studio: Studio, request: Request) -> Response:
    from starlette.responses import StreamingResponse

    run = request.query_params.get("run")
    since = request.headers.get("last-event-id", request.query_params.get("from", "0"))
    offset = int(since) if since.isdecimal() and len(since) < 16 else 0
    return StreamingResponse(_events(studio, run, offset), media_type="text/event-stream")


async def _events(studio: Studio, run: str | None, offset: int) -> AsyncIterator[str]:
    """Server-sent events: the queue of searches when it changes, and new events of a run folder."""
    told, state, quiet = -1, None, 0.0
    tail: Tail | None = None
    asked: Tail | None = None
    while not studio.closing():
        if told != studio.jobs.version:
            told = studio.jobs.version
            yield _message("jobs", [job.data() for job in studio.jobs.all])
        if run is not None:
            if tail is None:
                with contextlib.suppress(Refused):
                    folder = studio.run_list.path(run)
                    tail, asked = Tail(folder / "events.jsonl", offset), Tail(folder / "answers.jsonl")
                    asked.skip()
            if tail is not None and asked is not None:
                tried = [line.get("text") for _, line in asked.new() if line.get("report") is False]
                if tried and isinstance(tried[-1], str) and is_held(tail.path.parent):
                    yield _message("trying", {"prompt": shown_prompt(tried[-1], 300)})
                cuts = tail.cuts
                new = tail.new()
                if tail.cuts != cuts:
                    yield _message("again", {})
                if new:
                    yield _message("run", [_shown_event(event) for _, event in new[-200:]], tail.offset)
                now = "running" if is_held(tail.path.parent) else "finished" if _done(tail.path.parent) else "stopped"
                if now != state and not (state is None and new):
                    state = now
                    yield _message("state", {"state": now})
                if new:
                    quiet = 0.0
                    continue
        await studio.jobs.news(BEAT)
        quiet += BEAT
        if quiet > 15:
            quiet = 0.0
            yield ": still here\n\n"


def _done(folder: Path) -> bool:
    return (folder / "result.json").is_file()


def _message(kind: str, data: Any, offset: int | None = None) -> str:
    head = "" if offset is None else f"id: {offset}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"


def _shown_event(event: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event that the page shows, bounded."""
    found: dict[str, Any] = {}
    for name in EVENT_FIELDS:
        value = event.get(name)
        if value is not None:
            amount = number(value) if not isinstance(value, str) else None
            found[name] = text(by_role(str(value)), 300) if amount is None else amount
    return found


async def _matrix(studio: Studio, request: Request) -> Response:
    folder = studio.run_list.path(request.path_params["run"])
    since, edition = request.query_params.get("since", "0"), request.query_params.get("edition", "0")
    seen = int(since) if since.isdecimal() and len(since) < 16 else 0

    def read() -> dict[str, Any]:
        scored = studio.library.prompts_of(folder)
        clock = seen if str(scored.edition) == edition else 0
        changed = scored.since(clock, COLUMNS)
        found: dict[str, Any] = {"edition": scored.edition, "columns": [column.data(at) for at, column in changed]}
        found["clock"] = changed[-1][1].changed if changed else clock
        found["more"] = found["clock"] < scored.clock
        return found | ({"labels": scored.rows.labels, "rows": scored.rows.rows} if clock == 0 else {})

    return _json(await asyncio.to_thread(read))


async def _take(studio: Studio, request: Request) -> Response:
    what, run = request.path_params["what"], request.path_params["run"]
    folder = studio.run_list.path(run)
    name = "run" if run == "." else folder.name
    if what == "report":
        # Generated again: an HTML file in a run folder may be untrusted.
        content = (await asyncio.to_thread(lambda: report.render(read_run(folder)))).encode()
        return _download(content, f"{name}-report.html", "text/html; charset=utf-8")
    if what in TOOLS:
        file, exported = export(sent_of(await asyncio.to_thread(read_json, folder, "result.json"), name), what)
        return _download(exported.encode(), f"{name}-{file}", "application/octet-stream")
    if what not in TAKEN:
        raise Refused(404, "There is no download of that name.")
    found = await asyncio.to_thread(read_text, folder, TAKEN[what])
    if found is None:
        raise Refused(404, f"The run has no {TAKEN[what]} yet.")
    return _download(found.encode(), f"{name}-{TAKEN[what]}", "application/octet-stream")


async def _take_compare(studio: Studio, request: Request) -> Response:
    from pinprompt.reports.compare import compare
    from pinprompt.reports.tables import write_as

    form = request.query_params.get("format", "markdown")
    endings = {"markdown": "md", "csv": "csv", "latex": "tex"}
    if form not in endings:
        raise Refused(400, f"A comparison is available as: {', '.join(endings)}.")
    folder = request.query_params.get("folder", "")
    paths = [studio.run_list.path(run) for run in request.query_params.getlist("run")]
    if folder:
        paths = [studio.run_list.folder(folder)]
    content = write_as(compare(paths), form).encode("utf-8", "replace")
    return _download(content, f"comparison.{endings[form]}", "application/octet-stream")


def _download(content: bytes, name: str, kind: str) -> Response:
    from starlette.responses import Response

    safe = quote(name.encode("utf-8", "replace"))
    return Response(content, media_type=kind, headers={"content-disposition": f"attachment; filename*=utf-8''{safe}"})


async def _form(request: Request) -> dict[str, Any]:
    try:
        found = json.loads(await bounded_body(request, FORM))
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate is JSON, but no text
    except (ValueError, RecursionError):
        raise Refused(400, "The request is not JSON.") from None
    if not isinstance(found, dict):
        raise Refused(400, "The request is not a JSON object.")
    return found


def _agreed(studio: Studio, form: dict[str, Any]) -> Path:
    """The folder of the run that a form names, if its code, server and files may be used."""
    folder = studio.run_list.path(str(form.get("run")))
    trying.check_agreed(folder)
    return folder


def _json(value: Any) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(value)


async def _upload(studio: Studio, request: Request) -> Response:
    kind, name = request.query_params.get("kind", ""), request.query_params.get("name", "")
    data = await bounded_body(request, forms.MAX_UPLOAD_BYTES.get(kind, 0))
    path = await asyncio.to_thread(forms.keep, studio.root, kind, name, data)
    describe = {"table": forms.describe_table, "lines": forms.describe_lines, "picture": forms.describe_picture}[kind]
    return _json(await asyncio.to_thread(describe, path))


async def _describe(studio: Studio, request: Request) -> Response:
    form = await _form(request)
    path = forms.kept(studio.root, form.get("file"))
    columns = [str(form[name]) if form.get(name) else None for name in ("text_column", "label_column")]
    return _json(await asyncio.to_thread(forms.describe_table, path, *columns))


async def _plan(studio: Studio, request: Request) -> Response:
    return _json({"command": forms.search_command(studio.root, await _form(request)).command})


async def _estimate(studio: Studio, request: Request) -> Response:
    """The command line's estimate of the search's cost."""
    search = forms.search_command(studio.root, await _form(request))
    estimating = asyncio.ensure_future(ask_once(search.process("--estimate", "--json", "--quiet"), ESTIMATE_SECONDS))
    while not estimating.done():
        # A form that has changed again sends a new request, so this answer is not needed.
        if await request.is_disconnected():
            estimating.cancel()
        await asyncio.wait([estimating], timeout=0.3)
    try:
        code, out, why = await estimating
    except asyncio.CancelledError:
        raise Refused(499, "The form has changed.") from None
    except TimeoutError:
        raise Refused(504, "The estimate took too long; you can still start the search.") from None
    if code:
        raise Refused(400, why)
    try:
        figures = json.loads(out)
    except ValueError:
        raise Refused(500, "The estimate could not be read.") from None
    return _json({"command": search.command, "figures": figures})


async def _search(studio: Studio, request: Request) -> Response:
    return _json(studio.jobs.add(forms.search_command(studio.root, await _form(request))).data())


async def _stop(studio: Studio, request: Request) -> Response:
    return _json(studio.jobs.stop(str((await _form(request)).get("run"))).data())


async def _resume(studio: Studio, request: Request) -> Response:
    form = await _form(request)
    folder = studio.run_list.path(str(form.get("run")))
    if is_held(folder):
        raise Refused(409, "That run is already running.")
    trying.check_agreed(folder)
    return _json(studio.jobs.add(forms.resumption(studio.root, folder, form)).data())


async def _vary(studio: Studio, request: Request) -> Response:
    form = await _form(request)
    run, folder = str(form.get("run")), _agreed(studio, form)
    record = read_run(folder, events=False)
    search = forms.variation(studio.root, folder, record.recipe, form)
    job = studio.jobs.of(run)
    if job is not None and not job.over:
        studio.jobs.stop(run)
    return _json(studio.jobs.add(search).data())


async def _ask(studio: Studio, request: Request) -> Response:
    form = await _form(request)
    folder = _agreed(studio, form)
    asked = ("do", "text", "prompts", "split")
    question: dict[str, Any] = {name: form[name] for name in asked if name in form}
    if question.get("do") not in ("predict", "score", "rewrite", "picture"):
        raise Refused(400, "Unknown kind of question.")
    if question["do"] in ("predict", "rewrite") and not str(question.get("text") or "").strip():
        raise Refused(400, "Type a text first.")
    if not isinstance(question.get("prompts"), list) or not question["prompts"]:
        raise Refused(400, "Give a prompt to try.")
    if question["do"] == "picture":
        question["file"] = str(forms.kept(studio.root, form.get("file")))
    return _json(await studio.worker.ask(folder, question))


PAGES = {
    "/": _runs,
    "/new": _new,
    "/compare": _compare,
    "/static/{name}": _static,
    "/stream": _stream,
    "/run/{run:path}": _run,
    "/live/{run:path}": _live,
    "/try/{run:path}": _try,
    "/matrix/{run:path}": _matrix,
    "/take/compare": _take_compare,
    "/take/{what}/{run:path}": _take,
}
"""The GET routes by path; the first match counts."""

ACTIONS: dict[str, Callable[[Studio, Any], Awaitable[Any]]] = {
    "upload": _upload,
    "describe": _describe,
    "plan": _plan,
    "estimate": _estimate,
    "search": _search,
    "stop": _stop,
    "resume": _resume,
    "vary": _vary,
    "try": _ask,
}
