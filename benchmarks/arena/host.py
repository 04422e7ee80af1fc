"""The one process that holds the model: it answers chats, over HTTP as OpenAI's API does, and counts every call.

A cell has its own address, http://127.0.0.1:PORT/CELL/v1, so that its calls are counted on its own meter. Requests that
arrive together are answered together. Beginnings that requests have in common are read once. When a cell's calls are
used up, its requests fail with status 402, which no client repeats.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

from benchmarks.arena.meter import Meter, Spent
from pinprompt.models.chat import Chat, Messages, Reply
from pinprompt.models.packed import PackedLayers
from pinprompt.models.passes import read

WAIT = 0.05
"""Seconds to wait for more requests that can be answered together."""
GAIN = 24
"""Tokens that a longer common beginning must save before it is kept."""
RECENT = 64


@dataclass
class Beginnings:
    """The beginnings that requests have in common, found from the requests themselves."""

    known: list[tuple[int, ...]] = field(default_factory=list)
    recent: list[list[int]] = field(default_factory=list)

    def shared(self, ids: list[int]) -> int:
        """How many of the first tokens are a beginning that other requests have too."""
        best = max((len(one) for one in self.known if tuple(ids[: len(one)]) == one), default=0)
        common = max((_common(ids, other) for other in self.recent), default=0)
        if common < len(ids) and common - best >= GAIN:
            self.known = [*self.known[-RECENT:], tuple(ids[:common])]
            best = common
        self.recent = [*self.recent[-RECENT:], ids]
        return min(best, len(ids) - 1)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    size = min(len(one), len(other))
    return next((at for at in range(size) if one[at] != other[at]), size)


@dataclass
class ArenaChat(Chat):
    """A chat model that shares beginnings between all requests, not only those of one instruction."""

    beginnings: Beginnings = field(default_factory=Beginnings)

    def _shared(self, messages: Messages, ids: Sequence[int]) -> int:
        return self.beginnings.shared(list(ids))


@dataclass
class _Request:
    messages: list[dict[str, str]]
    tokens: int
    seed: int | None
    done: Future[tuple[Reply, int, int]] = field(default_factory=Future)


class Host:
    """The model with its meters."""

    def __init__(self, model: Any, tokenizer: Any, name: str = "") -> None:
        self.name = name
        self.chat = ArenaChat(model, tokenizer)
        self._chats: dict[tuple[int, int], ArenaChat] = {}
        self.meters: dict[str, Meter] = {}
        self.port = 0
        self._queue: queue.Queue[_Request] = queue.Queue()
        self._model_lock = threading.RLock()
        threading.Thread(target=self._work, daemon=True).start()

    def ask(
        self, chats: Sequence[Messages], tokens: int, cell: str | None = None, seed: int | None = None
    ) -> list[Reply]:
        """Answers to chats: greedy without a seed; counted on the meter of a cell, if one is named."""
        requests = []
        for place, messages in enumerate(chats):
            if cell is not None:
                self.meters[cell].take()
            own = None if seed is None else seed + place
            requests.append(_Request([dict(one) for one in messages], tokens, own))
            self._queue.put(requests[-1])
        found = [request.done.result() for request in requests]
        if cell is not None:
            self.meters[cell].read(sum(one[1] for one in found), sum(one[2] for one in found))
        return [one[0] for one in found]

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < self.chat.batch:
                try:
                    batch.append(self._queue.get(timeout=WAIT))
                except queue.Empty:
                    break
            groups: dict[tuple[int, bool], list[_Request]] = {}
            for request in batch:
                groups.setdefault((request.tokens, request.seed is None), []).append(request)
            for (tokens, greedy), members in groups.items():
                self._answer(members, tokens, greedy)

    def _chat(self, tokens: int, size: int) -> ArenaChat:
        """The model with another number of tokens or texts; the keys and values of beginnings are shared."""
        if (tokens, size) not in self._chats:
            chat = self._chats[tokens, size] = replace(self.chat, max_new_tokens=tokens, batch=size)
            chat._prefixes = self.chat._prefixes
        return self._chats[tokens, size]

    def _answer(self, requests: list[_Request], tokens: int, greedy: bool) -> None:
        try:
            with self._model_lock:
                # As small as the requests allow: a pass costs as much as its size.
                size = next(size for size in (1, 4, 8, 16) if size >= min(len(requests), 16))
                chat = self._chat(tokens, size)
                chats = [request.messages for request in requests]
                replies = chat.answers(chats) if greedy else chat.drawn(chats, [one.seed or 0 for one in requests])
            for request, reply in zip(requests, replies, strict=True):
                sizes = len(chat.ids(request.messages)), len(chat.tokenizer(reply.text)["input_ids"])
                request.done.set_result((reply, *sizes))
        except Exception as error:  # the requests wait for an answer, so they must get the error
            for request in requests:
                request.done.set_exception(error)

    def next_words(self, chats: Sequence[Messages], prefix: str) -> np.ndarray:
        """Log-probabilities [N, V] of the token after each chat and the beginning of the model's answer."""
        rows = []
        with self._model_lock, PackedLayers(self.chat.model):
            for messages in chats:
                text = self.chat.rendered(messages) + prefix
                ids = self.chat.tokenizer(text, add_special_tokens=False)["input_ids"]
                shared = self.chat.beginnings.shared(list(ids))
                before = self.chat._prefixes.get(tuple(ids[:shared])) if shared else None
                if shared and before is None:
                    before, _ = read(self.chat.model, ids[:shared])
                    self.chat._prefixes[tuple(ids[:shared])] = before
                _, logits = read(self.chat.model, ids[shared:], before)
                rows.append(torch.log_softmax(logits.float(), -1).numpy())
        return np.stack(rows)

    def perplexity(self, text: str) -> float:
        """Perplexity of a prompt's text under the model; NaN for fewer than two tokens."""
        ids = torch.tensor([self.chat.tokenizer(text, add_special_tokens=False)["input_ids"]])
        if ids.shape[1] < 2:
            return float("nan")
        with self._model_lock, torch.no_grad():
            logits = self.chat.model(input_ids=ids).logits[0, :-1].float()
        return float(torch.exp(torch.nn.functional.cross_entropy(logits, ids[0, 1:])))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # peers send a whole batch at once


