"""HTTP requests with limits on total time and size, and without redirects.

Uses the standard library's client, because no SDK limits the body of an error or the total time of a slow answer, and
a redirect would send the key to another server.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import json
import os
import selectors
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pinprompt.errors import SettingError

# The API key: read from the environment, and removed from every text that comes back.

HIDDEN = "***"
LEAST = 8
"""Shorter keys ('EMPTY', 'x') are placeholders for servers without keys, not secrets, and occur as normal words."""


class Secret:
    """A key, or none."""

    def __init__(self, variable: str) -> None:
        self.key = _read(variable)
        self._spellings = [] if self.key is None else _spellings(self.key)

    def __repr__(self) -> str:
        return "Secret(none)" if self.key is None else f"Secret({HIDDEN})"

    def redact(self, text: str) -> str:
        """A text without the key in it."""
        for spelling in self._spellings:
            text = text.replace(spelling, HIDDEN)
        return text

    def clean(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer without the key in any of its texts; level by level, since it may be deeply nested."""
        if self.key is None or len(self.key) < LEAST:
            return answer
        level: list[Any] = [answer]
        while level:
            inner: list[Any] = []
            for one in level:
                pairs = list(one.items() if isinstance(one, dict) else enumerate(one))
                for name, value in pairs:
                    if isinstance(value, dict | list):
                        inner.append(value)
                    elif isinstance(value, str):
                        one[name] = self.redact(value)
                    if isinstance(name, str) and self.redact(name) != name:
                        one[self.redact(name)] = one.pop(name)
            level = inner
        return answer


def _spellings(key: str) -> list[str]:
    """Encodings of the key, the longest first, so that a part is not replaced before the whole."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    coded = [base64.b64encode(text.encode()).decode().rstrip("=") for text in (key, f"Bearer {key}")]
    known = {key, quoted, quoted.replace("/", "\\/"), escaped, escaped.upper().replace("\\U", "\\u"), *coded}
    known |= {urllib.parse.quote(key, safe=""), urllib.parse.quote_plus(key)}
    return sorted(known, key=lambda spelling: (-len(spelling), spelling))


def _read(variable: str) -> str | None:
    """The key from the environment, or None; an invalid one is an error that does not show it."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingError(
            f"the environment variable {variable} does not contain a valid key: it has spaces or invalid characters"
        )
    return key


CHUNK = 1 << 16
CONNECT_SECONDS = 10.0


class NoAnswer(Exception):
    """There was no usable answer. `billed`: whether the server may have processed the request anyway.

    `stale`: an idle connection was closed without an answer. Most likely the server never read the request, but this is
    not certain.
    """

    def __init__(self, reason: str, billed: bool, stale: bool = False) -> None:
        super().__init__(reason)
        self.billed, self.stale = billed, stale


@dataclass(frozen=True)
class Response:
    """A complete answer."""

    status: int
    body: bytes
    retry_after: str | None

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; NoAnswer if it is anything else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise NoAnswer(f"the answer is not JSON ({str(error)[:80]})", billed=True) from None
        if not isinstance(value, dict):
            raise NoAnswer("the answer is not a JSON object", billed=True)
        return value


