"""Checks this machine, for `pinprompt doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pinprompt.errors import install_line
from pinprompt.models import sources
from pinprompt.models.cache import damaged_folders, home
from pinprompt.models.wheels import ALIASES

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
)


def examine(deep: bool = False) -> dict[str, Any]:
    """Check this machine and list what to install for which feature, as plain values.

    `deep` checks the hashes of cached weights and data too, which takes a second per gigabyte. `problems` lists what
    keeps pinprompt from working, each with a remedy; a missing extra or hub is not a problem.
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
        "device": _device(libraries["torch"]) if libraries["torch"] else None,
        "cache": _cache(),
        "extras": [_extra(extra) for extra in EXTRAS],
        "hub": asking.result(),
        "aliases": {alias.name: alias.folder.is_dir() for alias in ALIASES.values()},
    }
    report["problems"] = [*_problems(report), *(damaged_folders() if deep else [])]
    report["ok"] = not report["problems"]
    return report


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


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
    from huggingface_hub.constants import HF_HUB_CACHE

    reason = sources.unreachable(seconds=1.0)
    advice = (
        f"use the aliases ({', '.join(ALIASES)}), local folders or .gguf files; models in the hub's cache "
        f"({HF_HUB_CACHE}) also work"
    )
    return {"reachable": reason is None, "reason": reason, "advice": None if reason is None else advice}


def _problems(report: dict[str, Any]) -> Iterator[str]:
    for name, version in report["libraries"].items():
        if version is None:
            yield f"{name} is not installed: pip install pinprompt"
    if report["device"] is not None and report["device"]["name"] is None:
        yield f"{report['device']['detail']}: pip install --force-reinstall torch==2.13.0"
    cache = report["cache"]
    # Large ones are fetched only if the user wants them.
    absent = [name for name, cached in report["aliases"].items() if not cached and not ALIASES[name].download]
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
