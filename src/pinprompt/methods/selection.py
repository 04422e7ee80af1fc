"""Choosing the answer: candidates are scored on dev, and dev decides, or all rows of train and dev; all are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pinprompt.errors import BudgetSpent
from pinprompt.methods.heats import score_whole
from pinprompt.methods.protocol import Candidate, Finalist, Search
from pinprompt.seeds import derive
from pinprompt.values import Event, Prompt, Score

Floats = NDArray[np.float64]


def select(search: Search, candidates: list[Candidate], step: int) -> list[Finalist]:
    """The distinct candidates, best first: by dev score, then by training score, then by order of discovery.

    A dev score that was paid for while searching counts as it is. Where the budget allows only some of the others on
    dev, these are the finalists; where it allows none, the training score decides among all.
    """
    if search.scoring.race:
        for candidate in candidates:  # those with all rows cost nothing; the rest as far as the budget goes
            with contextlib.suppress(BudgetSpent):
                score_whole(search.task, search.evaluator, [candidate.prompt])
    if search.scoring.choose == "rows" and (finalists := by_rows(search, candidates)):
        return announce(search, finalists, step)
    first = _distinct(candidates)
    devs = {text: candidate.dev for text, candidate in first.items() if candidate.dev is not None}
    if "dev" in search.task.splits:
        untried = [candidate.prompt for text, candidate in first.items() if text not in devs]
        scores = _affordable(search, untried, "dev")
        devs |= {prompt.text: score.value for prompt, score in zip(untried, scores, strict=False)}
    finalists = [Finalist(one, devs.get(text)) for text, one in first.items() if text in devs or not devs]
    worst = float("-inf")
    finalists.sort(key=lambda f: (worst if f.dev is None else f.dev, f.candidate.score), reverse=True)
    return announce(search, finalists, step)


def by_rows(search: Search, candidates: list[Candidate]) -> list[Finalist]:
    """The distinct candidates and the hand-written prompts, by their mean over all rows of train and dev.

    A tie goes to the hand-written prompt, so the answer is never worse on the evidence than what people write. Only
    prompts that the budget allows on every split are finalists; [] where there is none.
    """
    baselines = {name: text for name, text in search.task.baselines().items() if name != "in-context"}
    by_hand = [Candidate(Prompt(text), name, float("-inf")) for name, text in baselines.items()]
    first = _distinct([*by_hand, *candidates])
    prompts = [candidate.prompt for candidate in first.values()]
    splits = [split for split in ("train", "dev") if split in search.task.splits]
    scores: list[list[Score]] = [[] for _ in prompts]
    for split in splits:
        found = _affordable(search, prompts, split)
        prompts = prompts[: len(found)]
        for own, score in zip(scores, found, strict=False):
            own.append(score)
    tried = [(one, own) for one, own in zip(first.values(), scores, strict=True) if len(own) == len(splits)]
    values = [_row_values(search, own, splits) for _, own in tried]
    known = bool(values) and all(values)
    means = [float(np.mean(rows)) if known else _weighted(search, own, splits)
             for rows, (_, own) in zip(values, tried, strict=True)]  # fmt: skip
    seed = derive(search.seed, "selection", "chances")
    chances: list[float | None] = list(chances_of_best(np.array(values), seed)) if known else [None] * len(tried)
    order = sorted(range(len(tried)), key=lambda place: -means[place])
    finalists = []
    for place in order:
        candidate, own = tried[place]
        dev = own[-1].value if "dev" in splits else None
        rows = len(values[place]) if known else None
        finalists.append(Finalist(replace(candidate, score=own[0].value), dev, chances[place], rows))
    return finalists


def _distinct(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.prompt.text, candidate)
    return first


def _affordable(search: Search, prompts: list[Prompt], split: str) -> list[Score]:
    """The scores of the first prompts that the calls pay for.

    Minutes limit the search, not this: an answer that was never tried on dev would be worth little.
    """
    try:
        return search.evaluator.score(prompts, split, report=search.evaluator.budget.expired())
    except BudgetSpent as spent:
        return list(spent.scores)


def _row_values(search: Search, scores: Sequence[Score], splits: Sequence[str]) -> list[float]:
    """What each row of the splits is worth; [] where the task does not say."""
    parts = [search.task.row_values(score, split) for score, split in zip(scores, splits, strict=True)]
    return [value for part in parts for value in part] if all(parts) else []


def _weighted(search: Search, scores: Sequence[Score], splits: Sequence[str]) -> float:
    """The mean of the splits' scores by their numbers of rows."""
    rows = [search.task.calls(split) for split in splits]
    return float(np.average([score.value for score in scores], weights=rows if any(rows) else None))


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
