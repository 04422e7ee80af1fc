"""How many prompts per second an inversion search scores, from writing to selection."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from pinprompt.recipe import recipe as recipes
from pinprompt.values import Event

SEARCHES: dict[str, dict[str, Any]] = {
    "guided": {"method": "guided", "guided": {"rounds": 1, "revisions": 0}},
    "pin": {"method": "pin", "budget": {"calls": 128}},
    "pin_prefix": {"method": "pin", "q_learning": {"rewards": "prefix"}, "budget": {"calls": 1024}},
}


def measure(writer: str = "smollm2", searches: dict[str, dict[str, Any]] | None = None) -> dict[str, float]:
    """Distinct prompts scored per CPU second of this process, for each search, on one drawing with two colours.

    Everything between the first step and the answer counts: writing, asking, storing, learning and selection.
    Loading the models does not count. A CPU second equals a wall-clock second if a single thread has a core to itself.
    """
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "apple.png"
        _draw(picture)
        for name, settings in (SEARCHES if searches is None else searches).items():
            prompts, seconds = _searched(writer, picture, Path(folder) / name, settings)
            found |= {f"{name}_prompts": float(prompts), f"{name}_prompts_per_second": prompts / seconds}
    return found


def _searched(writer: str, picture: Path, folder: Path, settings: dict[str, Any]) -> tuple[int, float]:
    """Prompts scored after the first step, and the CPU seconds from there to the answer."""
    from pinprompt.run.running import run

    marks: list[tuple[int, float]] = []

    def listen(event: Event) -> None:
        if event.kind in ("step", "selected"):
            known = int(event.data.get("distinct", marks[-1][0] if marks else 0))
            marks.append((known, time.process_time()))

    raw = {
        "profile": "quick",
        "task": {"kind": "inversion", "model": "emoji-clip", "images": [str(picture)]},
        "policy": {"model": writer},
        "scoring": {"memo": False},
    }
    run(recipes.resolve(recipes.merge(raw, settings)), folder, device="cpu", listeners=[listen])
    (before, began), (after, ended) = marks[0], marks[-1]
    return after - before, ended - began


def _draw(path: Path) -> None:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (72, 72), "white")
    pen = ImageDraw.Draw(image)
    pen.ellipse((10, 18, 62, 68), fill="red")
    pen.line((36, 18, 40, 6), fill="brown", width=4)
    image.save(path)
