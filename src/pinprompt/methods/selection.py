"""Choosing the answer among the candidates: by their scores on dev, or on all rows of train and dev."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import BudgetSpent
from pinprompt.methods.protocol import Block, Candidate, Finalist, Search
from pinprompt.tasks.protocol import Labelling, hand_written, report_fit_rows
from pinprompt.values import Event, Floats, Prompt, Score, derive


def row_means(score: Score) -> Floats:
    """One value per row, [N]: the mean of its draws if there are several."""
    values = np.asarray(score.values, dtype=np.float64)
    return values if values.ndim == 1 else np.asarray(values.mean(axis=1))


def ask_blocks(evaluator: Evaluator, prompts: Sequence[Prompt], blocks: Sequence[Block], *, report: bool) -> None:
    """Ask prompts on blocks of rows, one after the other, as a race does."""
    for block in blocks:
        evaluator.ask(prompts, block.rows, name=block.name, report=report)


def select(search: Search, candidates: list[Candidate], step: int) -> list[Finalist]:
    """The distinct candidates, best first: by dev score, then by training score, then by order of discovery.

    Dev scores from the search are used. If the budget only suffices for some of the others, these are the finalists; if
    it suffices for none, the training score decides.
    """
    if search.scoring.choose == "greedy":  # other methods have no greedy prompts
        candidates = [one for one in candidates if one.source == "greedy"] or candidates
    if search.scoring.choose == "rows" and (finalists := by_rows(search, candidates)):
        return announce(search, finalists, step)
    first = _distinct(candidates)
    devs = {text: candidate.dev for text, candidate in first.items() if candidate.dev is not None}
    if "dev" in search.splits:
        untried = [candidate.prompt for text, candidate in first.items() if text not in devs]
        scores = _affordable(search, untried, "dev")
        devs |= {prompt.text: score.value for prompt, score in zip(untried, scores, strict=False)}
    finalists = [Finalist(one, devs.get(text)) for text, one in first.items() if text in devs or not devs]
    worst = float("-inf")
    finalists.sort(key=lambda f: (worst if f.dev is None else f.dev, f.candidate.score), reverse=True)
    return announce(search, finalists, step)


def by_rows(search: Search, candidates: list[Candidate]) -> list[Finalist]:
    """The distinct candidates and the hand-written prompts, by their mean over all rows of train and dev.

    A tie goes to the hand-written prompt, so the answer is never worse than it on these rows. Only prompts for which
    the budget suffices on every split are finalists; [] if there are none.
    """
    by_hand = [Candidate(Prompt(text), name, float("-inf")) for name, text in hand_written(search.task).items()]
    first = _distinct([*by_hand, *candidates])
    prompts = [candidate.prompt for candidate in first.values()]
    splits = [split for split in ("train", "dev") if split in search.splits]
    scores: list[list[Score]] = [[] for _ in prompts]
    for split in splits:
        found = _affordable(search, prompts, split)
        prompts = prompts[: len(found)]
        for own, score in zip(scores, found, strict=False):
            own.append(score)
    tried = [(one, own) for one, own in zip(first.values(), scores, strict=True) if len(own) == len(splits)]
    values = [np.concatenate([row_means(score) for score in own]) for _, own in tried]
    means = [float(np.mean(rows)) for rows in values]
    seed = derive(search.seed, "selection", "chances")
    chances = chances_of_best(np.array(values), seed) if tried else []
    order = sorted(range(len(tried)), key=lambda place: -means[place])
    finalists = []
    for place in order:
        candidate, own = tried[place]
        dev = own[-1].value if "dev" in splits else None
        scored = replace(candidate, score=own[0].value)
        finalists.append(Finalist(scored, dev, chances[place], len(values[place])))
    return finalists


def ensemble(search: Search, finalists: Sequence[Finalist], size: int) -> list[Prompt]:
    """The answer, and up to `size` - 1 finalists that each make the mean output most likely on train and dev.

    Only finalists whose answers on all of these rows are known take part, so this costs nothing.
    """
    task, rows = search.task, report_fit_rows(search.task) or search.rows()
    prompts = [finalist.candidate.prompt for finalist in finalists]
    answers = {prompt.text: search.evaluator.table.get(prompt.text) for prompt in prompts}
    waiting = [prompt for prompt in prompts[1:] if not answers[prompt.text].missing(rows)]
    chosen = prompts[:1]
    if not isinstance(task, Labelling) or not chosen or answers[chosen[0].text].missing(rows):
        return chosen
    fit = report_fit_rows(task)

    def worth(prompt: Prompt) -> float:
        return float(np.mean(task.combined([answers[one.text] for one in (*chosen, prompt)], rows, fit)))

    while waiting and len(chosen) < size:
        best = max(waiting, key=worth)
        waiting.remove(best)
        chosen.append(best)
    return chosen


def _distinct(candidates: Sequence[Candidate]) -> dict[str, Candidate]:
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.prompt.text, candidate)
    return first


def _affordable(search: Search, prompts: list[Prompt], split: str) -> list[Score]:
    """The scores of as many prompts as the calls suffice for.

    Minutes limit the search, but not this: the answer should be scored on dev.
    """
    try:
        return search.evaluator.score(prompts, split, report=search.evaluator.budget.expired())
    except BudgetSpent as spent:
        return list(spent.scores)


def announce(search: Search, finalists: list[Finalist], step: int) -> list[Finalist]:
    """Emit events with the finalists and the answer."""
    for finalist in finalists:
        search.emit(Event("finalist", step, facts_of(finalist)))
    if finalists:
        search.emit(Event("selected", step, facts_of(finalists[0])))
    return finalists


def chances_of_best(values: Floats, seed: int) -> list[float]:
    """The probability of each of n prompts to be the best, from their values on the same rows, [n, rows].

    A Bayesian bootstrap: rows get random weights (Dirichlet), and the share of draws in which a prompt has the largest
    weighted mean is its probability; a tie counts for the first.
    """
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(values.shape[1]), size=2000)
    winners = (values @ weights.T).argmax(axis=0)
    return [float(np.mean(winners == place)) for place in range(len(values))]


def facts_of(finalist: Finalist) -> dict[str, object]:
    """A finalist as in events and result.json."""
    candidate = finalist.candidate
    facts = {"prompt": candidate.prompt.text, "source": candidate.source, "score": candidate.score, "dev": finalist.dev}
    if finalist.chance is not None:
        facts |= {"chance": round(finalist.chance, 4), "rows": finalist.rows}
    return facts
