"""Selecting prompts: early stopping of bad prompts during a search (`Heats`), and choosing the answer at its end.

With heats, the rows of train come in blocks, and every prompt is scored on the first block. It advances to the next
block while its mean is among the `keep` best of all prompts that were scored on the same number of rows. No row is
scored twice. A prompt that stops early gets its mean so far, plus the average further gain of fully scored prompts, so
that easy first rows are not an advantage.

The answer is chosen among the candidates by their scores on dev, or on all rows of train and dev.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pinprompt.errors import BudgetSpent
from pinprompt.methods.protocol import Candidate, Evaluator, Finalist, Search
from pinprompt.tasks.protocol import Task
from pinprompt.values import Event, Prompt, Score, derive


@dataclass(frozen=True)
class Raced:
    """A prompt's score, and its mean after each block that it was scored on."""

    score: Score
    means: tuple[float, ...] = ()


class Heats:
    """The best means of a search after each block of train."""

    def __init__(self, task: Task, evaluator: Evaluator, keep: int) -> None:
        self.task, self.keep, self.blocks = task, keep, train_blocks(task)
        self._evaluator = evaluator
        self._texts: set[str] = set()
        self._best: list[list[float]] = [[] for _ in self.blocks]
        self._gains = [0.0] * len(self.blocks)
        self._whole = 0

    def score(self, prompts: Sequence[Prompt]) -> list[Raced]:
        """Scores in order; if the budget ends, BudgetSpent has those that were scored on at least one block."""
        given: list[list[Score]] = [[] for _ in prompts]
        means: list[list[float]] = [[] for _ in prompts]
        racing, refusal = list(range(len(prompts))), None
        for number, block in enumerate(self.blocks):
            try:
                scores = self._evaluator.score([asked(prompts[place], given[place]) for place in racing], block)
            except BudgetSpent as spent:
                scores, refusal = spent.scores, str(spent)
            for place, score in zip(racing, scores, strict=False):
                given[place].append(score)
                values = self.task.pooled(given[place])
                means[place].append(sum(values) / len(values))
            if refusal is not None:
                break
            new = {prompts[place].text: means[place][number] for place in racing}
            mark = self._mark(number, [mean for text, mean in new.items() if text not in self._texts])
            racing = [place for place in racing if means[place][number] >= mark]
        for prompt, own in zip(prompts, means, strict=True):
            self.enter(prompt.text, own)
        raced = [Raced(self._score(scores, own), tuple(own)) for scores, own in zip(given, means, strict=True) if own]
        if refusal is not None:
            raise BudgetSpent(refusal, scores=raced)
        return raced

    def enter(self, text: str, means: Sequence[float]) -> None:
        """Add a prompt to those that others are compared with; each text counts once."""
        if text in self._texts or not means:
            return
        self._texts.add(text)
        for best, mean in zip(self._best, means, strict=False):
            heapq.heappush(best, mean)
            if len(best) > self.keep:
                heapq.heappop(best)
        if len(means) == len(self.blocks):
            self._whole += 1
            self._gains = [gain + means[-1] - mean for gain, mean in zip(self._gains, means, strict=True)]

    def _mark(self, number: int, new: Sequence[float]) -> float:
        """The minimum mean after a block with which a prompt advances, including the new ones."""
        best = heapq.nlargest(self.keep, (*self._best[number], *new))
        return best[-1] if len(best) == self.keep else float("-inf")

    def _score(self, scores: Sequence[Score], means: Sequence[float]) -> Score:
        whole = self.task.whole_splits(scores).get("train")
        calls = sum(score.calls for score in scores)
        if whole is not None:
            return replace(whole, calls=calls)
        failures = tuple(failure for score in scores for failure in score.failures)
        gain = self._gains[len(means) - 1] / self._whole if self._whole else 0.0
        return Score(means[-1] + gain, calls=calls, failures=failures)


def train_blocks(task: Task) -> tuple[str, ...]:
    """The blocks that make up train; they come first."""
    rows, found = task.calls("train"), 0
    for number, block in enumerate(task.blocks, 1):
        found += task.calls(block)
        if found >= rows:
            return task.blocks[:number]
    return task.blocks


def score_whole(task: Task, evaluator: Evaluator, prompts: Sequence[Prompt], *, report: bool = False) -> None:
    """Score prompts on all of train, block by block, so that rows of earlier heats are not scored again."""
    given: list[list[Score]] = [[] for _ in prompts]
    for block in train_blocks(task):
        scores = evaluator.score([asked(*pair) for pair in zip(prompts, given, strict=True)], block, report=report)
        for own, score in zip(given, scores, strict=True):
            own.append(score)
    for prompt, own in zip(prompts, given, strict=True):
        evaluator.derive(prompt, own)


def asked(prompt: Prompt, scores: Sequence[Score]) -> Prompt:
    """A prompt for its next block: with the offsets measured on its first block."""
    return replace(prompt, offsets=scores[0].offsets) if scores else prompt


Floats = NDArray[np.float64]


def select(search: Search, candidates: list[Candidate], step: int) -> list[Finalist]:
    """The distinct candidates, best first: by dev score, then by training score, then by order of discovery.

    Dev scores from the search are used. If the budget only suffices for some of the others, these are the finalists; if
    it suffices for none, the training score decides.
    """
    if search.scoring.race:
        for candidate in candidates:  # prompts with all rows cost nothing; the others as far as the budget suffices
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

    A tie goes to the hand-written prompt, so the answer is never worse than it on these rows. Only prompts for which
    the budget suffices on every split are finalists; [] if there are none.
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
    """The scores of as many prompts as the calls suffice for.

    Minutes limit the search, but not this: the answer should be scored on dev.
    """
    try:
        return search.evaluator.score(prompts, split, report=search.evaluator.budget.expired())
    except BudgetSpent as spent:
        return list(spent.scores)


def _row_values(search: Search, scores: Sequence[Score], splits: Sequence[str]) -> list[float]:
    """The value of each row of the splits; [] if the task does not provide it."""
    parts = [search.task.row_values(score, split) for score, split in zip(scores, splits, strict=True)]
    return [value for part in parts for value in part] if all(parts) else []


def _weighted(search: Search, scores: Sequence[Score], splits: Sequence[str]) -> float:
    """The mean of the splits' scores, weighted by their numbers of rows."""
    rows = [search.task.calls(split) for split in splits]
    return float(np.average([score.value for score in scores], weights=rows if any(rows) else None))


def announce(search: Search, finalists: list[Finalist], step: int) -> list[Finalist]:
    """Emit events with the finalists and the answer."""
    for finalist in finalists:
        search.emit(Event("finalist", step, facts_of(finalist)))
    if finalists:
        search.emit(Event("selected", step, facts_of(finalists[0])))
    return finalists


def chances_of_best(values: Floats, seed: int, draws: int = 2000) -> list[float]:
    """The probability of each of n prompts to be the best, from their values on the same rows, [n, rows].

    A Bayesian bootstrap: rows get random weights (Dirichlet), and the share of draws in which a prompt has the largest
    weighted mean is its probability; a tie counts for the first.
    """
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(values.shape[1]), size=draws)
    winners = (values @ weights.T).argmax(axis=0)
    return [float(np.mean(winners == place)) for place in range(len(values))]


def facts_of(finalist: Finalist) -> dict[str, object]:
    """A finalist as in events and result.json."""
    candidate = finalist.candidate
    facts = {"prompt": candidate.prompt.text, "source": candidate.source, "score": candidate.score, "dev": finalist.dev}
    if finalist.chance is not None:
        facts |= {"chance": round(finalist.chance, 4), "rows": finalist.rows}
    return facts
