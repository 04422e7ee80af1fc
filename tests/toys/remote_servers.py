"""A server on loopback that does as it is told: polite, or hostile."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = dict[str, Any]
Action = Callable[["Handler", Answer], None]


class Handler(BaseHTTPRequestHandler):
    """Reads a JSON body and does what the server's script says."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.seen)
            self.server.seen.append((self.path, body, dict(self.headers)))
        if self.server.dead:
            self.server.gone.wait()  # or it would be dead for this request and alive for the next
            hang_up(self, body)
            return
        try:
            self.server.script(number, self.path, body)(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_GET(self) -> None:
        if self.server.dead:
            self.server.gone.wait()
            hang_up(self, {})
        else:
            self.send(b"no such path", 404)

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def send(self, data: bytes, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Keeps what it was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Callable[[int, str, Answer], Action], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.script, self.lock = script, threading.Lock()
        self.seen: list[tuple[str, Answer, dict[str, str]]] = []
        self.closed = 0
        self.dead = False
        self.gone = threading.Event()

    def die(self) -> None:
        """Nobody listens any more when this returns, and what is connected is cut; for a request's thread."""
        self.dead = True
        self.shutdown()
        self.server_close()
        self.gone.set()

    def shutdown_request(self, request: Any) -> None:
        """Count the connections that are over."""
        super().shutdown_request(request)
        with self.lock:
            self.closed += 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextlib.contextmanager
def serving(script: Callable[[int, str, Answer], Action], port: int = 0) -> Iterator[Server]:
    """A server for the time of a with-block."""
    server = Server(script, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(value: Any) -> Action:
    """Answer with JSON."""
    return lambda handler, body: handler.send(json.dumps(value).encode())


def refuse(status: int, text: str = "no", **headers: str) -> Action:
    """Answer with an error status."""
    return lambda handler, body: handler.send(text.encode(), status, **headers)


def raw(data: bytes, status: int = 200) -> Action:
    """Answer with these bytes."""
    return lambda handler, body: handler.send(data, status)


def cut(handler: Handler, body: Answer) -> None:
    """Promise a long answer and hang up."""
    handler.send(b'{"choices": [', length=1000)
    handler.wfile.flush()
    handler.close_connection = True
    handler.connection.close()


def hang_up(handler: Handler, body: Answer) -> None:
    """Say nothing and close."""
    handler.close_connection = True
    handler.connection.close()


def drip(handler: Handler, body: Answer) -> None:
    """Send a byte now and then, until the other side hangs up: no single read ever times out."""
    handler.send(b" ", length=10**9)
    while True:
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def flood(status: int, stopped: list[int]) -> Action:
    """Send without an end, until the other side hangs up; what was sent is noted."""

    def act(handler: Handler, body: Answer) -> None:
        handler.send_response(status)
        handler.send_header("Connection", "close")
        handler.end_headers()
        sent = 0
        try:
            while sent < 200_000_000:
                handler.wfile.write(b"x" * 65536)
                sent += 65536
        except OSError:
            pass
        stopped.append(sent)
        handler.close_connection = True

    return act


def said(*texts: str, tokens: tuple[int, int] = (10, 2)) -> Answer:
    """A chat's answer."""
    return {
        "choices": [{"message": {"role": "assistant", "content": text}} for text in texts],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
    }
