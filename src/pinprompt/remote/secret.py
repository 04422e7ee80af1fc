"""The API key: read from the environment, and removed from every text that comes back."""

from __future__ import annotations

import base64
import os
import urllib.parse
from typing import Any

from pinprompt.errors import SettingError

HIDDEN = "***"
LEAST = 8
"""Shorter keys ('EMPTY', 'x') are placeholders for servers without keys, not secrets, and occur as normal words."""


class Secret:
    """A key, or none."""

    def __init__(self, variable: str) -> None:
        self.key = _read(variable)
        self._spellings = [] if self.key is None else _spellings(self.key)

    def __repr__(self) -> str:
        return "Secret(none)" if self.key is None else f"Secret({HIDDEN})"

    def redact(self, text: str) -> str:
        for spelling in self._spellings:
            text = text.replace(spelling, HIDDEN)
        return text

    def clean(self, value: Any) -> Any:
        """A JSON value without the key in any of its texts."""
        if self.key is None or len(self.key) < LEAST:
            return value
        if isinstance(value, list):
            return [self.clean(item) for item in value]
        if isinstance(value, dict):
            return {self.redact(name): self.clean(item) for name, item in value.items()}
        return self.redact(value) if isinstance(value, str) else value


def _spellings(key: str) -> list[str]:
    """Encodings of the key, the longest first, so that a part is not replaced before the whole."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    coded = [base64.b64encode(text.encode()).decode().rstrip("=") for text in (key, f"Bearer {key}")]
    known = {key, quoted, quoted.replace("/", "\\/"), escaped, escaped.upper().replace("\\U", "\\u"), *coded}
    known |= {urllib.parse.quote(key, safe=""), urllib.parse.quote_plus(key)}
    return sorted(known, key=lambda spelling: (-len(spelling), spelling))


def _read(variable: str) -> str | None:
    """The key from the environment, or None; an invalid one is an error that does not show it."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise SettingError(
            f"the environment variable {variable} does not contain a valid key: it has spaces or invalid characters"
        )
    return key