def serve(host: Host, port: int = 0) -> ThreadingHTTPServer:
    """A server of chat completions on this machine; stop it with `shutdown()`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            meter = host.meters.get(self.path.strip("/").split("/")[0])
            known = {} if meter is None else {"calls": meter.calls, "limit": meter.limit}
            self._send(404 if meter is None else 200, known)

        def do_POST(self) -> None:
            cell = self.path.strip("/").split("/")[0]
            if cell not in host.meters:
                return self._send(404, {"error": {"message": f"no cell {cell}"}})
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 64)
            warm = float(body.get("temperature") or 0) > 0
            seed = host.meters[cell].calls if warm else None
            messages = [{"role": one["role"], "content": _text(one["content"])} for one in body["messages"]]
            try:
                [reply] = host.ask([messages], tokens, cell, seed)
            except Spent as error:
                return self._send(402, {"error": {"message": str(error), "type": "budget"}})
            except Exception as error:
                return self._send(400, {"error": {"message": f"{type(error).__name__}: {error}"}})
            choice = {"index": 0, "finish_reason": "length" if reply.cut else "stop"}
            message = {"role": "assistant", "content": reply.text}
            usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
            answer = {"id": "arena", "object": "chat.completion", "created": 0, "model": body.get("model", "")}
            return self._send(200, {**answer, "choices": [{**choice, "message": message}], "usage": usage})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _text(content: Any) -> str:
    """A message's text; some clients send it in parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content)
