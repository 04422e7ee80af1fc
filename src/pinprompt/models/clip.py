"""CLIP and SigLIP models: pictures and texts as unit vectors, independent of batching.

A CLIP text tower is causal and its output is taken at the end token, so nothing after that token can change a text's
vector: texts are processed at their own length instead of the full window. SigLIP's tower is bidirectional and was
trained on padded texts, so every text is padded to the window. The shape of a text's pass depends on that text alone
(its length rounded up, a fixed number of texts), so its vector has the same bits whatever else is in its batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pinprompt.english import FUNCTION_WORDS, is_word
from pinprompt.errors import MissingExtra, ModelError, SettingError
from pinprompt.models import loading, sources
from pinprompt.models.cache import kept_tensor, may_fetch
from pinprompt.models.sources import quiet

if TYPE_CHECKING:
    from PIL.Image import Image

EMOJI_CLIP = "emoji-clip"
"""The small image-text model of emoji drawings that is part of the package; not for photographs."""
BATCH = 8
"""Texts in every pass of the text tower."""
SMALL_BATCH = 64
"""The same for a small tower, where the overhead of a pass dominates."""
SMALL = 20_000_000
"""Parameters of the text tower below which it is small."""
KNOWN, KNOWN_LARGE = 10_000, 512
"""Maximum number of known words that pictures are compared with, for a small and a large tower."""
STRIDE = 4
"""Lengths of passes are multiples of this: few shapes and little padding."""


def folder_of(name: str) -> str:
    """What to load for a name: the packaged folder for emoji-clip, otherwise the name itself."""
    return str(Path(__file__).parent / "emoji_clip") if name == EMOJI_CLIP else name


def load_clip(name: str, device: str = "cpu") -> Clip:
    """Load an image-text model by hub id, folder, or the name emoji-clip."""
    place = folder_of(name)
    source = sources.resolve(place)
    model, tokenizer = loading.load_encoder(place, device)
    if not hasattr(model, "get_text_features") or not hasattr(model, "get_image_features"):
        raise ModelError(
            f"'{name}' is a {type(model).__name__}, which does not embed both texts and pictures; "
            f"give a CLIP or SigLIP model, or {EMOJI_CLIP}."
        )
    with quiet():
        import transformers

        where: dict[str, Any] = {}
        if source.kind == "hub":
            where = {"revision": source.revision, "local_files_only": not may_fetch()}
        try:
            # Never torchvision's processor: a torchvision that does not match torch fails to import.
            processor = transformers.AutoImageProcessor.from_pretrained(place, backend="pil", **where)
        except ImportError as error:
            raise MissingExtra("image", "preparing pictures") from error
        except Exception as error:  # a missing or invalid preprocessor config may raise anything
            raise ModelError(f"'{name}' has no usable image processor: {error}") from error
    return Clip(name, source.revision, model, tokenizer, processor)


class Clip:
    """A frozen image-text model with its tokenizer and image processor."""

    def __init__(self, name: str, revision: str, model: Any, tokenizer: Any, processor: Any) -> None:
        self.name, self.revision = name, revision
        self.model, self.tokenizer, self.processor = model.eval().requires_grad_(False), tokenizer, processor
        self.device = model.device
        self.trims: bool = model.config.model_type == "clip"
        """Whether a text may be processed at its own length: a causal tower whose output is at the end token."""
        limit = getattr(tokenizer, "model_max_length", None)
        positions = int(model.config.text_config.max_position_embeddings)
        self.window = positions if limit is None else min(positions, int(limit))
        """The text window in tokens, including the start and end tokens."""
        size = sum(weight.numel() for weight in model.text_model.parameters())
        self.batch = SMALL_BATCH if size < SMALL else BATCH
        """Texts per pass of the text tower: depends on its size only, so that vectors are reproducible."""

    # Pictures

    def image_features(self, images: Sequence[Image]) -> Tensor:
        """Unit vectors [n, d] of pictures, one pass each."""
        vectors = []
        with torch.inference_mode():
            for image in images:
                # A side of one to four pixels would be mistaken for the channels.
                inputs = self.processor(images=image, return_tensors="pt", input_data_format="channels_last")
                inputs = {name: value.to(self.device) for name, value in inputs.items()}
                vectors.append(_vector(self.model.get_image_features(**inputs)))
            unit = torch.nn.functional.normalize(torch.cat(vectors).float(), dim=-1)
        return unit.clone()  # outside inference mode, so that it can be used with gradients

    def target(self, images: Sequence[Image]) -> Tensor:
        """One unit vector [d] for one picture, or for what several have in common: the mean of their vectors."""
        return torch.nn.functional.normalize(self.image_features(images).mean(0), dim=-1)

    # Texts

    def tokens(self, text: str) -> list[int]:
        """A text's tokens with the model's start and end tokens, not truncated."""
        # Not verbose: `too_long` reports long texts to the caller.
        return list(self.tokenizer(text, verbose=False)["input_ids"])

    def all_tokens(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """The same for many texts at once, by text."""
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return {}
        found = self.tokenizer(distinct, verbose=False)["input_ids"]
        return {text: list(ids) for text, ids in zip(distinct, found, strict=True)}

    def too_long(self, texts: Sequence[str]) -> dict[str, str]:
        """The texts that do not fit into the window, each with a message."""
        return {
            text: f"the prompt has {len(ids)} tokens of {self.name}, whose text window has {self.window}"
            for text, ids in self.all_tokens(texts).items()
            if len(ids) > self.window
        }

    def check_length(self, length: int) -> None:
        """Raise an error if prompts of this length cannot fit, at one token or more per token of the writer."""
        specials = len(self.tokens(""))
        if length + specials > self.window:
            raise SettingError(
                f"prompts of {length} tokens do not fit into the text window of {self.name}: it holds "
                f"{self.window - specials} besides the start and end tokens. Use shorter prompts (--length), or "
                f'truncate them (overlong = "cut").'
            )

    def text_features(self, texts: Sequence[str], trim: bool = True) -> Tensor:
        """Unit vectors [n, d] of texts, truncated to fit; equal texts are processed once.

        `trim=False` pads every text to the window, for comparison; if trimming is not exact it is always off.
        """
        distinct = {text: self._fit(ids) for text, ids in self.all_tokens(texts).items()}
        groups: dict[int, list[str]] = {}
        for text, ids in distinct.items():
            length = min(self.window, -(-len(ids) // STRIDE) * STRIDE) if trim and self.trims else self.window
            groups.setdefault(length, []).append(text)
        vectors: dict[str, Tensor] = {}
        with torch.inference_mode():
            for length, members in sorted(groups.items()):
                for at in range(0, len(members), self.batch):
                    part = members[at : at + self.batch]
                    chosen = [distinct[text] for text in part]
                    out = self._pass(chosen + [chosen[0]] * (self.batch - len(chosen)), length)
                    vectors.update(zip(part, out, strict=False))
            stacked = torch.stack([vectors[text] for text in texts]) if texts else torch.zeros(0, 0)
        return stacked.clone()

    def _fit(self, ids: list[int]) -> list[int]:
        """Truncate to the window, keeping the end token (as the tokenizers do)."""
        return ids if len(ids) <= self.window else [*ids[: self.window - 1], ids[-1]]

    def _pass(self, texts: list[list[int]], length: int) -> Tensor:
        """Unit vectors of exactly `batch` texts at exactly that length."""
        if self.trims:
            # Pad with the end token: another padding token could be mistaken for it (older configs look for the
            # largest id), and a mask would change nothing in a causal tower.
            padded = [[*ids, *[ids[-1]] * (length - len(ids))] for ids in texts]
            inputs = {"input_ids": torch.tensor(padded, device=self.device)}
        else:
            pad = {"padding": "max_length", "max_length": length, "return_tensors": "pt"}
            batch = self.tokenizer.pad({"input_ids": texts}, **pad)
            inputs = {"input_ids": batch["input_ids"].to(self.device)}
            if "attention_mask" in self.tokenizer.model_input_names:
                inputs["attention_mask"] = batch["attention_mask"].to(self.device)
        return torch.nn.functional.normalize(_vector(self.model.get_text_features(**inputs)).float(), dim=-1)

    # Known words

    @cached_property
    def known_words(self) -> tuple[list[str], Tensor]:
        """Words that are a single token of the model, and their unit vectors [n, d]; cached.

        All of them for a small tower; the most common ones for a large one, whose passes take longer.
        """
        words = self._whole_words()[: KNOWN if self.batch == SMALL_BATCH else KNOWN_LARGE]
        if not words:
            return [], self.text_features([])
        digest = hashlib.sha256(self.text_features(words[:1]).cpu().numpy().tobytes())
        digest.update("\n".join(words).encode())
        vectors = kept_tensor(digest.hexdigest(), "vectors of words", lambda: self.text_features(words).cpu())
        return words, vectors.to(self.device)

    def _whole_words(self) -> list[str]:
        """The English words among the tokens, by id: tokenizers number common tokens first."""
        marked = [token.endswith("</w>") for token in self.tokenizer.get_vocab()]
        found: dict[str, None] = {}
        for token, _ in sorted(self.tokenizer.get_vocab().items(), key=lambda pair: pair[1]):
            # CLIP marks the end of a word, SigLIP its start; the small model's tokens are words.
            if any(marked) and not token.endswith("</w>"):
                continue
            word = token.removesuffix("</w>").removeprefix("\N{LOWER ONE EIGHTH BLOCK}").lower()
            if len(word) > 2 and word.isalpha() and word not in FUNCTION_WORDS and is_word(word):
                found.setdefault(word)
        return list(found)

    # The white box

    def embeddings(self) -> Tensor:
        """Input embeddings [V, d] of the text tower."""
        weight: Tensor = self._embedding().weight
        return weight

    def vector_features(self, vectors: Tensor) -> Tensor:
        """The unit vector [d] of a text whose token embeddings are `vectors` [n, d]; differentiable in them."""
        specials = self.tokens("")
        if len(vectors) + len(specials) > self.window:
            raise SettingError(
                f"{len(vectors)} prompt vectors do not fit into the text window of {self.name}, which holds "
                f"{self.window - len(specials)} besides the start and end tokens; use fewer."
            )
        # A plain token marks the prompt's position: a special one could be mistaken for the end of the text.
        special = set(self.tokenizer.all_special_ids)
        plain = next(index for index in range(len(self.tokenizer)) if index not in special)
        ids = [*specials[:-1], *[plain] * len(vectors), specials[-1]]
        if not self.trims:
            ids += [self.tokenizer.pad_token_id] * (self.window - len(ids))
        start = len(specials) - 1

        def replace(module: Any, inputs: Any, output: Tensor) -> Tensor:
            given = vectors.to(output.dtype)[None]
            return torch.cat([output[:, :start], given, output[:, start + len(vectors) :]], dim=1)

        # For this pass, the embedding layer returns the vectors at the prompt's positions; the tower is not changed.
        handle = self._embedding().register_forward_hook(replace)
        try:
            out = self.model.get_text_features(input_ids=torch.tensor([ids], device=self.device))
        finally:
            handle.remove()
        return torch.nn.functional.normalize(_vector(out)[0].float(), dim=-1)

    def _embedding(self) -> Any:
        return self.model.text_model.embeddings.token_embedding


def _vector(output: Any) -> Any:
    """The pooled features, in any format that versions of transformers return."""
    return getattr(output, "pooler_output", output)
