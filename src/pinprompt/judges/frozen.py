"""Judges based on frozen models: encoders, classifiers and language models.

Content judges measure how much of a text's content another text keeps, from 0 to 1, by aligning their tokens. Fluency
is judged by an acceptability classifier if one is named, otherwise by perplexity under a language model. Judgements are
cached, since similar prompts lead to the same questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.models.loading import load_encoder
from pinprompt.models.passes import pad_of, passes, window_of
from pinprompt.values import derive

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Caches the answers of a batch judge, as long as memory is not full."""

    def __init__(self, judge: Callable[[list[K]], Sequence[V]], most: int = 500_000) -> None:
        self._judge, self._most = judge, most
        self._known: dict[K, V] = {}

    def __call__(self, questions: Sequence[K]) -> list[V]:
        """The answers in order. An answer depends on its question alone, so evicting one only costs time."""
        new = [question for question in dict.fromkeys(questions) if question not in self._known]
        if len(self._known) + len(new) > self._most:
            self._known.clear()
            new = list(dict.fromkeys(questions))
        if new:
            self._known.update(zip(new, self._judge(new), strict=True))
        return [self._known[question] for question in questions]


def _answers(
    judge: Encoder | Classifier | LanguageModel, texts: Sequence[Sequence[int]], **more: Any
) -> Iterator[tuple[list[int], Any]]:
    """Passes of a judge's model over token ids: the places of the texts in a pass, and the model's output."""
    model, tokenizer = judge.model, judge.tokenizer
    for places, ids, mask in passes(texts, judge.batch, window_of(model.config, tokenizer), pad_of(tokenizer)):
        with torch.no_grad():
            answer = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device), **more)
        yield places, answer


# Frozen encoders: the vectors of a text's tokens depend on the text alone and not on the rest of the batch.


@dataclass
class Encoder:
    """Vectors of a text's tokens, without special tokens; recent texts are cached."""

    model: Any
    tokenizer: Any
    name: str = ""
    layer: int = -1
    """The hidden layer; -1 is the last."""
    batch: int = 32
    """Rows of every pass."""
    keep: int = 8192
    """Number of cached texts."""

    def __post_init__(self) -> None:
        self._encoded = Remembered(self._encode, self.keep)

    def tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Vectors [n, d] of each text's tokens, of length 1; n = 0 without tokens. Long texts are truncated."""
        return self._encoded(texts)

    def pooled(self, texts: Sequence[str]) -> np.ndarray:
        """The mean [N, d] of each text's token vectors; zeros for a text without tokens."""
        parts = self.tokens(texts)
        return np.stack([part.mean(0) if len(part) else np.zeros(part.shape[1], part.dtype) for part in parts])

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        window, deep = window_of(self.model.config, self.tokenizer), self.layer != -1
        read = [
            self.tokenizer(text, truncation=True, max_length=window, return_special_tokens_mask=True) for text in texts
        ]
        found: dict[int, np.ndarray] = {}
        for places, answer in _answers(self, [row["input_ids"] for row in read], output_hidden_states=deep):
            states = answer.hidden_states[self.layer] if deep else answer.last_hidden_state
            for state, place in zip(states.float().cpu().numpy(), places, strict=False):
                kept = state[: len(read[place]["input_ids"])][np.array(read[place]["special_tokens_mask"]) == 0]
                found[place] = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
        return [found[place] for place in range(len(texts))]


def embed(name: str, texts: Sequence[str]) -> np.ndarray:
    """Embeddings [N, d] of texts by an encoder: the means of their token vectors; on the CPU, the same everywhere."""
    encoder = Encoder(*load_encoder(name), name=name, keep=0)
    parts = [encoder.pooled(texts[at : at + _TEXTS]) for at in range(0, len(texts), _TEXTS)]
    return np.concatenate(parts).astype(np.float64)


_TEXTS = 256  # texts whose token vectors are in memory at a time


class TokenMatching:
    """How much of a text's content another keeps, from 0 to 1: the F1 of tokens matched in both directions.

    With a `baseline` b, F is rescaled to (F - b) / (1 - b) and clipped to 0 and 1.
    """

    def __init__(self, encoder: Encoder, name: str, least: float, baseline: float = 0.0) -> None:
        self.encoder, self.name, self.least, self.baseline = encoder, name, least, baseline
        self._ask = Remembered(self._judge)

    def __call__(self, sources: Sequence[str], texts: Sequence[str]) -> list[float]:
        """How much of `sources[i]` is kept in `texts[i]`; 0 for an empty text. Each pair is judged once."""
        return self._ask(list(zip(sources, texts, strict=True)))

    def _judge(self, pairs: list[tuple[str, str]]) -> list[float]:
        raw = _f1_of(self.encoder, pairs, self.least)
        return [min(max((value - self.baseline) / (1 - self.baseline), 0.0), 1.0) for value in raw]


class Alignment(TokenMatching):
    """The alignment of the CTC metrics (Deng et al. 2021): is each token of either text found in the other?

    A token's confidence is its best cosine, at least 0. Both directions are averaged over tokens and combined by their
    harmonic mean.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder, f"alignment({encoder.name})", least=0.0)


class BertScore(TokenMatching):
    """BERTScore-F1 (Zhang et al. 2020) by greedy matching, without idf weights; below 0 counts as 0.

    With a baseline, unrelated texts are near 0.
    """

    def __init__(self, encoder: Encoder, baseline: float = 0.0) -> None:
        super().__init__(encoder, f"bertscore({encoder.name}, baseline {baseline:.3f})", -1.0, baseline)


def baseline_of(encoder: Encoder, texts: Sequence[str], seed: int) -> float:
    """The score of unrelated texts: the mean F1 of random pairs of different texts; 0 if there are too few."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 10:
        return 0.0
    random = np.random.Generator(np.random.Philox(derive(seed, "content baseline")))
    chosen = [random.choice(len(distinct), 2, replace=False) for _ in range(200)]
    return float(np.mean(_f1_of(encoder, [(distinct[one], distinct[other]) for one, other in chosen])))


