"""Who judges a style-transfer run: content, style (one judge for the search, another for the report), fluency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pinprompt.errors import RunError, SettingError
from pinprompt.judges.content import Alignment, BertScore, ContentJudge, baseline_of
from pinprompt.judges.encoder import Encoder
from pinprompt.judges.fluency import Acceptability, FluencyJudge, LanguageModel, PerplexityFluency
from pinprompt.judges.style import (
    Classifier,
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
from pinprompt.models.loading import load_causal_lm, load_encoder, load_sequence_classifier
from pinprompt.models.sources import resolve
from pinprompt.recipe.task_sections import StyleTransferSettings
from pinprompt.tasks.style_data import StyleData

TRAINED = "trained"
PERPLEXITY = "perplexity"
CALIBRATION = 100
"""Target texts that the perplexity of a fluent text is measured on."""


@dataclass
class StyleJudges:
    """The judges of one run, and what they are, for the report."""

    content: ContentJudge
    reference: ContentJudge
    """BERTScore, for outputs against human rewrites."""
    style: StyleJudge
    test_style: StyleJudge
    lm: LanguageModel
    texts: list[str]
    """Human texts in the target style, to calibrate fluency on."""
    acceptability: Acceptability | None = None
    _fluency: FluencyJudge | None = field(default=None, init=False, repr=False)

    @property
    def fluency(self) -> FluencyJudge:
        """Made when it is first asked: the search does without it."""
        if self._fluency is None:
            self._fluency = self.acceptability or PerplexityFluency.calibrated(self.lm, self.texts)
        return self._fluency

    def names(self) -> dict[str, str]:
        """Who judged what. Numbers of runs whose judges differ are not comparable."""
        return {
            "content": self.content.name,
            "references": self.reference.name,
            "style (search)": self.style.name,
            "style (report)": self.test_style.name,
            "fluency": self.acceptability.name if self.acceptability else self.fluency.name,
            "perplexity": self.lm.name,
        }


def build_judges(
    settings: StyleTransferSettings, data: StyleData, device: str, task_lm: LanguageModel | None
) -> StyleJudges:
    """Load and train the judges; the report's style judge too, so that a refusal comes before the search.

    A task model that tells no probabilities (`task_lm` is None) leaves perplexity to `settings.fluency_model`.
    """
    encoder = _encoder(settings, device)
    first, second = data.halves
    known: dict[str, Classifier] = {}
    lm = task_lm
    if settings.fluency_model is not None:
        lm = LanguageModel(*load_causal_lm(settings.fluency_model, device), name=_named(settings.fluency_model))
    if lm is None:
        raise SettingError("a model behind an API gives no perplexity; name a local one as task.fluency_model")
    read = Embedding(_layer(encoder, settings.style_layer))
    search = _style(settings, data, settings.style, settings.style_label, known, read, first, device)
    wide = Together([read, Words()])
    label = settings.test_style_label if settings.test_style_label is not None else settings.style_label
    report = _style(settings, data, settings.test_style, label, known, wide, second, device)
    layered = _layer(encoder, settings.encoder_layer)
    bertscore = BertScore(layered, _baseline(settings, data, layered))
    acceptability = None
    if settings.fluency != PERPLEXITY:
        acceptability = Acceptability(_classifier(settings.fluency, device, known), settings.fluency_label)
    return StyleJudges(
        content=Alignment(layered) if settings.content == "alignment" else bertscore,
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
    reference = judges.reference
    return {
        "baseline": reference.baseline if isinstance(reference, BertScore) else 0.0,
        "style": {"label": style.label} if isinstance(style, NamedStyle) else trained_values(style),
    }


def kept_content(settings: StyleTransferSettings, kept: Mapping[str, Any], device: str) -> ContentJudge:
    """The content judge of a finished run."""
    layered = _layer(_encoder(settings, device), settings.encoder_layer)
    if settings.content == "alignment":
        return Alignment(layered)
    baseline = kept.get("baseline")
    if not isinstance(baseline, int | float) or not 0 <= baseline < 1:
        raise RunError(f"judges.json has no baseline of the content judge between 0 and 1: {baseline!r:.40}")
    return BertScore(layered, float(baseline))


def kept_style(settings: StyleTransferSettings, kept: Mapping[str, Any], device: str) -> StyleJudge:
    """The report's style judge of a finished run."""
    values = kept.get("style")
    if not isinstance(values, Mapping):
        raise RunError("judges.json has no style judge; run the search again with --force")
    if settings.test_style != TRAINED:
        return NamedStyle(_classifier(settings.test_style, device, {}), str(values.get("label")))
    read = Embedding(_layer(_encoder(settings, device), settings.style_layer))
    return trained_from(values, read)


def _encoder(settings: StyleTransferSettings, device: str) -> Encoder:
    return Encoder(*load_encoder(settings.encoder, device), name=_named(settings.encoder))


def _layer(encoder: Encoder, layer: int) -> Encoder:
    """The same encoder read at another layer; vectors of the last layer are shared by all judges."""
    if layer == -1:
        return encoder
    return Encoder(encoder.model, encoder.tokenizer, name=f"{encoder.name} layer {layer}", layer=layer)


def _baseline(settings: StyleTransferSettings, data: StyleData, encoder: Encoder) -> float:
    if settings.baseline is not None:
        return settings.baseline
    texts = [*data.halves[0][0], *data.sources["train"], *data.sources["dev"]][:400]
    return baseline_of(encoder, texts, settings.split)


def _style(
    settings: StyleTransferSettings,
    data: StyleData,
    name: str,
    label: str | None,
    known: dict[str, Classifier],
    features: Features,
    texts: tuple[list[str], list[str]],
    device: str,
) -> StyleJudge:
    if name == TRAINED:
        return train_style(*texts, features, settings.split, force=settings.force_judge)
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
        f"{', '.join(classifier.labels)}; name one as style_label"
    )


def _classifier(name: str, device: str, known: dict[str, Classifier]) -> Classifier:
    if name not in known:
        known[name] = Classifier(*load_sequence_classifier(name, device), name=_named(name))
    return known[name]


def _named(name: str) -> str:
    """A model's name with its revision: judges of one name and different weights are different judges."""
    return f"{name}@{resolve(name).revision[:8]}"
