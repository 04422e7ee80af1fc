"""Baselines that learn nothing: hand-written prompts, samples from the frozen LM, and beam search over it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.bookkeeping import Book
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.policy.reader import Prefix
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import BeamSettings, RandomSettings
from pinprompt.values import Event, Prompt


def manual(search: Search, settings: None = None) -> Outcome:
    """Answer with the task's manual prompt."""
    return answer(search, "manual")


def instructions(search: Search, settings: None = None) -> Outcome:
    """Answer with the task's instruction."""
    return answer(search, "instructions")


def in_context(search: Search, settings: None = None) -> Outcome:
    """Answer with labelled examples."""
    return answer(search, "in-context")


def answer(search: Search, name: str) -> Outcome:
    """The task's baseline of that name as the only candidate."""
    known = search.task.baselines()
    if name not in known:
        has = f"it has: {', '.join(known)}" if known else "it has none"
        raise SettingError(f"the task '{search.task.name}' has no baseline '{name}'; {has}. Give its text in the task.")
    prompt = Prompt(known[name])
    try:
        score = search.evaluator.score([prompt], "train")[0]
    except BudgetSpent:
        return Outcome([], "budget")
    data = {"score_mean": score.value, "score_best": score.value, "best_prompt": prompt.text, "distinct": 1}
    search.emit(Event("step", 1, {**data, "calls": score.calls}))
    return Outcome([Candidate(prompt, name, score.value)], "finished", steps=1)


# Random search: the frozen LM writes prompts with the same filter and constraints; nothing is learnt.


def random_search(search: Search, settings: RandomSettings) -> Outcome:
    """Sample, score, keep the best, until the prompts or the budget end."""
    book = Book(search, "sampled")
    book.resume()
    writer = search.writer()
    steps = -(-settings.prompts // settings.batch)
    for step in range(book.step, steps):
        count = min(settings.batch, settings.prompts - step * settings.batch)
        try:
            scores = book.score(writer.lm_sample(count, book.random, settings.temperature))
        except BudgetSpent:
            return book.finish("budget", settings.finalists)
        book.tell(step, [score.value for score in scores])
        book.remember(step + 1)
        book.save_if_due()
    return book.finish("finished", settings.finalists)


# Beam search over the frozen LM: its most likely prompts under the same constraints, doubling the width.


_PASSES = 4  # rows at a time: a whole beam times the vocabulary would not fit into memory
_ROUNDS = 32  # number of doublings after which any vocabulary is exhausted


def beam(search: Search, settings: BeamSettings) -> Outcome:
    """Score the finished beams, most likely first, and widen the beam, until the prompts or the budget end."""
    book = Book(search, "beam")
    state, _ = book.resume() or ({"round": 0, "done": 0}, {})
    writer, step = search.writer(), book.step
    done = int(state["done"])
    for number in range(int(state["round"]), _ROUNDS):
        width = settings.width << number
        prompts = [writer.prompt(ids) for ids in beams(writer, width)]
        while len(book) < settings.prompts:
            part: dict[str, Prompt] = {}
            room = min(settings.batch, settings.prompts - len(book))
            while done < len(prompts) and len(part) < room:
                # A wider beam contains most of the narrower one; known scores are not computed again.
                if book.mean_of(prompts[done]) is None:
                    part.setdefault(prompts[done].text, prompts[done])
                done += 1
            if not part:
                break
            try:
                scores = book.score(list(part.values()))
            except BudgetSpent:
                return book.finish("budget", settings.finalists)
            book.tell(step, [score.value for score in scores], width=width)
            step += 1
            book.remember(step, {"round": number, "done": done})
            book.save_if_due()
        if len(book) >= settings.prompts or len(prompts) < width:
            break
        done = 0
    if not len(book):
        raise SettingError("no beam meets the constraints; loosen them, or raise beam.width")
    return book.finish("finished", settings.finalists)


def beams(writer: Writer, width: int) -> list[Prefix]:
    """The `width` best complete prompts of a beam search of that width, most likely first.

    Fewer if there are no more; ties are broken by the rank of the prefix.
    """
    level: list[tuple[Prefix, float]] = [((), 0.0)]
    for _ in range(writer.length):
        grown: list[tuple[Prefix, float]] = []
        for prefix, sum_before, logprobs in _continuations(writer, level):
            best = torch.topk(logprobs, min(width, len(logprobs)))
            grown += [
                ((*prefix, token), sum_before + logprob)
                for token, logprob in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                if logprob > float("-inf")
            ]
            if len(grown) > 4 * width:  # the sort is stable, so truncating early keeps the order
                grown = sorted(grown, key=lambda pair: -pair[1])[:width]
        level = sorted(grown, key=lambda pair: -pair[1])[:width]
    return [prefix for prefix, _ in level]


def _continuations(writer: Writer, level: list[tuple[Prefix, float]]) -> Iterator[tuple[Prefix, float, torch.Tensor]]:
    """Each prefix with its log-probability and those of the allowed next tokens, [V] in float64."""
    size = _PASSES * writer.rows
    for first in range(0, len(level), size):
        part = level[first : first + size]
        every = writer.lm_logprobs([prefix for prefix, _ in part]).cpu().double()
        for (prefix, total), logprobs in zip(part, every, strict=True):
            yield prefix, total, logprobs
