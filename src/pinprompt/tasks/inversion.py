"""Words for a picture: a prompt's score is the cosine of its embedding and the picture's, in an image-text model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pinprompt.errors import SettingError
from pinprompt.models.clip import EMOJI_CLIP, Clip, load_clip
from pinprompt.models.images import Picture, data_uri, load_pictures, looks_photographed
from pinprompt.recipe.task_sections import InversionSettings
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Prompt, Score

if TYPE_CHECKING:
    from PIL.Image import Image

# After "A picture of" a language model writes a sentence with few visual words; after descriptions of several kinds of
# pictures it writes similar descriptions.
CONTEXTS = {
    "caption": """\
A picture and its caption: A red apple on a plate
A picture and its caption: The doctor in a white coat
A picture and its caption: A big house in the city
A picture and its caption: Happy face with a big smile
A picture and its caption: A wild lion in the grass
A picture and its caption: Music from an old piano
A picture and its caption: An arrow that points up
A picture and its caption:""",
    "tags": """\
A picture in tags: apple, fruit, red, food
A picture in tags: doctor, person, job, woman
A picture in tags: house, building, city, travel
A picture in tags: smile, face, emotion, joy
A picture in tags: lion, animal, nature, wild
A picture in tags: piano, music, object, play
A picture in tags: arrow, sign, symbol, up
A picture in tags:""",
    "words": """\
A picture in words: apple fruit red food
A picture in words: doctor person job woman
A picture in words: house building city travel
A picture in words: smile face emotion joy
A picture in words: lion animal nature wild
A picture in words: piano music object play
A picture in words: arrow sign symbol up
A picture in words:""",
}
"""The writer's context, by style."""
LEAST = -1.0
"""The score of a prompt that cannot be scored: the lowest cosine."""


