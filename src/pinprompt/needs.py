"""What a recipe needs and this machine lacks: models and data are looked for, but not loaded or downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pinprompt.errors import PinpromptError
from pinprompt.methods.table import row_of
from pinprompt.models import sources
from pinprompt.models.wheels import ALIASES
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.task_sections import is_remote, model_and_part

Known = dict[str, str | None]
"""Cached answers: a sweep has many runs with the same models, and the hub is asked once for all."""


def missing(recipe: Recipe, known: Known | None = None) -> list[str]:
    """A sentence for each model or dataset that is not available; empty if the recipe can run.

    Nothing is downloaded. What comes from the package index counts as available; model servers are not contacted.
    """
    known = {} if known is None else known
    needed = [_once(f"model {name}", partial(_model, name, known), known) for name in _models(recipe)]
    needed += _data(recipe, known)
    if row_of(recipe.method).gradients and recipe.served is not None:
        needed.append(f"model: '{recipe.method}' needs gradients, which a remote model does not provide")
    return list(dict.fromkeys(sentence for sentence in needed if sentence is not None))


def _once(question: str, ask: Callable[[], str | None], known: Known) -> str | None:
    if question not in known:
        known[question] = ask()
    return known[question]


def _models(recipe: Recipe) -> list[str]:
    task: Any = recipe.task
    names = [] if row_of(recipe.method).kind == "handwritten" else [recipe.policy.model]
    names += [task.model] if task.kind != "custom" else []
    if task.kind == "answers":
        names += [name for name in (task.judge, task.proposer) if name is not None]
    if task.kind == "style-transfer":
        judges = [model_and_part(name)[0] for name in (task.encoder, task.style, task.test_style, task.fluency)]
        names += [name for name in judges if name not in ("trained", "perplexity")]
        name, part = model_and_part(task.fluency)
        names += [part] if name == "perplexity" and part else []
    return names


def _model(name: str, known: Known) -> str | None:
    """Why a model is not available."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    from pinprompt.models.clip import EMOJI_CLIP

    if name in ALIASES or name == EMOJI_CLIP or is_remote(name) or Path(name).expanduser().exists():
        return None
    if not sources.looks_like_id(name):
        return f"model '{name}': there is no such file or folder"
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return None
    reason = _once("hub", sources.unreachable, known)
    if reason is not None:
        return f"model '{name}': not in the hub's cache on this machine, and {reason}"
    try:
        HfApi().model_info(name, timeout=10)
    except Exception as error:  # not found, gated, or a network error
        return f"model '{name}': not available on the hub ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return None


def _data(recipe: Recipe, known: Known) -> Iterator[str | None]:
    task: Any = recipe.task
    if task.kind == "classification":
        yield _labelled(task, known)
    elif task.kind == "style-transfer":
        yield _texts(task)
    elif task.kind == "answers":
        yield (
            "data: no file with rows is named (task.train)"
            if task.train is None
            else _absent("data", task.train, task.dev, task.test)
        )
    elif task.kind == "inversion":
        for name in task.images:
            path = Path(name).expanduser()
            if not path.exists():
                # A missing folder is reported once, however many pictures it should hold.
                lost = path if path.parent.is_dir() else path.parent
                how = "correct task.images; tools/paper_pictures.py downloads the pictures of recipes/paper"
                yield f"picture: there is no '{lost}'; {how}"
        if not task.images:
            yield "pictures: none are named (task.images)"


def _labelled(task: Any, known: Known) -> str | None:
    from pinprompt.data import datasets
    from pinprompt.data.packaged import PILES

    if task.dataset is None:
        if task.train is None:
            return "data: neither a dataset nor a training file is named (task.dataset, task.train)"
        return _absent("data", task.train, task.dev, task.test)
    name = datasets.lookup(task.dataset).name
    if task.data is not None:
        return _folder(task.dataset, task.data, lambda: datasets.load(name, task.data, task.split, task.shots))
    if name in PILES:
        return None
    place = datasets.lookup(name).hub
    assert place is not None, "a card without a place on the hub is one of PILES"
    try:
        if datasets.in_hub_cache(place):
            return None
        down = _once("hub", sources.unreachable, known)
        reason = None if down is None else f"{place.id} of the hub is not on this machine, and {down}"
    except ImportError:
        reason = f"{place.id} of the hub needs the extra: pip install 'pinprompt[hub]'"
    return None if reason is None else f"data '{task.dataset}': {reason}; or set task.data to a folder with its splits"


def _texts(task: Any) -> str | None:
    from pinprompt.data.style import load_style, lookup_style

    if task.dataset is None:
        if task.source is None or task.target is None:
            return "texts: neither a dataset nor a source and a target file are named (task.dataset, task.source)"
        return _absent("texts", task.source, task.target, task.test, task.references)
    card = lookup_style(task.dataset)
    if task.data is None:
        return None if card.packaged else f"texts '{task.dataset}': set task.data to the folder with its files"
    return _folder(task.dataset, task.data, lambda: load_style(card.name, task.data, "test", task.split))


def _absent(kind: str, *files: str | None) -> str | None:
    absent = [name for name in files if name and not Path(name).expanduser().is_file()]
    return f"{kind}: there is no file '{absent[0]}'" if absent else None


def _folder(dataset: str, folder: str, read: Callable[[], Any]) -> str | None:
    """Why the files of a dataset in a folder cannot be read."""
    if not Path(folder).expanduser().is_dir():
        return f"data: there is no folder '{folder}'; set the folder of the files with --set task.data=FOLDER"
    try:
        read()
    except PinpromptError as error:
        return f"data '{dataset}' in '{folder}': {error}"
    return None
