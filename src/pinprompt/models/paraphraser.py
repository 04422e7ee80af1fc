"""Other words for a phrase, by a sequence-to-sequence model such as the PEGASUS that GrIPS was published with."""

from __future__ import annotations

from typing import Any

import torch

from pinprompt.errors import ModelError
from pinprompt.models import sources

PEGASUS = "tuner007/pegasus_paraphrase"
_LONGEST = 60  # tokens of a phrase, and of what is written for it: the published setting


class Seq2SeqParaphraser:
    """Beam search of a frozen sequence-to-sequence model; the same phrase always gets the same answers."""

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        if not getattr(model.config, "is_encoder_decoder", False):
            raise ModelError(f"'{name}' is no sequence-to-sequence model, so it cannot paraphrase.")
        self.name, self.model, self.tokenizer = name, model, tokenizer

    @classmethod
    def load(cls, name: str, device: str = "cpu") -> Seq2SeqParaphraser:
        """The model of that name: hub id or folder; 'pegasus' is the published one."""
        place = PEGASUS if name == "pegasus" else name
        model, tokenizer = sources._load("AutoModelForSeq2SeqLM", place, device, False, None)
        return cls(name, model, tokenizer)

    @torch.no_grad()
    def __call__(self, phrase: str, count: int, random: torch.Generator) -> list[str]:
        """The `count` likeliest rewritings that a beam of that width finds; nothing is random here."""
        given = self.tokenizer([phrase], truncation=True, max_length=_LONGEST, return_tensors="pt")
        given = {name: tensor.to(self.model.device) for name, tensor in given.items() if name != "token_type_ids"}
        written = self.model.generate(
            **given, num_beams=count, num_return_sequences=count, max_length=_LONGEST, do_sample=False
        )
        return [str(text).strip() for text in self.tokenizer.batch_decode(written, skip_special_tokens=True)]
