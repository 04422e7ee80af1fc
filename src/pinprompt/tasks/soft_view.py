"""The differentiable view of a classification task, for soft prompts, AutoPrompt and PEZ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from pinprompt.errors import SettingError
from pinprompt.values import Answers

if TYPE_CHECKING:
    from pinprompt.tasks.classification import ClassificationTask

_BATCH = 32


class SoftView:
    """A `Differentiable` view of a classification task: prompt vectors [n, d] take the place of the prompt."""

    def __init__(self, task: ClassificationTask) -> None:
        if not task.model.words.single:
            raise SettingError("methods that use gradients need label words of one token each; choose other words")
        self.task, self.model = task, task.model
        self.tokenizer = task.model.tokenizer
        self.label_words = tuple(task.data.words.values())
        """The label words, for methods that exclude them from prompts or start with them."""
        embed = task.model.model.get_input_embeddings()
        # Some models scale their embeddings, so that the table itself is not the input of the first layer.
        plain = type(embed) is torch.nn.Embedding
        with torch.no_grad():
            every = torch.arange(embed.weight.shape[0], device=embed.weight.device)
            self.embeddings: torch.Tensor = embed.weight.detach() if plain else embed(every)

    def loss(self, vectors: Any, rows: Sequence[int]) -> torch.Tensor:
        """Mean cross-entropy among the label words over rows; differentiable in the vectors."""
        targets = torch.as_tensor(self.task.targets(rows), device=vectors.device)
        return torch.nn.functional.cross_entropy(self._logits(vectors, rows, self.model.words.firsts), targets)

    def answers(self, vectors: Any, rows: Sequence[int]) -> Answers:
        """The log-probabilities after prompt vectors, without a gradient."""
        words = self.model.words
        with torch.no_grad():
            parts = [
                words.log_probs(self._logits(vectors, rows[start : start + _BATCH], words.tokens))
                for start in range(0, len(rows), _BATCH)
            ]
        return Answers(tuple(rows), torch.cat(parts).double().numpy())

    def _logits(self, vectors: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        sides, skips = [], []
        for text in self.task.inputs(tuple(rows)).texts:
            left, right, skip = self._sides(text, len(vectors))
            sides.append((left, right))
            skips.append(skip)
        return self.model.vector_logits(vectors, sides, tokens, skips)

    def _sides(self, text: str, vectors: int) -> tuple[list[int], list[int], int]:
        """The ids to the left and right of the prompt, with the text truncated to fit; masks before the mask."""
        encoder, mask = self.model.encoder, self.model.mask_token
        room = encoder.window - vectors
        size = None
        while True:
            shown = text if size is None else encoder.shorten(text, size)
            left, right = encoder.pieces(self.task.template.around_prompt(shown, mask))
            ids = [*encoder.lead, *left], [*right, *encoder.trail]
            over = len(ids[0]) + len(ids[1]) - room
            if over <= 0:
                return *ids, self.task.template.frame("").around(shown, mask)[1]
            if size is not None and size <= 0:
                raise SettingError(
                    f"{vectors} prompt vectors leave no room for a text in a window of {encoder.window}."
                )
            size = (len(encoder.pieces([text])[0]) if size is None else size) - over
