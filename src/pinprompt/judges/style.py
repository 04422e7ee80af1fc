"""Style judges: any text-classification model, or a classifier trained on two lists of texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import BaseModel, FiniteFloat, ValidationError

from pinprompt.errors import DataError, RunError, SettingError
from pinprompt.judges.frozen import Classifier, Encoder, Remembered
from pinprompt.values import derive

LEAST_LINES = 10
FEW_LINES = 200
LEAST_ACCURACY = 0.7
MOST_WORDS = 4000
PENALTY = 0.1


class Features(Protocol):
    """The features of a trained judge; frozen once fitted to the training texts."""

    name: str

    def fit(self, texts: Sequence[str]) -> None: ...

    def __call__(self, texts: Sequence[str]) -> np.ndarray: ...


class Embedding:
    """The mean of a text's token vectors."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.name = encoder, encoder.name

    def fit(self, texts: Sequence[str]) -> None:
        """Nothing to fit: the encoder is frozen."""

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return self.encoder.pooled(texts).astype(np.float64)


class Words:
    """Which words and pairs of words a text contains (the most frequent ones of the training texts)."""

    name = "words"

    def __init__(self, known: Sequence[str] = ()) -> None:
        self.places = {gram: place for place, gram in enumerate(known)}

    def fit(self, texts: Sequence[str]) -> None:
        """Choose the words and pairs that at least two training texts contain."""
        counts = Counter(gram for text in texts for gram in _grams(text))
        # Ties are ordered by the word itself, so that features do not depend on hashing.
        chosen = sorted((-count, gram) for gram, count in counts.items() if count > 1)[:MOST_WORDS]
        self.places = {gram: place for place, (_, gram) in enumerate(chosen)}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        found = np.zeros((len(texts), len(self.places)))
        for row, text in enumerate(texts):
            places = [self.places[gram] for gram in _grams(text) if gram in self.places]
            if places:
                found[row, places] = 1 / np.sqrt(len(places))
        return found


class Together:
    """A concatenation of several kinds of features."""

    def __init__(self, parts: Sequence[Features]) -> None:
        self.parts, self.name = parts, " + ".join(part.name for part in parts)

    def fit(self, texts: Sequence[str]) -> None:
        """Fit every part."""
        for part in self.parts:
            part.fit(texts)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.concatenate([part(texts) for part in self.parts], axis=1)


class StyleJudge(Remembered[str, float]):
    """Texts in, the probability of the target style out; 0 for an empty text."""

    name = ""
    accuracy: float | None = None
    """Accuracy on held-out texts; None if not known."""


class NamedStyle(StyleJudge):
    """The probability of one label of a classification model."""

    def __init__(self, classifier: Classifier, label: str) -> None:
        super().__init__(self._probabilities)
        self.classifier, self.label, self._place = classifier, label, classifier.place(label)
        self.name = f"{classifier.name}: {classifier.labels[self._place]}"

    def _probabilities(self, texts: list[str]) -> list[float]:
        found = self.classifier.probabilities(texts)[:, self._place].tolist()
        return [value if text else 0.0 for text, value in zip(texts, found, strict=True)]


class TrainedStyle(StyleJudge):
    """Logistic regression on frozen features."""

    def __init__(self, features: Features, weights: np.ndarray, bias: float) -> None:
        super().__init__(self._probabilities)
        self.features, self.weights, self.bias = features, weights, bias

    def _probabilities(self, texts: list[str]) -> list[float]:
        # One text at a time, so that the order of summation is fixed.
        odds = [float(row @ self.weights) + self.bias for row in self.features(texts)]
        return [
            1 / (1 + math.exp(-min(max(one, -500.0), 500.0))) if text else 0.0
            for text, one in zip(texts, odds, strict=True)
        ]


