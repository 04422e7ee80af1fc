"""One bounded request: its connection, its time, its size, and what httpx would do if it were let."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from children import LIMIT, wait_until
from remote_servers import Action, Handler, Server, drip, refuse, reply, said, serving

from pinprompt.remote.http import Connections, NoAnswer

KEY = "sk-canary-7f3a9b"
CERTIFICATE = Path(__file__).parent / "localhost.pem"
"""Of 127.0.0.1, signed by itself, with its key: for these tests only."""


def connections(url: str, timeout: float = LIMIT) -> Connections:
    return Connections(url, KEY, timeout, 100_000)


@contextlib.contextmanager
def serving_tls(action: Action | None = None) -> Iterator[Server]:
    with serving(lambda *_: action or reply(said("hi"))) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield server


def drip_headers(handler: Handler, body: dict[str, Any]) -> None:
    """Send a header now and then, until the other side hangs up."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X-More: 1\r\n")
        handler.wfile.flush()
        time.sleep(0.05)


def drip_without_end(handler: Handler, body: dict[str, Any]) -> None:
    """An answer that ends with its connection, whenever that is."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        handler.wfile.write(b"{}")
        handler.wfile.flush()
        time.sleep(0.05)


@pytest.mark.parametrize("action", [drip, drip_headers, drip_without_end])
@pytest.mark.parametrize("before", [0, 1])
def test_a_slow_answer_is_cut_off_over_a_new_and_over_a_used_connection(action: Action, before: int) -> None:
    with serving(lambda n, *_: action if n >= before else reply(said("hi"))) as server:
        asked = connections(server.url, timeout=0.6)
        for _ in range(before):
            asked.post("/x", {})
        began = time.monotonic()
        with pytest.raises(NoAnswer, match=r"no complete answer within 0.6 seconds") as caught:
            asked.post("/x", {})
        assert 0.5 < time.monotonic() - began < LIMIT / 2
        assert caught.value.billed
        assert not caught.value.stale


@pytest.mark.parametrize("action", [drip, drip_headers])
def test_a_slow_answer_with_tls_is_cut_off(action: Action, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with serving_tls(action) as server, pytest.raises(NoAnswer, match=r"no complete answer within 0\.6 seconds"):
        connections(server.url.replace("http:", "https:"), timeout=0.6).post("/x", {})


def test_connections_are_kept_and_shared_by_threads() -> None:
    ports: list[int] = []
    together = threading.Barrier(4)

    def act(handler: Handler, body: dict[str, Any]) -> None:
        ports.append(handler.client_address[1])
        if body:
            together.wait(LIMIT)  # four at once, so on four connections
        reply(said("hi"))(handler, body)

    with serving(lambda *_: act) as server:
        asked = connections(server.url)
        for _ in range(3):
            threads = [threading.Thread(target=asked.post, args=("/x", {"wait": True})) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(ports) == 12
        assert len(set(ports)) == 4
        asked.post("/x", {})
        assert len(set(ports)) == 4
        asked.post("/x", {}, fresh=True)
        assert len(set(ports)) == 5


def test_pending_requests_can_be_ended() -> None:
    hold = threading.Event()
    failures: list[NoAnswer] = []

    def ask() -> None:
        try:
            asked.post("/x", {})
        except NoAnswer as error:
            failures.append(error)

    with serving(lambda *_: lambda *_: hold.wait(LIMIT)) as server:
        asked = connections(server.url)
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(server.seen) == 3, "all requests arrived")
        asked.cut()
        for thread in threads:
            thread.join(LIMIT)
        hold.set()
    assert [error.billed for error in failures] == [True] * 3


def test_nothing_is_remembered_and_nothing_is_followed() -> None:
    with serving(lambda *_: reply(said("hi"))) as other:
        with serving(lambda *_: refuse(307, Location=other.url, Set_Cookie="id=1; Path=/")) as server:
            asked = connections(server.url)
            assert [asked.post("/x", {}).status for _ in range(2)] == [307, 307]
            assert not any("Cookie" in headers for _, _, headers in server.seen)
        assert other.seen == []


def test_a_small_answer_that_would_become_a_huge_one_stays_small() -> None:
    data = gzip.compress(b"x" * 50_000_000)

    def act(handler: Handler, body: dict[str, Any]) -> None:
        handler.send(data, Content_Encoding="gzip")

    with serving(lambda *_: act) as server:
        assert connections(server.url).post("/x", {}).body == data
        assert server.seen[0][2]["Accept-Encoding"] == "identity"


def test_the_environment_names_no_proxy_for_a_server_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(lambda *_: reply(said("hi"))) as server:
        assert connections(server.url).post("/x", {}).status == 200


def test_a_server_must_have_a_certificate_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_tls() as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(NoAnswer, match=r"no connection.*certificate verify failed") as caught:
            connections(url).post("/x", {})
        assert not caught.value.billed
        assert server.seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        asked = connections(url)
        assert [asked.post("/x", {}).status for _ in range(2)] == [200, 200]
        with pytest.raises(NoAnswer, match=r"no connection.*localhost"):
            connections(url.replace("127.0.0.1", "localhost")).post("/x", {})  # it is not the certificate's name


def test_a_server_with_tls_is_reached_through_the_users_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    heard: list[bytes] = []
    answers = iter([b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"])

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    def tunnel(listener: socket.socket, port: int) -> None:
        for answer in answers:
            near, _ = listener.accept()
            heard.append(near.recv(65536))
            near.sendall(answer)
            if b"200" in answer:
                far = socket.create_connection(("127.0.0.1", port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    with serving_tls() as server, socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=tunnel, args=(listener, server.server_address[1]), daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:word@127.0.0.1:{listener.getsockname()[1]}")
        url = server.url.replace("http:", "https:")
        asked = connections(url)
        assert [asked.post("/x", {}).status for _ in range(2)] == [200, 200]
        with pytest.raises(NoAnswer, match=r"no connection.*403 Forbidden") as caught:
            asked.post("/x", {}, fresh=True)
        assert not caught.value.billed
        assert [line.split(b" ")[0] for line in heard] == [b"CONNECT", b"CONNECT"]
        assert b"Proxy-Authorization: Basic" in heard[0]
        assert KEY.encode() not in b"".join(heard)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert connections(url).post("/x", {}).status == 200
        assert len(heard) == 2


def test_httpx_is_loaded_for_the_first_request() -> None:
    code = "import sys, pinprompt, pinprompt.remote.client; assert 'httpx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
