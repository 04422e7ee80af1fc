"""A readout: from the log-probabilities of words after a prompt to label scores, learnt from labelled rows.

An answer has the log-probabilities of the label words, l [C], and of other words that the model tends to say, x [W].
The scores of the labels are linear in both:

    f = s l~ + U l~ + V x~ + m        l~, x~: centred on the rows; x~ also divided by its spread times sqrt(W)

The first term is the prior: the user's label words, calibrated, with the weight s. U and V are what the rows teach, by
ridge regression of the targets (1 for the row's label, -1 / (C - 1) for the others) on what the prior leaves. Every
class has the same weight, however many rows it has. Weights are averaged over several strengths of the ridge: a
strength chosen for each prompt would overfit. Leave-one-out scores follow from the diagonal of the hat matrix, without
a second fit, and a temperature that makes them most likely turns scores into probabilities. The rows decide between
this readout, the calibrated label words and the label words as they are: the one that makes their labels most likely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pinprompt.maths.labels import DIGITS, Floats, Ints, batch_offsets, log_likelihood

STRENGTHS = (0.1, 0.3, 1.0, 3.0)
"""Strengths of the ridge, of which the mean is taken."""
PRIOR = 0.1
"""The weight s of the calibrated label words before a row is seen."""
OWN = 0.3
"""How freely the weights of label words are learnt, relative to all other words together."""
SPREAD = 0.3
"""Added to a word's standard deviation: a word that hardly varies says little."""
SEEN, MOST_WORDS = 2, 500
"""Words of a server are learnt if it gives them on this many rows; at most this many of them, the most frequent."""
TEMPERATURES = np.exp(np.linspace(np.log(0.3), np.log(30.0), 47))
SIZES = (5, 10, 20)
"""Numbers of words per label that a readout may keep, in turn."""
FAITHFUL = 0.9
"""Share of the variance of all words' scores that the kept words must reproduce on rows left out."""
KEPT_STRENGTH = 0.2
"""Strength of the ridge by which kept words take over the weights of all, relative to their mean variance."""


@dataclass(frozen=True, eq=False)
class Said:
    """What a model said on N rows: log-probabilities of the label words, `own` [N, C], and of other words.

    A local model gives those of the same words on every row, `others` [N, W]. A server gives its most likely words, row
    by row (`likeliest`); a word that is not among them is at most as likely as the last of them.
    """

    own: Floats
    words: tuple[str, ...] = ()
    others: Floats | None = None
    likeliest: Sequence[Mapping[str, float]] = ()

    def of(self, words: Sequence[str]) -> Floats:
        """The log-probabilities [N, W] of these words."""
        if self.others is not None:
            place = {word: number for number, word in enumerate(self.words)}
            return self.others[:, [place[word] for word in words]]
        if not self.likeliest:
            return np.zeros((len(self.own), 0))
        least = [min(row.values(), default=np.nan) for row in self.likeliest]
        rows = [[row.get(word, low) for word in words] for row, low in zip(self.likeliest, least, strict=True)]
        logs = np.array(rows, dtype=np.float64).reshape(len(rows), len(words))
        failed = np.isnan(least)
        logs[failed] = 0.0 if failed.all() else logs[~failed].mean(axis=0)  # a row without an answer says nothing
        return logs


def said(contents: Any, classes: int, words: Sequence[str] = ()) -> Said:
    """What a model said, from its answers on rows: an array [N, C + W], or `as_content` for each row.

    `words` are the W words of an array. The words of a server are those that it gives on several of these rows.
    """
    if isinstance(contents, np.ndarray) or not len(contents) or not isinstance(contents[0], Mapping):
        logs = np.asarray(contents, dtype=np.float64).reshape(len(contents), -1)
        return Said(logs[:, :classes], tuple(words), logs[:, classes:])
    likeliest = [one["words"] for one in contents]
    counts = Counter(word for row in likeliest for word in row)
    common = tuple(word for word, count in counts.most_common(MOST_WORDS) if count >= SEEN)
    return Said(np.array([one["labels"] for one in contents], dtype=np.float64), common, None, likeliest)


def as_content(labels: Sequence[float], words: Mapping[str, float]) -> dict[str, Any]:
    """An answer of a server as a cell of the table: log-probabilities of the label words and its most likely words."""
    return {"labels": list(labels), "words": dict(words)}


@dataclass(frozen=True, eq=False)
class Readout:
    """Label scores of an answer: `weights` [C, C + W] times its log-probabilities, plus `bias` [C].

    The first C columns are those of the label words, the others those of `words`, the clearest first.
    """

    weights: Floats
    bias: Floats
    words: tuple[str, ...] = ()
    speaks: tuple[int, ...] = ()
    """The label that each word speaks for."""

    def probabilities(self, given: Said) -> Floats:
        """Label probabilities [N, C] of rows."""
        logs = np.concatenate([given.own, given.of(self.words)], axis=1) if self.words else given.own
        return np.exp(_log_softmax(logs @ self.weights.T + self.bias))


