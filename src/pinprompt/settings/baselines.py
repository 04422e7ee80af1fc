"""Settings of the methods that PIN is compared with. The defaults are the published ones where there are any.

`planned()` says how many prompts a method scores on train and on dev at the most. Methods that use gradients count in
prompts too: a forward pass over all training rows is 1, its backward pass 2 more.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinprompt.settings import Section


class RandomSettings(Section):
    """Random search: the frozen LM writes, nothing is learnt; the floor that any search has to beat."""

    prompts: int = Field(96_000, ge=1, description="Prompts to write; as many as PIN's published schedule.")
    batch: int = Field(16, ge=1, description="Prompts written and scored at each step.")
    temperature: float = Field(1.0, gt=0, description="Temperature of the writer; 1 is the LM itself.")
    finalists: int = Field(16, ge=1, description="Best prompts that are scored on dev at the end.")

    def planned(self) -> tuple[int, int]:
        """Prompts on train and on dev at the most."""
        return self.prompts, self.finalists


class BeamSettings(Section):
    """Beam search over the frozen LM: the likeliest prompts are scored, with ever wider beams."""

    width: int = Field(16, ge=1, description="Width of the first beam; each further one is twice as wide.")
    prompts: int = Field(96_000, ge=1, description="Different prompts to score; as many as PIN's published schedule.")
    batch: int = Field(16, ge=1, description="Prompts scored at each step.")
    finalists: int = Field(16, ge=1, description="Best prompts that are scored on dev at the end.")

    def planned(self) -> tuple[int, int]:
        """Prompts on train and on dev at the most."""
        return self.prompts, self.finalists


class SoftPromptSettings(Section):
    """Soft prompt tuning: vectors in place of words, trained by gradient; the answer is a tensor."""

    vectors: int | None = Field(None, ge=1, le=4096, description="Prompt vectors; none: policy.length.")
    epochs: int = Field(400, ge=1, description="Passes over the training rows.")
    batch: int = Field(16, ge=1, description="Training rows per gradient step.")
    learning_rate: float = Field(1e-2, gt=0, le=1e30, description="Adam's learning rate.")
    init: Literal["vocabulary", "random"] = Field(
        "vocabulary", description="Where the vectors start: at random words of the task model, or at random points."
    )
    eval_every: int = Field(5, ge=1, description="Epochs between scorings on train and on dev; the best on dev stays.")

    def planned(self) -> tuple[int, int]:
        """Prompts' worth on train and on dev at the most: the start and the end are scored too."""
        scored = self.epochs // self.eval_every + 2
        return 3 * self.epochs + scored, scored


class AutoPromptSettings(Section):
    """AutoPrompt: one token at a time is exchanged for what the gradient says would lower the loss."""

    tokens: int | None = Field(None, ge=1, le=512, description="Tokens in a prompt; none: policy.length.")
    steps: int = Field(100, ge=1, description="Exchanges that are tried.")
    batch: int = Field(16, ge=1, description="Training rows per gradient pass.")
    accumulate: int = Field(10, ge=1, description="Gradient passes per step, at most one round of the training rows.")
    candidates: int = Field(10, ge=1, description="Tokens that are tried at each step.")
    criterion: Literal["accuracy", "score"] = Field(
        "accuracy", description="What a candidate must raise: accuracy (where the task has one), or the task's score."
    )
    init: Literal["mask", "vocabulary"] = Field(
        "mask", description="The first prompt: mask tokens (where the model has one), or random words."
    )
    skip_label_words: bool = Field(True, description="Keep the label words out of prompts.")
    skip_capitals: bool = Field(False, description="Keep words with a capital letter out of prompts.")
    finalists: int = Field(16, ge=1, description="Best prompts that are handed over; dev decides among them.")

    def planned(self) -> tuple[int, int]:
        """Prompts' worth on train and on dev at the most."""
        return self.steps * (3 + self.candidates) + 1, self.steps + 1


class PezSettings(Section):
    """PEZ: gradient at the nearest words, applied to vectors that stay continuous."""

    tokens: int | None = Field(None, ge=1, le=512, description="Tokens in a prompt; none: policy.length.")
    steps: int = Field(5000, ge=1, description="Gradient steps.")
    batch: int = Field(16, ge=1, description="Training rows per gradient step.")
    optimiser: Literal["adafactor", "adamw"] = Field(
        "adafactor", description="adafactor as published for language models, adamw as published for CLIP."
    )
    learning_rate: float = Field(0.3, gt=0, le=1e30, description="The optimiser's learning rate.")
    weight_decay: float = Field(0.0, ge=0, description="The optimiser's weight decay.")
    clip: float | None = Field(1.0, gt=0, description="Greatest gradient norm; none: any.")
    init: Literal["labels", "vocabulary"] = Field(
        "labels", description="Where the vectors start: at the label words (where there are some), or at random words."
    )
    eval_every: int = Field(
        100, ge=1, description="Steps between scorings: of the prompt as it is, and of the least loss since."
    )
    skip_label_words: bool = Field(False, description="Keep the label words out of prompts.")
    degenerate: bool = Field(
        False, description="Forget the continuous vectors at every step, as the released language-model code does."
    )
    finalists: int = Field(16, ge=1, description="Best prompts that are handed over; dev decides among them.")

    def planned(self) -> tuple[int, int]:
        """Prompts' worth on train and on dev at the most: each scoring is of two prompts."""
        scored = 2 * (self.steps // self.eval_every + 2)
        return 3 * self.steps + scored, scored


class GripsSettings(Section):
    """GrIPS: phrases of an instruction are deleted, swapped, paraphrased and put back, as long as that helps."""

    start: Literal["instructions", "manual"] = Field(
        "instructions", description="The prompt to edit: the task's instruction, or its manual prompt."
    )
    level: Literal["phrase", "word", "sentence"] = Field("phrase", description="What is edited as one piece.")
    candidates: int = Field(5, ge=1, description="Edited prompts at each step (m).")
    edits: int = Field(1, ge=1, description="Edits that make a candidate (l).")
    steps: int = Field(10, ge=1, description="Steps at the most (n).")
    patience: int = Field(2, ge=1, description="Steps in a row without a better prompt that end the search (P).")
    annealing: bool = Field(False, description="Sometimes accept a worse prompt, at the temperature 10 exp(-i/5).")
    operations: tuple[Literal["delete", "swap", "substitute", "add"], ...] = Field(
        ("delete", "swap", "substitute", "add"), min_length=1, description="Edits to choose among."
    )
    entropy_weight: float = Field(10.0, ge=0, description="Weight of the entropy of the predicted labels.")
    parser: str = Field(
        "chunker", description="Who finds phrases: chunker (ours), supar:crf-con-en (published), or module:function."
    )
    paraphraser: str = Field(
        "writer",
        description="Who rewrites phrases: writer (the policy LM), pegasus (published), seq2seq:MODEL, or "
        "module:function.",
    )
    paraphrases: int = Field(10, ge=1, le=100, description="Rewritings of a phrase, of which one is taken at random.")
    finalists: int = Field(16, ge=1, description="Best prompts that are scored on dev at the end.")

    def planned(self) -> tuple[int, int]:
        """Prompts on train and on dev at the most."""
        return self.steps * self.candidates + 1, self.finalists
