"""Prompts that nobody searched for: a task's hand-written baselines, through the same evaluator and budget."""

from __future__ import annotations

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.protocol import Candidate, Outcome, Search
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
