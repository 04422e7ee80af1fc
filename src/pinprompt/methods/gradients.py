"""For white-box methods: gradients, and the task model's tokens with their vectors and constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pinprompt.errors import ModelError, SettingError
from pinprompt.methods.protocol import Search
from pinprompt.methods.table import ROWS
from pinprompt.policy.backbone import Tokens
from pinprompt.policy.reader import Prefix
from pinprompt.policy.vocabulary import Vocabulary
from pinprompt.recipe.sections import Constraints
from pinprompt.tasks.protocol import Differentiable, WhiteBox

# Shared by methods that use gradients: the task's differentiable view, minibatches, charged gradients.


def view_of(search: Search, method: str) -> Differentiable:
    """The task's differentiable view, or an error that lists the methods that do not need it."""
    view = search.task.differentiable() if isinstance(search.task, WhiteBox) else None
    if view is None:
        others = ", ".join(row.name for row in ROWS if not row.gradients)
        raise ModelError(
            f"the method '{method}' needs gradients of the task model, but the task '{search.task.info.name}' can only "
            f"be called; use a method that needs none: {others}"
        )
    return view


BATCH = 16
"""Training rows per gradient."""


def rounds(rows: Sequence[int], random: torch.Generator) -> Iterator[list[int]]:
    """One epoch over rows in random order, in minibatches; the last one may be smaller."""
    order = [rows[place] for place in torch.randperm(len(rows), generator=random).tolist()]
    for first in range(0, len(order), BATCH):
        yield order[first : first + BATCH]


class Gradients:
    """Losses with their gradients, charged in advance: 1 call per row forward, 2 backward."""

    def __init__(self, search: Search, view: Differentiable) -> None:
        self.search, self.view = search, view

    def __call__(self, vectors: Tensor, rows: list[int]) -> tuple[float, Tensor]:
        """The mean loss over training rows and its gradient [n, d] at the given vectors."""
        self.search.evaluator.charge(3 * len(rows))
        point = vectors.detach().clone().requires_grad_(True)
        loss = self.view.loss(point, rows)
        (gradient,) = torch.autograd.grad(loss, point)
        return float(loss.detach()), gradient


def finite(loss: float, gradient: Tensor) -> bool:
    """Whether loss and gradient are finite."""
    return loss == loss and abs(loss) != float("inf") and bool(torch.isfinite(gradient).all())


def runaway(method: str, step: int, learning_rate: float | None) -> str:
    """The message for a loss that is no longer finite."""
    advice = "" if learning_rate is None else f" Lower {method}.learning_rate, which is {learning_rate:g}."
    return f"the loss or its gradient was not a finite number at step {step}, so the search ended there.{advice}"


