"""The phrases that GrIPS edits: splitting a prompt (chunker or parser), and paraphrases by a seq2seq model."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import torch

from pinprompt.errors import ModelError, SettingError
from pinprompt.models import loading

Chunker = Callable[[str], list[str]]
"""A function from a text to its pieces in order; joined by spaces they give the text, except for white space."""

PARSERS = ("chunker", "supar:crf-con-en", "module:function")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that start a phrase: a new piece begins before them.
_OPENERS = _words(
    """about above after against among and around as at because before below between but by during for from if in
    into nor of on or over so than that through to toward towards under unless until upon when where whether which
    while who whom whose with within without"""
)
# Auxiliary words; together with the verb after them they are one piece.
_AUXILIARIES = _words(
    """am are be been being can could did do does had has have is may might must need shall should was were will
    would please"""
)
_DETERMINERS = _words(
    "a an the this that these those my your his her its our their each every some any no all one two three"
)
_LONGEST = 6  # maximum words in a piece


def chunker_named(name: str) -> Chunker:
    """The chunker of that name."""
    if name == "chunker":
        return phrases
    kind, colon, what = name.partition(":")
    if kind == "supar" and colon:
        return _supar(what)
    if colon:
        own: Chunker = load_function(name, "grips.parser")
        return own
    raise SettingError(f"there is no parser '{name}' (grips.parser); known: {', '.join(PARSERS)}")


def sentences(text: str) -> list[str]:
    """The sentences of a text."""
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def phrases(text: str) -> list[str]:
    """Pieces that read like noun and verb phrases, by punctuation and function words.

    A piece ends at punctuation, before a word that starts a phrase (prepositions, conjunctions), before a determiner
    that has a piece before it, and around a verb group that an auxiliary shows. Quoted text stays whole.
    """
    pieces: list[list[str]] = [[]]
    verbal = False
    for word in re.findall(r'"[^"]*"\S*|\S+', text):
        bare = word.strip("\"'()[],.;:!?").lower()
        last = pieces[-1]
        after_opener = bool(last) and last[-1].lower() in _OPENERS
        opens = bare in _OPENERS and not (after_opener and len(last) == 1)
        noun = bare in _DETERMINERS and not after_opener
        verb = bare in _AUXILIARIES and not (last and last[-1].lower() in _AUXILIARIES)
        # The word after a verb group's own verb begins something new.
        closes = verbal and len(last) > 1 and last[-1].lower() not in _AUXILIARIES
        if last and (opens or noun or verb or closes or len(last) >= _LONGEST):
            pieces.append([])
            verbal = False
        pieces[-1].append(word)
        verbal = verbal or bare in _AUXILIARIES
        if re.search(r"[,.;:!?]$", word):
            pieces.append([])
            verbal = False
    return [" ".join(piece) for piece in pieces if piece]


def constituents(tree: Any) -> list[str]:
    """The pieces of a constituency tree: the highest phrases that hold no other clause or sentence, in order.

    `tree` is what nltk calls a Tree: a list of subtrees and words with a `label()` and `leaves()`.
    """
    if isinstance(tree, str):
        return [tree]
    children = list(tree)
    # A part-of-speech tag over one word; its phrase, if any, was handled before.
    if len(children) == 1 and isinstance(children[0], str):
        return [children[0]]
    inner = [child for child in children if not isinstance(child, str)]
    if tree.label() not in ("", "TOP", "ROOT", "S", "SBAR", "VP", "SINV", "SQ", "SBARQ") and all(
        _flat(child) for child in inner
    ):
        return [" ".join(tree.leaves())]
    return [piece for child in children for piece in constituents(child)]


def _flat(tree: Any) -> bool:
    """True for phrases of which no part is a clause."""
    return isinstance(tree, str) or (
        tree.label() not in ("S", "SBAR", "VP", "SINV", "SQ", "SBARQ") and all(_flat(child) for child in tree)
    )


def load_function(name: str, setting: str) -> Any:
    """The user's own function by 'module:function'."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(f"{setting} names '{name}', which cannot be imported: {error}") from error
    if not callable(function):
        raise SettingError(f"{setting} names '{name}', which is not a function")
    return function


def _supar(model: str) -> Chunker:
    """The published parser: supar's CRF constituency parser."""
    try:
        supar = importlib.import_module("supar")
    except ImportError as error:
        raise ModelError(
            f"the parser 'supar:{model}' needs the package supar, which is not installed: pip install supar; or leave "
            "grips.parser at 'chunker', which needs nothing"
        ) from error
    try:
        parser = supar.Parser.load(model)
    except Exception as error:  # a download that fails ends in any kind of error
        raise ModelError(f"supar cannot load '{model}': {error}; leave grips.parser at 'chunker'") from error

    def chunk(text: str) -> list[str]:
        found: list[str] = []
        for sentence in sentences(text):
            words = re.findall(r"\w+(?:['-]\w+)*|[^\w\s]", sentence)
            tree = parser.predict([words], prob=False, verbose=False).sentences[0].values[-1]
            found += constituents(tree)
        return joined_to(text, found)

    return chunk


def joined_to(text: str, pieces: list[str]) -> list[str]:
    """A parser's pieces as in the text: with its spaces, and punctuation attached to the word before."""
    found: list[str] = []
    end = 0
    for piece in pieces:
        pattern = r"\s*".join(re.escape(part) for part in piece.split())
        match = re.compile(pattern).search(text, end)
        if match is None:
            continue
        gap = text[end : match.start()]
        if found and not gap and not text[match.start()].isspace():
            found[-1] += match.group()  # a comma, or the rest of a word that the parser split
        else:
            found.append(match.group())
        end = match.end()
    return found


# Paraphrases by a sequence-to-sequence model such as PEGASUS, which GrIPS was published with.


PEGASUS = "tuner007/pegasus_paraphrase"
_LONGEST_TOKENS = 60  # maximum tokens of a phrase and of its paraphrase, as published


class Seq2SeqParaphraser:
    """Beam search of a frozen sequence-to-sequence model; the same phrase always gets the same answers."""

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        if not getattr(model.config, "is_encoder_decoder", False):
            raise ModelError(f"'{name}' is not a sequence-to-sequence model, so it cannot paraphrase.")
        self.name, self.model, self.tokenizer = name, model, tokenizer

    @classmethod
    def load(cls, name: str, device: str = "cpu") -> Seq2SeqParaphraser:
        """The model of that name: hub id or folder; 'pegasus' is the published one."""
        place = PEGASUS if name == "pegasus" else name
        model, tokenizer = loading.load_seq2seq(place, device)
        return cls(name, model, tokenizer)

    @torch.no_grad()
    def __call__(self, phrase: str, count: int, random: torch.Generator) -> list[str]:
        """The `count` most likely paraphrases of a beam search of that width; deterministic."""
        given = self.tokenizer([phrase], truncation=True, max_length=_LONGEST_TOKENS, return_tensors="pt")
        given = {name: tensor.to(self.model.device) for name, tensor in given.items() if name != "token_type_ids"}
        written = self.model.generate(
            **given, num_beams=count, num_return_sequences=count, max_length=_LONGEST_TOKENS, do_sample=False
        )
        return [str(text).strip() for text in self.tokenizer.batch_decode(written, skip_special_tokens=True)]
