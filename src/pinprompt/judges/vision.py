"""The paper's judge of prompts for pictures: relevance and interpretability of a caption (1 to 5).

Works with any vision model that implements `VisionModel`; the judge validates, retries, prices and stores the answers.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pinprompt.answers.memo import Memo, memo_key
from pinprompt.maths.bootstrap import mean, standard_error
from pinprompt.recipe.sections import Price

if TYPE_CHECKING:
    from PIL.Image import Image

# The paper's template (its figure "template for human-like evaluation"), plus a last line that asks for JSON.
QUESTION = """Given the target image, the caption representing this image is determined using textual inversion from \
the CLIP model. Please perform the following two tasks and provide the only rate without detailed explanation:

Tasks:
(1) Rate the Relevance of the caption to the target image on a scale from 1 (worst) to 5 (best).
(2) Evaluate the caption's Interpretability as a human-readable description on a scale from 1 (worst) to 5 (best).

Image: the picture that comes with this text
Caption: {caption}

Answer with a JSON object of two whole numbers, "relevance" and "interpretability", and nothing else."""
ATTEMPTS = 3
LONGEST_SIDE = 1024


class Rating(BaseModel):
    """The two ratings; only two whole numbers from 1 to 5 are valid."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    relevance: int = Field(ge=1, le=5)
    interpretability: int = Field(ge=1, le=5)


SCHEMA: dict[str, Any] = Rating.model_json_schema()


@dataclass(frozen=True)
class VisionAnswer:
    """A vision model's answer, its tokens, and the failure if there was one."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    failure: str = ""


class VisionModel(Protocol):
    """A model that takes a picture and a text, and answers with JSON of the given schema if it can."""

    name: str

    def ask_image(self, text: str, image: bytes, schema: Mapping[str, Any]) -> VisionAnswer:
        """Ask about one picture (JPEG bytes)."""


@dataclass(frozen=True)
class CaptionMarks:
    """One rated caption: the ratings, or the failure."""

    caption: str
    rating: Rating | None
    failure: str = ""
    cached: bool = False


@dataclass(frozen=True)
class Summary:
    """Mean and standard error of each rating over an image set; a standard error needs two captions."""

    relevance: float | None
    relevance_error: float | None
    interpretability: float | None
    interpretability_error: float | None
    judged: int
    failures: int
    images: int = 0
    """Number of images."""


class VisionJudge:
    """Asks, validates, retries, counts the cost, and stores every answer in the memo."""

    def __init__(self, model: VisionModel, memo: Memo | None = None, price: Price | None = None) -> None:
        self.model, self.price, self._memo = model, price, memo
        self.calls = self.tokens_in = self.tokens_out = 0

    @property
    def money(self) -> float | None:
        """The actual cost, by the price per million tokens; None if the price is not known."""
        if self.price is None:
            return None
        return (self.tokens_in * self.price.input + self.tokens_out * self.price.output) / 1e6

    def judge(self, caption: str, image: Image) -> CaptionMarks:
        """The two ratings of a caption of a picture; stored answers cost nothing."""
        picture = _jpeg(image)
        key = memo_key(self.model.name, QUESTION, caption, hashlib.sha256(picture).hexdigest())
        known = {} if self._memo is None else self._memo.look_up([key])
        if key in known:
            return CaptionMarks(caption, Rating.model_validate(known[key]), cached=True)
        why = ""
        for _ in range(ATTEMPTS):
            answer = self.model.ask_image(QUESTION.format(caption=json.dumps(caption)), picture, SCHEMA)
            self.calls, self.tokens_in = self.calls + 1, self.tokens_in + answer.tokens_in
            self.tokens_out += answer.tokens_out
            if answer.failure:  # the client has already retried
                return CaptionMarks(caption, None, f"{self.model.name} could not be called: {answer.failure}")
            try:
                # The object may be inside a code fence or a sentence.
                start, end = answer.text.find("{"), answer.text.rfind("}")
                rating = Rating.model_validate_json(answer.text[start : end + 1] if 0 <= start < end else answer.text)
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"])) or "the answer"
                why = f"{self.model.name} gave no two marks from 1 to 5 in {ATTEMPTS} tries: {place}: {first['msg']}"
                continue
            if self._memo is not None:  # at once, since each answer was paid for
                self._memo.keep({key: rating.model_dump()})
            return CaptionMarks(caption, rating)
        return CaptionMarks(caption, None, why)


def summarise(verdicts: Sequence[CaptionMarks], images: Sequence[Hashable] | None = None) -> Summary:
    """Mean and standard error over the rated captions.

    With `images` (what each verdict is about) the captions of one image are averaged first, so that an image set counts
    each of its images once.
    """
    groups: dict[Hashable, list[Rating]] = {}
    for verdict, image in zip(verdicts, range(len(verdicts)) if images is None else images, strict=True):
        if verdict.rating is not None:
            groups.setdefault(image, []).append(verdict.rating)
    relevance = _mean([mean([rating.relevance for rating in group]) for group in groups.values()])
    reading = _mean([mean([rating.interpretability for rating in group]) for group in groups.values()])
    judged = sum(map(len, groups.values()))
    return Summary(*relevance, *reading, judged, len(verdicts) - judged, len(groups))


def _mean(values: list[float]) -> tuple[float | None, float | None]:
    return (mean(values), standard_error(values)) if values else (None, None)


def _jpeg(image: Image) -> bytes:
    """The picture as sent: scaled down, and without the file's metadata."""
    copy = image.convert("RGB")
    copy.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    out = io.BytesIO()
    copy.save(out, "JPEG", quality=90)
    return out.getvalue()
