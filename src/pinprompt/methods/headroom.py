"""Before most calls are spent: what a search is expected to add, and what more labelled rows would.

Some prompts were asked on the same rows, v [P, N]. With an additive model v = mean + prompt + row + noise, the variance
between prompts and the noise follow from the mean squares. The best of K prompts, chosen on M rows, is expected to be

    gain = sigma^2 / sqrt(sigma^2 + noise / M) * e(K)        e(K): expected maximum of K standard normal numbers

better than the average prompt; the hand-written prompt's own lead, shrunk by how uncertain it is, is subtracted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import erfinv, linspace
from torch import float64 as double

from pinprompt.values import Floats


@dataclass(frozen=True)
class Headroom:
    """Shares from 0 to 1."""

    manual: float
    """How often the hand-written prompt is right on the labelled rows."""
    rows: int
    """How many rows these are."""
    half: float | None
    """The same if it is taught by half of these rows; None if nothing is learnt from rows."""
    gain: float
    """What a search is expected to add to it."""

    def facts(self) -> dict[str, Any]:
        """As in events and result.json."""
        return {**asdict(self), "sentence": self.sentence()}

    def sentence(self) -> str:
        """What a person should know."""
        found = f"the prompt to beat is right on {self.manual:.1%} of the {self.rows} labelled rows"
        if self.half is not None and self.half < self.manual:
            found += f" ({self.half:.1%} with half of them as examples, so more labelled rows should help)"
        if self.manual >= 1.0:
            return f"{found}: no search can do better on them"
        return f"{found}; a search is expected to add about {100 * self.gain:.0f} points"


def expected_gain(values: Floats, manual: float, prompts: int, rows: int) -> float:
    """What the best of `prompts` prompts, chosen on `rows` rows, adds to the hand-written one.

    `values` [P, N] are those of prompts on the same rows, `manual` is the hand-written prompt's mean on them.
    """
    count, asked = values.shape
    if count < 2 or asked < 2:
        return 0.0
    means, middle = values.mean(axis=1), float(values.mean())
    rest = values - means[:, None] - values.mean(axis=0)[None, :] + middle
    noise = float((rest**2).sum() / ((count - 1) * (asked - 1)))
    between = max(0.0, float(means.var(ddof=1)) - noise / asked)
    if between == 0.0:
        return 0.0
    best = between / math.sqrt(between + noise / rows) * expected_maximum(prompts)
    lead = (manual - middle) * between / (between + noise / asked)
    return float(min(max(0.0, best - lead), max(0.0, 1.0 - manual)))


def expected_maximum(count: int) -> float:
    """The expected maximum of `count` standard normal numbers, by numerical integration of their quantiles."""
    shares = linspace(0.5e-4, 1 - 0.5e-4, 10_000, dtype=double)
    return float((math.sqrt(2) * erfinv(2 * shares ** (1 / count) - 1)).mean())
