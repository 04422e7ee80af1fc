"""Who may talk to the studio: the token in the address, Host, Origin, and a content policy on every answer.

The token is the first part of every path, so there is no cookie that another site, or another port of this machine,
could ride on. Host is checked against DNS rebinding, Origin and Sec-Fetch-Site against requests from other pages.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = ("0.0.0.0", "::")  # nosec B104  # compared with, not bound to


class Refused(Exception):
    """A request that is not answered, with the sentence that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Guard:
    """ASGI middleware around the whole studio."""

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self.app, self.token, self.host = app, token, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with the token taken off the path; every answer gets the headers."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = [(name, value) for name, value in message["headers"] if name.decode().lower() not in HEADERS]
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*given, *ours]}
            await send(message)

        try:
            path = self._checked(scope)
        except Refused as refused:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse(refused.message + "\n", refused.status)(scope, receive, sealed)
            return
        await self.app({**scope, "path": path, "raw_path": path.encode("utf-8", "surrogateescape")}, receive, sealed)

    def _checked(self, scope: Scope) -> str:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._known(host):
            raise Refused(421, "This is not the address that the studio listens at. Open the one in the terminal.")
        first, _, rest = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(first.encode("utf-8", "replace"), self.token.encode()):
            raise Refused(403, "The address lacks the studio's token. Open the address that the terminal shows.")
        site = headers.get("sec-fetch-site")
        if scope["method"] in ("GET", "HEAD"):
            # Another page may link here; it may not embed or read anything.
            opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if site in ("cross-site", "same-site") and not opened:
                raise Refused(403, "Another page asked for this, and the studio answers its own pages only.")
        elif headers.get("origin") != f"http://{host}" or site not in (None, "same-origin"):
            raise Refused(403, "Another page asked for this, and the studio answers its own pages only.")
        return "/" + str(rest)

    def _known(self, host: str) -> bool:
        """Is this a name or number of this machine, and not one that a stranger's name server points here?"""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in LOOPBACK or name == self.host.lower():
            return True
        if self.host not in ANYWHERE:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name == socket.gethostname().lower()
        return True


async def bounded_body(request: Request, most: int) -> bytes:
    """The body of a request, refused as soon as it is longer than `most` bytes."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > most:
        raise Refused(413, f"That is more than {most / 1e6:.0f} MB. A few hundred rows are plenty: give a part of it.")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refused(413, f"That is more than {most / 1e6:.0f} MB. A few hundred rows are plenty: give a part.")
        parts.append(part)
    return b"".join(parts)


def shown_host(host: str) -> str:
    """The host of the address that people open: this machine's own where the studio listens everywhere."""
    own = dict(zip(ANYWHERE, ("127.0.0.1", "::1"), strict=True)).get(host, host)
    return f"[{own}]" if ":" in own else own


def plain_name(given: str) -> str:
    """A file's name as somebody gave it, without a path."""
    return unquote(given).replace("\\", "/").rsplit("/", 1)[-1][:200]


def words(values: Iterable[Any]) -> list[str]:
    """Texts without blanks around them, empty ones left out."""
    return [said for value in values if (said := str(value).strip())]
