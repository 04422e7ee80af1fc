"""Random search: the frozen LM itself writes prompts, under the same filter and constraints; nothing is learnt."""

from __future__ import annotations

from pinprompt.errors import BudgetSpent
from pinprompt.methods.bookkeeping import Book
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import RandomSettings


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
