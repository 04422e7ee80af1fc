"""Pictures for a prompt, by any text-to-image pipeline of diffusers (extra `diffusion`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pinprompt.errors import MissingExtra, ModelError
from pinprompt.models.sources import quiet
from pinprompt.seeds import derive

if TYPE_CHECKING:
    from PIL.Image import Image


def load_painter(name: str, device: str = "cpu", scheduler: Literal["dpm", "own"] = "dpm") -> Painter:
    """Load a pipeline by hub id or folder, with DPM-Solver in place of its sampler unless told otherwise."""
    import torch

    with quiet():
        try:
            import diffusers
        except ImportError as error:
            raise MissingExtra("diffusion", "drawing pictures") from error
        # Half precision only where the hardware is built for it.
        dtype = torch.float16 if device.startswith("cuda") else torch.float32
        try:
            pipeline = diffusers.DiffusionPipeline.from_pretrained(name, torch_dtype=dtype)
        except Exception as error:  # the hub's, the file system's and diffusers' errors have nothing in common
            known = "" if Path(name).exists() else " It is no folder here, and as a hub id it could not be had."
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ModelError(f"the pipeline '{name}' cannot be loaded: {first}.{known}") from error
        if scheduler == "dpm":
            try:
                pipeline.scheduler = diffusers.DPMSolverMultistepScheduler.from_config(pipeline.scheduler.config)
            except Exception as error:
                raise ModelError(
                    f"'{name}' cannot be sampled with DPM-Solver ({error}); use scheduler \"own\"."
                ) from error
    pipeline.set_progress_bar_config(disable=True)
    return Painter(name, pipeline.to(device))


class Painter:
    """A loaded pipeline."""

    def __init__(self, name: str, pipeline: Any) -> None:
        self.name, self.pipeline = name, pipeline

    def draw(
        self,
        prompt: str,
        *,
        images: int = 4,
        seed: int = 0,
        steps: int = 25,
        guidance: float = 9.0,
        size: int | None = 512,
    ) -> list[Image]:
        """Draw `images` pictures, each from its own seed, so that the first ones stay the same when more are asked for.

        One at a time: four at once need four times the memory, and a picture's bits would depend on its mates.
        """
        import torch

        shape = {} if size is None else {"width": size, "height": size}
        drawn: list[Image] = []
        for number in range(images):
            # On the CPU, so that a seed means the same noise on every device.
            noise = torch.Generator("cpu").manual_seed(derive(seed, "drawing", number))
            try:
                with quiet(), torch.inference_mode():
                    out = self.pipeline(
                        prompt=prompt, num_inference_steps=steps, guidance_scale=guidance, generator=noise, **shape
                    )
            except (TypeError, ValueError) as error:
                raise ModelError(
                    f"'{self.name}' ({type(self.pipeline).__name__}) cannot draw from a text: {error}"
                ) from error
            found = getattr(out, "images", None)
            if not found:
                raise ModelError(
                    f"'{self.name}' ({type(self.pipeline).__name__}) gives no pictures; give a text-to-image one."
                )
            drawn.append(found[0].convert("RGB"))
        return drawn
