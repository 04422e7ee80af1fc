"""The frozen language model that writes prompts: ids in, states out. Any causal LM that transformers loads."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import tokenizers
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from pinprompt.errors import ModelError, SettingError
from pinprompt.models.cache import home, place
from pinprompt.models.packed import PackedLayers, packable, product
from pinprompt.models.passes import side_by_side
from pinprompt.policy.words import Mask

T = TypeVar("T")
R = TypeVar("R")
CACHED_FROM = 5000
"""Smallest vocabulary whose token texts are kept in the cache."""
BLOCK = 2048
"""Tokens of the vocabulary in one product with the head; constant, so that a row's result is bit-identical."""


class BufferedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer in a fixed-size buffer that is written in place.

    `keys`/`values` are [batch, heads, room, dim]; the first `filled` positions are valid. Layers with a sliding window
    use it too: the model's own mask applies the window, as long as the cache reports that it holds everything.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.filled = 0
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new positions after the filled ones and return all filled positions."""
        end = self.filled + key_states.shape[-2]
        self.keys[:, :, self.filled : end] = key_states
        self.values[:, :, self.filled : end] = value_states
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.filled


class Backbone:
    """A frozen causal LM: `head` [V, d] and `head_bias` [V] or None, states of width `dim`, on `device`.

    States are the head's input: after the final norm, and after OPT's `project_out` if there is one. So `dim` is the
    head's width, whatever the body's width is.
    """

    def __init__(self, model: Any, tokenizer: Any, device: str = "cpu") -> None:
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        body = getattr(model, "base_model", None)
        if head is None or body is None or body is model:
            raise ModelError(
                f"{type(model).__name__} has no language-model head, so it cannot write prompts; "
                "choose a causal LM for policy.model (facebook/opt-125m, gpt2, smollm2, ...)"
            )
        self.model = model.to(device=device, dtype=torch.float32).eval().requires_grad_(False)
        self.body = body
        self.tokenizer = tokenizer
        self.device = torch.device(device)
        self.config: Any = model.config.get_text_config(decoder=True)
        self.head: Tensor = head.weight.detach()
        bias = getattr(head, "bias", None)
        self.head_bias: Tensor | None = None if bias is None else bias.detach()
        self.vocabulary_size, self.dim = self.head.shape
        self._packed_head = head if head in packable(model) else None
        self._packed_layers = PackedLayers(self.body)
        self.incremental = self._incremental()

    @classmethod
    def load(cls, name: str, device: str = "cpu") -> Backbone:
        """The backbone of that name: hub id, folder, .gguf file or alias."""
        from pinprompt.models.loading import load_causal_lm

        model, tokenizer = load_causal_lm(name, device)
        return cls(model, tokenizer, device)

    @cached_property
    def texts(self) -> Tokens:
        """The texts of all tokens; computed once, since a vocabulary of 262k takes seconds."""
        return Tokens(self.tokenizer, self.vocabulary_size)

    def start(self, context: str = "") -> list[int]:
        """The ids read before the prompt: the token that opens a text, then the context without other special tokens.

        For tokenizers without a BOS (Qwen) the opening token is EOS, since their models were trained on texts separated
        by it. If there is neither, the first special token is used.
        """
        ids: list[int] = []
        if context:
            ids = list(self.tokenizer(context, add_special_tokens=False)["input_ids"])
        embedded = len(self.model.get_input_embeddings().weight)
        specials = [self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, *sorted(self.tokenizer.all_special_ids)]
        first = next((token for token in specials if token is not None and token < embedded), None)
        if first is None and not ids:
            raise ModelError(
                "the writer's tokenizer has no special token to begin a text with; give policy.context some text"
            )
        return ids if first is None else [int(first), *ids]

    def fits(self, length: int) -> None:
        """Raise an error if the model has fewer than `length` positions."""
        room = getattr(self.config, "max_position_embeddings", None)
        if room is not None and length > int(room):
            raise SettingError(
                f"context and prompt need {length} places, but the writer reads at most {room}; "
                'shorten policy.context (task.context where it is "task") or policy.length'
            )

    @torch.no_grad()
    def read(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """States [n, d] at the last of the ids [n, t], read after the contents of the cache, which is extended."""
        with self._packed_layers:
            output = self.body(input_ids=ids, past_key_values=cache, use_cache=cache is not None)
        return self._last(output.last_hidden_state)

    def growing_cache(self) -> Cache:
        """An empty cache that keeps every position of every layer."""
        return DynamicCache()

    def slots(self, layers: Sequence[tuple[Tensor, Tensor]]) -> Cache:
        """A cache over buffers of keys and values that are written in place."""
        return Cache(layers=[BufferedLayer(keys, values) for keys, values in layers])

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """The LM's raw logits [n, V] of states [n, d], before any cap or scale; their order is the model's own."""
        logits = self.over_vocabulary(states)
        return logits if self.head_bias is None else logits.add_(self.head_bias)

    def over_vocabulary(self, states: Tensor) -> Tensor:
        """The product of states [..., d] with the head, [..., V].

        On a CPU it is computed in blocks of tokens, or with packed weights: with few rows and a large vocabulary this
        takes three quarters or half of the time.
        """
        if self._packed_head is not None and states.dim() == 2 and not states.requires_grad:
            return product(self._packed_head, states)
        if states.device.type != "cpu" or states.dim() != 2 or states.requires_grad:
            return states @ self.head.T
        found = states.new_empty(len(states), len(self.head))
        for first in range(0, len(self.head), BLOCK):
            part = slice(first, first + BLOCK)
            torch.mm(states, self.head[part].T, out=found[:, part])
        return found

    def side_by_side(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`models.passes.side_by_side` on this model's device."""
        return side_by_side(work, items, self.device)

    @torch.no_grad()
    def logprobs(self, states: Tensor) -> Tensor:
        """The LM's log-probabilities [n, V], with the cap or scale that some models apply to their logits."""
        logits = self.logits(states)
        scale = getattr(self.config, "logit_scale", None)
        if isinstance(scale, int | float):
            logits = logits * scale
        scaling = getattr(self.config, "logits_scaling", None)
        if isinstance(scaling, int | float):
            logits = logits / scaling
        cap = getattr(self.config, "final_logit_softcapping", None)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return torch.log_softmax(logits, dim=-1)

    def perplexities(self, texts: Sequence[str], after: str = "") -> list[float]:
        """The perplexity of each text after the opening token, or after another text; several texts side by side."""
        with self._packed_layers:
            found = self.side_by_side(partial(self._likelihoods, after=after), texts)
        return [float((-logprobs.mean()).exp()) for logprobs in found]

    @torch.no_grad()
    def _likelihoods(self, text: str, after: str = "") -> Tensor:
        """The log-probabilities of a text's tokens after the opening one, or after another text."""
        ids = list(self.tokenizer(f" {text.lstrip()}" if after else text, add_special_tokens=False)["input_ids"])
        room = getattr(self.config, "max_position_embeddings", None)
        first = self.start() if self.tokenizer.all_special_ids else []
        if after:
            first = [*first, *self.tokenizer(after, add_special_tokens=False)["input_ids"]]
        sequence = [*first, *ids][: int(room) if room is not None else None]
        if len(ids) == 0 or len(sequence) < 2:
            raise SettingError(f"a text without tokens to predict has no perplexity: {text!r}")
        tokens = torch.tensor(sequence, device=self.device)
        states = self.body(input_ids=tokens[None], use_cache=False).last_hidden_state[0, :-1]
        return self.logprobs(states).gather(1, tokens[1:, None])[max(0, len(first) - 1) :, 0].cpu()

    def _last(self, states: Tensor) -> Tensor:
        last = states[:, -1].detach()
        if last.shape[-1] != self.dim:
            raise ModelError(
                f"{type(self.model).__name__} has states of width {last.shape[-1]} but a head of width {self.dim}; "
                "pinprompt cannot write with it, choose another policy.model"
            )
        return last

    def _incremental(self) -> bool:
        """True if later positions read only the keys and values of earlier ones (attention, with or without a window).

        Recurrent and mixed models carry a state instead; their prefixes are read from the start every time.
        """
        try:
            layers = DynamicCache(config=self.config).layers
        except (AttributeError, KeyError, TypeError, ValueError):
            return False
        shared = getattr(self.config, "num_kv_shared_layers", 0)
        return not shared and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


