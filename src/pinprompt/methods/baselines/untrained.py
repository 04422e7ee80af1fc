"""Baselines that learn nothing: hand-written prompts, samples from the frozen LM, and beam search over it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.protocol import Candidate, Outcome, Search
from pinprompt.methods.trials import Trials
from pinprompt.policy.reader import Prefix
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import UntrainedSettings
from pinprompt.tasks.protocol import draft_named
from pinprompt.values import Event, Prompt

BATCH = 16
"""Prompts scored per step of a search."""


def answer(search: Search, settings: None = None, *, name: str) -> Outcome:
    """The task's baseline of that name as the only candidate."""
    text = draft_named(search.task, name)
    if text is None:
        named = [draft.name for draft in search.task.drafts() if draft.name]
        has = f"it has: {', '.join(named)}" if named else "it has none"
        raise SettingError(
            f"the task '{search.task.info.name}' has no prompt '{name}'; {has}. Give its text in the task."
        )
    prompt = Prompt(text)
    try:
        score = search.score([prompt])[0]
    except BudgetSpent:
        return Outcome([], "budget")
    data = {"score_mean": score.value, "score_best": score.value, "best_prompt": prompt.text, "distinct": 1}
    search.emit(Event("step", 1, {**data, "calls": search.evaluator.charged_calls}))
    return Outcome([Candidate(prompt, name, score.value)], "finished", steps=1)


manual = partial(answer, name="manual")
instructions = partial(answer, name="instructions")
in_context = partial(answer, name="in-context")


# Random search: the frozen LM writes prompts with the same filter and constraints; nothing is learnt.


def random_search(search: Search, settings: UntrainedSettings) -> Outcome:
    """Sample, score, keep the best, until the prompts or the budget end."""
    trials = Trials(search, "sampled")
    trials.resume()
    writer = search.writer()
    steps = -(-settings.prompts // BATCH)
    for step in range(trials.step, steps):
        count = min(BATCH, settings.prompts - step * BATCH)
        try:
            scores = trials.score(writer.lm_sample(count, trials.random))
        except BudgetSpent:
            return trials.finish("budget")
        trials.tell(step, [score.value for score in scores])
        trials.remember(step + 1)
        trials.save_if_due()
    return trials.finish("finished")


# Beam search over the frozen LM: its most likely prompts under the same constraints, doubling the width.


WIDTH = 16
"""Width of the first beam; it doubles each round."""
_PASSES = 4  # rows at a time: a whole beam times the vocabulary would not fit into memory
_ROUNDS = 32  # number of doublings after which any vocabulary is exhausted


def beam(search: Search, settings: UntrainedSettings) -> Outcome:
    """Score the finished beams, most likely first, and widen the beam, until the prompts or the budget end."""
    trials = Trials(search, "beam")
    state, _ = trials.resume() or ({}, {})  # also empty if the first prompts did not fit into the budget
    writer, step = search.writer(), trials.step
    done = int(state.get("done", 0))
    for number in range(int(state.get("round", 0)), _ROUNDS):
        width = WIDTH << number
        prompts = [writer.prompt(ids) for ids in beams(writer, width)]
        while len(trials) < settings.prompts:
            part: dict[str, Prompt] = {}
            room = min(BATCH, settings.prompts - len(trials))
            while done < len(prompts) and len(part) < room:
                # A wider beam contains most of the narrower one; known scores are not computed again.
                if trials.mean_of(prompts[done]) is None:
                    part.setdefault(prompts[done].text, prompts[done])
                done += 1
            if not part:
                break
            try:
                scores = trials.score(list(part.values()))
            except BudgetSpent:
                return trials.finish("budget")
            trials.tell(step, [score.value for score in scores], width=width)
            step += 1
            trials.remember(step, {"round": number, "done": done})
            trials.save_if_due()
        if len(trials) >= settings.prompts or len(prompts) < width:
            break
        done = 0
    if not len(trials):
        raise SettingError("no beam meets the constraints; loosen them")
    return trials.finish("finished")


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
    size = _PASSES * writer.batch
    for first in range(0, len(level), size):
        part = level[first : first + size]
        every = writer.lm_logprobs([prefix for prefix, _ in part]).cpu().double()
        for (prefix, total), logprobs in zip(part, every, strict=True):
            yield prefix, total, logprobs