class InversionTask(Task):
    """Finds words for one picture, or for what several have in common."""

    name = "inversion"
    stochastic = False
    splits: tuple[str, ...] = ("train",)
    primary = "similarity"

    def __init__(self, settings: InversionSettings, clip: Clip, pictures: Sequence[Picture]) -> None:
        self.settings, self.clip, self.pictures = settings, clip, list(pictures)
        self.chunk = 4 * clip.rows  # the text tower processes several prompts at a time
        if not self.pictures:
            raise SettingError("the inversion task has no picture; name a file, several files, or a folder (images).")
        images = [picture.image for picture in self.pictures]
        self._each = clip.image_features(images)
        self._target = clip.target(images)
        self.notes = _notes(clip, self.pictures)
        self.fingerprint = _fingerprint(settings, clip, self.pictures)

    @classmethod
    def build(cls, settings: InversionSettings, device: str = "cpu") -> InversionTask:
        """Read the pictures, then load the model, so that a bad picture is reported before a large model is loaded."""
        pictures = load_pictures(settings.images)
        return cls(settings, load_clip(settings.model, device), pictures)

    def check_window(self, length: int) -> None:
        """Raise an error if prompts of this length do not fit into the model's text window."""
        if self.settings.overlong == "refuse":
            self.clip.check_length(length)

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        """The cosine of each prompt with the target; one that does not fit into the text window is a failure."""
        self._check_split(split)
        texts = list(dict.fromkeys(prompt.text for prompt in prompts))
        refused: dict[str, str] = {}
        if self.settings.overlong == "refuse":
            refused = self.clip.too_long(texts)
        fitting = [text for text in texts if text not in refused]
        cosines = dict(zip(fitting, self.similarities(fitting), strict=True))
        return [
            Score(LEAST, calls=0, failures=(refused[prompt.text],))
            if prompt.text in refused
            else Score(cosines[prompt.text], calls=1)
            for prompt in prompts
        ]

    def similarities(self, texts: Sequence[str]) -> list[float]:
        """Cosines of texts with the target."""
        if not texts:
            return []
        # Multiplied and summed text by text: a matrix product could round differently for another number of texts.
        return [float((vector * self._target).sum()) for vector in self.clip.text_features(texts)]

    def image_similarities(self, images: Sequence[Image]) -> list[float]:
        """Cosines of other pictures (such as drawings) with the target."""
        return [float((vector * self._target).sum()) for vector in self.clip.image_features(images)]

    def evaluate(self, prompt: Prompt, split: str = "train", seed: int = 0) -> Evaluation:
        """The cosine with the target and, if there are several pictures, with each of them."""
        [score] = self.score([prompt], [seed], split)
        metrics = {"similarity": score.value}
        rows: list[dict[str, Any]] = []
        if not score.failures:
            [vector] = self.clip.text_features([prompt.text])
            each = [float((vector * image).sum()) for image in self._each]
            rows = [
                {"file": str(picture.path), "similarity": value}
                for picture, value in zip(self.pictures, each, strict=True)
            ]
            if len(each) > 1:
                metrics |= {"mean_image_similarity": sum(each) / len(each), "least_image_similarity": min(each)}
        tables: dict[str, Any] = {"pictures": rows, **({"notes": list(self.notes)} if self.notes else {})}
        if score.failures:
            tables["failures"] = list(score.failures)
        return Evaluation(split, metrics, rows=len(self.pictures), calls=score.calls, tables=tables)

    def without(self, text: str) -> list[dict[str, Any]]:
        """The contribution of each word: the score without it, and the difference (one call per word and one more)."""
        words = text.split()
        shorter = [" ".join(words[:at] + words[at + 1 :]) for at in range(len(words))]
        whole, *rest = self.similarities([text, *shorter])
        return [
            {"word": word, "score_without": value, "contribution": whole - value}
            for word, value in zip(words, rest, strict=True)
        ]

    def calls(self, split: str = "train") -> int:
        """One call per text; the pictures' vectors are already known."""
        self._check_split(split)
        return 1

    def context(self) -> str:
        """A context after which a description of a picture in the chosen style is likely."""
        given = self.settings.context
        return CONTEXTS[self.settings.style] if given is None else given

    def baselines(self) -> dict[str, str]:
        """The user's own prompt, if there is one."""
        return {"manual": self.settings.manual} if self.settings.manual else {}

    def exhibits(self) -> dict[str, Any]:
        """For the report: the pictures, scaled down, and the nearest known words."""
        images = [{"name": one.path.name, "data_uri": data_uri(one.image)} for one in self.pictures[:12]]
        return {"images": images, "known_words": self.nearest_words()}

    def nearest_words(self, count: int = 12) -> list[dict[str, Any]]:
        """The model's single words that are nearest to the target, with their cosines."""
        best = sorted(self.hints().items(), key=lambda pair: -pair[1])[:count]
        return [{"word": word, "similarity": round(value, 6)} for word, value in best]

    def hints(self) -> dict[str, float]:
        """The cosines of all single words of the model; their vectors are the same for every picture."""
        words, vectors = self.clip.known_words
        return dict(zip(words, (vectors @ self._target).tolist(), strict=True)) if words else {}

    def differentiable(self) -> VectorView:
        """The differentiable view, for white-box methods such as PEZ."""
        return VectorView(self)

    def loss_of(self, vectors: Any) -> Any:
        """One minus the cosine of prompt vectors with the target; differentiable."""
        return 1 - (self.clip.vector_features(vectors) * self._target).sum()

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise SettingError(f"the inversion task has only the split 'train' (its pictures), not '{split}'.")


class VectorView:
    """Prompt vectors in the text tower's own input space, between its start and end tokens."""

    def __init__(self, task: InversionTask) -> None:
        self._task = task
        self.embeddings = task.clip.embeddings()
        self.tokenizer = task.clip.tokenizer

    def loss(self, vectors: Any, rows: Sequence[int] = (0,)) -> Any:
        """One minus the cosine with the target; there is only one row."""
        return self._task.loss_of(vectors)

    def score_vectors(self, vectors: Any, split: str = "train") -> Score:
        """The cosine, without a gradient."""
        import torch

        with torch.no_grad():
            return Score(1.0 - float(self.loss(vectors)), calls=1)

    def evaluate_vectors(self, vectors: Any, split: str = "train", seed: int = 0) -> Evaluation:
        """The task's metric of prompt vectors."""
        value = self.score_vectors(vectors, split).value
        return Evaluation(split, {"similarity": value}, rows=len(self._task.pictures), calls=1)

    def rows(self, split: str = "train") -> int:
        """One: the target."""
        return 1


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
    parts = ["inversion 2", clip.name, clip.revision, settings.overlong, *(picture.sha256 for picture in pictures)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
