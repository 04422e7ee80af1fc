"""Exceptions. Every user error raises one of these, with a message that says what to do next."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class PinpromptError(Exception):
    """Base class of all errors; the command line prints the message and exits with code 2."""


class SettingError(PinpromptError):
    """A setting, option or argument that cannot be used as given."""


class NotAgreed(SettingError):
    """A recipe file or run folder needs something that the user has not consented to."""


class DataError(PinpromptError):
    """A data file that cannot be used; has the file and, if known, the line."""

    def __init__(self, message: str, *, path: object = None, line: int | None = None) -> None:
        self.path, self.line = path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(place + message)


class ModelError(PinpromptError):
    """A model that cannot be found, downloaded, loaded or used for the task."""


class UselessAnswers(ModelError):
    """Most of the first answers of a model behind an API cannot be used, so the run stops."""


class NotFetched(ModelError):
    """A model or dataset that is not on this machine and must not be downloaded."""


class MissingExtra(PinpromptError):
    """An optional library that is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': {install_line(extra)}")
        self.extra = extra


class TaskError(PinpromptError):
    """A task that violates its protocol: a score that is not a number, a wrong number of scores, a failing function."""


class RunError(PinpromptError):
    """A run folder that cannot be opened, written or resumed."""


class FolderInUse(RunError):
    """Another process is using the run folder."""


class BudgetSpent(PinpromptError):
    """The next call would exceed the budget. Methods stop cleanly on it; it is not a failure.

    `scores` holds the scores of the batch's first prompts, in order (values.Score): paid results are never discarded.
    """

    def __init__(self, message: str, *, scores: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.scores = list(scores)


class ServerDown(PinpromptError):
    """A remote model stopped answering; the run stops cleanly and can be resumed."""


def errno_of(error: BaseException) -> int | None:
    """The system's number of an error; safetensors wraps the system's errors in its own."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return None if found is None else int(found[1])


def install_line(extra: str) -> str:
    """The pip command that installs an extra: from pinprompt's checkout if there is one, otherwise by name."""
    try:
        origin = json.loads(metadata.distribution("pinprompt").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    place = urlsplit(str(origin.get("url", "")))
    folder = unquote(place.path) if place.scheme == "file" else ""
    if not folder or not (Path(folder) / "pyproject.toml").is_file():
        return f"pip install 'pinprompt[{extra}]'"
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{folder}[{extra}]')}"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A clause that suggests the closest known names, or lists all of them if none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=2, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    return "known: " + ", ".join(names)
