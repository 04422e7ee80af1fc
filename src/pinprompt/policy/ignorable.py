"""The ignorable set of a prefix: everything but the k likeliest of the tokens that may be written there (F_I)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pinprompt.errors import SettingError
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.reader import Prefix
from pinprompt.policy.vocabulary import Vocabulary


class Ignorable:
    """Kept sets by prefix; a function of the frozen LM and the constraints alone."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, k: int | None) -> None:
        if k is not None and not 1 <= k <= backbone.vocabulary_size:
            raise SettingError(
                f"policy.k is {k}, but the writer's vocabulary has {backbone.vocabulary_size} tokens; "
                "give a smaller k, or none to switch the filter off"
            )
        self.backbone, self.vocabulary, self.k = backbone, vocabulary, k

    def kept(self, prefixes: Sequence[Prefix], states: Tensor) -> Tensor:
        """Kept sets, bool [n, V], of n prefixes whose states are the first n rows of [rows, d].

        The k largest logits among the allowed tokens, ties kept; tokens that a required word forces stay whatever
        their logit. The product runs over all rows, padding too, so that its shape never changes.
        """
        allowed = torch.stack([self.vocabulary.allowed(prefix) for prefix in prefixes]).to(states.device)
        if self.k is None or self.k >= self.vocabulary.writable:
            return allowed
        logits = self.backbone.logits(states)[: len(prefixes)]
        logits = logits.masked_fill(~allowed, -torch.inf)
        threshold = torch.topk(logits, self.k, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
        forced = torch.tensor([self.vocabulary.forced(prefix) for prefix in prefixes], device=states.device)
        return allowed & ((logits >= threshold) | forced[:, None])
