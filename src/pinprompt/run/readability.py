"""Readability of a prompt: dictionary words, repeated tokens, decode-encode stability, and what its LM says of it.

Pure functions without heavy imports; the dictionary is `pinprompt.english`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from pinprompt.english import dictionary_words, words


def repeated_tokens(tokens: Sequence[Hashable]) -> int:
    """How many tokens repeat an earlier one: "a b a a" has two."""
    return len(tokens) - len(set(tokens))


def is_stable(ids: Sequence[int], tokenizer: Any) -> bool:
    """Whether the prompt's text is tokenised back into the same ids."""
    given = [int(one) for one in ids]
    again = tokenizer.encode(str(tokenizer.decode(given)), add_special_tokens=False)
    return [int(one) for one in again] == given


def readability(
    text: str, *, ids: Sequence[int] = (), tokenizer: Any = None,
    fluency: Mapping[str, float] | None = None,
) -> dict[str, float | int | bool]:  # fmt: skip
    """The `readability` entry of `result.json`, without unknown parts.

    Without ids, `repeated_tokens` counts words. `fluency` has the LM's perplexities; an infinite or undefined value
    is left out, since JSON cannot represent it.
    """
    found: dict[str, float | int | bool] = {
        "dictionary_words": dictionary_words(text),
        "repeated_tokens": repeated_tokens(ids or words(text)),
    }
    found |= {name: float(value) for name, value in (fluency or {}).items() if math.isfinite(value)}
    if ids and tokenizer is not None:
        found["stable"] = is_stable(ids, tokenizer)
    return found
