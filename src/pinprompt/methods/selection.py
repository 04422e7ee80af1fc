"""Choosing the answer: candidates are scored on dev, and dev decides; all are kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pinprompt.errors import BudgetSpent
from pinprompt.methods.protocol import Candidate, Finalist, Search
from pinprompt.values import Event

Floats = NDArray[np.float64]


def select(search: Search, candidates: list[Candidate], step: int) -> list[Finalist]:
    """The distinct candidates, best first: by dev score, then by training score, then by order of discovery.

    A dev score that was paid for while searching counts as it is. Where the budget allows only some of the others on
    dev, these are the finalists; where it allows none, the training score decides among all.
    """
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.prompt.text, candidate)
    devs = {text: candidate.dev for text, candidate in first.items() if candidate.dev is not None}
    if "dev" in search.task.splits:
        untried = [candidate.prompt for text, candidate in first.items() if text not in devs]
        # Minutes limit the search, not this: an answer that was never tried on dev would be worth little.
        unlimited = search.evaluator.budget.expired()
        try:
            scores = search.evaluator.score(untried, "dev", report=unlimited)
        except BudgetSpent as spent:
            scores = spent.scores
        devs |= {prompt.text: score.value for prompt, score in zip(untried, scores, strict=False)}
    finalists = [Finalist(one, devs.get(text)) for text, one in first.items() if text in devs or not devs]
    worst = float("-inf")
    finalists.sort(key=lambda f: (worst if f.dev is None else f.dev, f.candidate.score), reverse=True)
    return announce(search, finalists, step)


def announce(search: Search, finalists: list[Finalist], step: int) -> list[Finalist]:
    """Emit an event with the finalists, and which of them is the answer."""
    for finalist in finalists:
        search.emit(Event("finalist", step, facts_of(finalist)))
    if finalists:
        search.emit(Event("selected", step, facts_of(finalists[0])))
    return finalists


def chances_of_best(values: Floats, seed: int, draws: int = 2000) -> list[float]:
    """How likely each of n prompts is to be the best, from its values on the same rows, [n, rows].

    A Bayesian bootstrap: rows get random weights (Dirichlet), and the share of draws in which a prompt has the largest
    weighted mean is its chance; a tie counts for the first.
    """
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(values.shape[1]), size=draws)
    winners = (values @ weights.T).argmax(axis=0)
    return [float(np.mean(winners == place)) for place in range(len(values))]


def facts_of(finalist: Finalist) -> dict[str, object]:
    """A finalist as events and result.json show it."""
    candidate = finalist.candidate
    facts = {"prompt": candidate.prompt.text, "source": candidate.source, "score": candidate.score, "dev": finalist.dev}
    if finalist.chance is not None:
        facts |= {"chance": round(finalist.chance, 4), "rows": finalist.rows}
    return facts
