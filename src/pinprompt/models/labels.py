"""A local language model as a classifier: the probability of each label's word, as the next token or at the mask.

All savings are exact. Causal: hidden states at the last position only; the head for label words only; texts before the
prompt are read once (`continuations`). Masked: only the hidden state at the mask goes through the head, and only the
label words' rows are computed; rows of similar length are read together. Any head that transformers has works, since
the model's own forward runs it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import DynamicCache

from pinprompt.errors import ModelError
from pinprompt.models.chat import asking, opening
from pinprompt.models.continuations import (
    CHUNK,
    SLOT_BYTES,
    TOKENS,
    TokenPath,
    WholePrompts,
    logits_behind,
)
from pinprompt.models.label_text import (
    Frame,
    LabelWords,
    WindowEncoder,
    probabilities,
    sequence_log_probs,
    window_of,
    words_after,
    words_in_mask,
)
from pinprompt.models.passes import check, in_batches, logits_at, logits_of, read, token_bytes
from pinprompt.models.passes import window as slot_window

T = TypeVar("T", bound=Hashable)
BATCH = 32
DEPTH = 32  # tokens reserved after each text for the prompt and the label word
COMMON = 16  # fewest tokens of a common beginning for which reading it once pays off
PAST_BYTES = 512 << 20  # for texts before prompts that are vectors
RESERVE = 64  # tokens of the window that a text must leave for prompt and label word


@dataclass
class Inputs:
    """Texts that prompts are tried on; `keep` says that they will be used often, so that reading them once pays off."""

    texts: list[str]
    keep: bool = False
    cut: dict[int, int] = field(default_factory=dict)
    """Rows whose text was cut to the window, with its original number of tokens."""
    heads: list[list[int]] = field(default_factory=list)
    """The ids of each text and the template's part before it, once they were needed."""
    reader: WholePrompts | None = None
    """Keeps the keys and values of `heads`, if they can be kept."""


