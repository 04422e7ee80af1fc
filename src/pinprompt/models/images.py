"""Pictures: read from files as plain RGB, and drawn from a prompt (extra `diffusion`).

The size of files is limited. Any text-to-image pipeline of diffusers can draw.
"""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pinprompt.errors import DataError, MissingExtra, ModelError
from pinprompt.models.sources import quiet
from pinprompt.values import derive

if TYPE_CHECKING:
    from PIL.Image import Image


MAX_PIXELS = 100_000_000
"""The largest picture that is decoded (a 100-megapixel photograph is 300 MB as RGB)."""
MAX_BYTES = 200_000_000
MAX_ASPECT = 100
"""Maximum aspect ratio: models scale the shorter side up to theirs, so a line of pixels would grow to gigabytes."""
MAX_PICTURES = 1000
PLAIN, FILLED, MARGIN = 16, 0.88, 0.05
"""Levels by which a plain ground may vary, the share of a square that an emoji fills, and the margin of `framed`."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif")
# Only these decoders are used, whatever the file claims to be: fewer parsers for untrusted bytes.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
_READABLE = "JPEG, PNG, WebP and GIF can be read"


@dataclass(frozen=True)
class Picture:
    """One target: where it came from, the hash of the file, and its pixels (RGB, upright, on white)."""

    path: Path
    sha256: str
    image: Image


def data_uri(image: Image) -> str:
    """A picture for a page: a small JPEG in base64."""
    small = image.copy()
    small.thumbnail((512, 512))
    packed = io.BytesIO()
    small.convert("RGB").save(packed, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(packed.getvalue()).decode("ascii")


def looks_photographed(image: Image) -> bool:
    """Whether a picture is a photograph rather than a drawing on a plain background, by its edges and small variations.

    None of 400 Noto drawings is mistaken for a photograph; their edges vary by at most 24 of 255 levels, those of
    photographs by 50 or more. A photograph of an object on white has many colours and few uniform areas.
    """
    import numpy as np
    from PIL.Image import Resampling

    pixels = np.asarray(image.convert("RGB").resize((64, 64), Resampling.BOX)).astype(int)
    edges = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    changes = [np.abs(np.diff(pixels, axis=axis)).max(-1) for axis in (0, 1)]
    even = float(np.mean([(change <= 2).mean() for change in changes]))
    colours = len(np.unique((pixels >> 4).reshape(-1, 3), axis=0))
    return bool(edges.std(0).max() > 35 or (even < 0.45 and colours > 150))


def framed(image: Image) -> Image:
    """A drawing on a plain ground as emoji are drawn: in the middle of a square that it fills but for a small margin.

    Anything else is returned as it is: a picture without a plain ground, or a square one that is filled already.
    """
    import numpy as np
    import PIL.Image

    pixels = np.asarray(image).astype(int)
    edges = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    ground = np.median(edges, axis=0)
    drawn = np.abs(pixels - ground).max(-1) > PLAIN
    if not drawn.any() or (np.abs(edges - ground).max(-1) > PLAIN).mean() > 0.5:
        return image
    (top, bottom), (left, right) = (
        (found[0], found[-1] + 1) for found in (np.flatnonzero(drawn.any(1)), np.flatnonzero(drawn.any(0)))
    )
    longest = max(bottom - top, right - left)
    if image.width == image.height and longest >= FILLED * image.width:
        return image
    side = round(longest * (1 + 2 * MARGIN))
    square = PIL.Image.new("RGB", (side, side), tuple(ground.astype(int).tolist()))
    part = image.crop((left, top, right, bottom))
    square.paste(part, ((side - part.width) // 2, (side - part.height) // 2))
    return square


def find_pictures(given: Sequence[str]) -> list[Path]:
    """The files behind files and folders, in the order given (a folder's by name); at least one."""
    found: list[Path] = []
    for name in given:
        path = Path(name).expanduser()
        if path.is_dir():
            files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
            inside = sorted(file for file in files if file.suffix.lower() in SUFFIXES)
            if not inside:
                raise DataError(f"the folder contains no pictures ({', '.join(SUFFIXES)}).", path=path)
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise DataError("there is no such picture or folder; check the path.", path=path)
    if not found:
        raise DataError("no picture was given; name a file, several files, or a folder.")
    if len(found) > MAX_PICTURES:
        raise DataError(f"{len(found)} pictures were given; the maximum is {MAX_PICTURES}.")
    return found


def load_pictures(given: Sequence[str]) -> list[Picture]:
    return [load_picture(path) for path in find_pictures(given)]


def load_picture(path: Path) -> Picture:
    """Read one picture; the first frame of an animation."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"the file is larger than {MAX_BYTES // 1_000_000} MB; save a smaller picture.", path=path)
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"the picture cannot be read: {error.strerror or error}.", path=path) from error
    return Picture(path, hashlib.sha256(data).hexdigest(), decode(data, path))


def decode(data: bytes, path: object = None) -> Image:
    """Decode a picture to RGB: rotated by its EXIF data, transparency on white, 16 bits scaled to 8."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtra("image", "reading pictures") from error
    if not data:
        raise DataError("the file is empty.", path=path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked below, with our own message
            image = PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataError(_bomb(f"{width} x {height} pixels"), path=path)
            if max(width, height) > MAX_ASPECT * min(width, height):
                raise DataError(f"a picture of {width} x {height} pixels is too narrow; crop it.", path=path)
            image.seek(0)
            image.load()
            return _as_rgb(image)
    except DataError:
        raise
    except PIL.Image.DecompressionBombError as error:
        raise DataError(_bomb("many more pixels"), path=path) from error
    except PIL.UnidentifiedImageError as error:
        raise DataError(f"the file is not a picture; {_READABLE}.", path=path) from error
    except MemoryError as error:
        raise DataError("the picture does not fit into memory; save a smaller one.", path=path) from error
    except Exception as error:  # decoders may raise anything for a broken file: OSError, SyntaxError, struct.error, ...
        if "truncated" in str(error).lower() or isinstance(error, EOFError):
            raise DataError("the picture file is truncated; copy or download it again.", path=path) from error
        raise DataError(f"the picture is damaged and cannot be decoded ({error}); save it again.", path=path) from error


def _bomb(size: str) -> str:
    limit = f"{MAX_PIXELS // 1_000_000} million"
    return f"the picture would unpack to {size}, more than {limit} (a decompression bomb?); save a smaller one."


def _as_rgb(image: Image) -> Image:
    import PIL.Image
    import PIL.ImageOps

    image = PIL.ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow's own conversion would clip everything above 255 to white instead of scaling 16 bits to 8.
        image = image.convert("I").point(lambda value: value * (1 / 257) + 0).convert("L")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = PIL.Image.new("RGBA", layer.size, "white")
        ground.alpha_composite(layer)
        image = ground
    return image.convert("RGB")


PAINTER = "stabilityai/stable-diffusion-2-1-base"
"""The pipeline of the paper."""


def load_painter(name: str, device: str = "cpu", scheduler: Literal["dpm", "own"] = "dpm") -> Painter:
    """Load a pipeline by hub id or folder, by default with DPM-Solver instead of its own sampler."""
    import torch

    with quiet():
        try:
            import diffusers
        except ImportError as error:
            raise MissingExtra("diffusion", "drawing pictures") from error
        # Half precision only on hardware that supports it.
        dtype = torch.float16 if device.startswith("cuda") else torch.float32
        try:
            pipeline = diffusers.DiffusionPipeline.from_pretrained(name, torch_dtype=dtype)
        except Exception as error:  # the hub's, the file system's and diffusers' errors have nothing in common
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            known = (
                "" if Path(name).exists() else " There is no such folder, and it could not be downloaded from the hub."
            )
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
        self, prompt: str, *, images: int, seed: int = 0, steps: int, guidance: float = 9.0, size: int | None = 512
    ) -> list[Image]:
        """Draw `images` pictures, each from its own seed, so that the first ones do not change when more are drawn.

        One at a time: a batch needs more memory, and a picture would depend on the rest of its batch.
        """
        import torch

        shape = {} if size is None else {"width": size, "height": size}
        which = f"'{self.name}' ({type(self.pipeline).__name__})"
        drawn: list[Image] = []
        for number in range(images):
            # On the CPU, so that a seed gives the same noise on every device.
            noise = torch.Generator("cpu").manual_seed(derive(seed, "drawing", number))
            try:
                with quiet(), torch.inference_mode():
                    out = self.pipeline(
                        prompt=prompt, num_inference_steps=steps, guidance_scale=guidance, generator=noise, **shape
                    )
            except (TypeError, ValueError) as error:
                raise ModelError(f"{which} cannot draw from a text: {error}") from error
            found = getattr(out, "images", None)
            if not found:
                raise ModelError(f"{which} returns no pictures; choose a text-to-image pipeline.")
            drawn.append(found[0].convert("RGB"))
        return drawn