class Tokens:
    """Texts by id: `pieces[id]` is the text that a token adds in the middle of a text ('' if it cannot be written).

    `whole` marks the tokens that can be written: no special or added ones, none beyond the tokenizer (a head may have
    more rows), none without text, and none whose text depends on its neighbours, such as a piece of a character.
    """

    kind = ""
    """Part of the cache key: distinguishes other ways of decoding the same tokenizer."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer = tokenizer
        self.size = size
        self._stable: Mask | None = None
        self._fast: Any = getattr(tokenizer, "backend_tokenizer", None)
        special = set(tokenizer.all_special_ids)
        special |= {int(token) for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        self.pieces = [""] * size
        self.alone = [""] * size
        self.whole = np.zeros(size, dtype=np.bool_)
        if self._fast is None or size < CACHED_FROM:
            self._find(special)
        else:
            self._recall(special)

    def _recall(self, special: set[int]) -> None:
        """Read the texts from the cache, keyed by the tokenizer's contents; computing them takes a second each time."""
        said = f"{self._fast.to_str()}|{self.size}|{len(self.tokenizer)}|{sorted(special)}|{tokenizers.__version__}"
        said += f"|{self.kind}"
        known = home() / "tokens" / hashlib.sha256(said.encode()).hexdigest()[:32]
        with contextlib.suppress(ModelError), place(known, "texts of tokens") as folder:
            if folder is not None:
                self._find(special)
                texts = {"pieces": self.pieces, "alone": self.alone, "stable": np.flatnonzero(self.stable()).tolist()}
                (folder / "tokens.json").write_text(json.dumps(texts), "utf-8")
                return
        try:
            texts = json.loads((known / "tokens.json").read_text("utf-8"))
        except (OSError, ValueError):  # a cache that cannot be written or read only costs time
            self._find(special)
            return
        self.pieces, self.alone = texts["pieces"], texts["alone"]
        self.whole = np.array([bool(piece) for piece in self.pieces])
        self._stable = np.zeros(self.size, dtype=np.bool_)
        self._stable[texts["stable"]] = True

    def _find(self, special: set[int]) -> None:
        """Decode every token alone and next to others."""
        known = min(self.size, len(self.tokenizer))
        anchor = self.encode("a")[-1]
        before = self._decode([[anchor]])[0]
        middle = self._decode([[anchor, token] for token in range(known)])
        alone = self._decode([[token] for token in range(known)])
        first = self._decode([[token, anchor] for token in range(known)])
        # The text after a token must not depend on the token; tested between two anchors and after the token itself.
        doubled = self._decode([[anchor, token, token, anchor] for token in range(known)])
        anchored = self._decode([[anchor, anchor]])[0].removeprefix(before)
        self.alone = [*alone, *[""] * (self.size - known)]
        for token in range(known):
            if token in special or not middle[token].startswith(before):
                continue
            piece = middle[token].removeprefix(before)
            apart = doubled[token] == before + piece + piece + anchored
            together = alone[token].strip() == piece.strip() and first[token].strip() == (piece + anchored).strip()
            if piece and "\ufffd" not in piece and apart and together:
                self.pieces[token] = piece
                self.whole[token] = True

    def text(self, ids: list[int]) -> str:
        """The stripped text of ids."""
        decoded: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return decoded.strip()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it."""
        return [int(token) for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def stable(self) -> Mask:
        """The tokens whose text is tokenised back to the same token, bool [V]."""
        if self._stable is not None:
            return self._stable
        tokens = [int(token) for token in np.flatnonzero(self.whole)]
        texts = [self.alone[token] for token in tokens]
        if self._fast is not None:
            encoded = [encoding.ids for encoding in self._fast.encode_batch_fast(texts, add_special_tokens=False)]
        else:
            encoded = [self.encode(text) for text in texts]
        self._stable = np.zeros(self.size, dtype=np.bool_)
        for token, ids in zip(tokens, encoded, strict=True):
            self._stable[token] = ids == [token]
        return self._stable

    def _decode(self, sequences: list[list[int]]) -> list[str]:
        if self._fast is not None:
            return list(self._fast.decode_batch(sequences, skip_special_tokens=False))
        return [
            self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            for ids in sequences
        ]
