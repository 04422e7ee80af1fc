"""A language model's head where it is needed: at a few positions, and for a few words, whatever the architecture.

The model's own forward runs, so that whatever it does beside its head (norms, soft caps, scales) is done as always:
a hook narrows the base model's hidden states to the positions asked for before the head sees them, and the decoder's
matrix is narrowed to the rows asked for.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pinprompt.errors import ModelError

# Texts of different lengths in passes of a fixed shape, so that what a model says of a text depends on it alone.

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


@contextlib.contextmanager
def at_positions(model: Any, places: torch.Tensor) -> Iterator[None]:
    """Within this, the model answers logits [B, n, V] for positions `places` [B, n] only."""
    base = model.base_model
    if base is model:
        raise ModelError(
            f"{type(model).__name__} has no head on top of a base model; a language model with one is needed."
        )

    done = False

    def narrow(module: Any, given: Any, output: Any) -> Any:
        nonlocal done
        if done:
            return output
        done = True
        picked = _pick(output[0], places)
        if isinstance(output, tuple):
            return (picked, *output[1:])
        output.last_hidden_state = picked
        return output

    # OPT's head asks the base model's decoder, past the base model itself; whichever answers first is narrowed.
    inner = [module for module in (base, getattr(base, "decoder", None)) if isinstance(module, torch.nn.Module)]
    handles = [module.register_forward_hook(narrow) for module in inner]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if not done:
        raise ModelError(f"{type(model).__name__} calls its head in a way that is not supported here.")


@contextlib.contextmanager
def for_tokens(model: Any, tokens: Sequence[int] | None) -> Iterator[None]:
    """Within this, the head answers for the given tokens only, in their order; None leaves it whole.

    A head that is not one matrix stays whole: `logits_of` narrows its answer then.
    """
    decoder: Any = model.get_output_embeddings()
    if tokens is None or not issubclass(type(decoder), torch.nn.Linear):
        yield
        return
    rows = torch.tensor(list(tokens), device=decoder.weight.device)
    weight = decoder.weight[rows]
    bias = None if decoder.bias is None else decoder.bias[rows]
    # An instance attribute hides the class's forward; what stood there before (a device hook) is put back.
    before = decoder.__dict__.get("forward")
    decoder.forward = lambda hidden: torch.nn.functional.linear(hidden, weight, bias)
    try:
        yield
    finally:
        if before is None:
            del decoder.forward
        else:
            decoder.forward = before


def _pick(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """states [B, T, d] at places [B, n]."""
    return states.gather(1, places.to(states.device)[:, :, None].expand(-1, -1, states.shape[-1]))


def logits_of(model: Any, places: torch.Tensor, tokens: Sequence[int] | None, **given: Any) -> torch.Tensor:
    """Logits [B, n, K] at `places` [B, n] for `tokens` (all of the vocabulary where None), in float32."""
    with at_positions(model, places), for_tokens(model, tokens):
        logits: torch.Tensor = model(**given).logits
    if tokens is not None and logits.shape[-1] != len(tokens):
        logits = logits[..., list(tokens)]
    return logits.float()
