"""Text-classification models by name: texts in, probabilities of a label out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.models.passes import pad_of, passes, window_of


@dataclass
class Classifier:
    """A frozen sequence classifier."""

    model: Any
    tokenizer: Any
    name: str = ""
    rows: int = 32

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the model's outputs."""
        names = self.model.config.id2label
        return [str(names[place]) for place in sorted(names)]

    def place(self, label: str) -> int:
        """A label's place, by its name (any case), as LABEL_n, or as a number."""
        for place, known in enumerate(self.labels):
            if label.strip().lower() in (known.lower(), f"label_{place}", str(place)):
                return place
        raise SettingError(f"the classifier '{self.name}' has no label '{label}'; {did_you_mean(label, self.labels)}")

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Probabilities [N, labels]; long texts are cut to the model's window."""
        window, pad = window_of(self.model.config, self.tokenizer), pad_of(self.tokenizer)
        read = [self.tokenizer(text, truncation=True, max_length=window)["input_ids"] for text in texts]
        found = np.zeros((len(texts), len(self.labels)))
        device = self.model.device
        for places, ids, mask in passes(read, self.rows, window, pad):
            with torch.no_grad():
                logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            logits = logits[: len(places)].float().cpu().double()
            # A single output is the log-odds of the second of two labels.
            odds = torch.cat([-logits, logits], 1) / 2 if logits.shape[1] == 1 else logits
            found[places] = torch.softmax(odds, -1).numpy()[:, : found.shape[1]]
        return found
