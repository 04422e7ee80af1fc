"""The numbers of style transfer, from judgements that were already made. Pure arithmetic on lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pinprompt.seeds import derive

_RESAMPLES = 1000


def joint(content: float, style: float) -> float:
    """What one output is worth, 0 to 100: the mean of content and style (each 0 to 1), as the released code has it.

    The paper's text says their sum; a factor of two is the reward scale's business.
    """
    return 50.0 * (content + style)


def gain(content: float, style: float, before: float) -> float:
    """What one output is worth, 0 to 100: its content times what its style gains over that of the source.

    A copy gains nothing, whatever the judge thinks of the source, and a text of another content keeps nothing.
    """
    return 100.0 * content * max(0.0, style - before)


def best_of_blocks(values: Sequence[float], blocks: int) -> tuple[float, list[int]]:
    """The mean over consecutive blocks of the best value of each, and their places."""
    if not values or len(values) % blocks:
        raise ValueError(f"{len(values)} values cannot be cut into {blocks} equal blocks")
    size = len(values) // blocks
    places = [max(range(block * size, (block + 1) * size), key=lambda place: values[place]) for block in range(blocks)]
    return sum(values[place] for place in places) / blocks, places


def corpus(content: Sequence[float], style: Sequence[float], fluent: Sequence[float]) -> dict[str, float]:
    """Content, style, fluency, J and GM in percent, over one output per source.

    J is the mean of the three sentence by sentence multiplied; GM the geometric mean of the three corpus scores.
    `style` and `fluent` are 0 or 1 as published (predicted or not), `content` is between.
    """
    c, s, f = (np.asarray(part, dtype=np.float64) for part in (content, style, fluent))
    means = [100 * float(part.mean()) for part in (c, s, f)]
    return {
        "content": means[0],
        "style": means[1],
        "fluency": means[2],
        "j": 100 * float((c * s * f).mean()),
        "gm": math.exp(sum(map(math.log, means)) / 3) if min(means) > 0 else 0.0,
    }


def corpus_intervals(
    content: Sequence[float], style: Sequence[float], fluent: Sequence[float], seed: int
) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of `corpus`, over sources."""
    parts = np.stack([np.asarray(part, dtype=np.float64) for part in (content, style, fluent)])
    rows = _resampled(parts.shape[1], seed)
    means = 100 * parts[:, rows].mean(-1)
    joints = 100 * parts.prod(0)[rows].mean(-1)
    geometric = np.cbrt(means.prod(0))
    named = dict(zip(("content", "style", "fluency", "j", "gm"), (*means, joints, geometric), strict=True))
    return {name: _ends(values) for name, values in named.items()}


def mean_intervals(values: Mapping[str, Sequence[float]], seed: int) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of plain means over sources."""
    return {
        name: _ends(np.asarray(column, dtype=np.float64)[_resampled(len(column), seed)].mean(-1))
        for name, column in values.items()
    }


def sentence_bleu(texts: Sequence[str], references: Sequence[str]) -> list[float] | None:
    """Sentence BLEU of each text against its reference, 0 to 100; None where sacrebleu is not installed."""
    try:
        import sacrebleu
    except ImportError:
        return None
    return [
        float(sacrebleu.sentence_bleu(text, [reference]).score)
        for text, reference in zip(texts, references, strict=True)
    ]


def _resampled(count: int, seed: int) -> np.ndarray:
    random = np.random.Generator(np.random.Philox(derive(seed, "bootstrap")))
    return random.integers(0, count, (_RESAMPLES, count))


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
