"""Texts of different lengths in passes of a fixed shape, so that what a model says of a text depends on it alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

_STEP = 8


def passes(
    texts: Sequence[Sequence[int]], rows: int, window: int, pad: int
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Token ids in batches: (places in `texts`, ids [rows, n], mask [rows, n]).

    Every batch has `rows` rows, some of them idle, and n is what the text's own length says, rounded up. Rows are
    padded on the right, where masked columns weigh exactly nothing: on a CPU a text gets the same bits in any company.
    No text may be longer than `window`.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        groups[min(max(1, -(-len(text) // _STEP)) * _STEP, window)].append(place)
    for length, members in sorted(groups.items()):
        for start in range(0, len(members), rows):
            part = members[start : start + rows]
            ids = torch.full((rows, length), pad)
            mask = torch.zeros(rows, length, dtype=torch.long)
            mask[:, 0] = 1  # a row with nothing to attend to would be not-a-number
            for row, place in enumerate(part):
                ids[row, : len(texts[place])] = torch.tensor(list(texts[place]), dtype=torch.long)
                mask[row, : len(texts[place])] = 1
            yield part, ids, mask


def window_of(config: object, tokenizer: object, most: int = 512) -> int:
    """How many tokens of a text a model may read; two places are left, as RoBERTa starts counting after its padding."""
    places = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    longest = getattr(tokenizer, "model_max_length", None)
    known = [places - 2] if isinstance(places, int) and places > 2 else []
    return min([*known, *([longest] if isinstance(longest, int) and longest > 0 else []), most])


def pad_of(tokenizer: object) -> int:
    """An id to fill idle places with; it is masked, so any will do where the tokenizer has none of its own."""
    for name in ("pad_token_id", "eos_token_id"):
        known = getattr(tokenizer, name, None)
        if isinstance(known, int):
            return known
    return 0
