"""Answers of a chat model behind an API, with the interface of `models.chat.ChatModel`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pinprompt.models.chat import Messages, Reply
from pinprompt.remote.client import BadAnswer, RemoteClient, Usage, dig, size_of
from pinprompt.remote.labels import CHAT_TOKENS, likely_tokens

ROLE_BYTES = 8
"""Tokens that a message may have besides its content."""


class RemoteChat:
    """Chats by /chat/completions; every server has it, so nothing is probed."""

    def __init__(self, client: RemoteClient, max_new_tokens: int = 64) -> None:
        self.client, self.billed, self.max_new_tokens = client, client.model, max_new_tokens
        self.notes: Sequence[str] = ()

    @property
    def revision(self) -> str:
        """What an answer depends on besides its chat: server and model."""
        return json.dumps(["remote", self.client.settings.base_url, self.client.model])

    def answers(self, chats: Sequence[Messages]) -> list[Reply]:
        return self.client.each(lambda chat: self._answer(chat, temperature=0), chats)

    def drawn(self, chats: Sequence[Messages], seeds: Sequence[int]) -> list[Reply]:
        # More than 32 bits are refused by some servers.
        pairs = [(chat, seed % (1 << 31)) for chat, seed in zip(chats, seeds, strict=True)]
        return self.client.each(lambda pair: self._answer(pair[0], temperature=1, seed=pair[1]), pairs)

    def most_tokens(self, messages: Messages) -> tuple[int, int]:
        """The maximum tokens in and out of one chat, including retries of truncated answers."""
        over_in, over_out = self.client.overhead
        size = sum(size_of(one["content"]) + ROLE_BYTES for one in messages) + over_in
        return size * self.client.tries, (self.max_new_tokens + over_out) * self.client.tries

    def likely_tokens(self, messages: Messages) -> tuple[int, int]:
        """The expected tokens in and out of one chat; a short answer is assumed."""
        read = sum(likely_tokens(one["content"]) for one in messages) + CHAT_TOKENS
        return read, min(self.max_new_tokens, 16)

    def take(self) -> Usage:
        return self.client.take()

    def _answer(self, messages: Messages, **how: Any) -> Reply:
        asked = [dict(one) for one in messages]
        question = ["answer", self.revision, asked, self.max_new_tokens, how]
        try:
            text, cut = self.client.once(question, lambda: self._asked(asked, how), _is_answer)
        except BadAnswer as failure:
            return Reply("", self.client.redact(str(failure)))
        return Reply(text, cut=cut)

    def _asked(self, messages: list[dict[str, Any]], how: dict[str, Any]) -> list[Any]:
        answer = self.client.chat(messages, self.max_new_tokens, **how)
        text = dig(answer, "choices", 0, "message", "content")
        if not isinstance(text, str):
            raise BadAnswer("the answer has no text")
        return [text.strip(), dig(answer, "choices", 0, "finish_reason") == "length"]


def _is_answer(value: Any) -> bool:
    return isinstance(value, list) and list(map(type, value)) == [str, bool]
