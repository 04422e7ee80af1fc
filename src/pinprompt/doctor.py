"""Checks this machine: for `pinprompt doctor`, and for the models and data that a recipe needs.

Models and data are looked for, but not loaded.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from pinprompt.errors import PinpromptError, install_line
from pinprompt.methods.table import row_of
from pinprompt.models import sources
from pinprompt.models.cache import damaged_folders, home
from pinprompt.models.wheels import ALIASES
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.task_sections import model_and_part

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "accelerate", "huggingface-hub", "numpy")
_ROOM_FOR_ALIASES = 2_000_000_000


class Extra(NamedTuple):
    """An extra: the names of its distributions, and what they are used for."""

    name: str
    distributions: tuple[str, ...]
    purpose: str


EXTRAS = (
    Extra("hub", ("datasets",), "datasets from the hub"),
    Extra("image", ("pillow",), "finding words for an image"),
    Extra("style", ("sacrebleu",), "BLEU in text style transfer"),
    Extra("ray", ("ray",), "parallel workers, sweeps on a cluster"),
    Extra("diffusion", ("diffusers", "pillow"), "drawing images from prompts"),
    Extra("studio", ("starlette", "uvicorn"), "pinprompt studio: the local web page"),
    Extra("sklearn", ("scikit-learn", "pandas"), "a scikit-learn estimator (pinprompt.sklearn)"),
    Extra("track", ("tensorboard", "mlflow-skinny"), "experiment trackers"),
)


def examine(weights: bool = False) -> dict[str, Any]:
    """Everything about this environment as plain values.

    `weights` checks the hashes of cached weights and data, which takes a second per gigabyte.

    `problems` lists what keeps pinprompt from working, each with a remedy; a missing extra or hub is not a problem.
    """
    # In parallel with the import of torch: each may take a second.
    asking = ThreadPoolExecutor(1).submit(_hub)
    libraries = {name: _version(name) for name in _LIBRARIES}
    has_pip = importlib.util.find_spec("pip") is not None
    report: dict[str, Any] = {
        "pinprompt": _version("pinprompt"),
        "python": {"version": platform.python_version(), "executable": sys.executable, "pip": has_pip},
        "platform": platform.platform(),
        # A container often has fewer cores than the machine.
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gb": _memory_gb(),
        "libraries": libraries,
        "unsuited": _unsuited(),
        "device": _device(libraries["torch"]) if libraries["torch"] else None,
        "cache": _cache(),
        "extras": [_extra(extra) for extra in EXTRAS],
        "hub": asking.result(),
        "aliases": {alias.name: alias.folder.is_dir() for alias in ALIASES.values()},
    }
    report["problems"] = [*_problems(report), *(damaged_folders() if weights else [])]
    report["ok"] = not report["problems"]
    return report


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unsuited() -> list[tuple[str, str, str]]:
    """Installed libraries with an unsupported version: name, version, required version."""
    try:
        declared = importlib.metadata.requires("pinprompt") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for line in declared:
        requirement = Requirement(line)
        version = _version(requirement.name)
        # An installed library of an extra is used, so its bounds apply too; libraries for developers are not checked.
        relevant = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra.name}) for extra in EXTRAS
        )
        if relevant and version is not None and not requirement.specifier.contains(version, prereleases=True):
            found.append((requirement.name, version, str(requirement.specifier)))
    return list(dict.fromkeys(found))


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _device(torch_version: str) -> dict[str, Any]:
    if torch_version.endswith("+cpu"):
        # This build supports no other device, and importing it to find out takes a second or two.
        return {"name": "cpu", "detail": f"{platform.machine()}, a CPU build of torch", "count": 1}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch

            if torch.cuda.is_available():
                return {"name": "cuda", "detail": torch.cuda.get_device_name(0), "count": torch.cuda.device_count()}
            if torch.backends.mps.is_available():
                return {"name": "mps", "detail": "Apple GPU", "count": 1}
            return {"name": "cpu", "detail": platform.processor() or platform.machine(), "count": 1}
    except Exception as error:  # a broken torch may raise anything; the doctor must still answer
        return {"name": None, "detail": f"torch cannot be imported: {error}", "count": 0}


def _cache() -> dict[str, Any]:
    folder = there = home()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:  # by writing, since permissions do not reveal a read-only or full disk
        with tempfile.TemporaryFile(dir=there) as handle:
            handle.write(b"pinprompt")
        writable = True
    except OSError:
        writable = False
    free = round(shutil.disk_usage(there).free / 1e9, 1)
    return {"path": str(folder), "exists": folder.is_dir(), "writable": writable, "free_gb": free}


def _extra(extra: Extra) -> dict[str, Any]:
    missing = [name for name in extra.distributions if _version(name) is None]
    return {
        "name": extra.name,
        "for": extra.purpose,
        "installed": not missing,
        "missing": missing,
        "install": install_line(extra.name) if missing else None,
    }


def _hub() -> dict[str, Any]:
    reason = sources.unreachable(seconds=1.0)
    advice = (
        f"use the aliases ({', '.join(ALIASES)}), local folders or .gguf files; models in the hub's cache "
        f"({sources.cache_folder()}) also work"
    )
    return {"reachable": reason is None, "reason": reason, "advice": None if reason is None else advice}


def _problems(report: dict[str, Any]) -> Iterator[str]:
    for name, version in report["libraries"].items():
        if version is None:
            yield f"{name} is not installed: pip install pinprompt"
    for name, version, wanted in report["unsuited"]:
        needs = f"{name}{wanted}"
        yield f"{name} {version} is installed, and pinprompt needs {needs}: pip install '{needs}'"
    if report["device"] is not None and report["device"]["name"] is None:
        yield f"{report['device']['detail']}: pip install --force-reinstall torch==2.13.0"
    cache = report["cache"]
    absent = [name for name, cached in report["aliases"].items() if not cached]
    if not cache["writable"]:
        yield f"the cache folder {cache['path']} cannot be written to: set PINPROMPT_HOME to a writable folder"
    elif absent and cache["free_gb"] * 1e9 < _ROOM_FOR_ALIASES:
        yield (
            f"the cache folder {cache['path']} has {cache['free_gb']} GB free; downloading models takes about "
            f"{_ROOM_FOR_ALIASES / 1e9:.0f} GB: free some space, or set PINPROMPT_HOME to a folder on another disk"
        )
    if absent and not report["python"]["pip"]:
        needed = ", ".join(absent)
        yield f"this Python has no pip, which is needed to download {needed}: run {sys.executable} -m ensurepip"


Known = dict[str, str | None]
"""Cached answers: a sweep has many runs with the same models, and the hub is asked once for all."""


def missing(recipe: Recipe, known: Known | None = None) -> list[str]:
    """A sentence for each model or dataset that is not available; empty if the recipe can run.

    Nothing is downloaded. What comes from the package index counts as available; model servers are not contacted.
    """
    known = {} if known is None else known
    needed = [_once(f"model {name}", partial(_model, name, known), known) for name in _models(recipe)]
    needed += _data(recipe, known)
    if row_of(recipe.method).gradients and str(getattr(recipe.task, "model", "")).startswith("remote:"):
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

    if name in ALIASES or name == EMOJI_CLIP or name.startswith("remote:") or Path(name).expanduser().exists():
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
