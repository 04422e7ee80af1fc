"""Words for a picture: an answer is the cosine of the prompt's embedding and the picture's, in an image-text model.

There is one row, the target: one picture, or what several have in common. The cosine with each of several pictures is
part of the answer, for the report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pinprompt.errors import SettingError
from pinprompt.models.clip import EMOJI_CLIP, Clip, load_clip
from pinprompt.models.images import Picture, data_uri, framed, load_pictures, looks_photographed
from pinprompt.recipe.task_sections import InversionSettings
from pinprompt.tasks.prompts import shipped
from pinprompt.tasks.protocol import Draft, Shown, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Floats, Prompt, Row

if TYPE_CHECKING:
    from PIL.Image import Image

AGREEING, RECOGNISED = 5, 1.03
"""Of the 5 nearest words, the largest cosine plus their mean cosine with each other where a picture counts as known.

Of the 43 drawings of recipes/small/noto, 27 of the 30 whose name is among these words reach it, and 10 of 13 others."""
LEAST = -1.0
"""The score of a prompt that cannot be scored: the lowest cosine."""


class InversionTask(Shown):
    """Finds words for one picture, or for what several have in common."""

    def __init__(self, settings: InversionSettings, clip: Clip, pictures: Sequence[Picture]) -> None:
        self.settings, self.clip, self.pictures = settings, clip, list(pictures)
        if not self.pictures:
            raise SettingError("the inversion task has no picture; name a file, several files, or a folder (images).")
        images = self._as_seen([picture.image for picture in self.pictures])
        self.each = clip.image_features(images)
        self.target = clip.target(images)
        self.rows = (Row("train", 0, key="target"),)
        self.info = TaskInfo(
            name="inversion",
            fingerprint=_fingerprint(settings, clip, self.pictures),
            primary="similarity",
            score_is="A score is the cosine between the embeddings of words and picture, at most 1.",
            chunk=4 * clip.batch,  # the text tower processes several prompts at a time
            notes=_notes(clip, self.pictures),
        )

    @classmethod
    def build(cls, settings: InversionSettings, device: str = "cpu") -> InversionTask:
        """Read the pictures, then load the model, so that a bad picture is reported before a large model is loaded."""
        pictures = load_pictures(settings.images)
        return cls(settings, load_clip(settings.model, device), pictures)

    def check_window(self, length: int) -> None:
        """Raise an error if prompts of this length do not fit into the model's text window."""
        if self.settings.overlong == "refuse":
            self.clip.check_length(length)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        """The cosine of each prompt with the target and with each picture; one that is too long is a failure."""
        texts = list(dict.fromkeys(prompt.text for prompt in prompts))
        refused: dict[str, str] = {}
        if self.settings.overlong == "refuse":
            refused = self.clip.too_long(texts)
        fitting = [text for text in texts if text not in refused]
        cosines = dict(zip(fitting, self._cosines(fitting), strict=True))
        nothing = [LEAST] * (1 + len(self.pictures))
        return [
            Answers(
                tuple(rows),
                np.array([cosines.get(prompt.text, nothing)] * len(rows)).reshape(len(rows), -1),
                dict.fromkeys(rows, refused[prompt.text]) if prompt.text in refused else {},
            )
            for prompt in prompts
        ]

    def _cosines(self, texts: Sequence[str]) -> list[list[float]]:
        """The cosines of each text with the target and with each picture."""
        # Multiplied and summed text by text: a matrix product could round differently for another number of texts.
        return [
            [float((vector * seen).sum()) for seen in (self.target, *self.each)]
            for vector in (self.clip.text_features(texts) if texts else ())
        ]

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        return np.asarray(answers.on(rows), dtype=np.float64)[:, 0]

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        """The cosine with the target and, if there are several pictures, with each of them."""
        similarity, *each = (float(value) for value in answers.on(rows)[0])
        metrics, failures = {"similarity": similarity}, answers.failed(rows)
        shown: list[dict[str, Any]] = []
        if not failures:
            shown = [
                {"file": str(picture.path), "similarity": value}
                for picture, value in zip(self.pictures, each, strict=True)
            ]
            if len(each) > 1:
                metrics |= {"mean_image_similarity": sum(each) / len(each), "least_image_similarity": min(each)}
        tables: dict[str, Any] = {"pictures": shown, **({"notes": list(self.info.notes)} if self.info.notes else {})}
        if failures:
            tables["failures"] = list(failures)
        return Evaluation("train", metrics, rows=len(self.pictures), tables=tables)

    def similarities(self, texts: Sequence[str]) -> list[float]:
        return [cosines[0] for cosines in self._cosines(texts)]

    def image_similarities(self, images: Sequence[Image]) -> list[float]:
        """Cosines of other pictures (such as drawings) with the target."""
        vectors = self.clip.image_features(self._as_seen(images))
        return [float((vector * self.target).sum()) for vector in vectors]

    def _as_seen(self, images: Sequence[Image]) -> list[Image]:
        """Pictures as the model reads them; `emoji-clip` knows drawings that fill a square."""
        return [framed(image) for image in images] if self.clip.name == EMOJI_CLIP else list(images)

    def context(self) -> str:
        """A context after which a description of a picture in the chosen style is likely."""
        return str(shipped("inversion")[self.settings.style])

    def drafts(self) -> list[Draft]:
        return [Draft(self.settings.manual, "manual")] if self.settings.manual else []

    def exhibits(self) -> dict[str, Any]:
        """For the report: the pictures, scaled down, and the nearest known words."""
        images = [{"name": one.path.name, "data_uri": data_uri(one.image)} for one in self.pictures[:12]]
        return {"images": images, "known_words": self.nearest_words(), "recognised": self.recognised()}

    def recognised(self) -> bool:
        """Whether the model knows what it sees: its nearest words are near, and agree with each other.

        The threshold was picked by eye for `emoji-clip` (docs/notebook.md); other models are not asked.
        """
        if self.clip.name != EMOJI_CLIP:
            return True
        _, vectors = self.clip.known_words
        near = (vectors @ self.target).topk(AGREEING)
        own = vectors[near.indices]
        pairs = AGREEING * (AGREEING - 1)
        agreement = (float((own @ own.T).sum()) - AGREEING) / pairs
        return float(near.values[0]) + agreement >= RECOGNISED

    def nearest_words(self, count: int = 12) -> list[dict[str, Any]]:
        """The model's single words that are nearest to the target, with their cosines."""
        best = sorted(self.hints().items(), key=lambda pair: -pair[1])[:count]
        return [{"word": word, "similarity": round(value, 6)} for word, value in best]

    def hints(self) -> dict[str, float]:
        """The cosines of all single words of the model; their vectors are the same for every picture."""
        words, vectors = self.clip.known_words
        return dict(zip(words, (vectors @ self.target).tolist(), strict=True)) if words else {}

    def differentiable(self) -> VectorView:
        return VectorView(self)


