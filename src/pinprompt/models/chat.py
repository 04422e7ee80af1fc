"""Answers of a chat model: messages in, texts out.

A local model uses its tokenizer's chat template. A model without one, or one that is asked to complete a text, reads
messages as plain text, and its answer is one line. Models behind an API and callables have the same interface
(`remote/chat.py`, `remote/callables.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from pinprompt.errors import ModelError
from pinprompt.models.sampling import Job, Sampler

Messages = Sequence[Mapping[str, str]]
"""A chat: each message has a `role` (system, user, assistant) and a `content`."""
PROBE = "?"
"""A text that stands for another in a chat, to find out what chats have in common."""


class Reply(NamedTuple):
    """An answer; '' with the reason if there is none."""

    text: str
    failure: str = ""
    cut: bool = False
    """Whether the answer was not at its end when the tokens to write ran out."""


class ChatModel(Protocol):
    """Anything that answers chats."""

    @property
    def billed(self) -> str | None:
        """The model's name in `budget.prices`; None if it costs nothing."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes on how it is called."""

    def answers(self, chats: Sequence[Messages]) -> list[Reply]:
        """The most likely answer to each chat, in order."""

    def drawn(self, chats: Sequence[Messages], seeds: Sequence[int]) -> list[Reply]:
        """One sampled answer to each chat."""


def as_text(messages: Messages) -> str:
    """Messages as plain text that an answer completes."""
    text = "\n\n".join(one["content"] for one in messages)
    return text if text.endswith(":") else f"{text}\n\nAnswer:"


def rendered(tokenizer: Any, messages: Messages) -> str:
    """A chat in the format of a tokenizer's chat template, up to where the answer begins."""
    from jinja2 import TemplateError

    plain = [dict(one) for one in messages]
    try:
        return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        # Some templates know no system role: its content then stands before the first message of the user.
        if plain[0]["role"] != "system" or len(plain) < 2:
            raise ModelError(f"the chat template of the model cannot be used: {error}") from error
        first, second, *rest = plain
        return rendered(tokenizer, [{**second, "content": f"{first['content']}\n\n{second['content']}"}, *rest])


def asking(tokenizer: Any, instruction: str) -> list[str]:
    """Prompts in a chat format with the text left open: the instruction as system message, or before the text.

    None without a chat template. Tokens that the tokenizer adds by itself are left out.
    """
    if not getattr(tokenizer, "chat_template", None):
        return []
    ways = (
        [{"role": "system", "content": instruction}, {"role": "user", "content": "{text}"}],
        [{"role": "user", "content": f"{instruction}\n\n{{text}}"}],
    )
    added = tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    return [rendered(tokenizer, messages).removeprefix(tokenizer.bos_token if added else "") for messages in ways]


def opening(tokenizer: Any) -> str:
    """What a tokenizer's chat template writes where an answer begins; '' without a template."""
    if not getattr(tokenizer, "chat_template", None):
        return ""
    asked = [{"role": "user", "content": PROBE}]
    whole = rendered(tokenizer, asked)
    return whole.removeprefix(str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=False)))


@dataclass
class Chat(Sampler):
    """A frozen causal LM that answers chats."""

    billed: ClassVar[str | None] = None
    notes: ClassVar[tuple[str, ...]] = ()

    top_k: int = 1
    batch: int = 16
    max_new_tokens: int = 64
    plain: bool = False
    """Complete messages as plain text, even if the model has a chat template."""

    @property
    def templated(self) -> bool:
        """Whether chats have the model's own format."""
        return not self.plain and bool(getattr(self.tokenizer, "chat_template", None))

    def completer(self) -> Chat:
        """The same model, which completes plain text."""
        return replace(self, plain=True)

    def answers(self, chats: Sequence[Messages]) -> list[Reply]:
        """The most likely answer to each chat: greedy, so it depends on the chat alone."""
        return self._answered(chats, np.zeros((len(chats), self.max_new_tokens)))

    def drawn(self, chats: Sequence[Messages], seeds: Sequence[int]) -> list[Reply]:
        """One sampled answer to each chat, from the 40 most likely tokens."""
        draws = [np.random.Generator(np.random.Philox(seed)).random(self.max_new_tokens) for seed in seeds]
        return replace(self, top_k=40)._answered(chats, np.array(draws).reshape(len(chats), self.max_new_tokens))

    def _answered(self, chats: Sequence[Messages], draws: np.ndarray) -> list[Reply]:
        found: list[Reply | Job] = []
        for messages, row in zip(chats, draws, strict=True):
            ids = self.ids(messages)
            if failure := self.too_long(ids, self.max_new_tokens):
                found.append(Reply("", failure))
            else:
                found.append(Job(ids, self.max_new_tokens, row[None], self._shared(messages, ids)))
        self.run([job for job in found if isinstance(job, Job)])
        return [one if isinstance(one, Reply) else Reply(one.texts[0], cut=bool(one.cut)) for one in found]

    def ids(self, messages: Messages) -> list[int]:
        """The tokens of a chat, up to where the answer begins."""
        if not self.templated:
            return self.encode(as_text(messages))
        return self.tokenizer(self.rendered(messages), add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]

    def rendered(self, messages: Messages) -> str:
        return rendered(self.tokenizer, messages)

    def finished(self, tokens: list[int]) -> str:
        """The answer without spaces around it; without a chat template its first line."""
        text = super().finished(tokens).strip()
        return text if self.templated else text.split("\n", 1)[0].strip()

    def closes(self, text: str) -> bool:
        """Whether the answer ends here: without a chat template, at its first line break."""
        return not self.templated and "\n" in text

    def _shared(self, messages: Messages, ids: Sequence[int]) -> int:
        """How many of the first tokens do not depend on the last message's text: chats of one prompt share them."""
        other = self.ids([*messages[:-1], {**messages[-1], "content": PROBE}])
        same = next((at for at, pair in enumerate(zip(ids, other, strict=False)) if pair[0] != pair[1]), len(other))
        return min(same, len(ids) - 1)
