"""The key of a server: read from the environment, and taken out of every text that comes back.

A server may say a key back: in an error, in an answer, in another spelling. What it says ends in files that people
share, so every spelling that a program makes by accident is replaced.
"""

from __future__ import annotations

import base64
import os
import urllib.parse
from typing import Any

from pinprompt.errors import SettingError

HIDDEN = "***"
LEAST = 8
"""Shorter keys ('EMPTY', 'x') are no secrets but what servers without keys are told: in answers they are words."""


class Secret:
    """A key, or none."""

    def __init__(self, variable: str) -> None:
        self.key = _read(variable)
        self._spellings = [] if self.key is None else _spellings(self.key)

    def __repr__(self) -> str:
        return "Secret(none)" if self.key is None else f"Secret({HIDDEN})"

    def redact(self, text: str) -> str:
        """A text without the key in it."""
        for spelling in self._spellings:
            text = text.replace(spelling, HIDDEN)
        return text

    def clean(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer without the key in any of its texts; level by level, as a stranger may have nested it deeply."""
        if self.key is None or len(self.key) < LEAST:
            return answer
        level: list[Any] = [answer]
        while level:
            inner: list[Any] = []
            for one in level:
                pairs = list(one.items() if isinstance(one, dict) else enumerate(one))
                for name, value in pairs:
                    if isinstance(value, dict | list):
                        inner.append(value)
                    elif isinstance(value, str):
                        one[name] = self.redact(value)
                    if isinstance(name, str) and self.redact(name) != name:
                        one[self.redact(name)] = one.pop(name)
            level = inner
        return answer


def _spellings(key: str) -> list[str]:
    """The key as it may come back, the longest first: a part of a spelling must not be replaced before the whole."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    coded = [base64.b64encode(text.encode()).decode().rstrip("=") for text in (key, f"Bearer {key}")]
    known = {key, quoted, quoted.replace("/", "\\/"), escaped, escaped.upper().replace("\\U", "\\u"), *coded}
    known |= {urllib.parse.quote(key, safe=""), urllib.parse.quote_plus(key)}
    return sorted(known, key=lambda spelling: (-len(spelling), spelling))


def _read(variable: str) -> str | None:
    """The key from the environment, or None; one that cannot stand in a header is refused without being shown."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingError(f"the environment variable {variable} does not hold a key: it has spaces or odd characters")
    return key
