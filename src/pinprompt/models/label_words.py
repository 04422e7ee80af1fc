"""Label words as token ids, decided by how the tokenizer itself reads the word in its place; and how likely each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from pinprompt.errors import SettingError
from pinprompt.models.frames import Encoder, Frame

_PROBE = "it"  # an ordinary word that stands for text and prompt while a label word's place is looked at


@dataclass(frozen=True)
class LabelWords:
    """The words of the classes in order, and the ids that each is made of."""

    words: Mapping[str, str]
    """Label to word."""
    ids: tuple[tuple[int, ...], ...]

    @property
    def single(self) -> bool:
        """Whether every word is one token: then only these tokens' logits matter."""
        return all(len(ids) == 1 for ids in self.ids)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The tokens of one-token words."""
        return tuple(ids[0] for ids in self.ids)


def words_after(encoder: Encoder, words: Mapping[str, str], context: str, *, strict: bool = False) -> LabelWords:
    """The ids of words that follow `context` (a causal model): what the tokenizer adds to the context's ids.

    A space goes before a word unless the context ends with white space.
    """
    _check(words)
    space = "" if context[-1:].isspace() else " "
    start = encoder.ids([context])[0]
    found = []
    for word in words.values():
        whole = encoder.ids([context + space + word])[0]
        if whole[: len(start)] == start and len(whole) > len(start):
            found.append(tuple(whole[len(start) :]))
        else:
            found.append(tuple(encoder.pieces([space + word])[0]))
    return _checked(encoder, words, found, strict)


def words_in_mask(
    encoder: Encoder,
    words: Mapping[str, str],
    frame: Frame,
    mask_token: str,
    *,
    spaced: bool | None = None,
    strict: bool = False,
) -> LabelWords:
    """The ids of words in the mask's place: what stands there when the word is written in place of the mask.

    `spaced` settles it by hand, for published setups that are not what the tokenizer would do.
    """
    _check(words)
    whole, _ = frame.around(_PROBE, mask_token)
    start, end = (encoder.pieces([part])[0] for part in whole.split(mask_token, 1))
    mask = encoder.tokenizer.mask_token_id
    with_mask = encoder.pieces([whole])[0]
    if with_mask.count(mask) == 1:
        start, end = with_mask[: with_mask.index(mask)], with_mask[with_mask.index(mask) + 1 :]
    found = []
    for word in words.values():
        if spaced is not None:
            found.append(tuple(encoder.pieces([(" " if spaced else "") + word])[0]))
            continue
        ids = encoder.pieces([whole.replace(mask_token, word, 1)])[0]
        middle = ids[len(start) : len(ids) - len(end)]
        if ids[: len(start)] == start and ids[len(ids) - len(end) :] == end and middle:
            found.append(tuple(middle))
        else:
            # The space before the mask is a token of its own here, so the word in the mask has none.
            found.append(tuple(encoder.pieces([word])[0]))
    return _checked(encoder, words, found, strict)


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities among the labels [N, C] from their logits, or their log-probabilities in the vocabulary."""
    return torch.log_softmax(logits.float(), dim=-1)


def sequence_log_probs(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """log p of a word of n tokens [N] from full-vocabulary logits [N, n, V], one position a token."""
    every = torch.log_softmax(logits.float(), dim=-1)
    return sum((every[:, place, token] for place, token in enumerate(ids)), torch.zeros_like(every[:, 0, 0]))


def _check(words: Mapping[str, str]) -> None:
    if len(words) < 2:
        raise SettingError(
            f"label words are needed for at least two classes, {len(words)} given; for example words = "
            '{"neg": "terrible", "pos": "great"} (--word neg=terrible --word pos=great).'
        )
    seen: dict[str, str] = {}
    for label, word in words.items():
        if not word.strip():
            raise SettingError(f"the label '{label}' has no word: give the word that a model would say for it.")
        if word.strip() in seen:
            raise SettingError(
                f"the labels '{seen[word.strip()]}' and '{label}' have the same word '{word.strip()}', so that they "
                "could not be told apart; give each label a word of its own."
            )
        seen[word.strip()] = label


def _checked(encoder: Encoder, words: Mapping[str, str], found: Sequence[tuple[int, ...]], strict: bool) -> LabelWords:
    unknown = encoder.tokenizer.unk_token_id
    # GPT-2 and its like name their end token as the unknown one, though no word ever becomes it.
    seen: dict[tuple[int, ...], str] = {}
    for (label, word), ids in zip(words.items(), found, strict=True):
        if not ids or (unknown is not None and unknown in ids):
            raise SettingError(f"the word '{word}' of the label '{label}' is unknown to the task model's tokenizer.")
        if ids in seen:
            raise SettingError(
                f"the words '{seen[ids]}' and '{word}' are the same to the task model's tokenizer (ids {list(ids)}), "
                "so that their labels could not be told apart; choose words that differ in more than case or accents."
            )
        if strict and len(ids) > 1:
            tokens = encoder.tokenizer.convert_ids_to_tokens(list(ids))
            raise SettingError(
                f"the word '{word}' of the label '{label}' is {len(ids)} tokens here ({' '.join(map(str, tokens))}), "
                "and strict_words asks for one; choose a more common word, or leave strict_words off."
            )
        seen[ids] = word
    return LabelWords(dict(words), tuple(found))