def train_style(
    source: Sequence[str], target: Sequence[str], features: Features, seed: int, *, force: bool = False
) -> TrainedStyle:
    """Train a judge that distinguishes target from source texts; an error if it fails on held-out texts."""
    for kind, texts in (("source", source), ("target", target)):
        if len(texts) < LEAST_LINES:
            raise DataError(
                f"a style judge needs {LEAST_LINES} different texts of each style or more; there are {len(texts)} of "
                f"the {kind} style for it. Give more lines (50 of each style are enough), or name a classification "
                "model as the judge (--set task.style=MODEL --set task.test_style=MODEL)."
            )
    random = np.random.Generator(np.random.Philox(derive(seed, "style judge")))
    sides = [
        [(texts[place], label) for place in random.permutation(len(texts)).tolist()]
        for label, texts in ((0.0, source), (1.0, target))
    ]
    # For many texts one fifth is held out; for few texts, cross-validation in fifths.
    folds = range(5) if min(map(len, sides)) < FEW_LINES else range(1)
    right: tuple[list[bool], list[bool]] = ([], [])
    for fold in folds:
        learn = [pair for side in sides for place, pair in enumerate(side) if place % 5 != fold]
        test = [pair for side in sides for pair in side[fold::5]]
        judge = _fitted(learn, features)
        for value, (_, label) in zip(judge([text for text, _ in test]), test, strict=True):
            right[int(label)].append((value > 0.5) == bool(label))
    if len(folds) > 1:
        judge = _fitted([pair for side in sides for pair in side], features)
    # Balanced accuracy: with files of different sizes, always predicting the larger one must not score well.
    judge.accuracy = float(np.mean([np.mean(side) for side in right]))
    count = sum(map(len, right))
    made = f"logistic regression on {features.name}, {len(source)} + {len(target)} texts"
    judge.name = f"{made}, held-out accuracy {judge.accuracy:.3f}"
    if judge.accuracy < LEAST_ACCURACY and not force:
        raise SettingError(
            f"the style judge cannot tell the two styles apart: its accuracy on {count} held-out texts is "
            f"{judge.accuracy:.2f}, below {LEAST_ACCURACY}. Are source and target of different styles? More lines "
            "help, or a classification model as the judge (--set task.style=MODEL --set task.test_style=MODEL); "
            "--force-judge uses this one anyway."
        )
    return judge


def trained_values(judge: StyleJudge) -> dict[str, Any]:
    """A trained judge as JSON values, for `trained_from`; {} for any other judge."""
    if not isinstance(judge, TrainedStyle) or not isinstance(judge.features, Together):
        return {}
    words = next((list(part.places) for part in judge.features.parts if isinstance(part, Words)), [])
    return {"words": words, "weights": judge.weights.tolist(), "bias": judge.bias, "name": judge.name}


def trained_from(values: Mapping[str, Any], embedding: Embedding) -> TrainedStyle:
    """The judge stored by `trained_values`, with the same embedding."""
    try:
        stored = _StoredJudge.model_validate(dict(values), strict=True)
    except ValidationError:
        raise RunError("judges.json has no valid style judge; run the search again with --force") from None
    judge = TrainedStyle(Together([embedding, Words(stored.words)]), np.array(stored.weights), stored.bias)
    judge.name = stored.name
    size = judge.features(["a"]).shape[1]
    if size != len(stored.weights):
        raise RunError(
            f"the style judge in judges.json was made with another encoder: it has {len(stored.weights)} weights, and "
            f"{size} features are read here; use the encoder that the recipe names"
        )
    return judge


class _StoredJudge(BaseModel):
    words: list[str]
    weights: list[FiniteFloat]
    bias: FiniteFloat
    name: str = ""


def _fitted(pairs: Sequence[tuple[str, float]], features: Features) -> TrainedStyle:
    texts, labels = [text for text, _ in pairs], np.array([label for _, label in pairs])
    features.fit(texts)
    return TrainedStyle(features, *_regress(features(texts), labels, PENALTY))


def _regress(inputs: np.ndarray, labels: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """Weights and bias that minimise the log-loss and penalty/2 |w|^2, by L-BFGS in float64 on the CPU."""
    x, y = torch.from_numpy(inputs).double(), torch.from_numpy(labels).double()
    weights = torch.zeros(x.shape[1], dtype=torch.double, requires_grad=True)
    bias = torch.zeros((), dtype=torch.double, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weights, bias], max_iter=500, tolerance_grad=1e-6, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> float:
        solver.zero_grad()
        fit = torch.nn.functional.binary_cross_entropy_with_logits(x @ weights + bias, y, reduction="sum")
        value = (fit + penalty / 2 * weights.square().sum()) / len(y)
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach())

    with torch.enable_grad():
        solver.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach().numpy(), float(bias.detach())


def _grams(text: str) -> set[str]:
    words = re.findall(r"\w+(?:'\w+)?|[!?]", text.lower())
    return {*words, *(f"{one} {two}" for one, two in pairwise(words))}
