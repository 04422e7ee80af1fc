"""Variations of hand-written prompts: the frozen LM writes other endings and middles, of any length up to a limit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pinprompt.english import dictionary_words
from pinprompt.policy.words import in_charset
from pinprompt.policy.writer import Writer
from pinprompt.values import Prompt, derive

HOLE = 3
"""The most words that an infilling removes; it inserts between one word and as many."""
MORE = 4
"""How many words longer a new ending may be than the one that it replaces."""
ENDING = 20
"""The most words that a new ending replaces: writing most of a long prompt again takes minutes and is no variation."""
MARKS = ".:!?"

NEUTRAL = "I read this text."
"""A sentence that prompts are read after to tell how readable they are. By itself, a short prompt's first token counts
for most: "It was" is less likely than "They even send their pictures"."""


def variations(writer: Writer, texts: Sequence[str], count: int, seed: int) -> list[Prompt]:
    """Up to `count` distinct prompts that meet the constraints: infillings and new endings of the texts in turn."""
    random = torch.Generator().manual_seed(derive(seed, "variations", *texts))
    known = set(texts)
    texts = [text for text in texts if len(text.split()) > 1]
    if not texts or not count:
        return []
    draws = torch.rand(count, 3, generator=random, dtype=torch.float64).tolist()
    plans = [planned(texts[place % len(texts)], place // len(texts) % 2 == 0, draw) for place, draw in enumerate(draws)]
    encode, longest = writer.vocabulary.tokens.encode, writer.length - 1
    starts = [tuple(encode(" " + head)) if head else () for head, _, _ in plans]
    fitting = [place for place, start in enumerate(starts) if len(start) < longest]
    if not fitting:
        return []
    ends = [min(longest, len(starts[place]) + plans[place][1]) for place in fitting]
    middles = writer.lm_continue([starts[place] for place in fitting], ends, random, 1.0)
    found: dict[str, Prompt] = {}
    for place, middle in zip(fitting, middles, strict=True):
        text = f"{middle.text}{plans[place][2]}".strip()
        if texts[place % len(texts)][0].isupper():
            text = text[:1].upper() + text[1:]
        made = as_prompt(writer, text)
        if made is not None and made.text not in known:
            found.setdefault(made.text, made)
    return list(found.values())


def as_prompt(writer: Writer, text: str) -> Prompt | None:
    """A text as a prompt of the writer; None if it is too long or breaks a constraint."""
    made = writer.prompt(writer.vocabulary.tokens.encode(" " + text))
    fits = 0 < len(made.ids) < writer.length  # the state after the last token is needed too
    return made if fits and allowed(writer, made) else None


def allowed(writer: Writer, prompt: Prompt) -> bool:
    """True if a prompt that was not written under the masks meets the constraints."""
    rules = writer.vocabulary.constraints
    known = not rules.dictionary or dictionary_words(prompt.text) == 1
    return in_charset(prompt.text, rules.charset) and known and writer.vocabulary.obeys(prompt.ids)


def planned(text: str, infill: bool, draw: Sequence[float]) -> tuple[str, int, str]:
    """The text kept before the new words, the number of new words, and the text after them.

    A prompt with words on both sides of `{text}` gets new words before it, or a new ending after it.
    """
    before, around, after = text.partition("{text}")
    if not around:
        return _plan(text, infill, *draw)
    first = bool(before.strip()) and (infill or not after.strip())
    head, count, tail = _plan((before if first else after).strip(), infill, *draw)
    return (head, count, f"{tail} {{text}}{after}") if first else (f"{before}{{text}} {head}".strip(), count, tail)


def _plan(text: str, infill: bool, where: float, width: float, length: float) -> tuple[str, int, str]:
    """The same for a prompt without `{text}`."""
    words = text.split()
    if infill:
        hole = 1 + int(width * min(HOLE, len(words) - 1))
        begin = int(where * (len(words) - hole + 1))
        rest = " ".join(words[begin + hole :])
        tail = f" {rest}" if rest else _mark(text)
        return " ".join(words[:begin]), 1 + int(length * HOLE), tail
    first = max(1, len(words) - ENDING)
    kept = first + int(where * (len(words) - first))
    return " ".join(words[:kept]), 1 + int(length * (len(words) - kept + MORE)), _mark(text)


def _mark(text: str) -> str:
    return text[-1] if text[-1] in MARKS else ""


def without(words: Sequence[str], place: int) -> str:
    """A prompt of words without one of them; if it began with a capital letter, it still does."""
    text = " ".join((*words[:place], *words[place + 1 :]))
    return text[:1].upper() + text[1:] if words[0][:1].isupper() else text