class Door:
    """Connections to one server, kept open and shared by threads."""

    def __init__(self, base_url: str, key: str | None, timeout: float, max_bytes: int) -> None:
        parts = urlsplit(base_url)
        self._secure, self._host = parts.scheme == "https", parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._path, self._timeout, self._max_bytes = parts.path, timeout, max_bytes
        if key and not self._secure and not loopback(self._host):
            raise SettingError(
                f"a key is not sent to {self._host} without encryption: give an https:// address, or, where the server "
                "needs no key, set remote.key_env to an empty text (--set 'remote.key_env=\"\"')"
            )
        self._key = key
        self._proxy = _proxy(parts.scheme, self._host)
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[socket.socket] = set()
        self._lock = threading.Lock()

    def post(self, path: str, body: dict[str, Any], fresh: bool = False) -> Response:
        """Send a JSON object and read the whole answer, or raise NoAnswer; `fresh`: over a new connection."""
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "pinprompt"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection, reused = self._take(fresh)
        try:
            return self._exchange(connection, "POST", path, data, headers)
        except _Stale:
            raise NoAnswer("the server closed the connection without an answer", billed=True, stale=reused) from None

    def alive(self) -> bool:
        """Whether the server is up: any answer counts, except a gateway's error. Sent without a key."""
        try:
            connection, _ = self._take(fresh=True)
            answer = self._exchange(connection, "GET", "/models", None, {"User-Agent": "pinprompt"})
        except (NoAnswer, _Stale):
            return False
        return answer.status not in (502, 503, 504)

    def cut(self) -> None:
        """End every pending request; each raises NoAnswer."""
        with self._lock:
            busy = list(self._busy)
        for link in busy:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self, fresh: bool) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            while self._idle and not fresh:
                connection = self._idle.pop()
                if not _readable(connection.sock):
                    return connection, True
                connection.close()  # no request is pending, so readable data means that the connection was closed
        host, port = self._proxy or (self._host, self._port)
        seconds = min(CONNECT_SECONDS, self._timeout)
        if self._secure:
            connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=seconds)
        if self._proxy:
            connection.set_tunnel(self._host, self._port)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NoAnswer(f"no connection to {self._host}:{self._port} ({_short(error)})", billed=False) from None
        return connection, False

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        verb: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
    ) -> Response:
        late = threading.Event()
        link = connection.sock

        def cut() -> None:
            late.set()
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

        # A timer, since the socket's timeout starts again with every byte that arrives.
        watch = threading.Timer(self._timeout, cut)
        watch.daemon = True
        watch.start()
        link.settimeout(self._timeout)
        with self._lock:
            self._busy.add(link)
        began = False
        try:
            connection.request(verb, self._path + path, body=data, headers=headers)
            answer = connection.getresponse()
            began = True
            body = self._read(answer)
            if late.is_set():
                raise TimeoutError
        except (TimeoutError, OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            if late.is_set() or isinstance(error, TimeoutError):
                raise NoAnswer(f"no complete answer within {self._timeout:g} seconds", billed=True) from None
            if not began and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                raise _Stale from None
            raise NoAnswer(f"the answer was truncated or is not HTTP ({_short(error)})", billed=True) from None
        except BaseException:
            connection.close()
            raise
        finally:
            watch.cancel()
            with self._lock:
                self._busy.discard(link)
        if answer.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        return Response(answer.status, body, answer.headers.get("Retry-After"))

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            part = answer.read(min(CHUNK, self._max_bytes + 1 - size))
            if not part:
                if answer.length:
                    raise http.client.HTTPException(f"{answer.length} bytes of it are missing")
                return b"".join(parts)
            size += len(part)
            parts.append(part)
            if size > self._max_bytes:
                raise NoAnswer(f"the answer is larger than {self._max_bytes / 1e6:g} MB", billed=True)


def loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address, without name resolution."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _readable(link: socket.socket | None) -> bool:
    """Whether the other side has sent something or closed the connection."""
    if link is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        return bool(selector.select(0))


class _Stale(Exception):
    """The connection was closed before an answer."""


def _proxy(scheme: str, host: str) -> tuple[str, int] | None:
    """The user's proxy for that server (HTTPS_PROXY and NO_PROXY), if there is one; loopback never goes through it."""
    address = urllib.request.getproxies().get(scheme)
    if scheme != "https" or not address or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(address if "//" in address else f"//{address}")
    return (parts.hostname, parts.port or 80) if parts.hostname else None


def _short(error: BaseException) -> str:
    """The error message; not truncated here, since the key has to be removed first."""
    return f"{type(error).__name__}: {error}"


def seconds_of(retry_after: str | None) -> float | None:
    """A Retry-After header in seconds, from a number or a date; None if it is invalid."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        import email.utils

        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None
