"""Settings of the style-transfer task."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinprompt.settings import Section


class StyleTransferSettings(Section):
    """Unsupervised style transfer: the prompt stands before a text, the model writes it anew in another style."""

    kind: Literal["style-transfer"] = "style-transfer"
    dataset: str | None = Field(
        None, description="Style data of the catalogue: books, vader-products, yelp, shakespeare, ..."
    )
    direction: str | None = Field(None, description="Such as negative-to-positive; none: the data's first direction.")
    data: str | None = Field(
        None, description="Folder with the dataset's files; none: from a package, where one has them."
    )
    source: str | None = Field(None, description="File with texts to rewrite, one a line (in place of a dataset).")
    target: str | None = Field(None, description="File with texts in the wanted style, one a line.")
    test: str | None = Field(None, description="File with texts to report on; none: held out of the source file.")
    references: str | None = Field(None, description="File with human rewrites of the test texts, line by line.")
    split: int = Field(13, ge=0, description="Which draw of training, dev and judge texts; or of a published folder.")
    model: str = Field("facebook/opt-125m", description="The task model: hub id, folder, .gguf, alias or remote:name.")
    template: str = Field('{prompt} "{text}" "', description="Text with {prompt} and {text}; it ends in an open quote.")
    top_k: int = Field(10, ge=1, description="Tokens that the task model samples among.")
    temperature: float = Field(1.0, gt=0, description="Temperature of the task model.")
    max_new_tokens: int | None = Field(
        None, ge=1, description="Longest output in tokens; none: by the source's length n, max(1.5 n, n + 10)."
    )
    lower: bool | None = Field(None, description="Lower-case the outputs; none: as the dataset's texts are.")
    rows: int = Field(64, ge=4, description="Rows of every pass of the task model; fixed, so that grouping is moot.")
    sources: int = Field(2, ge=1, description="Source texts that every prompt is scored on.")
    samples: int = Field(32, ge=1, description="Outputs of which the best counts.")
    bootstraps: int = Field(4, ge=1, description="Blocks of `samples` outputs; the score is the mean of their best.")
    dev_sources: int = Field(16, ge=1, description="Source texts that prompts are chosen on.")
    dev_bootstraps: int | None = Field(None, ge=1, description="Blocks per dev source; none: as in training.")
    test_sources: int | None = Field(None, ge=1, description="At most so many test texts (a seeded draw); none: all.")
    test_samples: int = Field(32, ge=1, description="Outputs per text of which the best is reported.")
    content: Literal["bertscore", "alignment"] = Field(
        "bertscore", description="Content judge: bertscore (as the released code), alignment (as the paper's CTC)."
    )
    encoder: str = Field("minilm", description="The encoder of the content judge and of trained style judges.")
    encoder_layer: int = Field(-1, description="Its hidden layer for the content judge; -1 is the last.")
    baseline: float | None = Field(
        None, ge=0, lt=1, description="What unrelated texts score, for bertscore; none: measured on the source texts."
    )
    style: str = Field("trained", description="Style judge of the search: a classification model, or trained here.")
    style_label: str | None = Field(None, description="Its label for the target style; none: by name or number.")
    test_style: str = Field(
        "trained", description="Style judge of the report: a classification model, or trained here."
    )
    test_style_label: str | None = Field(None, description="Its label for the target style; none: by name or number.")
    style_layer: int = Field(-1, description="The encoder's hidden layer that trained style judges read; -1: the last.")
    judge_lines: int = Field(1000, ge=10, description="Texts per style that a trained judge is made from, at the most.")
    force_judge: bool = Field(False, description="Use a trained style judge even if it cannot tell the styles apart.")
    fluency: str = Field("perplexity", description="Fluency judge: an acceptability classifier, or perplexity.")
    fluency_label: str = Field("0", description="The acceptability classifier's label for an acceptable text.")
    fluency_model: str | None = Field(
        None,
        description="The LM whose perplexity is reported; none: the task model, or the writer where that is remote.",
    )
    manual: str | None = Field(None, description="A hand-written prompt to compare with; none: by dataset.")
    instruction: str | None = Field(None, description="A hand-written instruction to compare with; none: by dataset.")
    context_examples: int = Field(2, ge=0, description="Texts per style in the context offered to the writer.")