def _f1_of(encoder: Encoder, pairs: list[tuple[str, str]], least: float = -1.0) -> list[float]:
    """F1 of the best cosines of (source, text) pairs, clipped to `least` and 1; 0 if either has no tokens."""
    sources, texts = encoder.tokens([source for source, _ in pairs]), encoder.tokens([text for _, text in pairs])
    answers = []
    for source, text in zip(sources, texts, strict=True):
        if not len(source) or not len(text):
            answers.append(0.0)
            continue
        cosines = text @ source.T
        precision, recall = (float(cosines.max(axis).clip(least, 1).mean()) for axis in (1, 0))
        answers.append(2 * precision * recall / (precision + recall) if min(precision, recall) > 0 else 0.0)
    return answers


@dataclass
class Classifier:
    """A frozen sequence classifier: texts in, probabilities of its labels out."""

    model: Any
    tokenizer: Any
    name: str = ""
    batch: int = 32

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the model's outputs."""
        names = self.model.config.id2label
        return [str(names[place]) for place in sorted(names)]

    def place(self, label: str) -> int:
        """A label's index, by its name (any case), as LABEL_n, or as a number."""
        for place, known in enumerate(self.labels):
            if label.strip().lower() in (known.lower(), f"label_{place}", str(place)):
                return place
        raise SettingError(f"the classifier '{self.name}' has no label '{label}'; {did_you_mean(label, self.labels)}")

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Probabilities [N, labels]; long texts are truncated to the model's window."""
        window = window_of(self.model.config, self.tokenizer)
        read = [self.tokenizer(text, truncation=True, max_length=window)["input_ids"] for text in texts]
        found = np.zeros((len(texts), len(self.labels)))
        for places, answer in _answers(self, read):
            logits = answer.logits[: len(places)].float().cpu().double()
            # A single output is the log-odds of the second of two labels.
            odds = torch.cat([-logits, logits], 1) / 2 if logits.shape[1] == 1 else logits
            found[places] = torch.softmax(odds, -1).numpy()[:, : found.shape[1]]
        return found


class Acceptability:
    """Fluency by an acceptability classifier: 1 (fluent) or 0; an empty text is not fluent."""

    def __init__(self, classifier: Classifier, label: str) -> None:
        self.classifier, self._place = classifier, classifier.place(label)
        self.name = f"acceptability({classifier.name}: {classifier.labels[self._place]})"

    def __call__(self, texts: Sequence[str]) -> list[float]:
        likeliest = self.classifier.probabilities(texts).argmax(1)
        return [float(bool(text) and likely == self._place) for text, likely in zip(texts, likeliest, strict=True)]


@dataclass
class LanguageModel:
    """Negative log-likelihoods of texts under a frozen causal LM."""

    model: Any
    tokenizer: Any
    name: str = ""
    batch: int = 8

    def nll(self, texts: Sequence[str]) -> list[tuple[float, int]]:
        """Each text's total negative log-likelihood at the start of a line, and its number of tokens.

        After a line break, not at the start of a document: many LMs give plain sentences a low probability there, and
        distinguish sentences from shuffled words less well (docs/deviations.md, 26).
        """
        window, pad = window_of(self.model.config, self.tokenizer), pad_of(self.tokenizer)
        first = self.tokenizer.bos_token_id
        start = [pad if first is None else first, *self.tokenizer("\n", add_special_tokens=False)["input_ids"]]
        read = [self.tokenizer(text, add_special_tokens=False)["input_ids"][: window - len(start)] for text in texts]
        found: list[tuple[float, int]] = [(0.0, 0)] * len(texts)
        for places, answer in _answers(self, [[*start, *row] for row in read]):
            for row, place in enumerate(places):
                count = len(read[place])
                if count:
                    logs = torch.log_softmax(answer.logits[row, len(start) - 1 :][:count].float(), -1).cpu()
                    taken = logs.gather(1, torch.tensor(read[place])[:, None])
                    found[place] = (-float(taken.double().sum()), count)
        return found

    def perplexities(self, texts: Sequence[str]) -> list[float]:
        """Each text's perplexity; infinite for a text without tokens."""
        return [math.exp(min(total / count, 700.0)) if count else math.inf for total, count in self.nll(texts)]


class PerplexityFluency:
    """Fluency by perplexity: at most that of nine in ten of the target style's own sentences."""

    def __init__(self, lm: LanguageModel, threshold: float) -> None:
        self.lm, self.threshold = lm, threshold
        self.name = f"perplexity({lm.name}) <= {threshold:.1f}"

    @classmethod
    def calibrated(cls, lm: LanguageModel, texts: Sequence[str]) -> PerplexityFluency:
        """Set the threshold to the 90 % quantile of the perplexity of these human texts."""
        known = [value for value in lm.perplexities(texts) if math.isfinite(value)]
        return cls(lm, float(np.quantile(known, 0.9)) if known else 0.0)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        return [float(value <= self.threshold) for value in self.lm.perplexities(texts)]