class LocalLabels:
    """What local causal and masked models have in common."""

    graded = True
    """Answers have probabilities."""
    billed: str | None = None
    """None: calls to a local model are not billed."""
    notes: tuple[str, ...] = ()
    encoder: WindowEncoder
    tokenizer: Any
    words: LabelWords

    def log_probs(self, frames: Sequence[Frame], inputs: Inputs, words: LabelWords | None = None) -> list[torch.Tensor]:
        """For each frame, log-probabilities [N, C + W] for every text, on the CPU: among the labels, then other words.

        `words` comes from `words_for` and is needed only for frames of another template than the model was made with.
        """
        raise NotImplementedError

    def prepare(self, texts: Sequence[str], keep: bool = False) -> Inputs:
        """Prepare texts for many prompts: texts that would leave no room for a prompt are cut once, here."""
        encoder = self.encoder
        room = encoder.window - min(RESERVE, encoder.window // 2) - len(encoder.lead) - len(encoder.trail)
        inputs = Inputs(list(texts), keep)
        for row, ids in enumerate(encoder.pieces(inputs.texts)):
            if len(ids) > room:
                inputs.texts[row] = encoder.shorten(inputs.texts[row], room)
                inputs.cut[row] = len(ids)
        return inputs

    def chats(self, instruction: str) -> list[str]:
        """Prompts in the model's chat format with the text left open: the instruction as system message, or before it.

        None if it has no chat template.
        """
        return []

    def likely_words(self, frame: Frame, inputs: Inputs, count: int) -> dict[str, int]:
        """The whole words that the model is most likely to say, by the mean over texts, with their tokens.

        Label words are not among them.
        """
        known = {ids[0] for ids in self.words.ids}
        vocabulary = {str(token): token for token in range(len(self.tokenizer))}
        [logs] = self.log_probs([frame], inputs, replace(self.words, others=vocabulary))
        chances = logs[:, len(self.words.ids) :].exp().mean(0)
        # Rounded, so that the last bits of a pass hardly ever change the list.
        ranked = sorted(range(len(chances)), key=lambda token: (-round(float(chances[token]), 9), token))
        found: dict[str, int] = {}
        for token in ranked:
            word = str(self.tokenizer.decode([token])).strip()
            if len(word) > 1 and word.isalpha() and token not in known and self.tokens_of([word]) == {word: token}:
                found[word] = token
                if len(found) == count:
                    break
        return found

    def tokens_of(self, words: Sequence[str]) -> dict[str, int]:
        """The words that are one token where label words are, with these tokens."""
        first = next(iter(self.words.words.values()))
        space = " " if self.encoder.pieces([" " + first])[0] == list(self.words.ids[0]) else ""
        spelled = self.encoder.pieces([space + word for word in words])
        return {word: ids[0] for word, ids in zip(words, spelled, strict=True) if len(ids) == 1}


class CausalLabels(LocalLabels):
    """Label probabilities of a frozen causal LM."""

    kind = "causal"
    mask_token = ""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        words: Mapping[str, str],
        frame: Frame,
        *,
        share: bool = True,
        tokens: int | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """`frame` is any frame of the template (words follow it); `share` keeps texts that come before the prompt.

        `tokens` is the smallest size of a pass. `names` are what labels are called in a chat, by default their words.
        """
        self.model, self.tokenizer, self._names = model, tokenizer, names
        self._opening = opening(tokenizer)
        self.encoder = WindowEncoder(tokenizer, window_of(model, tokenizer), closing=False)
        self.words = words_after(self.encoder, words, frame.around("it")[0])
        # Texts are kept for one template only, always the same one: how a prompt is read must not depend on what was
        # scored earlier.
        self._kept = frame.before if share else None
        self._tokens = tokens or TOKENS
        self._shareable: bool | None = None
        self._pasts: OrderedDict[TokenPath, torch.Tensor] = OrderedDict()
        self._pad = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)

    def words_for(self, frame: Frame, words: Mapping[str, str] | None = None) -> LabelWords:
        """The ids of the label words, or of other words, after another template."""
        context = frame.around("it")[0]
        if words:
            return words_after(self.encoder, words, context)
        others, chat = self.words.others, bool(self._opening) and frame.after.endswith(self._opening)
        found = words_after(self.encoder, self._names if chat and self._names else self.words.words, context)
        if chat and len({ids[0] for ids in found.ids}) == len(found.ids):  # an answer is known by its first token
            found = replace(found, ids=tuple(ids[:1] for ids in found.ids))
        if context[-1:].isspace():  # as after the format of a chat: words begin without a space there
            spelled = zip(others, self.encoder.pieces(list(others)), strict=True)
            others = {word: ids[0] if len(ids) == 1 else others[word] for word, ids in spelled}
        return replace(found, others=others)

    def chats(self, instruction: str) -> list[str]:
        return asking(self.tokenizer, instruction)

    @torch.no_grad()
    def log_probs(self, frames: Sequence[Frame], inputs: Inputs, words: LabelWords | None = None) -> list[torch.Tensor]:
        words = words or self.words
        found: dict[Frame, torch.Tensor] = {}
        behind: dict[TokenPath, list[Frame]] = {}
        for frame in dict.fromkeys(frames):
            path = self._path(frame, inputs, words)
            if path is None:
                found[frame] = self._whole(frame, inputs, words)
            else:
                behind.setdefault(path, []).append(frame)
        for path, answer in self._behind(list(behind), inputs, words).items():
            found |= dict.fromkeys(behind[path], answer)
        return [found[frame] for frame in frames]

    def _behind(self, paths: list[TokenPath], inputs: Inputs, words: LabelWords) -> dict[TokenPath, torch.Tensor]:
        """Log-probabilities [N, C] after each path; texts that are not kept are read now, once for all paths."""
        if not paths:
            return {}
        if inputs.reader is not None:
            return dict(zip(paths, self._after_paths([inputs.reader], paths, words)[0], strict=True))
        heads = inputs.heads
        order = sorted(range(len(heads)), key=lambda row: len(heads[row]))
        table = torch.empty(len(paths), len(heads), len(words.ids) + len(words.others))
        for group in _parts(order, heads, SLOT_BYTES // token_bytes(self.model)):
            chunks = [group[start : start + CHUNK] for start in range(0, len(group), CHUNK)]
            # A single text is read, however long it is.
            limit = max(SLOT_BYTES, (len(heads[group[0]]) + DEPTH) * token_bytes(self.model))
            readers = [
                WholePrompts(self.model, [heads[row] for row in chosen], DEPTH, tokens=self._tokens, limit=limit)
                for chosen in chunks
            ]
            for chosen, answers in zip(chunks, self._after_paths(readers, paths, words), strict=True):
                table[:, chosen] = torch.stack(answers)
        return dict(zip(paths, table, strict=True))

    def _path(self, frame: Frame, inputs: Inputs, words: LabelWords) -> TokenPath | None:
        """The tokens that follow every text, or None if the texts cannot be read separately from what follows.

        The ids of the whole string must be the text's ids followed by ids that are the same for every text. A tokenizer
        may merge tokens across the boundary; then only a plain pass is correct.
        """
        if frame.before != self._kept or not frame.after or not inputs.texts:
            return None
        heads = inputs.heads = inputs.heads or self.encoder.ids([frame.before + text for text in inputs.texts])
        whole = self.encoder.ids([frame.around(text)[0] for text in inputs.texts])
        path = tuple(whole[0][len(heads[0]) :])
        more = max(map(len, words.ids)) - 1
        if not path or any(row != [*head, *path] for row, head in zip(whole, heads, strict=True)):
            return None
        longest = max(map(len, heads)) + DEPTH
        if len(path) + more > DEPTH or longest > min(self.encoder.window, slot_window(self.model)):
            return None
        if not self._keeps([*heads[0], *heads[-1]]):
            return None
        if inputs.keep and inputs.reader is None:
            try:
                inputs.reader = WholePrompts(self.model, heads, DEPTH, tokens=self._tokens, limit=SLOT_BYTES)
            except MemoryError:
                inputs.keep = False  # too long to keep: read again for each list of prompts, a few texts at a time
        return path

    def _keeps(self, ids: Sequence[int]) -> bool:
        """Whether the model's keys and values can be kept and reused; tested once, on a few tokens."""
        if self._shareable is None:
            try:
                check(self.model, ids[: min(8, self.encoder.window)])
                self._shareable = True
            except ModelError:
                self._shareable = False
        return self._shareable

    def _after_paths(
        self, readers: Sequence[WholePrompts], paths: Sequence[TokenPath], words: LabelWords
    ) -> list[list[torch.Tensor]]:
        """For each reader, the answers [N, C] after each path."""
        if words.single:
            every = logits_behind(readers, paths, words.tokens)
            return [[words.log_probs(logits[:, 0]) for logits in own] for own in every]
        scores = [torch.empty(len(paths), reader.rows, len(words.ids)) for reader in readers]
        others = [torch.empty(len(paths), reader.rows, len(words.others)) for reader in readers]
        for beginning in dict.fromkeys(ids[:-1] for ids in words.ids):
            # Words that differ in their last token only are read together.
            every = logits_behind(readers, [path + beginning for path in paths], None, len(beginning) + 1)
            for table, own in zip(others, every, strict=True):  # the first position is that of the next word
                table[:] = torch.stack([logits[:, 0, list(words.others.values())].float().cpu() for logits in own])
            for label, ids in enumerate(words.ids):
                if ids[:-1] == beginning:
                    for table, own in zip(scores, every, strict=True):
                        table[:, :, label] = torch.stack([sequence_log_probs(logits, ids).cpu() for logits in own])
        return [
            [words.beside(labels, more) for labels, more in zip(probabilities(table), own, strict=True)]
            for table, own in zip(scores, others, strict=True)
        ]

    def _whole(self, frame: Frame, inputs: Inputs, words: LabelWords) -> torch.Tensor:
        """Plain passes over whole strings, with rows of similar length together."""
        rows, _ = self.encoder.fit(frame, inputs.texts, reserve=max(map(len, words.ids)) - 1)
        # Words that differ only in their last token are read together.
        return _scored(
            words,
            lambda ids: ids[:-1],
            lambda start, tokens: self.read([[*row, *start] for row in rows], len(start) + 1, tokens),
        )

    def read(self, rows: Sequence[Sequence[int]], last: int, tokens: Sequence[int] | None) -> torch.Tensor:
        """Logits [N, last, K] at the last positions of each row, in batches of rows of similar length.

        The common beginning of all rows (an instruction, demonstrations) is read once.
        """
        past = self._beginning(rows, last)
        start_at = 0 if past is None else past.shape[3]

        @torch.no_grad()
        def together(chosen: Sequence[int]) -> torch.Tensor:
            given, sizes = padded([rows[row][start_at:] for row in chosen], self._pad, self.model.device)
            if past is not None:
                store = past[:, :, None].expand(-1, -1, len(chosen), -1, -1, -1)
                given = _after(store, torch.full((len(chosen),), start_at, device=sizes.device), given)
            places = sizes[:, None] - last + torch.arange(last, device=sizes.device)
            return logits_at(self.model, places, tokens, **given)

        return in_batches(self.model, rows, BATCH, tokens, together)

    def _beginning(self, rows: Sequence[Sequence[int]], last: int) -> torch.Tensor | None:
        """The keys and values of the rows' common beginning, or None if it is not worth keeping."""
        least = min(map(len, rows)) - last
        # In lexicographic order, so a prefix common to these two is common to all rows.
        first, final = min(map(list, rows)), max(map(list, rows))
        size = next((i for i in range(least) if first[i] != final[i]), least)
        longest = max(map(len, rows))
        if len(rows) < 2 or size < COMMON or longest > slot_window(self.model) or not self._keeps(rows[0]):
            return None
        return read(self.model, rows[0][:size])[0]

    def vector_logits(
        self,
        vectors: torch.Tensor,
        sides: Sequence[tuple[Sequence[int], Sequence[int]]],
        tokens: Sequence[int],
        skips: Sequence[int] = (),
    ) -> torch.Tensor:
        """Logits [n, K] of tokens with prompt vectors between the ids of each pair; differentiable in the vectors.

        The ids before the vectors do not depend on them, so they are read once, without a gradient.
        """
        lefts = [tuple(left) for left, _ in sides]
        longest = max(len(left) + len(vectors) + len(right) for left, right in sides)
        if min(map(len, lefts)) and longest <= slot_window(self.model) and self._keeps([*lefts[0], *lefts[-1]]):
            given, sizes = around_vectors(self.model, vectors, [((), right) for _, right in sides])
            pasts = [self._past(left) for left in lefts]
            behind = torch.tensor(list(map(len, lefts)), device=vectors.device)
            room = int(behind.max())
            store = torch.stack([nn.functional.pad(past, (0, 0, room - past.shape[3], 0)) for past in pasts], 2)
            given = _after(store, behind, given)
        else:
            given, sizes = around_vectors(self.model, vectors, sides)
        return logits_of(self.model, sizes[:, None] - 1, tokens, **given)[:, 0]

    def _past(self, ids: TokenPath) -> torch.Tensor:
        """The keys and values of a text; the least recently used ones are dropped to make room."""
        if ids not in self._pasts:
            self._pasts[ids] = read(self.model, ids)[0]
        self._pasts.move_to_end(ids)
        while len(self._pasts) > 1 and sum(past.nbytes for past in self._pasts.values()) > PAST_BYTES:
            self._pasts.popitem(last=False)
        return self._pasts[ids]


def _after(store: torch.Tensor, sizes: torch.Tensor, given: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The arguments of a pass in which row r continues its past: the last `sizes[r]` columns of its part of the store.

    store [layers, 2, rows, H, n, D]
    """
    mask, longest = given["attention_mask"], store.shape[4]
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(store):
        cache.update(keys, values, layer)
    seen = torch.arange(longest, device=mask.device)[None] >= longest - sizes[:, None]
    return {
        **given,
        "attention_mask": torch.cat([seen.to(mask.dtype), mask], 1),
        "position_ids": sizes[:, None] + torch.arange(mask.shape[1], device=mask.device),
        "past_key_values": cache,
        "use_cache": True,
    }


def _scored(
    words: LabelWords, group: Callable[[TokenPath], T], read: Callable[[T, Sequence[int] | None], torch.Tensor]
) -> torch.Tensor:
    """Log-probabilities [N, C + W]; `read` gives logits [N, n, K] for the words of n tokens of a group.

    Other words are read at the first position of the first group: the next word, or the first mask.
    """
    if words.single:
        return words.log_probs(read(group(words.ids[0]), words.tokens)[:, 0])
    scores: dict[TokenPath, torch.Tensor] = {}
    others: list[torch.Tensor] = []
    for one in dict.fromkeys(map(group, words.ids)):
        logits = read(one, None)
        others = others or [logits[:, 0, list(words.others.values())]]
        scores |= {ids: sequence_log_probs(logits, ids).cpu() for ids in words.ids if group(ids) == one}
    return words.beside(probabilities(torch.stack([scores[ids] for ids in words.ids], 1)), others[0].cpu())


def padded(rows: Sequence[Sequence[int]], pad: int, device: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Right-padded ids with their mask, as model arguments, and the rows' sizes."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=device)
    sizes = torch.tensor([len(row) for row in rows], device=device)
    mask = (torch.arange(longest, device=device)[None] < sizes[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}, sizes


def around_vectors(
    model: Any, vectors: torch.Tensor, sides: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Right-padded embeddings of `left ids, vectors, right ids`, with their mask, and the rows' sizes."""
    embed, device = model.get_input_embeddings(), vectors.device
    rows = []
    for left, right in sides:
        parts = [embed(torch.tensor(list(ids), dtype=torch.long, device=device)) for ids in (left, right)]
        rows.append(torch.cat([parts[0], vectors.to(parts[0].dtype), parts[1]]))
    sizes = torch.tensor([len(row) for row in rows], device=device)
    longest = int(sizes.max())
    stacked = torch.stack([nn.functional.pad(row, (0, 0, 0, longest - len(row))) for row in rows])
    mask = (torch.arange(longest, device=device)[None] < sizes[:, None]).long()
    return {"inputs_embeds": stacked, "attention_mask": mask}, sizes


def _parts(order: Sequence[int], heads: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Split rows, ordered by length, into parts whose texts and prompts have at most `tokens` tokens in all."""
    part: list[int] = []
    for row in order:
        if part and (len(part) + 1) * (len(heads[row]) + DEPTH) > tokens:
            yield part
            part = []
        part.append(row)
    yield part


class MaskedLabels(LocalLabels):
    """Label probabilities of a frozen masked LM."""

    kind = "masked"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        words: Mapping[str, str],
        frame: Frame,
        *,
        spaced: bool | None = None,
    ) -> None:
        """`frame` is any frame of the template; `spaced` forces label words with or without a leading space."""
        if tokenizer.mask_token is None:
            raise ModelError(f"the tokenizer {type(tokenizer).__name__} has no mask token: this is not a masked LM.")
        self.model, self.tokenizer, self.mask_token = model, tokenizer, str(tokenizer.mask_token)
        self.encoder = WindowEncoder(tokenizer, window_of(model, tokenizer), closing=True)
        # A word is another token with a leading space for byte-level tokenizers, but not for WordPiece.
        with_space, without = self.encoder.pieces([" the", "the"])
        forced = spaced if with_space != without else None
        self.words = words_in_mask(self.encoder, words, frame, self.mask_token, spaced=forced)
        self._pad = tokenizer.pad_token_id or 0

    def words_for(self, frame: Frame, words: Mapping[str, str] | None = None) -> LabelWords:
        """The ids of the label words, or of other words, as the tokenizer reads them in another template."""
        found = words_in_mask(self.encoder, words or self.words.words, frame, self.mask_token)
        return found if words else replace(found, others=self.words.others)

    @torch.no_grad()
    def log_probs(self, frames: Sequence[Frame], inputs: Inputs, words: LabelWords | None = None) -> list[torch.Tensor]:
        # A word of n tokens gets n masks; its probability is the product of its tokens' probabilities.
        found = {
            frame: _scored(words or self.words, len, partial(self._read, frame, inputs.texts))
            for frame in dict.fromkeys(frames)
        }
        return [found[frame] for frame in frames]

    def _read(self, frame: Frame, texts: Sequence[str], masks: int, tokens: Sequence[int] | None) -> torch.Tensor:
        rows, before = self.encoder.fit(frame, texts, mask_token=self.mask_token, masks=masks)
        places = [self.mask_places(row, skip, masks) for row, skip in zip(rows, before, strict=True)]

        @torch.no_grad()
        def together(chosen: Sequence[int]) -> torch.Tensor:
            given, _ = padded([rows[row] for row in chosen], self._pad, self.model.device)
            where = torch.tensor([places[row] for row in chosen], device=self.model.device)
            return logits_at(self.model, where, tokens, **given)

        return in_batches(self.model, rows, BATCH, tokens, together)

    def mask_places(self, ids: Sequence[int], skip: int, masks: int = 1) -> list[int]:
        """The positions of the template's masks, when `skip` other masks come before them."""
        found = [place for place, token in enumerate(ids) if token == self.tokenizer.mask_token_id]
        if len(found) < skip + masks:
            raise ModelError(
                f"the tokenizer reads no mask in the template: '{self.mask_token}' did not become its mask id "
                f"{self.tokenizer.mask_token_id}. The tokenizer's files may be incomplete."
            )
        return found[skip : skip + masks]

    def vector_logits(
        self,
        vectors: torch.Tensor,
        sides: Sequence[tuple[Sequence[int], Sequence[int]]],
        tokens: Sequence[int],
        skips: Sequence[int] = (),
    ) -> torch.Tensor:
        """Logits [n, K] of tokens with prompt vectors between the ids of each pair; differentiable in the vectors.

        `skips` is the number of masks before the template's own, for each pair.
        """
        places = []
        for (left, right), skip in zip(sides, skips or [0] * len(sides), strict=True):
            place = self.mask_places([*left, *right], skip)[0]
            places.append([place if place < len(left) else place + len(vectors)])
        given, _ = around_vectors(self.model, vectors, sides)
        return logits_of(self.model, torch.tensor(places, device=vectors.device), tokens, **given)[:, 0]
