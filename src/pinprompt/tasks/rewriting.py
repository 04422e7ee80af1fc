"""Rewrites: the model that writes them, the judges of a run, and the metrics of style transfer.

A rewriter works on single texts with the judges stored in a run, without the run's texts. There are judges for content,
style (one for the search, another for the report) and fluency; the metrics are computed from their judgements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from pinprompt.errors import DataError, RunError, SettingError
from pinprompt.judges.frozen import (
    Acceptability,
    Alignment,
    BertScore,
    Classifier,
    Encoder,
    LanguageModel,
    PerplexityFluency,
    TokenMatching,
    baseline_of,
)
from pinprompt.judges.style import (
    Embedding,
    Features,
    NamedStyle,
    StyleJudge,
    Together,
    Words,
    train_style,
    trained_from,
    trained_values,
)
from pinprompt.models.generator import Generator, Request
from pinprompt.models.loading import load_causal_lm, load_encoder, load_sequence_classifier
from pinprompt.models.sources import resolve
from pinprompt.recipe.task_sections import RemoteSettings, StyleTransferSettings, is_remote, model_and_part
from pinprompt.remote.client import open_client
from pinprompt.remote.generator import RemoteGenerator
from pinprompt.tasks.style_data import TRAINED, StyleData
from pinprompt.values import derive


class Rewrite(NamedTuple):
    """An output with the judges' values in percent; `score` is its score by `task.reward`."""

    text: str
    content: float
    style: float
    score: float


@dataclass
class Rewriter:
    """A model that rewrites texts, and the judges that rank its outputs."""

    generator: Generator
    content: TokenMatching
    style: StyleJudge
    samples: int
    reward: Literal["mean", "gain"] = "mean"
    notes: tuple[str, ...] = ()

    def rewrite(self, prompt: str, text: str, n: int = 1, seed: int = 0) -> list[Rewrite]:
        """The n best distinct rewrites of a text, out of `samples` (or n) outputs; fewer if there are fewer.

        Meaning counts first: a rewrite with a negation more or less, or with little of the content, comes after others,
        and an unchanged copy of the text last.
        """
        if not text.strip():
            raise SettingError("the text to rewrite is empty")
        (made,) = self.generator.sample([Request(prompt, text, max(n, self.samples), derive(seed, "rewrite"))])
        distinct = [one for one in dict.fromkeys(made.texts) if one]
        if not distinct:
            raise DataError(f"no rewrite: {made.failure or 'every output is empty'}")
        contents, styles = self.content([text] * len(distinct), distinct), self.style(distinct)
        before = self.style([text])[0] if self.reward == "gain" else None
        rewrites = [
            Rewrite(one, 100 * c, 100 * s, joint(c, s) if before is None else gain(c, s, before))
            for one, c, s in zip(distinct, contents, styles, strict=True)
        ]
        lost = {one.text: _negations(one.text) != _negations(text) or one.content < CONTENT for one in rewrites}
        return sorted(rewrites, key=lambda one: (unchanged(text, one.text), lost[one.text], -one.score))[:n]


CONTENT = 60.0
"""Percent of content below which a rewrite says something else."""


def _negations(text: str) -> int:
    return len(re.findall(r"\b(?:not|no|never|nobody|nothing|none|cannot|without)\b|n['\u2019]t\b", text.lower()))


def unchanged(text: str, rewrite: str) -> bool:
    """Whether a rewrite has the words of the text, whatever became of case, spaces and punctuation."""
    return _words(text) == _words(rewrite)


def _words(text: str) -> list[str]:
    # A text of signs alone ("!!!", an emoji) is its own only word.
    return re.findall(r"\w+", text.lower()) or text.split()


def open_server(settings: StyleTransferSettings, lower: bool, remote: RemoteSettings, contact: bool) -> RemoteGenerator:
    """A remote model with the interface of `Generator`; with `contact` the server is probed."""
    server = RemoteGenerator(open_client(settings.model, remote), template=settings.template, lower=lower)
    if contact:
        server.probe(max(settings.samples * settings.bootstraps, settings.test_samples))
    return server


def kept_rewriter(
    settings: StyleTransferSettings, kept: Mapping[str, Any], device: str, remote: RemoteSettings
) -> Rewriter:
    """The rewriter of a finished run, from its settings and its judges.json: no text of the run is read."""
    content, style = kept_content(settings, kept, device), kept_style(settings, kept, device)
    lower = bool(kept.get("lower"))
    if is_remote(settings.model):
        server: Any = open_server(settings, lower, remote, contact=True)
        return Rewriter(server, content, style, settings.test_samples, settings.reward, tuple(server.notes))
    model, tokenizer = load_causal_lm(settings.model, device)
    generator = Generator(model, tokenizer, template=settings.template, lower=lower)
    return Rewriter(generator, content, style, settings.test_samples, settings.reward)


