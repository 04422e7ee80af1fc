"""Remote models that generate texts, and that rate pictures.

Most servers can complete a text, some only chat; most return many samples for one request, some only one. A probe at
the start finds out, and `notes` report it, so that the requests of a run never depend on their order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinprompt.errors import ModelError, SettingError
from pinprompt.judges.vision import VisionAnswer
from pinprompt.models.generator import TEMPLATE, Generated, Request, filled, new_tokens, tidy
from pinprompt.remote.client import OVERHEAD, BadAnswer, RemoteClient, Usage, dig
from pinprompt.remote.labels import Guess, likely_tokens
from pinprompt.values import derive

CLOSE = '"'
"""The end of a rewrite."""
RATING_TOKENS = 300
"""Maximum tokens of an answer about a picture."""


@dataclass(frozen=True)
class Completion:
    """The continuations of one prompt, in order, and the reason if there are fewer than requested."""

    texts: tuple[str, ...]
    failure: str | None = None


def generate(
    client: RemoteClient,
    prompts: Sequence[str],
    n: int | Sequence[int] = 1,
    stop: Sequence[str] = (),
    max_tokens: int | Sequence[int] = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Completion]:
    """Continuations of each prompt, in order.

    Uses completions if the server has them, otherwise chats; all samples of a prompt in one request if the server
    supports it, otherwise one request each (`client.completes` and `client.many`, once known). Each request has its own
    seed. `top_k` is only sent if the settings enable it.
    """
    counts = [n] * len(prompts) if isinstance(n, int) else list(n)
    limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
    seeds = [0] * len(prompts) if seeds is None else seeds
    more: dict[str, Any] = {"temperature": temperature}
    if stop:
        more["stop"] = list(stop)
    if top_k is not None and client.settings.top_k:
        more["top_k"] = top_k

    def ask(job: tuple[int, int, int]) -> Completion:
        place, turn, count = job
        # Seeds of the protocol are 32-bit on some servers.
        seed = derive(seeds[place], "remote", turn) % (1 << 31)
        prompt, limit = prompts[place], limits[place]
        server = [client.settings.base_url, client.model, client.completes, client.many]
        try:
            texts = client.once(
                ["texts", server, prompt, limit, count, seed, more],
                lambda: _continuations(client, prompt, limit, count, seed=seed, **more),
                _are_texts,
            )
        except BadAnswer as bad:
            return Completion((), client.redact(str(bad)))
        return Completion(tuple(texts[:count]))

    def ask_in_turn(place: int) -> Completion:
        """For a server that may or may not return several samples at once."""
        texts: list[str] = []
        for turn in range(counts[place]):
            if len(texts) >= counts[place]:
                break
            written = ask((place, turn, counts[place] - len(texts)))
            if written.failure:
                return Completion(tuple(texts), written.failure)
            texts += written.texts
        return Completion(tuple(texts))

    places = range(len(prompts))
    if client.many is None:
        return client.each(ask_in_turn, places)
    if client.many:
        return client.each(ask, [(place, 0, counts[place]) for place in places])
    jobs = [(place, turn, 1) for place in places for turn in range(counts[place])]
    parts: list[list[Completion]] = [[] for _ in places]
    for (place, _, _), written in zip(jobs, client.each(ask, jobs), strict=True):
        parts[place].append(written)
    return [
        Completion(
            tuple(text for one in part for text in one.texts), next((one.failure for one in part if one.failure), None)
        )
        for part in parts
    ]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _continuations(client: RemoteClient, prompt: str, most_out: int, n: int, **more: Any) -> list[str]:
    """Choices of one request, from completions or, if there are none, from a chat."""
    if client.completes is not False:
        try:
            answer = client.complete(prompt, most_out, n=n, **more)
        except BadAnswer:
            if client.completes:
                raise
            client.completes = False
        else:
            client.completes = True
            return _choices(answer, "text")
    return _choices(client.chat([{"role": "user", "content": prompt}], most_out, n=n, **more), "message", "content")


def _choices(answer: dict[str, Any], *path: str) -> list[str]:
    found = answer.get("choices")
    texts = [dig(choice, *path) for choice in found] if isinstance(found, list) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise BadAnswer("the answer has no text")
    return texts


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
        for name in ("{prompt}", "{text}"):
            if name not in template:
                raise SettingError(f"the template {template!r} has no {name}; an example: {TEMPLATE!r}")
        self.client, self.template, self.billed = client, template, client.model
        self.top_k, self.temperature, self.lower, self.max_new_tokens = top_k, temperature, lower, max_new_tokens
        self.window = client.settings.window
        self.notes: list[str] = []
        self._guess = Guess(self.window)

    @property
    def revision(self) -> str:
        """What an output depends on besides the request: server, model, and type of request."""
        client = self.client
        ways = [client.completes, client.many, client.settings.top_k]
        return json.dumps(["remote", client.settings.base_url, client.model, *ways])

    def probe(self, samples: int) -> None:
        """Find out whether the server has completions, and whether it returns several samples for one request."""
        client, tried = self.client, []
        for completes in (True, False):
            for many in (True, False) if samples > 1 else (False,):
                client.completes = completes
                count = samples if many else 1
                try:
                    texts = _continuations(client, self.fill("Hello:", "Hi."), 1, count, **self._how(), seed=0)
                except BadAnswer as failure:
                    tried.append(client.redact(str(failure)))
                    continue
                client.many = many and len(texts) >= count
                self._tell(samples)
                return
        raise ModelError(
            f"{client.settings.base_url} returned no text for '{client.model}': {'; '.join(dict.fromkeys(tried))[:600]}"
        )

    def _tell(self, samples: int) -> None:
        client = self.client
        way = "completions" if client.completes else "chat answers (the server has no completions)"
        how = f"{samples} samples per request" if client.many else "one sample per request"
        self.notes.append(f"{client.settings.base_url}, model '{client.model}': rewrites by {way}, {how}")
        if not client.settings.top_k:
            self.notes.append(
                f"task.top_k = {self.top_k} is not sent, as not every server supports it; if yours does, set "
                "remote.top_k=true"
            )

    def fill(self, prompt: str, text: str) -> str:
        """The model's input."""
        return filled(self.template, prompt, text)

    def limit(self, text: str) -> int:
        """The maximum output length for this source text."""
        return self.max_new_tokens or new_tokens(len(self._guess.pieces([text])[0]))

    def length(self, prompt: str, text: str) -> int:
        """The maximum number of input tokens of a prompt and a text."""
        return len(self.fill(prompt, text).encode(errors="replace")) + OVERHEAD

    def most_tokens(self, prompt: str, text: str, samples: int) -> tuple[int, int]:
        """The maximum tokens in and out of `n` samples, including retries of truncated answers."""
        tries = self.client.tries
        requests = 1 if self.client.many else samples
        return self.length(prompt, text) * requests * tries, self.limit(text) * samples * tries

    def likely_tokens(self, prompt: str, text: str, samples: int) -> tuple[int, int]:
        """The expected tokens in and out of `n` samples, assuming that a rewrite is as long as its text."""
        requests = samples if self.client.many is False else 1
        tokens = likely_tokens(text)
        return likely_tokens(self.fill(prompt, text)) * requests, min(tokens + 2, self.limit(text)) * samples

    def fits(self, text: str, room: int) -> bool:
        """Whether the text, its rewrite, and `room` tokens of prompt fit into the model's window."""
        return len(self._guess.ids([self.fill("", text)])[0]) + room + self.limit(text) <= self.window

    def sample(self, requests: Sequence[Request]) -> list[Generated]:
        """All samples of all requests, in order; failed ones are empty, with the failure."""
        answers = generate(
            self.client,
            [self.fill(request.prompt, request.text) for request in requests],
            n=[request.samples for request in requests],
            stop=(CLOSE,),
            max_tokens=[self.limit(request.text) for request in requests],
            temperature=self.temperature,
            top_k=self.top_k,
            seeds=[request.seed for request in requests],
        )
        made: list[Generated] = []
        for request, written in zip(requests, answers, strict=True):
            texts = [tidy(text, self.lower) for text in written.texts]
            missing = request.samples - len(texts)
            failure = written.failure or (f"the server returned {missing} samples too few" if missing else None)
            made.append(Generated((*texts, *[""] * missing), failure))
        return made

    def take(self) -> Usage:
        """Tokens and failures since the last call."""
        return self.client.take()

    def _how(self) -> dict[str, Any]:
        more: dict[str, Any] = {"temperature": self.temperature, "stop": [CLOSE]}
        return more | ({"top_k": self.top_k} if self.client.settings.top_k else {})


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
