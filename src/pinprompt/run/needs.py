"""What a recipe needs that this machine cannot have: models and data, looked for and not loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pinprompt.errors import PinpromptError
from pinprompt.methods.table import METHODS
from pinprompt.recipe.recipe import Recipe

Known = dict[str, str | None]
"""Answers so far by question: a sweep has many cells with the same models, and the hub is asked once for all."""


def missing(recipe: Recipe, known: Known | None = None) -> list[str]:
    """A sentence for each model or data set that cannot be had; empty where the recipe can run.

    Nothing is downloaded. What comes from the package index counts as had; a model server is not asked.
    """
    known = {} if known is None else known
    needed = [_once(f"model {name}", partial(_model, name, known), known) for name in _models(recipe)]
    needed += _data(recipe, known)
    if METHODS[recipe.method].gradients and str(getattr(recipe.task, "model", "")).startswith("remote:"):
        needed.append(f"model: '{recipe.method}' needs gradients, which a model behind an API does not give")
    return list(dict.fromkeys(sentence for sentence in needed if sentence is not None))


def _once(question: str, ask: Callable[[], str | None], known: Known) -> str | None:
    if question not in known:
        known[question] = ask()
    return known[question]


def _models(recipe: Recipe) -> list[str]:
    task: Any = recipe.task
    names = [] if METHODS[recipe.method].kind == "handwritten" else [recipe.policy.model]
    names += [task.model] if task.kind != "custom" else []
    if task.kind == "style-transfer":
        names += [task.encoder, *(name for name in (task.style, task.test_style) if name != "trained")]
        names += [name for name in (task.fluency, task.fluency_model) if name not in (None, "perplexity")]
    return names


def _model(name: str, known: Known) -> str | None:
    """Why a model cannot be had."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    from pinprompt.models.clip import EMOJI_CLIP
    from pinprompt.models.sources import ALIASES, looks_like_id

    if name in ALIASES or name == EMOJI_CLIP or name.startswith("remote:") or Path(name).expanduser().exists():
        return None
    if not looks_like_id(name):
        return f"model '{name}': there is no such file or folder"
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return None
    reason = _hub(known)
    if reason is not None:
        return f"model '{name}': not in the hub's cache on this machine, and {reason}"
    try:
        HfApi().model_info(name, timeout=10)
    except Exception as error:  # not found, gated, or anything of the network below it
        return f"model '{name}': the hub does not give it ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return None


def _hub(known: Known) -> str | None:
    from pinprompt.models.sources import unreachable

    return _once("hub", unreachable, known)


def _data(recipe: Recipe, known: Known) -> Iterator[str | None]:
    task: Any = recipe.task
    if task.kind == "classification":
        yield _labelled(task, known)
    elif task.kind == "style-transfer":
        yield _texts(task)
    elif task.kind == "inversion":
        for name in task.images:
            path = Path(name).expanduser()
            if not path.exists():
                # A folder that is not there is one thing that is missing, however many pictures it should hold.
                lost = path if path.parent.is_dir() else path.parent
                yield f"picture: there is no '{lost}'"
        if not task.images:
            yield "pictures: none are named (task.images)"


def _labelled(task: Any, known: Known) -> str | None:
    from pinprompt.data import datasets
    from pinprompt.data.packaged import PILES

    if task.dataset is None:
        absent = [name for name in (task.train, task.dev, task.test) if name and not Path(name).expanduser().is_file()]
        if task.train is None:
            return "data: neither a dataset nor a training file is named (task.dataset, task.train)"
        return f"data: there is no file '{absent[0]}'" if absent else None
    name = datasets.lookup(task.dataset).name
    if task.data is not None:
        return _folder(task.dataset, task.data, lambda: datasets.load(name, task.data, task.split, task.shots))
    if name in PILES:
        return None
    reason = _once(f"data {name}", lambda: _hub_data(name, known), known)
    return None if reason is None else f"data '{task.dataset}': {reason}; or name a folder with its splits as task.data"


def _hub_data(name: str, known: Known) -> str | None:
    from pinprompt.data import datasets

    place = datasets.lookup(name).hub
    assert place is not None, "a card without a place on the hub is one of PILES"
    try:
        import datasets as hub
    except ImportError:
        return f"{place.id} of the hub needs the extra: pip install 'pinprompt[hub]'"
    if (Path(hub.config.HF_DATASETS_CACHE) / place.id.replace("/", "___")).is_dir():
        return None
    reason = _hub(known)
    return None if reason is None else f"{place.id} of the hub is not on this machine, and {reason}"


def _texts(task: Any) -> str | None:
    from pinprompt.data.style import load_style, lookup_style

    if task.dataset is None:
        named = [name for name in (task.source, task.target, task.test, task.references) if name]
        absent = [name for name in named if not Path(name).expanduser().is_file()]
        if task.source is None or task.target is None:
            return "texts: neither a dataset nor a source and a target file are named (task.dataset, task.source)"
        return f"texts: there is no file '{absent[0]}'" if absent else None
    card = lookup_style(task.dataset)
    if task.data is None:
        return None if card.packaged else f"texts '{task.dataset}': give the folder that holds them as task.data"
    return _folder(task.dataset, task.data, lambda: load_style(card.name, task.data, "test", task.split))


def _folder(dataset: str, folder: str, read: Callable[[], Any]) -> str | None:
    """Why the files of a dataset in a folder cannot be read."""
    if not Path(folder).expanduser().is_dir():
        return f"data: there is no folder '{folder}'; name the one that holds the files with --set task.data=FOLDER"
    try:
        read()
    except PinpromptError as error:
        return f"data '{dataset}' in '{folder}': {error}"
    return None