PERPLEXITY = "perplexity"
CALIBRATION = 100
"""Maximum number of target texts for measuring the perplexity of fluent texts."""


@dataclass
class StyleJudges:
    """The judges of one run, and their names for the report."""

    content: TokenMatching
    reference: TokenMatching
    """BERTScore, for outputs against human rewrites."""
    style: StyleJudge
    test_style: StyleJudge
    lm: LanguageModel
    texts: list[str]
    """Human texts in the target style, to calibrate fluency on."""
    acceptability: Acceptability | None = None
    _fluency: Acceptability | PerplexityFluency | None = field(default=None, init=False, repr=False)

    @property
    def fluency(self) -> Acceptability | PerplexityFluency:
        """Created on first use: the search does not need it."""
        if self._fluency is None:
            self._fluency = self.acceptability or PerplexityFluency.calibrated(self.lm, self.texts)
        return self._fluency

    def names(self) -> dict[str, str]:
        """The judges by name. Runs with different judges are not comparable."""
        return {
            "content": self.content.name,
            "references": self.reference.name,
            "style (search)": self.style.name,
            "style (report)": self.test_style.name,
            "fluency": self.acceptability.name if self.acceptability else self.fluency.name,
            "perplexity": self.lm.name,
        }


def build_judges(
    settings: StyleTransferSettings,
    data: StyleData,
    device: str,
    task_lm: LanguageModel | None,
    writer: str | None = None,
) -> StyleJudges:
    """Load and train the judges, including the report's style judge, so that an error comes before the search.

    If the task model gives no probabilities (`task_lm` is None), perplexity is computed by the `writer`.
    """
    encoder = _encoder(settings, device)
    first, second = data.halves
    known: dict[str, Classifier] = {}
    fluency, part = model_and_part(settings.fluency)
    other = part if fluency == PERPLEXITY and part else writer if task_lm is None else None
    lm = task_lm if other is None else LanguageModel(*load_causal_lm(other, device), name=_named(other))
    if lm is None:
        raise SettingError(
            "a remote model gives no perplexity; name a local model for it: --set task.fluency=perplexity#smollm2"
        )
    read = Embedding(encoder)
    search = _style(settings, data, settings.style, known, read, first, device)
    report = _style(settings, data, settings.test_style, known, Together([read, Words()]), second, device)
    baseline = settings.baseline
    if baseline is None:
        texts = [*data.halves[0][0], *data.sources["train"], *data.sources["dev"]][:400]
        baseline = baseline_of(encoder, texts, settings.split)
    bertscore = BertScore(encoder, baseline)
    judged = fluency != PERPLEXITY
    acceptability = Acceptability(_classifier(fluency, device, known), part or "0") if judged else None
    return StyleJudges(
        content=Alignment(encoder) if settings.content == "alignment" else bertscore,
        reference=bertscore,
        style=search,
        test_style=report,
        lm=lm,
        texts=second[1][:CALIBRATION],
        acceptability=acceptability,
    )


def keep_judges(judges: StyleJudges) -> dict[str, Any]:
    """The content judge and the report's style judge as JSON values, for `kept_content` and `kept_style`."""
    style = judges.test_style
    return {
        "baseline": judges.reference.baseline,
        "style": {"label": style.label} if isinstance(style, NamedStyle) else trained_values(style),
    }


def kept_content(settings: StyleTransferSettings, kept: Mapping[str, Any], device: str) -> TokenMatching:
    encoder = _encoder(settings, device)
    if settings.content == "alignment":
        return Alignment(encoder)
    baseline = kept.get("baseline")
    if not isinstance(baseline, int | float) or not 0 <= baseline < 1:
        raise RunError(f"judges.json has no baseline of the content judge between 0 and 1: {baseline!r:.40}")
    return BertScore(encoder, float(baseline))


def kept_style(settings: StyleTransferSettings, kept: Mapping[str, Any], device: str) -> StyleJudge:
    """The report's style judge of a finished run."""
    values = kept.get("style")
    if not isinstance(values, Mapping):
        raise RunError("judges.json has no style judge; run the search again with --force")
    if settings.test_style != TRAINED:
        name, _ = model_and_part(settings.test_style)
        return NamedStyle(_classifier(name, device, {}), str(values.get("label")))
    return trained_from(values, Embedding(_encoder(settings, device)))


def _encoder(settings: StyleTransferSettings, device: str) -> Encoder:
    name, layer = model_and_part(settings.encoder)
    if layer is None:
        return Encoder(*load_encoder(name, device), name=_named(name))
    if not re.fullmatch(r"-?\d{1,4}", layer):
        raise SettingError(f"the layer of the encoder must be a number, as in '{name}#17'; given: '{layer}'")
    return Encoder(*load_encoder(name, device), name=f"{_named(name)} layer {layer}", layer=int(layer))


