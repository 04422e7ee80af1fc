"""Label words as token ids, as the tokenizer reads them in context, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pinprompt.errors import ModelError, SettingError, TaskError

# A text in its template as token ids that fit a model's window: only the text is truncated.


@dataclass(frozen=True)
class Frame:
    """The strings before and after the text. `mask` is the position of the mask: which part, and its character offset.

    The offset distinguishes the template's mask from one that a text or a prompt contains.
    """

    before: str
    after: str
    mask: tuple[str, int] | None = None

    def around(self, text: str, mask_token: str = "", masks: int = 1) -> tuple[str, int]:
        """The whole string with `masks` mask tokens at the mask's position, and the number of mask tokens before it."""
        if self.mask is None:
            return self.before + text + self.after, 0
        part, offset = self.mask
        if part == "before":
            lead, trail = self.before[:offset], self.before[offset:] + text + self.after
        else:
            lead, trail = self.before + text + self.after[:offset], self.after[offset:]
        return lead + mask_token * masks + trail, lead.count(mask_token) if mask_token else 0


class WindowEncoder:
    """Strings to ids with the tokenizer's special tokens, truncated to a window."""

    def __init__(self, tokenizer: Any, window: int, *, closing: bool) -> None:
        """`closing` keeps the special tokens that end a sequence (masked models); causal models read on."""
        self.tokenizer, self.window = tokenizer, window
        bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
        full = list(tokenizer("a")["input_ids"])
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), None)
        if start is None or not bare:
            raise ModelError(
                f"the tokenizer {type(tokenizer).__name__} gives no ids for a plain letter; is it complete?"
            )
        self.lead = full[:start]
        self.trail = full[start + len(bare) :] if closing else []

    def pieces(self, strings: Sequence[str]) -> list[list[int]]:
        """The ids of each string alone, without special tokens."""
        if not strings:
            return []
        found = self.tokenizer(list(strings), add_special_tokens=False, verbose=False)["input_ids"]
        return [list(ids) for ids in found]

    def ids(self, strings: Sequence[str]) -> list[list[int]]:
        """The ids of each string with the special tokens; never empty, since a model needs an input."""
        specials = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, 0)
        anything = next(token for token in specials if token is not None)
        return [[*self.lead, *ids, *self.trail] or [anything] for ids in self.pieces(strings)]

    def shorten(self, text: str, tokens: int) -> str:
        """The text truncated to its first `size` tokens."""
        if tokens <= 0:
            return ""
        if getattr(self.tokenizer, "is_fast", False):
            answer = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            ends = [end for _, end in answer["offset_mapping"]]
            return text if len(ends) <= tokens else text[: ends[tokens - 1]].rstrip()
        ids = self.pieces([text])[0]
        return text if len(ids) <= tokens else str(self.tokenizer.decode(ids[:tokens], skip_special_tokens=True))

    def fit(
        self, frame: Frame, texts: Sequence[str], reserve: int = 0, mask_token: str = "", masks: int = 1
    ) -> tuple[list[list[int]], list[int]]:
        """Ids of every text in its frame, truncated so that `reserve` more fit; and the masks before the mask."""
        room = self.window - reserve
        built = [frame.around(text, mask_token, masks) for text in texts]
        rows = self.ids([whole for whole, _ in built])
        before = [count for _, count in built]
        for i, text in enumerate(texts):
            size = len(self.pieces([text])[0]) if len(rows[i]) > room else 0
            while len(rows[i]) > room:
                if size <= 0:
                    raise TaskError(
                        f"the prompt alone takes {len(rows[i])} tokens and the model's window has {room}: no text fits "
                        f"beside it ('{frame.before[:40]}...{frame.after[-40:]}'). Use a shorter prompt."
                    )
                # Truncation can change the tokenisation at the boundary, hence the loop.
                size = min(size - 1, size - (len(rows[i]) - room))
                whole, before[i] = frame.around(self.shorten(text, size), mask_token, masks)
                rows[i] = self.ids([whole])[0]
        return rows, before


