"""AutoPrompt: HotFlip on the task model's own tokens, one position at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from pinprompt.errors import BudgetSpent
from pinprompt.maths.labels import accuracy
from pinprompt.methods.gradients import Gradients, TokenSpace, finite, rounds, runaway, view_of
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.methods.trials import Trials
from pinprompt.recipe.sections import AutoPromptSettings, Constraints
from pinprompt.tasks.protocol import Labelling, fit_rows
from pinprompt.values import Prompt, Score

ACCUMULATE = 10
"""Gradient passes per step, at most one epoch."""
_TRIES = 50  # tokens considered per candidate, since constraints reject many


def autoprompt(search: Search, settings: AutoPromptSettings) -> Outcome:
    """Replace tokens until the steps or the budget end; prompts are scored as texts, and the best on dev are kept."""
    run = _Exchanges(search, settings)
    trials = run.trials
    for step in range(run.resume(), settings.steps):
        try:
            loss, gradient = run.gradient()
            if not finite(loss, gradient):
                trials.save()
                return trials.diverged(runaway("autoprompt", step, None))
            place = int(torch.randint(len(run.ids), (1,), generator=trials.random))
            candidates = list(itertools.islice(run.exchanges(gradient, place), settings.candidates))
            prompts = [run.prompt(ids) for ids in (run.ids, *candidates)]
            scores = trials.score(prompts)
            ids = run.chosen(candidates, run.merits(prompts, scores))
            trials.score_on_dev(run.prompt(ids))
        except BudgetSpent:
            return run.finish("budget")
        run.ids = ids
        trials.tell(step, [score.value for score in scores], loss=loss)
        trials.remember(step + 1, {"ids": list(run.ids)})
        trials.save_if_due()
    return run.finish("finished")


def first_order(embeddings: Tensor, gradient: Tensor, token: int) -> Tensor:
    """First-order change of the loss if a token is replaced by another: (e_w - e_token) . g, [V]."""
    products: Tensor = embeddings.float() @ gradient.float()
    return products - products[token]


class _Exchanges:
    """What changes while AutoPrompt runs."""

    def __init__(self, search: Search, settings: AutoPromptSettings) -> None:
        self.search, self.settings, policy = search, settings, search.policy
        self.view = view_of(search, "autoprompt")
        labels = getattr(self.view, "label_words", ())
        self.space = TokenSpace(self.view, policy.length, policy.constraints, labels)
        self.trials = Trials(search, "autoprompt")
        self.gradients = Gradients(search, self.view)
        mask = getattr(self.view.tokenizer, "mask_token_id", None)
        # A mask is a placeholder for a word; constraints on the whole text cannot be satisfied yet.
        banned = {name: getattr(policy.constraints, name) for name in ("banned", "banned_file", "stable")}
        free = policy.constraints == Constraints(**banned)
        self.mask: int | None = mask if free else None
        self.ids: tuple[int, ...] = (
            (self.mask,) * policy.length if self.mask is not None else self.space.draw(self.trials.random)
        )

    def gradient(self) -> tuple[float, Tensor]:
        """Mean loss and gradient [n, d] of the prompt over several minibatches, at most all training rows once."""
        vectors, losses, seen = self.space.vectors(self.ids), 0.0, 0
        total = torch.zeros_like(vectors, dtype=torch.float32)
        every = self.search.rows()
        for rows in itertools.islice(rounds(every, self.trials.random), ACCUMULATE):
            loss, gradient = self.gradients(vectors, rows)
            total, losses, seen = total + gradient * len(rows), losses + loss * len(rows), seen + len(rows)
        return losses / seen, total / seen

    def exchanges(self, gradient: Tensor, place: int) -> Iterator[tuple[int, ...]]:
        """Prompts with another token at a position that satisfy the constraints, the most promising first."""
        change = first_order(self.space.embeddings, gradient[place], self.ids[place])
        tries = min(len(change), _TRIES * self.settings.candidates)
        usable = self.space.vocabulary.tokens.whole.copy()
        usable[self.ids[place]] = False
        change = change.masked_fill(~torch.from_numpy(usable).to(change.device), torch.inf)
        for token in torch.argsort(change, stable=True)[:tries].tolist():
            ids = (*self.ids[:place], token, *self.ids[place + 1 :])
            if usable[token] and self.space.keeps(tuple(one for one in ids if one != self.mask)):
                yield ids

    def merits(self, prompts: list[Prompt], scores: list[Score]) -> list[float]:
        """What a candidate must improve: accuracy, or the task's score if it has no accuracy."""
        task = self.search.task
        if not isinstance(task, Labelling):
            return [score.value for score in scores]
        rows = self.search.rows()
        tables = [task.confusion(answers, rows, fit_rows(task)) for answers in self.search.ask(prompts, rows)]
        return [float(accuracy(table)) for table in tables]

    def chosen(self, candidates: list[tuple[int, ...]], merits: list[float]) -> tuple[int, ...]:
        """The best candidate if it is better than the current prompt (the first), else the current prompt."""
        best = max(range(len(merits)), key=lambda place: (merits[place], -place))
        return self.ids if best == 0 else candidates[best - 1]

    def prompt(self, ids: tuple[int, ...]) -> Prompt:
        """A prompt for the task: text only, since the ids are not the policy's."""
        return Prompt(self.space.text(ids))

    def resume(self) -> int:
        """Resume from the last checkpoint, if there is one; returns the first step to do."""
        resumed = self.trials.resume()
        if resumed is None:
            self.trials.remember(0, {"ids": list(self.ids)})
            return 0
        self.ids = tuple(resumed[0]["ids"])
        return self.trials.step

    def finish(self, stopped: str) -> Outcome:
        """Return the best prompts; those with masks only if there are no others."""
        self.trials.save()
        found = self.trials.best(len(self.trials))
        sign = str(self.view.tokenizer.mask_token)
        whole = [one for one in found if self.mask is None or sign not in one.prompt.text]
        return Outcome((whole or found)[: self.search.scoring.finalists], stopped, self.trials.step)
