"""The error family: every mistake a user can make ends in one of these, with a sentence that says what to do next."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class PinpromptError(Exception):
    """Anything that pinprompt itself refuses; the command line prints its text and exits with code 2."""


class SettingError(PinpromptError):
    """A setting, option or argument that cannot be used as given."""


class NotAgreed(SettingError):
    """A recipe file or a run folder asks for something that its user has not agreed to."""


class DataError(PinpromptError):
    """A data file that cannot be used; carries the file and, where there is one, the line."""

    def __init__(self, message: str, *, path: object = None, line: int | None = None) -> None:
        self.path, self.line = path, line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(place + message)


class ModelError(PinpromptError):
    """A model that cannot be found, fetched, loaded or used for the job."""


class NotFetched(ModelError):
    """A model or dataset that is not on this machine, while nothing may be fetched."""


class MissingExtra(PinpromptError):
    """An optional library that is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': {install_line(extra)}")
        self.extra = extra


class TaskError(PinpromptError):
    """A task that broke its contract: a score that is not a number, a wrong count of scores, a failing function."""


class RunError(PinpromptError):
    """A run folder that cannot be opened, written or resumed."""


class FolderInUse(RunError):
    """Another process has the run folder."""


class BudgetSpent(PinpromptError):
    """The next call would overshoot the budget. Methods stop cleanly on it; it is not a failure.

    `scores` holds what was scored of the batch before the money ran out (values.Score, the batch's first prompts, in
    order): paid results are never thrown away.
    """

    def __init__(self, message: str, *, scores: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.scores = list(scores)


class ServerDown(PinpromptError):
    """A remote model stopped answering; the run stops cleanly and can be resumed."""


def install_line(extra: str) -> str:
    """The pip command that adds an extra: from the checkout that pinprompt comes from, else by its name."""
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
    """A clause that names the closest known words, or lists them all where none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=2, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    return "known: " + ", ".join(names)
