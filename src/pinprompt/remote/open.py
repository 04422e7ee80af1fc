"""Models behind an API, named 'remote:<model name>': how one is opened, and one as a judge of pictures."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pinprompt.errors import SettingError
from pinprompt.judges.vision import Answer
from pinprompt.recipe.sections import RemoteSettings
from pinprompt.remote.client import BadAnswer, RemoteClient
from pinprompt.remote.labels import RemoteClassifier, dig

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


def open_classifier(
    name: str, settings: RemoteSettings, words: Mapping[str, str], contact: bool = True
) -> RemoteClassifier:
    """A labeller: the server is asked what it can tell, and its `notes` say what was found.

    Without `contact` nothing is sent, and everything is counted as in the dearest way of asking.
    """
    return RemoteClassifier(open_client(name, settings), words, contact)


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
        text = said if isinstance(said, str) else ""
        return Answer(text, usage.tokens_in, usage.tokens_out, "; ".join(usage.failures))
