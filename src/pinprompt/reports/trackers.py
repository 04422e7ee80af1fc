"""Progress of a run: as text and as a share for the terminal, and as a progress bar in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from pinprompt.methods.table import row_of
from pinprompt.recipe.recipe import Recipe
from pinprompt.values import Event, counted
from pinprompt.wording import by_role


def share(recipe: Recipe, event: Event, minutes: float) -> float:
    """The share of a search that is done after a step, from 0 to 1, by the limit that is closest."""
    budget, shares = recipe.budget, [0.0]
    if row_of(recipe.method).kind == "rl":
        shares.append((event.step + 1) / recipe.q_learning.steps)
    if budget.calls:
        shares.append(event.data.get("calls", 0) / budget.calls)
    if budget.minutes:
        shares.append(minutes / budget.minutes)
    return min(1.0, max(shares))


LONGEST = 120
"""Letters of a prompt in a line about a step; one with examples has many."""


def sentence(event: Event) -> str:
    """A step as text: the best prompt so far with its score, and the cost."""
    data = event.data
    support = data.get("support") or []
    rows = f" on {data['rows']} rows" if data.get("rows") else ""  # a race asks more and more rows
    shown = by_role(data["best_prompt"])
    parts = [f"best {data['score_best']:.4g}{rows}", repr(shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}...")]
    if data.get("score_mean") is not None:
        parts.append(f"mean {data['score_mean']:.4g}")
    if support:
        parts.append("support " + "/".join(f"{size:.0f}" for size in support[:8]))
    parts.append(f"{counted(data['distinct'], 'prompt')}, {counted(data['calls'], 'call')}")
    return ", ".join(parts)


# A progress bar for notebooks, with the best prompt so far. Needs only IPython.


PAUSE = 0.2
"""Seconds between two drawings of the bar."""


def in_notebook() -> bool:
    """True in a notebook kernel, which shows HTML; not in a terminal or IPython shell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class Bar:
    """An event listener that shows a run in the output of its notebook cell."""

    def __init__(self, recipe: Recipe, show: Callable[[str], Callable[[str], None]] | None = None) -> None:
        self._recipe, self._started, self._drawn = recipe, time.monotonic(), float("-inf")
        self._done, self._words = 0.0, "loading models"
        self._update = (show or _shown)(self._html())

    def __call__(self, event: Event) -> None:
        """Show an event."""
        minutes = (time.monotonic() - self._started) / 60
        if event.kind == "step":
            self._done, self._words = share(self._recipe, event, minutes), sentence(event)
            if time.monotonic() - self._drawn < PAUSE:
                return
        elif event.kind == "evaluating":
            self._words = f"evaluating {event.data['name']} on {event.data['split']}"
        elif event.kind == "end":
            self._done, self._words = 1.0, f"finished after {minutes:.1f} minutes"
        else:
            return
        self._drawn = time.monotonic()
        self._update(self._html())

    def _html(self) -> str:
        return f'<progress max="1" value="{self._done:.3f}"></progress> <code>{escape(self._words)}</code>'


def _shown(html: str) -> Callable[[str], None]:
    """Show HTML below the cell; what is returned replaces it."""
    from IPython.display import HTML, display

    handle: Any = display(HTML(html), display_id=True)
    return lambda changed: handle.update(HTML(changed))
