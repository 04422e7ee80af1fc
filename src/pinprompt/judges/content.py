"""How much of a text's content another text keeps, from 0 to 1: tokens of each are aligned with tokens of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pinprompt.judges.encoder import Encoder, Remembered
from pinprompt.seeds import derive


class ContentJudge(Protocol):
    """Texts in, numbers from 0 to 1 out; a pair's number depends on that pair alone."""

    name: str

    def __call__(self, sources: Sequence[str], texts: Sequence[str]) -> list[float]:
        """How much of `sources[i]` is kept in `texts[i]`; an empty text keeps nothing."""


def f1(precision: float, recall: float) -> float:
    """The harmonic mean; 0 where both are 0 or less."""
    total = precision + recall
    return 2 * precision * recall / total if total > 0 and min(precision, recall) > 0 else 0.0


def two_way(source: np.ndarray, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each text token's best cosine in the source, and each source token's best cosine in the text."""
    cosines = text @ source.T
    return cosines.max(1), cosines.max(0)


@dataclass
class TokenMatching:
    """The F1 of tokens matched in both directions; each pair of texts is judged once."""

    encoder: Encoder
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self.name = self.name or self._describe()
        self._ask = Remembered(self._judge)

    def __call__(self, sources: Sequence[str], texts: Sequence[str]) -> list[float]:
        return self._ask(list(zip(sources, texts, strict=True)))

    def _describe(self) -> str:
        raise NotImplementedError

    def _judge(self, pairs: list[tuple[str, str]]) -> list[float]:
        raise NotImplementedError


class Alignment(TokenMatching):
    """The alignment of the CTC metrics (Deng et al. 2021): is each token of either text found in the other?

    A token's confidence is its best cosine, at least 0. Both directions are averaged over tokens and combined by their
    harmonic mean.
    """

    def _describe(self) -> str:
        return f"alignment({self.encoder.name})"

    def _judge(self, pairs: list[tuple[str, str]]) -> list[float]:
        return _f1_of(self.encoder, pairs, least=0.0)


@dataclass
class BertScore(TokenMatching):
    """BERTScore-F1 (Zhang et al. 2020) by greedy matching, without idf weights; below 0 counts as 0.

    With a `baseline` b, F is rescaled to (F - b) / (1 - b), so that unrelated texts are near 0.
    """

    baseline: float = 0.0

    def _describe(self) -> str:
        return f"bertscore({self.encoder.name}, baseline {self.baseline:.3f})"

    def _judge(self, pairs: list[tuple[str, str]]) -> list[float]:
        raw = _f1_of(self.encoder, pairs)
        return [min(max((value - self.baseline) / (1 - self.baseline), 0.0), 1.0) for value in raw]


def baseline_of(encoder: Encoder, texts: Sequence[str], seed: int, pairs: int = 200) -> float:
    """What unrelated texts score: the mean F1 of random pairs of different texts; 0 where there are too few."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 10:
        return 0.0
    random = np.random.Generator(np.random.Philox(derive(seed, "content baseline")))
    chosen = [random.choice(len(distinct), 2, replace=False) for _ in range(pairs)]
    return float(np.mean(_f1_of(encoder, [(distinct[one], distinct[other]) for one, other in chosen])))


def _f1_of(encoder: Encoder, pairs: list[tuple[str, str]], least: float = -1.0) -> list[float]:
    """F1 of the two-way alignment of (source, text) pairs; 0 where either has no tokens."""
    sources, texts = encoder.tokens([source for source, _ in pairs]), encoder.tokens([text for _, text in pairs])
    answers = []
    for source, text in zip(sources, texts, strict=True):
        if not len(source) or not len(text):
            answers.append(0.0)
            continue
        forward, backward = two_way(source, text)
        answers.append(f1(float(forward.clip(least, 1).mean()), float(backward.clip(least, 1).mean())))
    return answers
