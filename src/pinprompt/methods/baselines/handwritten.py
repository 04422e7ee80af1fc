"""Prompts that nobody searched for: a task's hand-written baselines, through the same evaluator and budget."""

from __future__ import annotations

from typing import Any

from pinprompt.errors import BudgetSpent, SettingError, did_you_mean
from pinprompt.methods.protocol import Candidate, Method, Outcome, Search
from pinprompt.values import Event, Prompt

NAMES = ("manual", "instructions", "in-context")


def fixed(name: str, settings: Any = None) -> Method:
    """The method that answers with a task's baseline of that name; there is nothing to set."""
    if name not in NAMES:
        raise SettingError(f"there is no hand-written baseline '{name}'; {did_you_mean(name, NAMES)}")

    def run(search: Search) -> Outcome:
        known = search.task.baselines()
        if name not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise SettingError(
                f"the task '{search.task.name}' has no baseline '{name}'; {has}. Give its text in the task."
            )
        prompt = Prompt(known[name])
        try:
            score = search.evaluator.score([prompt], "train")[0]
        except BudgetSpent:
            return Outcome([], "budget")
        data = {"score_mean": score.value, "score_best": score.value, "best_prompt": prompt.text, "distinct": 1}
        search.emit(Event("step", 1, {**data, "calls": score.calls}))
        return Outcome([Candidate(prompt, name, score.value)], "finished", steps=1)

    return run
