"""Passes through a frozen language model: the head runs only where it is needed, and batches have a fixed shape.

The model's own forward runs, so its norms, soft caps and scales apply as usual. A hook reduces the base model's hidden
states to the requested positions before they reach the head, and the head's matrix is reduced to the requested tokens.

When a causal LM reads one token per slot, each slot has its own past, so the slots of a pass can be at different
positions of different texts. There is no padding to the longest text, and nothing is copied when a text ends and
another takes its slot. Every pass has the same number of slots and the same key length, and a text's past starts at
column 0. A text's result is therefore bit-identical whatever else is in the pass.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from pinprompt.errors import ModelError
from pinprompt.models.packed import PackedLayers

# Parallel passes: at these sizes two products on one thread each are faster than one product on two threads.

T = TypeVar("T")
R = TypeVar("R")
WORKERS = 8  # upper limit: with more, Python itself is the bottleneck


def side_by_side(work: Callable[[T], R], items: Sequence[T], device: torch.device) -> list[R]:
    """The results of `work` for the items, in order; on a CPU, as many items run at a time as torch has threads.

    Each item gets the same number of threads, whatever the number of items, so its result does not depend on the other
    items. If torch has at most `WORKERS` threads, each item gets one, and the result is the same for any such number.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        return [work(item) for item in items]
    workers = min(threads, WORKERS)
    # torch stores the number of threads separately for each Python thread, so the caller's setting does not change.
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)


# Texts of different lengths in passes of a fixed shape, so that a model's answer to a text depends on that text alone.

_STEP = 8
MAX_TOKENS = 512  # tokens of a text that judges read


