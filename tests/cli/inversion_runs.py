"""Short inversion runs of a tiny writer on emoji-clip, for tests of what is done with them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pinprompt.recipe import recipe as recipes
from pinprompt.reports.report import write_report
from pinprompt.run import running
from tests.house.tiny import recipe


def picture(path: Path, colour: str, seed: int = 0) -> str:
    """A coloured square with noise in its middle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (48, 48), colour)
    noise = np.random.default_rng(seed).integers(0, 60, (20, 20, 3), dtype=np.uint8)
    image.paste(Image.fromarray(noise), (14, 14))
    image.save(path)
    return str(path)


def invert(models: Path, folder: Path, images: list[str], seed: int = 0, **task: Any) -> running.Result:
    """A whole run of a few steps."""
    settings = {"kind": "inversion", "images": images, "model": "emoji-clip", **task}
    base = recipe(models, seed=seed, q_learning={"steps": 3, "prompts": 12, "eval_every": 2}).model_dump()
    return running.run(
        recipes.resolve({**base, "task": settings}), folder, device="cpu", threads=1, reporter=write_report
    )
