"""Settings of models behind an API."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pinprompt.settings import Section

MANNERS = (
    "key_env", "concurrency", "requests_per_minute", "timeout", "retries", "resends", "longest_wait", "give_up_after",
    "max_mb",
)  # fmt: skip
"""Settings that say how patiently a server is asked, and not what: a resumed run may change them."""


class RemoteSettings(Section):
    """Any server that speaks OpenAI's protocol; a model of it is named in a recipe as 'remote:<model name>'."""

    base_url: str = Field("http://127.0.0.1:8000/v1", description="The server's address, up to and with /v1.")
    key_env: str = Field(
        "OPENAI_API_KEY",
        description="Name of the environment variable that holds the key; the key itself goes nowhere.",
    )
    answers: Literal["auto", "completions", "chat", "constrained", "parsed"] = Field(
        "auto",
        description="How labels are read: log-probabilities of completions or chat, constrained or parsed answers; "
        "auto asks the server once and takes the first that works.",
    )
    instruction: str = Field(
        "Which word comes next: {words}? Answer with one word.",
        description="The question after the text where labels are answered in a chat; {words} are the label words.",
    )
    window: int = Field(4096, ge=64, description="Tokens that the model reads at the most (three bytes each).")
    concurrency: int = Field(8, ge=1, le=256, description="Requests under way at a time.")
    requests_per_minute: float | None = Field(None, gt=0, description="Requests sent in a minute at the most.")
    timeout: float = Field(60.0, gt=0, description="Seconds for one request, from first byte sent to last received.")
    retries: int = Field(5, ge=0, le=100, description="New tries after a refusal (429, 5xx, no connection).")
    resends: int = Field(
        1, ge=0, le=10, description="New tries after an answer that was cut, late or not JSON: it may have been billed."
    )
    longest_wait: float = Field(120.0, gt=0, description="Seconds to wait before a new try, whatever the server asks.")
    give_up_after: int = Field(3, ge=1, description="Requests in a row without an answer after which the run stops.")
    max_mb: float = Field(8.0, gt=0, le=1024, description="The largest answer that is read, in MB.")
    top_k: bool = Field(False, description="Send top_k when sampling; not every server knows it.")

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018  # reading it is what checks it
        except ValueError:
            # What exactly is wrong is not repeated: a password may stand where a port is looked for.
            raise ValueError("the address of a server cannot be read; an example: http://127.0.0.1:8000/v1") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the address of a server begins with http:// or https:// and names a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("no user, password or query in an address: a key comes from the environment (key_env)")
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,79}", value):
            # Not repeated here: somebody may have put the key itself in its place.
            raise ValueError("key_env is the name of an environment variable (capitals, digits, _), not the key")
        return value
