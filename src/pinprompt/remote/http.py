"""HTTP requests on httpx, with limits on total time and size."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import ssl
import threading
import time
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pinprompt.errors import SettingError
from pinprompt.files import loads
from pinprompt.remote.secret import Secret

if TYPE_CHECKING:
    import httpx

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

    def json(self, secret: Secret) -> dict[str, Any]:
        """The body as a JSON object without the key in it; NoAnswer if it is anything else."""
        try:
            value = secret.clean(loads(self.body))
        except (ValueError, RecursionError) as error:
            raise NoAnswer(f"the answer is not JSON ({str(error)[:80]})", billed=True) from None
        if not isinstance(value, dict):
            raise NoAnswer("the answer is not a JSON object", billed=True)
        return value


class Connections:
    """Connections to one server, kept open and shared by threads."""

    def __init__(self, base_url: str, key: str | None, timeout: float, max_bytes: int) -> None:
        parts = urlsplit(base_url)
        secure, host = parts.scheme == "https", parts.hostname or ""
        if key and not secure and not loopback(host):
            raise SettingError(
                f"a key is not sent to {host} without encryption: give an https:// address, or, where the server "
                "needs no key, set remote.key_env to an empty text (--set 'remote.key_env=\"\"')"
            )
        self._url, self._timeout, self._max_bytes = base_url, timeout, max_bytes
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._tls = ssl.create_default_context()
        self._proxy = _proxy(host) if secure else None
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()
        self._lock = threading.Lock()

    def post(self, path: str, body: dict[str, Any], fresh: bool = False) -> Response:
        """Send a JSON object and read the whole answer, or raise NoAnswer; `fresh`: over a new connection."""
        return self._exchange(fresh, "POST", path, content=json.dumps(body).encode(), headers=self._headers)

    def alive(self) -> bool:
        """Whether the server is up: any answer counts, except a gateway's error. Sent without a key."""
        try:
            return self._exchange(True, "GET", "/models").status not in (502, 503, 504)
        except NoAnswer:
            return False

    def cut(self) -> None:
        with self._lock:
            busy = list(self._busy)
        for line in busy:
            line.cut()

    def _exchange(self, fresh: bool, verb: str, path: str, **more: Any) -> Response:
        with self._lock:
            spare = self._idle and not fresh
            line = self._idle.pop() if spare else _Line(self._client(), self._timeout, self._max_bytes)
            self._busy.add(line)
        keep = False
        try:
            response = line.exchange(verb, self._url + path, **more)
            keep = not fresh
            return response
        finally:
            with self._lock:
                self._busy.discard(line)
                if keep:
                    self._idle.append(line)
            if not keep:
                line.client.close()

    def _client(self) -> httpx.Client:
        import httpx

        # No compression: a small answer could become a huge one. No cookies, and nothing from the environment.
        return httpx.Client(
            headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "pinprompt"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=httpx.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
            limits=httpx.Limits(max_connections=1, keepalive_expiry=None),
            verify=self._tls,
            proxy=self._proxy,
            trust_env=False,
            follow_redirects=False,
        )


class _Line:
    """A client with one connection and one request at a time, so that the socket of a request is known.

    httpx limits the time of each read, so a server that sends a byte now and then would never be too late. Here the
    time of the whole answer is limited, by shutting the socket down.
    """

    def __init__(self, client: httpx.Client, timeout: float, max_bytes: int) -> None:
        self.client, self._timeout, self._max_bytes = client, timeout, max_bytes
        self._socket: socket.socket | None = None

    def exchange(self, verb: str, url: str, **more: Any) -> Response:
        """Send a request and read the whole answer, or raise NoAnswer."""
        import httpx

        self._new = self._sent = self._late = False  # whether the connection is new, the request sent, the time over
        self._timer = threading.Timer(self._timeout, self._expire)
        self._timer.daemon = True
        began = False
        body = bytearray()
        try:
            with self.client.stream(verb, url, extensions={"trace": self._trace}, **more) as answer:
                began = True
                for part in answer.iter_raw():
                    body += part
                    if len(body) > self._max_bytes:
                        raise NoAnswer(f"the answer is larger than {self._max_bytes / 1e6:g} MB", billed=True)
            if self._late:  # an answer without a length ends with its connection, which was cut
                raise httpx.ReadTimeout("late")
        except (httpx.HTTPError, ValueError) as error:  # ValueError: a host name that cannot be encoded
            # Not truncated here, since the key has to be removed first.
            reason = f"{type(error).__name__}: {error}"
            if not self._sent:
                raise NoAnswer(f"no connection ({reason})", billed=False) from None
            if self._late or isinstance(error, httpx.TimeoutException):
                raise NoAnswer(f"no complete answer within {self._timeout:g} seconds", billed=True) from None
            stale = not began and not self._new
            raise NoAnswer(f"the server sent no complete HTTP answer ({reason})", billed=True, stale=stale) from None
        finally:
            self._timer.cancel()
        return Response(answer.status_code, bytes(body), answer.headers.get("Retry-After"))

    def cut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _expire(self) -> None:
        self._late = True
        self.cut()

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Called by httpx at each step of a request: note the socket, and start the time with the first byte sent."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._new, self._socket = True, info["return_value"].get_extra_info("socket")
        elif event == "http11.send_request_headers.started" and info["request"].method != b"CONNECT":  # to a proxy
            self._sent = True
            self._timer.start()


def loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address, without name resolution."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _proxy(host: str) -> str | None:
    """The user's proxy for a server with https (HTTPS_PROXY and NO_PROXY), if there is one."""
    address = urllib.request.getproxies().get("https")
    if not address or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(address if "//" in address else f"//{address}")
    return f"http://{parts.netloc}" if parts.hostname else None


def seconds_of(retry_after: str | None) -> float | None:
    """A Retry-After header in seconds, from a number or a date; None if it is invalid."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after or "").timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None