class VectorView:
    """Prompt vectors in the text tower's own input space, between its start and end tokens."""

    def __init__(self, task: InversionTask) -> None:
        self._task = task
        self.embeddings = task.clip.embeddings()
        self.tokenizer = task.clip.tokenizer

    def loss(self, vectors: Any, rows: Sequence[int] = (0,)) -> Any:
        """One minus the cosine with the target; there is only one row."""
        return 1 - (self._task.clip.vector_features(vectors) * self._task.target).sum()

    def answers(self, vectors: Any, rows: Sequence[int] = (0,)) -> Answers:
        """The cosine with the target, without a gradient."""
        import torch

        with torch.no_grad():
            features = self._task.clip.vector_features(vectors)
            each = [float((features * seen).sum()) for seen in self._task.each]
            cosines = [1.0 - float(self.loss(vectors)), *each]
        return Answers(tuple(rows), np.array([cosines] * len(rows)))


def _notes(clip: Clip, pictures: Sequence[Picture]) -> tuple[str, ...]:
    """A warning before a search with photographs: the small model does not understand them."""
    seen = [picture.path.name for picture in pictures if looks_photographed(picture.image)]
    if clip.name != EMOJI_CLIP or not seen:
        return ()
    which = seen[0] if len(seen) == 1 else f"{seen[0]} and {len(seen) - 1} more"
    verb = "looks like a photograph" if len(seen) == 1 else "look like photographs"
    return (
        f"{which} {verb}, and {EMOJI_CLIP} was trained on emoji only: expect poor results. "
        "For photographs name a CLIP or SigLIP model: --model with a hub id (openai/clip-vit-base-patch32) or a folder",
    )


def _fingerprint(settings: InversionSettings, clip: Clip, pictures: Sequence[Picture]) -> str:
    """Changes with the model, the pictures, their order (which affects rounding), and the treatment of long prompts."""
    parts = ["inversion 3", clip.name, clip.revision, settings.overlong, *(picture.sha256 for picture in pictures)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