def window_of(model: Any, tokenizer: Any) -> int:
    """The maximum number of tokens: the smaller of the model's positions and the tokenizer's limit."""
    sizes = [getattr(model.config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
    sizes.append(getattr(tokenizer, "model_max_length", None))
    for name, module in model.named_modules():
        # RoBERTa's positions start after its padding id, so it has fewer positions than rows.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            sizes.append(module.num_embeddings - module.padding_idx - 1)
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=1 << 20)


_PROBE = "it"  # an ordinary word in place of text and prompt, to see how a label word is tokenised


@dataclass(frozen=True)
class LabelWords:
    """The words of the classes in order, and their token ids."""

    words: Mapping[str, str]
    """Label to word."""
    ids: tuple[tuple[int, ...], ...]
    others: Mapping[str, int] = field(default_factory=dict)
    """Further words whose log-probabilities are wanted too, with their tokens."""

    @property
    def single(self) -> bool:
        """Whether every word is a single token, so that only these tokens' logits are needed."""
        return all(len(ids) == 1 for ids in self.ids)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The tokens of one-token words."""
        return tuple(ids[0] for ids in self.ids)

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of one-token label words, then those of the other words."""
        return self.firsts + tuple(self.others.values())

    def log_probs(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [N, C + W] from the logits of `tokens`: among the labels, then among the other words."""
        size = len(self.ids)
        return self.beside(probabilities(logits[:, :size]), logits[:, size:])

    def beside(self, labels: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Log-probabilities among the labels [N, C] with those among the other words, from their logits [N, W]."""
        return torch.cat([labels, probabilities(others)], 1).cpu() if self.others else labels.cpu()


def words_after(encoder: WindowEncoder, words: Mapping[str, str], context: str) -> LabelWords:
    """The ids of words after `context` (a causal model): what the tokenizer adds to the context's ids.

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
    return _checked(encoder, words, found)


def words_in_mask(
    encoder: WindowEncoder,
    words: Mapping[str, str],
    frame: Frame,
    mask_token: str,
    *,
    spaced: bool | None = None,
) -> LabelWords:
    """The ids of words in the mask's place, when the word is written instead of the mask.

    `spaced` overrides this, for published setups that differ from the tokenizer.
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
            # The space before the mask is a separate token here, so the word in the mask has none.
            found.append(tuple(encoder.pieces([word])[0]))
    return _checked(encoder, words, found)


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities among the labels [N, C] from their logits, or their log-probabilities in the vocabulary."""
    return torch.log_softmax(logits.float(), dim=-1)


def sequence_log_probs(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """log p of a word of n tokens [N] from full-vocabulary logits [N, n, V], one position per token."""
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
            raise SettingError(f"the label '{label}' has no label word; give one with --word.")
        if word.strip() in seen:
            raise SettingError(
                f"the labels '{seen[word.strip()]}' and '{label}' have the same word '{word.strip()}', so that they "
                "could not be told apart; give each label a word of its own."
            )
        seen[word.strip()] = label


def _checked(encoder: WindowEncoder, words: Mapping[str, str], found: Sequence[tuple[int, ...]]) -> LabelWords:
    unknown = encoder.tokenizer.unk_token_id
    # GPT-2 and similar tokenizers use their end token as the unknown one, though no word maps to it.
    seen: dict[tuple[int, ...], str] = {}
    for (label, word), ids in zip(words.items(), found, strict=True):
        if not ids or (unknown is not None and unknown in ids):
            raise SettingError(f"the word '{word}' of the label '{label}' is unknown to the task model's tokenizer.")
        if ids in seen:
            raise SettingError(
                f"the words '{seen[ids]}' and '{word}' are the same to the task model's tokenizer (ids {list(ids)}), "
                "so that their labels could not be told apart; choose words that differ in more than case or accents."
            )
        seen[ids] = word
    return LabelWords(dict(words), tuple(found))
