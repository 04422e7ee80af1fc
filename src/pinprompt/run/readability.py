"""Readability of a prompt: dictionary words, repeated tokens, decode-encode stability, perplexity and SLOR.

Pure functions without heavy imports; the dictionary is `pinprompt.english`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from pinprompt.english import dictionary_words, words


class Tokenizer(Protocol):
    """The tokenizer methods used here; tokenizers of transformers have them."""

    def encode(self, text: str, add_special_tokens: bool = ...) -> Any:
        """The ids of a text."""

    def decode(self, ids: Any) -> Any:
        """The text of ids."""


def repeated_tokens(tokens: Sequence[Hashable]) -> int:
    """How many tokens repeat an earlier one: "a b a a" has two."""
    return len(tokens) - len(set(tokens))


def is_stable(ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether the prompt's text is tokenised back into the same ids."""
    given = [int(one) for one in ids]
    again = tokenizer.encode(str(tokenizer.decode(given)), add_special_tokens=False)
    return [int(one) for one in again] == given


def perplexity(log_likelihoods: Sequence[float]) -> float:
    """exp of the mean negative log-likelihood per token; infinity if it overflows, NaN for no tokens."""
    if not log_likelihoods:
        return math.nan
    try:
        return math.exp(-math.fsum(log_likelihoods) / len(log_likelihoods))
    except OverflowError:
        return math.inf


def slor(log_likelihoods: Sequence[float], log_unigrams: Sequence[float]) -> float:
    """Syntactic log-odds ratio: how much more likely each token is in its place than on its own; NaN for no tokens.

    (log p_LM(z) - sum_t log p_unigram(z_t)) / |z|  (Kann, Rothe, Filippova 2018). Higher is more readable; unlike
    perplexity it does not penalise rare words.
    """
    if not log_likelihoods:
        return math.nan
    together, alone = math.fsum(log_likelihoods), math.fsum(log_unigrams)
    return (together - alone) / len(log_likelihoods)


def readability(
    text: str, *, ids: Sequence[int] = (), tokenizer: Tokenizer | None = None,
    fluency: Mapping[str, float] | None = None,
) -> dict[str, float | int | bool]:  # fmt: skip
    """The `readability` entry of `result.json`, without unknown parts.

    Without ids, `repeated_tokens` counts words. `fluency` has the LM's perplexity and SLOR; an infinite or undefined
    value is left out, since JSON cannot represent it.
    """
    found: dict[str, float | int | bool] = {
        "dictionary_words": dictionary_words(text),
        "repeated_tokens": repeated_tokens(ids or words(text)),
    }
    found |= {name: float(value) for name, value in (fluency or {}).items() if math.isfinite(value)}
    if ids and tokenizer is not None:
        found["stable"] = is_stable(ids, tokenizer)
    return found
