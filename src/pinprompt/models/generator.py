"""Rewrites of texts by a prompted causal LM: the first sentence of sampled continuations (`models/sampling.py`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pinprompt.errors import SettingError
from pinprompt.models.chat import asking
from pinprompt.models.sampling import Job, Sampler

TEMPLATE = '{prompt} "{text}" "'
_ENDS = frozenset('".!?')


@dataclass(frozen=True)
class Request:
    """A number of samples of one prompt on one text."""

    prompt: str
    text: str
    samples: int
    seed: int


@dataclass(frozen=True)
class Generated:
    """The samples of a request in order; if it failed they are empty and `failure` has the reason."""

    texts: tuple[str, ...]
    failure: str | None = None


def check_template(template: str) -> None:
    """Raise a SettingError for a template without a place for the prompt or the text."""
    for name in ("{prompt}", "{text}"):
        if name not in template:
            raise SettingError(f"the template {template!r} has no {name}; an example: {TEMPLATE!r}")


def filled(template: str, prompt: str, text: str) -> str:
    """The model's input: the filled template, or the prompt itself where `{text}` in it marks the place of the text.

    In "Before: {text} After:" the text is put in quotes, and an opening quote is added at the end. Double quotes inside
    the text become single, since the first one ends the output.
    """
    quoted = text.replace('"', "'")
    if "{text}" in prompt:
        space = "" if prompt[-1:].isspace() else " "  # a chat's format ends with a new line
        return prompt.replace("{text}", f'"{quoted}"') + f'{space}"'
    parts = re.split(r"(\{prompt\}|\{text\})", template)
    return "".join({"{prompt}": prompt, "{text}": quoted}.get(part, part) for part in parts)


def tidy(text: str, lower: bool = False) -> str:
    """The first sentence of a raw continuation, up to the closing quote."""
    kept = text.split('"', 1)[0].strip()
    sentence = re.match(r"[^.!?]*[.!?]", kept)
    kept = sentence.group().strip() if sentence else kept
    return kept.lower() if lower else kept


def new_tokens(source_tokens: int) -> int:
    """The maximum output length for a source of n tokens: max(1.5 n, n + 10)."""
    return int(max(1.5 * source_tokens, source_tokens + 10))


@dataclass
class Generator(Sampler):
    """A frozen causal LM that rewrites texts."""

    billed: ClassVar[str | None] = None
    """A local model is not billed."""

    template: str = TEMPLATE
    lower: bool = False
    max_new_tokens: int | None = None
    """None: by `new_tokens`."""

    def __post_init__(self) -> None:
        check_template(self.template)
        super().__post_init__()

    def chats(self, instruction: str) -> list[str]:
        """Prompts in the model's chat format; none if it has no chat template."""
        return asking(self.tokenizer, instruction)

    def fill(self, prompt: str, text: str) -> str:
        return filled(self.template, prompt, text)

    def limit(self, text: str) -> int:
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return new_tokens(len(self.tokenizer(text, add_special_tokens=False)["input_ids"]))

    def length(self, prompt: str, text: str) -> int:
        return len(self.encode(self.fill(prompt, text)))

    def fits(self, text: str, room: int) -> bool:
        """Whether the text, its rewrite, and `room` tokens of prompt fit into the model's window."""
        return self.length("", text) + room + self.limit(text) <= self.window

    def sample(self, requests: Sequence[Request]) -> list[Generated]:
        """All samples of all requests, in order; a text that does not fit the model's window is a recorded failure."""
        answers: list[Generated | Job] = []
        for request in requests:
            ids, steps = self.encode(self.fill(request.prompt, request.text)), self.limit(request.text)
            if failure := self.too_long(ids, steps):
                answers.append(Generated(("",) * request.samples, failure))
                continue
            draws = np.random.Generator(np.random.Philox(request.seed)).random((request.samples, steps))
            answers.append(Job(ids, steps, draws))
        self.run([job for job in answers if isinstance(job, Job)])
        return [Generated(tuple(one.texts)) if isinstance(one, Job) else one for one in answers]

    def finished(self, tokens: list[int]) -> str:
        return tidy(super().finished(tokens), self.lower)

    def closes(self, text: str) -> bool:
        """Whether `tidy` would cut here. These marks are single bytes, so no tokenizer splits them."""
        return not _ENDS.isdisjoint(text)
