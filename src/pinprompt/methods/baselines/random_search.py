"""Random search: the frozen LM itself writes prompts, under the same filter and constraints; nothing is learnt."""

from __future__ import annotations

from collections.abc import Callable

from pinprompt.errors import BudgetSpent
from pinprompt.methods.bookkeeping import Progress
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import RandomSettings


def random_search(search: Search, writer: Callable[[], Writer], settings: RandomSettings) -> Outcome:
    """Sample, score, keep the best, until the prompts or the budget end."""
    progress = Progress(search, "sampled")
    progress.resume()
    made = writer()
    steps = -(-settings.prompts // settings.batch)
    for step in range(progress.step, steps):
        count = min(settings.batch, settings.prompts - step * settings.batch)
        try:
            scores = progress.score(made.lm_sample(count, progress.random, settings.temperature))
        except BudgetSpent:
            return progress.finish("budget", settings.finalists)
        progress.tell(step, [score.value for score in scores])
        progress.remember(step + 1)
        progress.save_if_due()
    return progress.finish("finished", settings.finalists)
