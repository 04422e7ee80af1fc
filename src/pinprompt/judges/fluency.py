"""Is a text fluent? An acceptability classifier where one is named, else its perplexity under a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from pinprompt.judges.style import Classifier
from pinprompt.models.batches import pad_of, passes, window_of


class FluencyJudge(Protocol):
    """Texts in, 1 (fluent) or 0 out; an empty text is not fluent."""

    name: str

    def __call__(self, texts: Sequence[str]) -> list[float]: ...


@dataclass
class Acceptability:
    """Fluent is what a classifier finds acceptable."""

    classifier: Classifier
    label: str
    name: str = ""

    def __post_init__(self) -> None:
        self._place = self.classifier.place(self.label)
        self.name = self.name or f"acceptability({self.classifier.name}: {self.classifier.labels[self._place]})"

    def __call__(self, texts: Sequence[str]) -> list[float]:
        likeliest = self.classifier.probabilities(texts).argmax(1)
        return [float(bool(text) and likely == self._place) for text, likely in zip(texts, likeliest, strict=True)]


@dataclass
class LanguageModel:
    """Negative log-likelihoods of texts under a frozen causal LM."""

    model: Any
    tokenizer: Any
    name: str = ""
    rows: int = 8

    def nll(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        """Each text's total negative log-likelihood at the start of a line, and its number of tokens.

        After a line break, not at the start of a document: many LMs give a plain sentence little chance there, and
        tell sentences from shuffled words less well (docs/notebook.md).
        """
        window, pad = window_of(self.model.config, self.tokenizer), pad_of(self.tokenizer)
        first = self.tokenizer.bos_token_id
        start = [pad if first is None else first, *self.tokenizer("\n", add_special_tokens=False)["input_ids"]]
        read = [self.tokenizer(text, add_special_tokens=False)["input_ids"][: window - len(start)] for text in texts]
        found: list[tuple[float, int]] = [(0.0, 0)] * len(texts)
        device = self.model.device
        for places, ids, mask in passes([[*start, *row] for row in read], self.rows, window, pad):
            with torch.no_grad():
                logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            for row, place in enumerate(places):
                count = len(read[place])
                if count:
                    logs = torch.log_softmax(logits[row, len(start) - 1 :][:count].float(), -1).cpu()
                    taken = logs.gather(1, torch.tensor(read[place])[:, None])
                    found[place] = (-float(taken.double().sum()), count)
        return found

    def perplexities(self, texts: Sequence[str]) -> list[float]:
        """Each text's perplexity; infinite for a text without tokens."""
        return [math.exp(min(total / count, 700.0)) if count else math.inf for total, count in self.nll(texts)]

    def corpus_perplexity(self, texts: Sequence[str]) -> float:
        """Of all texts together, per token; infinite where there is no token."""
        parts = self.nll(texts)
        count = sum(count for _, count in parts)
        return math.exp(min(sum(total for total, _ in parts) / count, 700.0)) if count else math.inf


@dataclass
class PerplexityFluency:
    """Fluent is what has no higher perplexity than nine in ten of the target style's own sentences."""

    lm: LanguageModel
    threshold: float
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or f"perplexity({self.lm.name}) <= {self.threshold:.1f}"

    @classmethod
    def calibrated(cls, lm: LanguageModel, texts: Sequence[str], quantile: float = 0.9) -> PerplexityFluency:
        """The threshold is that quantile of the perplexity of these (human) texts."""
        known = [value for value in lm.perplexities(texts) if math.isfinite(value)]
        return cls(lm, float(np.quantile(known, quantile)) if known else 0.0)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        return [float(value <= self.threshold) for value in self.lm.perplexities(texts)]
