"""A run's prompt elsewhere: as text and code, as a file for another tool, or as pictures."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pinprompt.errors import RunError, SettingError
from pinprompt.folder.identity import refresh
from pinprompt.run import build, consent, running
from pinprompt.run.running import Result, recipe_of
from pinprompt.run.using import data_of, silent


def use(run: Path | str, text: str = "some text") -> dict[str, Any]:
    """A run's prompt for use elsewhere: the exact text (or chat) for one input, and code snippets that send it."""
    from pinprompt.reports.usage import sent_of, snippets

    sent = sent_of(running.result_of(Path(run)).data, run)
    return {
        "text": sent.text_for(text),
        "messages": sent.messages_for(text),
        "words": dict(sent.words),
        "offsets": dict(sent.offsets),
        "readout": dict(sent.readout),
        "model": sent.model,
        "snippets": snippets(sent, text),
    }


def export(
    run: Path | str, to: str, output: Path | str | None = None, *, notes: Callable[[str], None] = silent
) -> Path:
    """Export a run's prompt to a file for another tool: promptfoo, dspy, langchain, openai or json.

    `notes` is called with what the tool's file cannot hold, such as the weights of learnt words.
    """
    from pinprompt.files import write_atomically
    from pinprompt.reports import usage

    result = running.result_of(Path(run)).data
    sent = usage.sent_of(result, run)
    name, content = usage.export(sent, to)
    path = Path(name) if output is None else Path(output)
    write_atomically(path, content)
    for note in usage.left_out(result, sent, to):
        notes(note)
    return path


def draw(
    run: Path | str, *, model: str | None = None, images: int = 4, steps: int = 25, guidance: float = 9.0,
    size: int | None = 512, scheduler: Literal["dpm", "own"] = "dpm", device: str | None = None,
    threads: int | None = None, seed: int = 0, notes: Callable[[str], None] = silent,
) -> Result:  # fmt: skip
    """Draw pictures from the prompt of an inversion run (extra `diffusion`) and add them to its result and report.

    `model` is a diffusers pipeline, by default that of the paper. `images` pictures are drawn, each from its own seed,
    in `steps` denoising steps with `guidance` as the guidance scale. `size` is their width and height; None: the
    pipeline's own. `scheduler` is the sampler: dpm (DPM-Solver multistep, as published) or own (the pipeline's).
    """
    from pinprompt.files import write_atomically, write_json
    from pinprompt.models.images import PAINTER, data_uri, load_painter
    from pinprompt.reports.report import write_report

    build.set_threads(threads)
    recipe, found = recipe_of(run), running.result_of(Path(run))
    if recipe.task.kind != "inversion":
        raise SettingError(f"{run} is a {recipe.task.kind} run; pictures can only be drawn for an inversion run")
    consent.agree(recipe, run)
    folder = Path(run) / "drawings"
    if folder.is_symlink():
        raise RunError(f"{folder} is a link, and links are not followed; remove it, then draw again")
    device = build.choose_device(device)
    painter = load_painter(model or PAINTER, device, scheduler)
    pictures = painter.draw(found.prompt, images=images, seed=seed, steps=steps, guidance=guidance, size=size)
    task: Any = build.build_task(recipe, device)
    if found.data.get("fingerprint") not in (None, task.info.fingerprint):
        notes(f"the pictures or the model have changed since the run ({data_of(recipe)})")
    folder.mkdir(exist_ok=True)
    drawings = []
    for number, (picture, similarity) in enumerate(zip(pictures, task.image_similarities(pictures), strict=True)):
        content = io.BytesIO()
        picture.save(content, "PNG")
        write_atomically(folder / f"{number}.png", content.getvalue())
        drawings.append({"name": f"{number}.png", "data_uri": data_uri(picture), "similarity": similarity})
    write_json(Path(run) / "result.json", {**found.data, "drawings": drawings})
    refresh(Path(run), "result.json")
    write_report(Path(run))
    return running.result_of(Path(run))