class Descent:
    """Continuous prompt vectors [n, d] with their optimiser; a checkpoint has both."""

    def __init__(self, start: Tensor, optimiser: Callable[[list[Tensor]], torch.optim.Optimizer]) -> None:
        self.vectors = start.requires_grad_(True)
        self.optimiser = optimiser([self.vectors])

    @torch.no_grad()
    def place(self, vectors: Tensor) -> None:
        """Set the vectors; the optimiser's state is not changed."""
        self.vectors.copy_(vectors)

    def step(self, gradient: Tensor) -> None:
        """One step of the optimiser along a gradient."""
        self.vectors.grad = gradient.to(self.vectors.dtype)
        self.optimiser.step()

    def state(self) -> dict[str, Tensor]:
        """The vectors and the optimiser's state, as tensors for a checkpoint."""
        known = self.optimiser.state[self.vectors].items()
        return {"vectors": self.vectors} | {f"optimiser.{name}": torch.as_tensor(value) for name, value in known}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `state()`."""
        self.place(tensors["vectors"])
        known: dict[str, Any] = {
            # Step counts stay on the CPU, where torch's optimisers keep them.
            name.removeprefix("optimiser."): tensor.to(self.vectors.device) if tensor.ndim else tensor
            for name, tensor in tensors.items()
            if name.startswith("optimiser.")
        }
        if known:
            self.optimiser.state[self.vectors] = known


_SUFFIX = "end_of_word_suffix"


class WordEnds(Tokens):
    """Texts of tokens that mark the end of a word instead of its start, as CLIP's do.

    Its tokenizer turns the mark into a space when it decodes one text, but not when it decodes many at once.
    """

    def __init__(self, tokenizer: Any, size: int, suffix: str) -> None:
        self._suffix, self.kind = suffix, f"ends {suffix}"
        super().__init__(tokenizer, size)

    def _decode(self, sequences: list[list[int]]) -> list[str]:
        return [text.replace(self._suffix, " ").strip() for text in super()._decode(sequences)]


class TokenSpace:
    """Prompts of `length` tokens of the task model that satisfy the user's constraints.

    `without` are words (in any case) whose tokens are excluded.
    """

    def __init__(
        self, view: Differentiable, length: int, constraints: Constraints, without: Iterable[str] = ()
    ) -> None:
        self.embeddings: Tensor = view.embeddings.detach()
        self.length = length
        size = len(self.embeddings)
        ends = getattr(getattr(getattr(view.tokenizer, "backend_tokenizer", None), "model", None), _SUFFIX, None)
        tokens = WordEnds(view.tokenizer, size, ends) if ends else Tokens(view.tokenizer, size)
        self.vocabulary = Vocabulary(view.tokenizer, size, length, constraints, tokens)
        self.vocabulary.check()
        pieces = self.vocabulary.tokens.pieces
        banned = {word.strip().casefold() for word in without}
        self._kept = torch.tensor([piece.strip().casefold() not in banned for piece in pieces])
        if not bool((self.allowed(()) & self._kept).any()):
            raise SettingError("no token of the task model meets the constraints; loosen them")
        self._unit = torch.nn.functional.normalize(self.embeddings.float(), dim=-1)

    def allowed(self, prefix: Prefix) -> Tensor:
        """The tokens that may follow a prefix, bool [V] on the CPU."""
        return self.vocabulary.allowed(prefix) & self._kept

    def keeps(self, ids: Prefix) -> bool:
        """Whether a complete prompt satisfies every constraint and filter."""
        return self.vocabulary.obeys(ids) and all(
            bool(self.allowed(ids[:place])[token]) for place, token in enumerate(ids)
        )

    def text(self, ids: Iterable[int]) -> str:
        """A prompt's text for the task."""
        return self.vocabulary.text(ids)

    def word(self, token: int) -> str:
        """A token's text; its name if it has no text."""
        return self.vocabulary.tokens.pieces[token] or self.vocabulary.tokens.alone[token]

    def vectors(self, ids: Sequence[int]) -> Tensor:
        """The embeddings [n, d] of tokens."""
        return self.embeddings[torch.tensor(list(ids), device=self.embeddings.device)]

    def draw(self, random: torch.Generator) -> Prefix:
        """A random prompt that satisfies the constraints: each token uniform among the allowed ones."""
        return self._written([torch.rand(len(self.embeddings), generator=random) for _ in range(self.length)])

    def project(self, vectors: Tensor) -> Prefix:
        """The nearest allowed token of each vector by cosine, exactly, from left to right.

        The allowed tokens depend on the preceding ones only if the constraints require it.
        """
        return self._written(self.cosines(vectors).cpu())

    def cosines(self, vectors: Tensor) -> Tensor:
        """Cosines [n, V] of vectors [n, d] with every token."""
        return torch.nn.functional.normalize(vectors.detach().float(), dim=-1) @ self._unit.T

    def _written(self, merits: Sequence[Tensor] | Tensor) -> Prefix:
        """The prompt with the allowed token of the greatest merit [V] at each position.

        After a prefix without allowed tokens, the search backtracks and does not try its last token again.
        """
        ids: Prefix = ()
        dead: set[Prefix] = set()
        while len(ids) < self.length:
            mask = self.allowed(ids).clone()
            for shut in dead:
                if shut[:-1] == ids:
                    mask[shut[-1]] = False
            if bool(mask.any()):
                ids = (*ids, int(merits[len(ids)].masked_fill(~mask, -torch.inf).argmax()))
            elif ids:
                dead.add(ids)
                ids = ids[:-1]
            else:
                raise SettingError("no prompt meets all constraints together; loosen them")
        return ids
