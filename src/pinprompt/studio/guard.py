"""Access control of the studio: the token in the address, Host, Origin, and a content security policy.

The token is the first part of every path, so there is no cookie that another site, or another port of this machine,
could use. Host is checked against DNS rebinding, Origin and Sec-Fetch-Site against requests from other pages.
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
    """A rejected request, with the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Guard:
    """ASGI middleware around the whole studio."""

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self.app, self.token, self.host = app, token, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it on without the token; every response gets the security headers."""
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
            raise Refused(421, "This is not the studio's address. Open the address shown in the terminal.")
        first, _, rest = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(first.encode("utf-8", "replace"), self.token.encode()):
            raise Refused(
                403, "The address does not contain the studio's token. Open the address shown in the terminal."
            )
        site = headers.get("sec-fetch-site")
        if scope["method"] in ("GET", "HEAD"):
            # Another page may link here, but not embed or read anything.
            opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if site in ("cross-site", "same-site") and not opened:
                raise Refused(403, "This request came from another page; the studio only answers its own pages.")
        elif headers.get("origin") != f"http://{host}" or site not in (None, "same-origin"):
            raise Refused(403, "This request came from another page; the studio only answers its own pages.")
        return "/" + str(rest)

    def _known(self, host: str) -> bool:
        """Whether this is a name or address of this machine, and not a foreign name that resolves to it."""
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
    """The body of a request, rejected as soon as it is longer than `most` bytes."""
    too_long = Refused(413, f"That is more than {most / 1e6:.0f} MB. A few hundred rows are plenty: give a part of it.")
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > most:
        raise too_long
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise too_long
    return bytes(body)


def shown_host(host: str) -> str:
    """The host of the address to open; this machine's own if the studio listens on all addresses."""
    own = dict(zip(ANYWHERE, ("127.0.0.1", "::1"), strict=True)).get(host, host)
    return f"[{own}]" if ":" in own else own


def plain_name(given: str) -> str:
    """A given file name without its path."""
    return unquote(given).replace("\\", "/").rsplit("/", 1)[-1][:200]


def words(values: Iterable[Any]) -> list[str]:
    """Stripped texts, without empty ones."""
    return [said for value in values if (said := str(value).strip())]
