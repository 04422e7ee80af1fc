"""The studio's server: routes of pages and actions. A GET changes nothing; every path is below the folder."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.errors import MissingExtra, PinpromptError, SettingError
from pinprompt.studio import pages
from pinprompt.studio.guard import Guard, Refused, shown_host
from pinprompt.studio.jobs import Jobs
from pinprompt.studio.runs import RunList
from pinprompt.studio.views import ACTIONS, PAGES, Studio
from pinprompt.wording import text

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PORT = 8765


def application(studio: Studio, host: str) -> Any:
    """The ASGI application with its guard."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("studio", "the studio") from None

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        studio.left = [job.search.command for job in await studio.jobs.close()]
        await studio.worker.close()

    def route(path: str, view: Callable[[Studio, Request], Awaitable[Response]], method: str = "GET") -> Route:
        async def answered(request: Request) -> Response:
            try:
                return await view(studio, request)
            except Refused as refused:
                return _refusal(request, refused.status, refused.message, studio)
            except PinpromptError as error:
                return _refusal(request, 400, str(error), studio)
            except Exception as error:  # a bug is shown in the terminal; the page and the studio keep working
                logging.getLogger("uvicorn.error").exception("the studio could not answer %s", request.url.path)
                return _refusal(request, 500, f"Internal error in the studio ({type(error).__name__}).", studio)

        return Route(path, answered, methods=[method])

    async def missing(request: Request, error: Exception) -> Response:
        return _refusal(request, 404, "There is no such page.", studio)

    app = Starlette(
        lifespan=lifespan,
        exception_handlers={404: missing},
        routes=[
            *(route(path, view) for path, view in PAGES.items()),
            *(route(f"/do/{name}", view, "POST") for name, view in ACTIONS.items()),
        ],
    )
    return Guard(app, studio.token, host)


def serve(
    folder: Path, *, host: str = "127.0.0.1", port: int | None = None, ready: Callable[[str], None] = lambda url: None
) -> list[str]:
    """Serve a folder until Ctrl-C; calls `ready` with the address. Returns the commands of queued searches."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("studio", "the studio") from None

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"the folder {folder} cannot be created: {error.strerror}; choose another one") from None
    listening = _listen(host, port)
    root = folder.resolve()
    studio = Studio(root, secrets.token_urlsafe(18), RunList(root), Jobs(root))
    app = application(studio, host)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    studio.closing = lambda: server.should_exit
    pages.runs_page(studio.run_list, studio.address, {})  # prepare templates and cards before the first request
    with listening:
        ready(f"http://{shown_host(host)}:{listening.getsockname()[1]}{studio.address}/")
        try:
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[listening])
        finally:
            studio.jobs.abandon()
    return studio.left


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket on the given port; by default the usual port, or a free one if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number_tried in [port] if port is not None else [PORT, 0]:
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number_tried))
            listening.listen(128)
        except (OSError, OverflowError) as error:
            listening.close()
            if port is not None:
                reason = getattr(error, "strerror", None) or str(error)
                raise SettingError(
                    f"port {port} of {host} cannot be used: {reason}; choose another with --port"
                ) from None
            continue
        return listening
    raise SettingError(f"the address {host} cannot be used on this machine; omit --host for 127.0.0.1")


def _refusal(request: Request, status: int, message: str, studio: Studio) -> Response:
    from starlette.responses import HTMLResponse, JSONResponse

    said = text(message.replace(str(studio.root) + "/", ""), 800)
    if request.method == "POST" or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"error": said}, status)
    return HTMLResponse(
        pages.page("refused.html.j2", studio.address, studio.root, where="", message=said), status_code=status
    )