def pack(readout: Readout, labels: Sequence[str]) -> dict[str, Any]:
    """A readout as JSON values: `bias` by label; weights of label words (`own`) and other `words` for every label."""
    columns = [dict(zip(labels, column, strict=True)) for column in readout.weights.T.tolist()]
    spoken = zip(readout.words, readout.speaks, columns[len(labels) :], strict=True)
    return {
        "bias": dict(zip(labels, readout.bias.tolist(), strict=True)),
        "own": dict(zip(labels, columns[: len(labels)], strict=True)),
        "words": [{"word": word, "for": labels[label], "weights": weights} for word, label, weights in spoken],
    }


def unpack(packed: Mapping[str, Any]) -> Readout:
    """The inverse of `pack`; ValueError if these are not finite numbers for the same labels."""
    try:
        labels, words = list(packed["bias"]), list(packed["words"])
        columns = [packed["own"][label] for label in labels] + [one["weights"] for one in words]
        weights = np.array([[float(column[label]) for label in labels] for column in columns]).T
        bias = np.array([float(value) for value in packed["bias"].values()])
        named = tuple(str(one["word"]) for one in words), tuple(labels.index(one["for"]) for one in words)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a readout: {error!r}") from error
    if not (len(labels) and np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise ValueError("not a readout: some of its numbers are not finite")
    return Readout(weights, bias, *named)


def calibrated(offsets: Sequence[float]) -> Readout:
    """The readout of label words alone: their log-probabilities minus offsets [C]."""
    return Readout(np.eye(len(offsets)), -np.asarray(offsets, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Fit:
    """A readout and, for the rows that it was learnt from, the probabilities [N, C] without the row itself."""

    readout: Readout
    left_out: Floats


def fit(given: Said, labels: Ints, prior: Floats, words: Sequence[str] | None = None) -> Fit:
    """The readout that rows teach by what was said on them, labels [N] and prior [C].

    `words` are the words to learn, by default all; without any, the readout is the calibrated label words.
    """
    words = given.words if words is None else words
    own, others, classes = given.own, given.of(words), given.own.shape[1]
    plain = calibrated(batch_offsets(own, labels, prior).tolist())
    chances = plain.probabilities(given)
    if not words or np.bincount(labels, minlength=classes).min() < 2:
        return Fit(plain, chances)  # nothing to learn, or too few rows to leave one out
    weights = _weights(labels)
    # Features [N, C + W]: label words, then the others, each centred and scaled.
    centres, scales = _standard(own, others, weights)
    features = (np.concatenate([own, others], axis=1) - centres) / scales
    offset = PRIOR * (own - centres[:classes])
    targets = _targets(labels, classes) - offset
    taught, middle, left_out = _ridge(features, targets, weights)
    shift = np.log(prior * classes)
    scores = offset + left_out
    temperature = _temperature(scores, labels, weights, shift)
    learnt = np.exp(_log_softmax(temperature * scores + shift))
    raw = calibrated((-shift).tolist())
    kinds = [(plain, chances), (raw, raw.probabilities(given)), (None, learnt)]
    likely = [np.average(log_likelihood(one, labels), weights=weights) for _, one in kinds]
    best, chances = kinds[int(np.argmax(likely))]
    if best is not None:
        return Fit(best, chances)
    spoken = features[:, classes:]
    evidence = np.stack([spoken[labels == one].mean(0) - spoken[labels != one].mean(0) for one in range(classes)])
    chosen, speaks, kept = _kept(others, evidence, spoken @ taught[classes:])
    slopes = np.concatenate([PRIOR * np.eye(classes) + taught[:classes] / scales[:classes, None], kept])
    slopes = np.round(temperature * slopes, DIGITS)
    centre = np.concatenate([centres[:classes], np.average(others[:, chosen], axis=0, weights=weights)])
    bias = np.round(temperature * middle + shift - centre @ slopes, DIGITS)
    names = tuple(words[place] for place in chosen)
    return Fit(Readout(slopes.T + 0.0, bias + 0.0, names, tuple(speaks.tolist())), learnt)


def regression(features: Floats, labels: Ints, prior: Floats) -> Fit:
    """The same ridge regression on any features [N, F] of the rows, such as embeddings of their texts, without a prior.

    Every class needs two rows or more.
    """
    weights = _weights(labels)
    centre, shift = np.average(features, axis=0, weights=weights), np.log(prior * len(prior))
    taught, middle, left_out = _ridge(features - centre, _targets(labels, len(prior)), weights)
    temperature = _temperature(left_out, labels, weights, shift)
    slopes = np.round(temperature * taught, DIGITS) + 0.0
    bias = np.round(temperature * middle + shift - centre @ slopes, DIGITS) + 0.0
    return Fit(Readout(slopes.T, bias), np.exp(_log_softmax(temperature * left_out + shift)))


def _weights(labels: Ints) -> Floats:
    """Weights of rows [N], with a mean of 1, that give every class the same weight."""
    counts = np.bincount(labels)
    return np.asarray(len(labels) / (np.count_nonzero(counts) * counts[labels]))


def _targets(labels: Ints, classes: int) -> Floats:
    return np.where(np.eye(classes)[labels] > 0, 1.0, -1.0 / (classes - 1))


def _standard(own: Floats, others: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Centres and scales [C + W] of the features; all words together weigh as much as the label words divided by OWN.

    Log-probabilities of label words are centred on the calibrated mean, so every class counts alike.
    """
    logs = np.concatenate([own, others], axis=1)
    centres = np.average(logs, axis=0, weights=weights)
    spread = np.sqrt(np.average((logs - centres) ** 2, axis=0, weights=weights)) + SPREAD
    shares = np.concatenate([np.full(own.shape[1], np.sqrt(own.shape[1]) / OWN),
                             np.full(others.shape[1], np.sqrt(others.shape[1]))])  # fmt: skip
    return centres, spread * shares


def _ridge(features: Floats, targets: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Weights [F, C] and intercept [C] of ridge regression, and leave-one-out predictions [N, C].

    All are means over the strengths. With rows scaled by the root of their weight, K = A A^T has the eigenvectors Q and
    values k, and the hat matrix of a strength is Q k / (k + strength) Q^T, plus the share of the intercept. The
    prediction of a row left out is y - (y - f) / (1 - h).
    """
    root = np.sqrt(weights)[:, None]
    middle = np.average(targets, axis=0, weights=weights)
    scaled, wanted = root * features, root * (targets - middle)
    values, vectors = np.linalg.eigh(scaled @ scaled.T)
    values = np.maximum(values, 0.0)
    inside = vectors.T @ wanted
    taught = np.zeros((features.shape[1], targets.shape[1]))
    left_out = np.zeros_like(targets)
    for strength in STRENGTHS:
        dual = vectors @ (inside / (values + strength)[:, None])
        taught += scaled.T @ dual / len(STRENGTHS)
        rest = (wanted - vectors @ (values[:, None] * inside / (values + strength)[:, None])) / root
        hat = (vectors**2) @ (values / (values + strength)) + weights / weights.sum()
        left_out += (targets - rest / (1 - hat)[:, None]) / len(STRENGTHS)
    return taught, middle, left_out


def _temperature(scores: Floats, labels: Ints, weights: Floats, shift: Floats) -> float:
    """The factor of the scores that makes the labels most likely."""
    likelihoods = [
        np.average(_log_softmax(factor * scores + shift)[np.arange(len(labels)), labels], weights=weights)
        for factor in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmax(likelihoods))])


def _kept(others: Floats, evidence: Floats, wanted: Floats) -> tuple[Ints, Ints, Floats]:
    """The words to keep, as places, the label that each speaks for, and slopes that give the scores of all words.

    A label's words are those that stand out most among its rows (`evidence` [C, W]), so that a person can see why. They
    are taught `wanted` [N, C], the scores that all words give: as many words as reproduce them on rows left out. Each
    word counts relative to the mean of the kept ones, so it does not matter among which words a model normalises.
    """
    ranks = np.argsort(np.argsort(-evidence, axis=1, kind="stable"), axis=1, kind="stable")
    order = np.argsort(ranks.min(axis=0), kind="stable")
    for size in SIZES:
        chosen = order[: size * len(evidence)]
        relative = others[:, chosen] - others[:, chosen].mean(axis=1, keepdims=True)
        spread = relative.std(axis=0) + SPREAD
        short = (relative - relative.mean(axis=0)) / spread
        gram = short.T @ short
        inverse = np.linalg.inv(gram + KEPT_STRENGTH * np.trace(gram) / len(chosen) * np.eye(len(chosen)))
        slopes = inverse @ short.T @ wanted
        hat = np.einsum("ij,jk,ik->i", short, inverse, short)
        rest = (wanted - short @ slopes) / (1 - hat)[:, None]
        if (rest**2).sum() <= (1 - FAITHFUL) * (wanted**2).sum():
            break
    slopes /= spread[:, None]
    return chosen, ranks[:, chosen].argmin(axis=0), slopes - slopes.mean(axis=0)


def _log_softmax(scores: Floats) -> Floats:
    top = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(top - np.log(np.exp(top).sum(axis=1, keepdims=True)))
