"""Settings of the inversion task: words for a picture."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinprompt.settings import Section


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


# After "A picture of" a language model writes a sentence, most of whose words show nothing; after lists of several
# kinds it writes words of many kinds.
WORDS_OF_PICTURES = """\
A picture in words: apple fruit red food
A picture in words: doctor person job woman
A picture in words: house building city travel
A picture in words: smile face emotion joy
A picture in words: lion animal nature wild
A picture in words: piano music object play
A picture in words: arrow sign symbol up
A picture in words:"""


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
    context: str = Field(
        WORDS_OF_PICTURES,
        description="Text offered to the writer as task context: words of other pictures, so that words follow.",
    )
    overlong: Literal["refuse", "cut"] = Field(
        "refuse",
        description="A prompt beyond the model's text window: refuse (a recorded failure) or cut (as published).",
    )
    manual: str | None = Field(None, description="A hand-written prompt to compare with.")
    drawing: DrawingSettings = Field(
        default_factory=DrawingSettings, description="How pictures are drawn for the found prompt."
    )
