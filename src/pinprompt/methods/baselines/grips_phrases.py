"""The phrases that GrIPS edits: splitting a prompt, and paraphrases by a seq2seq model."""

from __future__ import annotations

import re
from typing import Any

import torch

from pinprompt.errors import ModelError
from pinprompt.models import loading


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


def phrases(text: str) -> list[str]:
    """Pieces that read like noun and verb phrases, by punctuation and function words; joined by spaces, the text.

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


# Paraphrases by a sequence-to-sequence model.


PEGASUS = "tuner007/pegasus_paraphrase"
"""The model that GrIPS was published with."""
_LONGEST_TOKENS = 60  # maximum tokens of a phrase and of its paraphrase, as published


class Seq2SeqParaphraser:
    """Beam search of a frozen sequence-to-sequence model; the same phrase always gets the same answers."""

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        if not getattr(model.config, "is_encoder_decoder", False):
            raise ModelError(f"'{name}' is not a sequence-to-sequence model, so it cannot paraphrase.")
        self.name, self.model, self.tokenizer = name, model, tokenizer

    @classmethod
    def load(cls, name: str, device: str = "cpu") -> Seq2SeqParaphraser:
        """The model of that name: hub id or folder."""
        return cls(name, *loading.load_seq2seq(name, device))

    @torch.no_grad()
    def __call__(self, phrase: str, count: int, random: torch.Generator) -> list[str]:
        """The `count` most likely paraphrases of a beam search of that width; deterministic."""
        given = self.tokenizer([phrase], truncation=True, max_length=_LONGEST_TOKENS, return_tensors="pt")
        given = {name: tensor.to(self.model.device) for name, tensor in given.items() if name != "token_type_ids"}
        written = self.model.generate(
            **given, num_beams=count, num_return_sequences=count, max_length=_LONGEST_TOKENS, do_sample=False
        )
        return [str(text).strip() for text in self.tokenizer.batch_decode(written, skip_special_tokens=True)]
