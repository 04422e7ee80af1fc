"""Settings of the few-shot classification task."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinprompt.settings import Section


class ClassificationSettings(Section):
    """Few-shot text classification: the prompt stands beside a text, the model says a label's word."""

    kind: Literal["classification"] = "classification"
    dataset: str | None = Field(
        None, description="A dataset of the catalogue (docs/data.md): sst-2, agnews, vader-products, ..."
    )
    data: str | None = Field(None, description="Folder with the dataset's files (16-<seed>/{train,dev}.tsv, test.tsv).")
    train: str | None = Field(None, description="File with labelled training examples (CSV, TSV or JSONL).")
    dev: str | None = Field(None, description="File with labelled examples to choose on; none: split off train.")
    test: str | None = Field(None, description="File with labelled examples to report on.")
    text_column: str = Field("text", description="Column that holds the text.")
    label_column: str = Field("label", description="Column that holds the label.")
    words: dict[str, str] = Field(default_factory=dict, description="Label to word, in the order of the classes.")
    model: str = Field("roberta-large", description="The task model: hub id, folder, .gguf file, alias or remote:name.")
    model_kind: Literal["auto", "masked", "causal"] = Field("auto", description="How the task model reads.")
    template: str | None = Field(None, description="Text with {text}, {prompt} and {mask}; none: by dataset and model.")
    spacing: Literal["single", "literal"] = Field(
        "single", description="Spaces at a prompt's ends: 'single' drops those the template has; 'literal' keeps them."
    )
    manual: str | None = Field(None, description="A hand-written prompt to compare with; none: by dataset.")
    instruction: str | None = Field(None, description="A hand-written instruction to compare with; none: by dataset.")
    shots: int = Field(16, ge=1, description="Examples per class in train and in dev.")
    split: int = Field(13, ge=0, description="Which split: seed of the k-shot draw, or of a published folder.")
    test_rows: int | None = Field(None, ge=1, description="At most so many test rows (a seeded draw); none: all.")
    reward: Literal["gap", "accuracy", "log-likelihood"] = Field("gap", description="What a prompt's score measures.")
    weight_wrong: float = Field(180.0, gt=0, description="Weight of a negative gap (lambda 1).")
    weight_right: float = Field(200.0, gt=0, description="Weight of a positive gap (lambda 2).")
    calibrate: bool = Field(False, description="Contextual calibration of the label words.")
    strict_words: bool = Field(False, description="Refuse label words of several tokens.")
    context_examples: int = Field(2, ge=0, description="Examples per class in the context offered to the writer.")
