"""Models behind an API, named 'remote:<model name>': as a labeller, as a writer of texts, as a judge of pictures."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinprompt.errors import SettingError
from pinprompt.models.generator import TEMPLATE, Generated, Request, new_tokens, tidy
from pinprompt.models.remote_client import BadAnswer, RemoteClient, Usage
from pinprompt.models.remote_labels import Guess, RemoteClassifier, dig
from pinprompt.models.vision_judge import Answer
from pinprompt.settings.remote import RemoteSettings
from pinprompt.streams import derive

PREFIX = "remote:"
RATING_TOKENS = 300
"""Tokens for an answer about a picture."""


def is_remote(name: str) -> bool:
    """True for the name of a model behind an API."""
    return name.startswith(PREFIX)


def open_client(name: str, settings: RemoteSettings, seed: int = 0) -> RemoteClient:
    """A client for 'remote:<model name>'."""
    model = name.removeprefix(PREFIX).strip()
    if not is_remote(name) or not model:
        raise SettingError(f"'{name}' does not name a model behind an API; write 'remote:<model name>'")
    return RemoteClient(settings, model, seed)


def open_classifier(name: str, settings: RemoteSettings, words: Mapping[str, str]) -> RemoteClassifier:
    """A labeller: the server is asked what it can tell, and its `notes` say what was found."""
    return RemoteClassifier(open_client(name, settings), words)


@dataclass(frozen=True)
class Written:
    """The continuations of one prompt, in order, and what went wrong if there are fewer than were asked for."""

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
) -> list[Written]:
    """So many continuations of each prompt, in order.

    Completions where the server has them, else chats. A server that gives fewer choices than asked for is asked again
    with another seed. `top_k` is sent only where the settings say that the server knows it.
    """
    counts = [n] * len(prompts) if isinstance(n, int) else list(n)
    limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
    seeds = [0] * len(prompts) if seeds is None else seeds
    more: dict[str, Any] = {"temperature": temperature}
    if stop:
        more["stop"] = list(stop)
    if top_k is not None and client.settings.top_k:
        more["top_k"] = top_k

    def write(place: int) -> Written:
        texts: list[str] = []
        failure, wanted = None, counts[place]
        for turn in range(wanted):
            if len(texts) >= wanted:
                break
            # Seeds of the protocol are 32-bit on some servers.
            seed = derive(seeds[place], "remote", turn) % (1 << 31)
            try:
                new = _continuations(client, prompts[place], limits[place], wanted - len(texts), seed=seed, **more)
            except BadAnswer as bad:
                failure = client.redact(str(bad))
                break
            texts += new[: wanted - len(texts)]
        return Written(tuple(texts), failure)

    return client.each(write, range(len(prompts)))


def _continuations(client: RemoteClient, prompt: str, most_out: int, n: int, **more: Any) -> list[str]:
    """Choices of one request, from completions or, where there are none, from a chat."""
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
        self._guess = Guess(self.window)

    def fill(self, prompt: str, text: str) -> str:
        """The text that the model reads; double quotes inside the text become single, as its end is a quote."""
        head, tail = self.template.split("{text}", 1)
        quoted = text.replace('"', "'")
        return head.replace("{prompt}", prompt) + quoted + tail.replace("{prompt}", prompt)

    def limit(self, text: str) -> int:
        """How many tokens may follow for this source text."""
        return self.max_new_tokens or new_tokens(len(self._guess.pieces([text])[0]))

    def length(self, prompt: str, text: str) -> int:
        """How many tokens the model reads of a prompt and a text, at the most."""
        return self.client.most_tokens([self.fill(prompt, text)], 0)[0]

    def fits(self, text: str, room: int) -> bool:
        """Does the model's window hold the text, its rewrite, and `room` tokens of prompt?"""
        return len(self._guess.ids([self.fill("", text)])[0]) + room + self.limit(text) <= self.window

    def sample(self, requests: Sequence[Request]) -> list[Generated]:
        """All samples of all requests, in order; what could not be written is empty, with the failure beside it."""
        answers = generate(
            self.client,
            [self.fill(request.prompt, request.text) for request in requests],
            n=[request.samples for request in requests],
            stop=('"',),
            max_tokens=[self.limit(request.text) for request in requests],
            temperature=self.temperature,
            top_k=self.top_k,
            seeds=[request.seed for request in requests],
        )
        made: list[Generated] = []
        for request, written in zip(requests, answers, strict=True):
            texts = [tidy(text, self.lower) for text in written.texts]
            missing = request.samples - len(texts)
            failure = written.failure or (f"the server wrote {missing} samples too few" if missing else None)
            made.append(Generated((*texts, *[""] * missing), failure))
        return made

    def take(self) -> Usage:
        """Tokens and failures since the last time this was asked."""
        return self.client.take()


class RemoteJudge:
    """A vision model behind an API; implements `models.vision_judge.VisionModel`."""

    def __init__(self, client: RemoteClient) -> None:
        self.client, self.name = client, client.model
        self._shaped = True

    def ask_image(self, text: str, image: bytes, schema: Mapping[str, Any]) -> Answer:
        """Ask about one picture (JPEG bytes); an answer that could not be had is an empty one."""
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
        return Answer(said if isinstance(said, str) else "", usage.tokens_in, usage.tokens_out)