def _style(
    settings: StyleTransferSettings,
    data: StyleData,
    judge: str,
    known: dict[str, Classifier],
    features: Features,
    texts: tuple[list[str], list[str]],
    device: str,
) -> StyleJudge:
    if judge == TRAINED:
        return train_style(*texts, features, settings.split, force=settings.force_judge)
    name, label = model_and_part(judge)
    classifier = _classifier(name, device, known)
    if label is not None:
        return NamedStyle(classifier, label)
    for guess in (data.styles[1], data.label):
        try:
            return NamedStyle(classifier, guess)
        except SettingError:
            continue
    raise SettingError(
        f"which label of the style judge '{name}' is the target style '{data.styles[1]}'? Its labels: "
        f"{', '.join(classifier.labels)}; name one, as in '{name}#{classifier.labels[0]}'"
    )


def _classifier(name: str, device: str, known: dict[str, Classifier]) -> Classifier:
    if name not in known:
        known[name] = Classifier(*load_sequence_classifier(name, device), name=_named(name))
    return known[name]


def _named(name: str) -> str:
    """A model's name with its revision: judges with different weights are different judges."""
    return f"{name}@{resolve(name).revision[:8]}"


_RESAMPLES = 1000


def joint(content: float, style: float) -> float:
    """The score of one output, 0 to 100: the mean of content and style (each 0 to 1), as in the released code.

    The paper has their sum; the factor of two belongs to the reward scale.
    """
    return 50.0 * (content + style)


def gain(content: float, style: float, before: float) -> float:
    """The score of one output, 0 to 100: its content times its gain in style over the source.

    A copy scores 0, whatever the judge says about the source, and so does a text with other content.
    """
    return 100.0 * content * max(0.0, style - before)


def best_of_blocks(values: Sequence[float], blocks: int) -> tuple[float, list[int]]:
    """The mean of the best value of each consecutive block, and their positions."""
    if not values or len(values) % blocks:
        raise ValueError(f"{len(values)} values cannot be cut into {blocks} equal blocks")
    size = len(values) // blocks
    places = [max(range(block * size, (block + 1) * size), key=lambda place: values[place]) for block in range(blocks)]
    return sum(values[place] for place in places) / blocks, places


def corpus(content: Sequence[float], style: Sequence[float], fluent: Sequence[float]) -> dict[str, float]:
    """Content, style, fluency, J and GM in percent, over one output per source.

    J is the mean over sentences of the product of the three; GM is the geometric mean of the three corpus scores.
    `style` and `fluent` are 0 or 1 as published (predicted or not), `content` is between 0 and 1.
    """
    c, s, f = (np.asarray(part, dtype=np.float64) for part in (content, style, fluent))
    means = [100 * float(part.mean()) for part in (c, s, f)]
    return {
        "content": means[0],
        "style": means[1],
        "fluency": means[2],
        "j": 100 * float((c * s * f).mean()),
        "gm": math.exp(sum(map(math.log, means)) / 3) if min(means) > 0 else 0.0,
    }


def corpus_intervals(
    content: Sequence[float], style: Sequence[float], fluent: Sequence[float], seed: int
) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of `corpus`, over sources."""
    parts = np.stack([np.asarray(part, dtype=np.float64) for part in (content, style, fluent)])
    rows = _resampled(parts.shape[1], seed)
    means = 100 * parts[:, rows].mean(-1)
    joints = 100 * parts.prod(0)[rows].mean(-1)
    geometric = np.cbrt(means.prod(0))
    named = dict(zip(("content", "style", "fluency", "j", "gm"), (*means, joints, geometric), strict=True))
    return {name: _ends(values) for name, values in named.items()}


def mean_intervals(values: Mapping[str, Sequence[float]], seed: int) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of plain means over sources."""
    return {
        name: _ends(np.asarray(column, dtype=np.float64)[_resampled(len(column), seed)].mean(-1))
        for name, column in values.items()
    }


def sentence_bleu(texts: Sequence[str], references: Sequence[str]) -> list[float] | None:
    """Sentence BLEU of each text against its reference, 0 to 100; None if sacrebleu is not installed."""
    try:
        import sacrebleu
    except ImportError:
        return None
    return [
        float(sacrebleu.sentence_bleu(text, [reference]).score)
        for text, reference in zip(texts, references, strict=True)
    ]


def _resampled(count: int, seed: int) -> np.ndarray:
    random = np.random.Generator(np.random.Philox(derive(seed, "bootstrap")))
    return random.integers(0, count, (_RESAMPLES, count))


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