def passes(
    texts: Sequence[Sequence[int]], batch: int, window: int, pad: int
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Token ids in batches: (indices into `texts`, ids [batch, n], mask [batch, n]).

    Every batch has room for `batch` texts, part of it unused, and n is the text's own length, rounded up. Texts are
    padded on the right, and masked columns have a weight of exactly 0: on a CPU a text's result is bit-identical in any
    batch. No text may be longer than `window`.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        groups[min(max(1, -(-len(text) // _STEP)) * _STEP, window)].append(place)
    for length, members in sorted(groups.items()):
        for start in range(0, len(members), batch):
            part = members[start : start + batch]
            ids = torch.full((batch, length), pad)
            mask = torch.zeros(batch, length, dtype=torch.long)
            mask[:, 0] = 1  # a text with nothing to attend to would give NaN
            for slot, place in enumerate(part):
                ids[slot, : len(texts[place])] = torch.tensor(list(texts[place]), dtype=torch.long)
                mask[slot, : len(texts[place])] = 1
            yield part, ids, mask


def window_of(config: object, tokenizer: object) -> int:
    """The most tokens of a text that a model can read.

    Two positions are left free, since RoBERTa starts counting after its padding index.
    """
    places = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    longest = getattr(tokenizer, "model_max_length", None)
    known = [places - 2] if isinstance(places, int) and places > 2 else []
    return min([*known, *([longest] if isinstance(longest, int) and longest > 0 else []), MAX_TOKENS])


def pad_of(tokenizer: object) -> int:
    """An id for unused positions; they are masked, so any id will do if the tokenizer defines none."""
    for name in ("pad_token_id", "eos_token_id"):
        known = getattr(tokenizer, name, None)
        if isinstance(known, int):
            return known
    return 0


@contextlib.contextmanager
def at_positions(model: Any, places: torch.Tensor) -> Iterator[None]:
    """Inside this context, the model gives this thread logits [B, n, V] for positions `places` [B, n] only."""
    base = model.base_model
    if base is model:
        raise ModelError(
            f"{type(model).__name__} has no head on top of a base model; a language model with one is needed."
        )

    done = False
    mine = threading.get_ident()

    def narrow(module: Any, given: Any, output: Any) -> Any:
        nonlocal done
        if done or threading.get_ident() != mine:
            return output
        done = True
        states = output[0]  # [B, T, d], at places [B, n]
        picked = states.gather(1, places.to(states.device)[:, :, None].expand(-1, -1, states.shape[-1]))
        if isinstance(output, tuple):
            return (picked, *output[1:])
        output.last_hidden_state = picked
        return output

    # OPT's head calls the base model's decoder directly, not the base model; whichever of the two runs is narrowed.
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
    """Inside this context, the head gives logits for the given tokens only, in their order; None means all tokens.

    A head that is not a single matrix is left as it is: `logits_of` then narrows its output.
    """
    decoder: Any = model.get_output_embeddings()
    if tokens is None or not issubclass(type(decoder), torch.nn.Linear):
        yield
        return
    chosen = torch.tensor(list(tokens), device=decoder.weight.device)
    weight = decoder.weight[chosen]
    bias = None if decoder.bias is None else decoder.bias[chosen]
    # An instance attribute hides the class's forward; an earlier one (a device hook) is restored afterwards.
    before = decoder.__dict__.get("forward")
    decoder.forward = lambda hidden: torch.nn.functional.linear(hidden, weight, bias)
    try:
        yield
    finally:
        if before is None:
            del decoder.forward
        else:
            decoder.forward = before


def logits_of(model: Any, places: torch.Tensor, tokens: Sequence[int] | None, **given: Any) -> torch.Tensor:
    """Logits [B, n, K] at `places` [B, n] for `tokens` (all tokens if None), in float32."""
    with for_tokens(model, tokens):
        return logits_at(model, places, tokens, **given)


def logits_at(model: Any, places: torch.Tensor, tokens: Sequence[int] | None, **given: Any) -> torch.Tensor:
    """`logits_of` for callers that are already inside `for_tokens`, which parallel passes have to share."""
    with at_positions(model, places):
        logits: torch.Tensor = model(**given).logits
    if tokens is not None and logits.shape[-1] != len(tokens):
        logits = logits[..., list(tokens)]
    return logits.float()


_ATTENTION = "pinprompt_slots"
_ADVICE = "use a causal LM with ordinary attention (GPT-2, OPT, Llama, Mistral, Qwen, SmolLM2 and their like)."


def _grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a few queries per text, [R, H, n, D] to [R, n, H, D].

    Query heads that share a key head are treated as several queries of that head. transformers repeats keys and values
    for each query head instead, which costs more than the rest of the pass at these shapes.
    """
    if more.get("softcap") is not None or more.get("position_bias") is not None or more.get("s_aux") is not None:
        raise ModelError(f"attention with a soft cap, position bias or sinks cannot be read token by token: {_ADVICE}")
    batch, heads, queries, width = query.shape
    groups = heads // key.shape[1]
    mask = attention_mask.expand(batch, groups, queries, key.shape[2])
    mixed = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, key.shape[1], groups * queries, width),
        key,
        value,
        attn_mask=mask.reshape(batch, 1, groups * queries, key.shape[2]),
        scale=scaling,
    )
    return mixed.reshape(batch, heads, queries, value.shape[-1]).transpose(1, 2), None


AttentionInterface.register(_ATTENTION, _grouped_attention)


class FixedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values [R, H, L, D] in preallocated memory; subclasses define where updates are written."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the memory is already allocated."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.write(self.keys, key_states)
        self.write(self.values, value_states)
        return self.keys, self.values

    def write(self, store: torch.Tensor, states: torch.Tensor) -> None:
        """Put new keys or values where they belong."""
        raise NotImplementedError

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        # The mask and the positions are passed explicitly every time, so nothing is derived from this.
        return 0

    def get_max_length(self) -> int:
        return self.keys.shape[2]


class _SlotLayer(FixedLayer):
    """A layer whose update writes one column per slot, each at its own position."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, columns: torch.Tensor) -> None:
        super().__init__(keys, values)
        self.slots, self.columns = slots, columns

    def write(self, store: torch.Tensor, states: torch.Tensor) -> None:
        store[self.slots, :, self.columns] = states[:, :, 0]


def read(model: Any, ids: Sequence[int], before: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """One text read alone: its keys and values [layers, 2, H, n, D], and the logits [V] of the next token.

    `before` are the keys and values of what comes before it, which are then part of the result.
    """
    cache = DynamicCache()
    for layer, (keys, values) in enumerate([] if before is None else before):
        cache.update(keys[None], values[None], layer)
    whole = len(ids) + (0 if before is None else before.shape[3])
    tokens = torch.tensor([list(ids)], device=model.device)
    # Not `logits_to_keep`: it slices the states, and torch copies the whole head to multiply it with such a slice.
    with torch.no_grad(), at_positions(model, torch.tensor([[len(ids) - 1]])):
        answer = model(input_ids=tokens, past_key_values=cache, use_cache=True)
    try:
        past = torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers])
    except (AttributeError, TypeError, RuntimeError) as error:
        raise ModelError(f"{_name(model)} keeps no plain keys and values per layer: {_ADVICE}") from error
    if past.shape[3] != whole:
        raise ModelError(f"{_name(model)} does not keep the keys and values of all tokens: {_ADVICE}")
    return past, answer.logits[0, -1]


READ = 16  # texts read in one batch


def texts_at_once(device: torch.device, most: int) -> int:
    """Texts of similar length in a pass: a quarter of `most` on a CPU, where passes run in parallel."""
    return max(1, most // 4) if device.type == "cpu" else most


def read_many(model: Any, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The keys and values [layers, 2, H, n, D] of each text, read in batches of texts of similar length.

    Texts are padded on the right, so no token of a text attends to the padding. The batches depend on the list alone.
    """
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))

    def together(chosen: Sequence[int]) -> dict[int, torch.Tensor]:
        longest = len(texts[chosen[-1]])
        ids = torch.tensor([[*texts[p], *[texts[p][-1]] * (longest - len(texts[p]))] for p in chosen])
        cache = DynamicCache()
        with torch.no_grad():
            model.base_model(input_ids=ids.to(model.device), past_key_values=cache, use_cache=True)
        past = torch.stack([torch.stack([layer.keys, layer.values]) for layer in cache.layers])
        return {place: past[:, :, slot, :, : len(texts[place])] for slot, place in enumerate(chosen)}

    size = texts_at_once(model.device, READ)
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    found: dict[int, torch.Tensor] = {}
    with PackedLayers(model.base_model):
        for part in side_by_side(together, batches[::-1], model.device):  # long ones first: no thread waits long
            found |= part
    return [found[place] for place in range(len(texts))]


def in_batches(
    model: Any,
    texts: Sequence[Sequence[int]],
    most: int,
    tokens: Sequence[int] | None,
    together: Callable[[Sequence[int]], torch.Tensor],
) -> torch.Tensor:
    """The results of `together` for all texts [N, ...], in batches of at most `most` of similar length."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    size = texts_at_once(model.device, most)
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    with for_tokens(model, tokens), PackedLayers(model.base_model):
        answers = side_by_side(together, batches[::-1], model.device)  # long ones first: no thread waits long
    found = dict(zip(order, torch.cat(answers[::-1]), strict=True))
    return torch.stack([found[place] for place in range(len(texts))])


def token_bytes(model: Any) -> int:
    """Bytes that the keys and values of one token take."""
    return read_many(model, [[0]])[0].nbytes


class Slots:
    """R slots of L tokens each; `step` reads one token in every slot and returns the logits of the next."""

    def __init__(self, model: Any, count: int, length: int, past: torch.Tensor) -> None:
        """`past` is any past that `read` returned: it gives the shape of the model's keys and values."""
        layers, _, heads, _, width = past.shape
        self.model, self.count, self.length = model, count, length
        # Zeros, not uninitialised memory: masked columns have a weight of exactly 0 only if they are finite.
        self._store = torch.zeros(layers, 2, count, heads, length, width, dtype=past.dtype, device=past.device)
        self._columns = torch.zeros(count, dtype=torch.long, device=past.device)
        self._every = torch.arange(count, device=past.device)
        self._places = torch.arange(length, device=past.device)
        self._cache = Cache(layers=[_SlotLayer(part[0], part[1], self._every, self._columns) for part in self._store])

    def load(self, slot: int, *parts: torch.Tensor | None) -> None:
        """Put a past into a slot, given in consecutive parts (the shared prefix, then the text's own tokens)."""
        start = 0
        for part in parts:
            if part is not None:
                self._store[:, :, slot, :, start : start + part.shape[3]] = part
                start += part.shape[3]

    def save(self, slot: int, start: int, stop: int) -> torch.Tensor:
        """A copy of a slot's columns, in the form that `load` takes."""
        return self._store[:, :, slot, :, start:stop].clone()

    def step(self, tokens: Sequence[int], places: Sequence[int]) -> torch.Tensor:
        """Logits [R, V] after reading `tokens[r]` at position `places[r]` of slot r; earlier columns are its past."""
        device = self._store.device
        self._columns.copy_(torch.tensor(places, device=device))
        hidden = self._places[None, :] > self._columns[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._store.dtype, device=device)
        mask = mask.masked_fill(hidden, torch.finfo(mask.dtype).min)[:, None, None, :]
        with torch.no_grad(), row_attention(self.model):
            answer = self.model(
                input_ids=torch.tensor(tokens, device=device)[:, None],
                attention_mask=mask,
                position_ids=self._columns[:, None],
                past_key_values=self._cache,
                use_cache=True,
            )
        logits: torch.Tensor = answer.logits[:, -1]
        return logits


@contextlib.contextmanager
def row_attention(model: Any) -> Iterator[None]:
    """Use our attention for one pass; the model is shared, so its own setting is restored afterwards."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def window(model: Any) -> int:
    """The most tokens that a slot can hold: the model's window, or its sliding window if that is smaller."""
    config = model.config
    known = [getattr(config, name, None) for name in ("max_position_embeddings", "sliding_window", "window_size")]
    return min([size for size in known if isinstance(size, int) and size > 0], default=1 << 30)


def check(model: Any, ids: Sequence[int]) -> None:
    """Reject a model whose logits differ when it is read token by token; `ids` are two tokens or more."""
    past, _ = read(model, ids[:-1])
    _, expected = read(model, ids)
    slots = Slots(model, 2, len(ids) + 3, past)
    slots.load(1, past)
    try:
        given = slots.step([ids[0], ids[-1]], [0, len(ids) - 1])[1]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ModelError(f"{_name(model)} cannot be read token by token ({error}): {_ADVICE}") from error
    scale = float(expected.float().abs().max()) + 1.0
    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    if not torch.allclose(given.float(), expected.float(), atol=tolerance * scale, rtol=0):
        raise ModelError(f"{_name(model)} answers differently when it is read token by token: {_ADVICE}")


def _name(model: Any) -> str:
    return f"the task model '{getattr(model.config, 'name_or_path', '') or type(model).__name__}'"
