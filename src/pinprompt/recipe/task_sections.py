"""The sections of a recipe that belong to tasks, and to the models that tasks ask: here, or behind an API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pinprompt.recipe.sections import Section

MANNERS = (
    "key_env", "concurrency", "requests_per_minute", "timeout", "retries", "resends", "longest_wait", "give_up_after",
    "max_mb",
)  # fmt: skip
"""Settings that say how patiently a server is asked, and not what: a resumed run may change them."""
ADDRESS = re.compile(
    r"https?://(?:[a-z0-9][a-z0-9._-]*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[a-z0-9._~!$&'()*+,;=:@%/-]*)?",
    re.IGNORECASE | re.ASCII,
)
"""ASCII only, so that what is shown to the user is what is connected to: letters of other alphabets look alike."""


class ClassificationSettings(Section):
    """Few-shot text classification: the model reads the prompt with a text and predicts a label's word."""

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
    test_rows: int | None = Field(None, ge=1, description="Maximum number of test rows (a seeded draw); none: all.")
    reward: Literal["gap", "accuracy", "log-likelihood"] = Field("gap", description="What a prompt's score measures.")
    weight_wrong: float = Field(180.0, gt=0, description="Weight of a negative gap (lambda 1).")
    weight_right: float = Field(200.0, gt=0, description="Weight of a positive gap (lambda 2).")
    calibrate: Literal["none", "batch", "content-free"] = Field(
        "none",
        description="Remove a prompt's bias towards certain labels, measured on the training rows (batch, no further "
        "calls) or on texts without content (content-free, three calls per prompt).",
    )
    prior: dict[str, float] = Field(
        default_factory=dict, description="Label to share of the texts, for calibrate; none: all labels the same."
    )
    first_block: int = Field(
        8, ge=1, description="Rows in the first block of a race, rounded up to as many of each class; blocks double."
    )
    strict_words: bool = Field(False, description="Refuse label words of several tokens.")
    context_examples: int = Field(2, ge=0, description="Examples per class in the context offered to the writer.")

    @field_validator("calibrate", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Recipes of earlier versions have true (content-free) or false here."""
        return {True: "content-free", False: "none"}[value] if isinstance(value, bool) else value

    @field_validator("words", "prior", mode="before")
    @classmethod
    def _labels_as_text(cls, value: object) -> object:
        """Labels may be numbers in Python: {0: "terrible"} is {"0": "terrible"}."""
        return {str(label): one for label, one in value.items()} if isinstance(value, Mapping) else value

    @field_validator("prior")
    @classmethod
    def _shares(cls, value: dict[str, float]) -> dict[str, float]:
        for label, share in value.items():
            if not share > 0:
                raise ValueError(f"the share of '{label}' must be above 0, it is {share}")
        return value


class StyleTransferSettings(Section):
    """Unsupervised style transfer: the prompt comes before a text, and the model rewrites it in another style."""

    kind: Literal["style-transfer"] = "style-transfer"
    dataset: str | None = Field(
        None, description="Style data of the catalogue: books, vader-products, yelp, shakespeare, ..."
    )
    direction: str | None = Field(None, description="Such as negative-to-positive; none: the data's first direction.")
    data: str | None = Field(
        None, description="Folder with the dataset's files; none: from a package, where one has them."
    )
    source: str | None = Field(None, description="File with texts to rewrite, one per line (in place of a dataset).")
    target: str | None = Field(None, description="File with texts in the wanted style, one per line.")
    source_style: str | None = Field(None, description="What the source style is called; none: the source file's name.")
    target_style: str | None = Field(None, description="What the target style is called; none: the target file's name.")
    test: str | None = Field(None, description="File with texts to report on; none: held out of the source file.")
    references: str | None = Field(None, description="File with human rewrites of the test texts, line by line.")
    split: int = Field(13, ge=0, description="Which draw of training, dev and judge texts; or of a published folder.")
    model: str = Field("facebook/opt-125m", description="The task model: hub id, folder, .gguf, alias or remote:name.")
    template: str = Field(
        '{prompt} "{text}" "',
        description="Text with {prompt} and {text}; it ends in an open quote. A prompt with {text} in it replaces it.",
    )
    top_k: int = Field(10, ge=1, description="Tokens that the task model samples among.")
    temperature: float = Field(1.0, gt=0, description="Temperature of the task model.")
    max_new_tokens: int | None = Field(
        None, ge=1, description="Longest output in tokens; none: by the source's length n, max(1.5 n, n + 10)."
    )
    lower: bool | None = Field(None, description="Lower-case the outputs; none: as the dataset's texts are.")
    rows: int = Field(
        64, ge=4, description="Rows of every pass of the task model; fixed, so that batching changes nothing."
    )
    sources: int = Field(2, ge=1, description="Source texts that prompts are scored on, see draw.")
    draw: Literal["step", "fixed"] = Field(
        "step",
        description="Which sources: step draws new ones at each step of Q-learning, and each prompt is scored on one "
        "of them (as published); fixed scores every prompt on the same ones, as every other method always does.",
    )
    reward: Literal["mean", "gain"] = Field(
        "mean",
        description="What an output is worth: mean of content and style (as published; a copy of the text has half of "
        "it), or gain: content times what the style gains over the text's own (a copy has nothing).",
    )
    first_block: int = Field(4, ge=1, description="Texts of the first block, for methods that race.")
    samples: int = Field(32, ge=1, description="Outputs of which the best counts.")
    bootstraps: int = Field(4, ge=1, description="Blocks of `samples` outputs; the score is the mean of their best.")
    dev_sources: int = Field(16, ge=1, description="Source texts that prompts are chosen on.")
    dev_bootstraps: int | None = Field(None, ge=1, description="Blocks per dev source; none: as in training.")
    test_sources: int | None = Field(None, ge=1, description="Maximum number of test texts (a seeded draw); none: all.")
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
    judge_lines: int = Field(1000, ge=10, description="Maximum number of texts per style to train a judge on.")
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


class DrawingSettings(Section):
    """How pictures are drawn for a found prompt (extra `diffusion`)."""

    model: str = Field("stabilityai/stable-diffusion-2-1-base", description="A diffusers pipeline: hub id or folder.")
    images: int = Field(4, ge=1, le=64, description="Pictures per prompt, each with its own seed.")
    steps: int = Field(25, ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(9.0, ge=0, description="Guidance scale.")
    size: int | None = Field(512, ge=8, le=4096, description="Width and height in pixels; none: the pipeline's own.")
    scheduler: Literal["dpm", "own"] = Field(
        "dpm", description="Sampler: dpm (DPM-Solver multistep, as published) or the pipeline's own."
    )


class InversionSettings(Section):
    """Words for a picture: a prompt's score is the cosine of its CLIP embedding and the picture's."""

    kind: Literal["inversion"] = "inversion"
    images: tuple[str, ...] = Field(
        (), description="Target pictures: one file, several (their shared content or style), or folders of them."
    )
    model: str = Field(
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        description="The CLIP or SigLIP model that scores: hub id, folder, or emoji-clip (comes with the package).",
    )
    style: Literal["caption", "tags", "words"] = Field(
        "words",
        description="What is written: a caption (a phrase such as people say), tags with commas, or a list of words.",
    )
    context: str | None = Field(
        None, description="Text offered to the writer as task context; none: what is said of other pictures, by style."
    )
    overlong: Literal["refuse", "cut"] = Field(
        "refuse",
        description="A prompt beyond the model's text window: refuse (a recorded failure) or cut (as published).",
    )
    manual: str | None = Field(None, description="A hand-written prompt to compare with.")
    drawing: DrawingSettings = Field(
        default_factory=DrawingSettings, description="How pictures are drawn for the found prompt."
    )


class CustomSettings(Section):
    """Any function from a prompt's text to a number."""

    kind: Literal["custom"] = "custom"
    function: str = Field(
        "", description="'module:name' of a function that maps a prompt (or a list of them) to scores."
    )
    stochastic: bool = Field(False, description="The function may answer differently for the same prompt.")
    calls_per_prompt: int = Field(1, ge=1, description="Model calls that one prompt costs, for the budget.")
    context: str = Field("", description="Text offered to the writer as task context.")


class ModelSettings(Section):
    """Task models on this machine: in what precision and in what shape they compute."""

    precision: Literal["float32", "bf16", "int8"] = Field(
        "float32",
        description="What a task model computes in: float32, bf16 (GPUs; CPUs that have it), int8 (CPUs). Lower ones "
        "change scores; `pinprompt bench score` shows by how much.",
    )
    read: Literal["prompts", "prefixes"] = Field(
        "prompts",
        description="How a causal model reads prompts behind a text: whole, or token by token so that prompts which "
        "begin alike share their beginning (pays where a policy writes few beginnings).",
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Tokens in a pass of a causal model, where one prompt has fewer; none: 64, or 256 with "
        '`read = "prefixes"`.',
    )


class RemoteSettings(Section):
    """Any server that speaks OpenAI's protocol; a model of it is named in a recipe as 'remote:<model name>'."""

    base_url: str = Field("http://127.0.0.1:8000/v1", description="The server's address, including /v1.")
    key_env: str = Field(
        "OPENAI_API_KEY",
        description="Name of the environment variable that holds the key; the key itself is never stored.",
    )
    answers: Literal["auto", "completions", "chat", "constrained", "parsed"] = Field(
        "auto",
        description="How labels are read: log-probabilities of completions or chat, constrained or parsed answers; "
        "auto asks the server once and takes the first that works.",
    )
    instruction: str = Field(
        "Which word comes next: {words}? Answer with one word.",
        description="The question after the text where labels are answered in a chat; {words} are the label words.",
    )
    window: int = Field(4096, ge=64, description="Maximum number of tokens that the model reads (three bytes each).")
    concurrency: int = Field(8, ge=1, le=256, description="Maximum number of concurrent requests.")
    requests_per_minute: float | None = Field(None, gt=0, description="Maximum number of requests per minute.")
    timeout: float = Field(60.0, gt=0, description="Seconds for one request, from first byte sent to last received.")
    retries: int = Field(5, ge=0, le=100, description="Retries after an error (429, 5xx, no connection).")
    resends: int = Field(
        1, ge=0, le=10, description="Retries after an answer that was cut, late or not JSON: it may have been billed."
    )
    longest_wait: float = Field(
        120.0, gt=0, description="Maximum wait in seconds before a retry, whatever the server asks for."
    )
    give_up_after: int = Field(3, ge=1, description="Requests in a row without an answer after which the run stops.")
    max_mb: float = Field(8.0, gt=0, le=1024, description="The largest answer that is read, in MB.")
    top_k: bool = Field(False, description="Send top_k when sampling; not every server knows it.")

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018  # reading it is what checks it
        except ValueError:
            # The value is not repeated: a password may be in the place of the port.
            raise ValueError("the address of a server cannot be read; an example: http://127.0.0.1:8000/v1") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the address of a server begins with http:// or https:// and names a host")
        if "@" in parts.netloc or "?" in value or "#" in value:
            raise ValueError("no user, password or query in an address: a key comes from the environment (key_env)")
        if not ADDRESS.fullmatch(value):
            raise ValueError(
                "the address of a server has a character that does not belong there; an example: "
                "https://api.example.org/v1 (a host with other letters is written in its ASCII form, xn--...)"
            )
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,79}", value):
            # Not repeated here: somebody may have put the key itself in its place.
            raise ValueError("key_env is the name of an environment variable (capitals, digits, _), not the key")
        return value
