"""Remote models that generate texts, and that rate pictures.

Most servers can complete a text, some only chat; most return many samples for one request, some only one. A probe at
the start finds out, and `notes` report it, so that the requests of a run never depend on their order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pinprompt.errors import ModelError
from pinprompt.judges.vision import VisionAnswer
from pinprompt.models.generator import TEMPLATE, Generated, Request, check_template, filled, new_tokens, tidy
from pinprompt.remote.client import BadAnswer, RemoteClient, Usage, dig, size_of, texts_of
from pinprompt.remote.labels import Guess, likely_tokens
from pinprompt.values import derive

CLOSE = '"'
"""The end of a rewrite."""
RATING_TOKENS = 300
"""Maximum tokens of an answer about a picture."""


class RemoteGenerator:
    """Samples rewrites of texts, with the interface of `models.generator.Generator`."""

    def __init__(
        self,
        client: RemoteClient,
        template: str = TEMPLATE,
        top_k: int = 10,
        temperature: float = 1.0,
        lower: bool = False,
        max_new_tokens: int | None = None,
    ) -> None:
        check_template(template)
        self.client, self.template, self.billed = client, template, client.model
        self.top_k, self.temperature, self.lower, self.max_new_tokens = top_k, temperature, lower, max_new_tokens
        self.window = client.settings.window
        self.completes: bool | None = None
        """Whether the server has /completions; None until it is probed."""
        self.many: bool | None = None
        """Whether the server returns several samples for one request; None until it is probed."""
        self.notes: list[str] = []
        self._guess = Guess(self.window)

    @property
    def revision(self) -> str:
        """What an output depends on besides the request: server, model, and type of request."""
        settings = self.client.settings
        return json.dumps(["remote", settings.base_url, self.client.model, self.completes, self.many, settings.top_k])

    def probe(self, samples: int) -> None:
        """Find out whether the server has completions, and whether it returns several samples for one request."""
        tried = []
        for completes in (True, False):
            self.completes = completes
            for many in (True, False) if samples > 1 else (False,):
                count = samples if many else 1
                try:
                    texts = self._continuations(self.fill("Hello:", "Hi."), 1, n=count, seed=0, **self._how())
                except BadAnswer as failure:
                    tried.append(self.client.redact(str(failure)))
                    continue
                self.many = many and len(texts) >= count
                self._tell(samples)
                return
        server, why = self.client.settings.base_url, "; ".join(dict.fromkeys(tried))[:600]
        raise ModelError(f"{server} returned no text for '{self.client.model}': {why}")

    def _tell(self, samples: int) -> None:
        client = self.client
        way = "completions" if self.completes else "chat answers (the server has no completions)"
        how = f"{samples} samples per request" if self.many else "one sample per request"
        self.notes.append(f"{client.settings.base_url}, model '{client.model}': rewrites by {way}, {how}")
        if not client.settings.top_k:
            self.notes.append(
                f"top_k = {self.top_k} is not sent, as not every server supports it; if yours does, set "
                "remote.top_k=true"
            )

    def fill(self, prompt: str, text: str) -> str:
        return filled(self.template, prompt, text)

    def limit(self, text: str) -> int:
        return self.max_new_tokens or new_tokens(len(self._guess.pieces([text])[0]))

    def length(self, prompt: str, text: str) -> int:
        return size_of(self.fill(prompt, text)) + self.client.overhead[0]

    def most_tokens(self, prompt: str, text: str, samples: int) -> tuple[int, int]:
        """The maximum tokens in and out of `n` samples, including retries of truncated answers."""
        tries = self.client.tries
        requests = 1 if self.many else samples
        most_out = self.limit(text) * samples + self.client.overhead[1] * requests
        return self.length(prompt, text) * requests * tries, most_out * tries

    def likely_tokens(self, prompt: str, text: str, samples: int) -> tuple[int, int]:
        """The expected tokens in and out of `n` samples, assuming that a rewrite is as long as its text."""
        requests = samples if self.many is False else 1
        tokens = likely_tokens(text)
        return likely_tokens(self.fill(prompt, text)) * requests, min(tokens + 2, self.limit(text)) * samples

    def fits(self, text: str, room: int) -> bool:
        """Whether the text, its rewrite, and `room` tokens of prompt fit into the model's window."""
        return len(self._guess.ids([self.fill("", text)])[0]) + room + self.limit(text) <= self.window

    def sample(self, requests: Sequence[Request]) -> list[Generated]:
        """All samples of all requests, in order; failed ones are empty, with the failure."""
        turns = [(request, turn) for request in requests for turn in range(1 if self.many else request.samples)]
        answers = iter(self.client.each(lambda pair: self._draw(*pair), turns))
        made: list[Generated] = []
        for request in requests:
            drawn = [next(answers) for _ in range(1 if self.many else request.samples)]
            texts = [tidy(text, self.lower) for part, _ in drawn for text in part]
            missing = request.samples - len(texts)
            failed = [failure for _, failure in drawn if failure]
            few = f"the server returned {missing} samples too few" if missing else None
            made.append(Generated((*texts, *[""] * missing), failed[0] if failed else few))
        return made

    def _draw(self, request: Request, turn: int) -> tuple[list[str], str | None]:
        """Samples of one request to the server, which has its own seed, or the failure."""
        client, count, how = self.client, request.samples if self.many else 1, self._how()
        prompt, limit = self.fill(request.prompt, request.text), self.limit(request.text)
        seed = derive(request.seed, "remote", turn) % (1 << 31)  # more than 32 bits are refused by some servers
        server = [client.settings.base_url, client.model, self.completes, self.many]
        try:
            texts = client.once(
                ["texts", server, prompt, limit, count, seed, how],
                lambda: self._continuations(prompt, limit, n=count, seed=seed, **how),
                _are_texts,
            )
        except BadAnswer as failure:
            return [], client.redact(str(failure))
        return texts[:count], None

    def _continuations(self, prompt: str, most_out: int, **more: Any) -> list[str]:
        """The texts of one answer."""
        if self.completes:
            return texts_of(self.client.complete(prompt, most_out, **more), "text")
        messages = [{"role": "user", "content": prompt}]
        return texts_of(self.client.chat(messages, most_out, **more), "message", "content")

    def take(self) -> Usage:
        return self.client.take()

    def _how(self) -> dict[str, Any]:
        more: dict[str, Any] = {"temperature": self.temperature, "stop": [CLOSE]}
        return more | ({"top_k": self.top_k} if self.client.settings.top_k else {})


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


class RemoteJudge:
    """A remote vision model; implements `judges.vision.VisionModel`."""

    def __init__(self, client: RemoteClient) -> None:
        self.client, self.name = client, client.model
        self._shaped = True

    def ask_image(self, text: str, image: bytes, schema: Mapping[str, Any]) -> VisionAnswer:
        """Ask about one picture (JPEG bytes); the answer is empty if the request failed."""
        picture = "data:image/jpeg;base64," + base64.b64encode(image).decode("ascii")
        content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": picture}}]
        messages = [{"role": "user", "content": content}]
        shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}
        said = None
        for shaped in [True, False] if self._shaped else [False]:
            more: dict[str, Any] = {"response_format": shape} if shaped else {}
            try:
                answer = self.client.chat(messages, RATING_TOKENS, temperature=0, **more)
                said = dig(answer, "choices", 0, "message", "content")
                self._shaped = shaped
                break
            except BadAnswer as failure:
                if not shaped:
                    self.client.fail(str(failure))
        usage = self.client.take()
        text = said if isinstance(said, str) else ""
        return VisionAnswer(text, usage.tokens_in, usage.tokens_out, "; ".join(usage.failures))
