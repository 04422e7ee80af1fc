"""Consent: what a recipe would do on this machine, and whether the user has allowed it.

A recipe can name Python code to run, a server to send texts and a key to, and files to read. Settings that the user
gives (options, `--set`, Python objects) are trusted. A recipe file or a run folder may be untrusted, so its requests
are shown, and nothing is imported, sent or read before the user consents, in the terminal or with `--trust`. The answer
is remembered by a hash of the request, so that a run made on this machine, and a recipe that was allowed once, need no
further consent.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinprompt.agreement import agreed_in_advance, says_yes
from pinprompt.agreement import answering as answering
from pinprompt.errors import NotAgreed, PinpromptError, RunError
from pinprompt.files import loads, read_file, write_json
from pinprompt.models.cache import home
from pinprompt.recipe.recipe import Recipe, setting_in
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.wording import text

ENTRY_POINTS = "pinprompt.functions"
"""Functions that an installed package provides in this entry-point group need no consent: the user installed it."""
FILES = ("data", "train", "dev", "test", "keep_right", "source", "target", "references", "images")
"""Settings of a task that name files or folders."""
MAX_REMEMBERED = 2000
"""Maximum number of remembered answers; the oldest are dropped first."""
MAX_BYTES = 4 << 20
MAX_LINES_SHOWN = 20


@dataclass(frozen=True)
class ConsentRequest:
    """What one recipe would do."""

    code: tuple[tuple[str, str, str], ...]
    """Setting, 'module:name', and the file that it would be imported from ('' if not known)."""
    server: tuple[str, str, str] | None
    """Model, address and the environment variable with the key; None without a remote model."""
    files: tuple[tuple[str, str], ...]
    """Setting and path, as in the recipe."""

    @property
    def identity(self) -> str:
        """The hash under which an answer is remembered; without the model's name, which does not affect consent."""
        server = None if self.server is None else self.server[1:]
        return hashlib.sha256(json.dumps([self.code, server, self.files]).encode()).hexdigest()

    def lines(self) -> list[str]:
        """Everything that the recipe would do, one sentence each."""
        found = [
            f"run Python code: {setting} = '{place}', from {origin or 'an unknown file'}"
            for setting, place, origin in self.code
        ]
        if self.server is not None:
            model, address, variable = self.server
            key = f" with the key in {variable}" if variable and os.environ.get(variable) else " without a key"
            found.append(f"send texts to {address} (model '{model}'){key}")
        shown = [f"{setting} = {path}" for setting, path in self.files]
        if shown:
            more = f" and {len(shown) - MAX_LINES_SHOWN} more" if len(shown) > MAX_LINES_SHOWN else ""
            found.append(f"read {', '.join(shown[:MAX_LINES_SHOWN])}{more}")
        return [text(line, 600).replace("\n", "␊") for line in found]

    def foreign(self, given: Mapping[str, Any], folders: Sequence[Path], reads: bool) -> bool:
        """Whether anything in it needs consent; files in these folders do not."""
        if any(setting_in(given, setting) is None for setting, *_ in self.code):
            return True
        if self.server is not None:
            address, variable = setting_in(given, "remote.base_url"), setting_in(given, "remote.key_env")
            if address is None or (variable is None and self.server[2] not in ("", RemoteSettings().key_env)):
                return True
        named = [path for setting, path in self.files if setting_in(given, setting) is None]
        return reads and any(not _is_inside(path, folders) for path in named)


def request_of(recipe: Recipe) -> ConsentRequest:
    """What a recipe would do, found without importing anything."""
    places = {"task.function": getattr(recipe.task, "function", ""), "method": recipe.method}
    code, files = [], list[tuple[str, str]]()
    for setting, place in places.items():
        module, colon, _ = place.partition(":")
        if colon and not _installed(place, origin := origin_of(module)):
            code.append((setting, place, origin))
    models = ", ".join(recipe.remote_models)
    server = (models, recipe.remote.base_url, recipe.remote.key_env) if models else None
    for name in FILES:
        value = getattr(recipe.task, name, None) or ()
        files += [(f"task.{name}", path) for path in ((value,) if isinstance(value, str) else value)]
    if recipe.policy.constraints.banned_file:
        files.append(("policy.constraints.banned_file", recipe.policy.constraints.banned_file))
    return ConsentRequest(tuple(code), server, tuple(files))


def agree(
    recipes: Recipe | Iterable[Recipe],
    source: Path | str,
    given: Mapping[str, Any] | None = None,
    *,
    reads: bool = True,
) -> None:
    """Return if the user has consented to the recipes of a file or run folder, otherwise ask, or raise NotAgreed.

    `given` are settings that the user gave, which are trusted. With `reads=False` the files that the recipes name are
    not read, so they need no consent.
    """
    asked = map(request_of, [recipes] if isinstance(recipes, Recipe) else recipes)
    requests = {one.identity: one for one in asked if one.foreign(given or {}, _trusted_folders(source), reads)}
    if not requests or requests.keys() <= _remembered().keys():
        return
    lines = list(dict.fromkeys(line for request in requests.values() for line in request.lines()))
    shown = lines[:MAX_LINES_SHOWN] + (
        [f"{len(lines) - MAX_LINES_SHOWN} more of the same kind"] if len(lines) > MAX_LINES_SHOWN else []
    )
    name = text(str(source), 300)
    listed = "\n".join(f"  - {line}" for line in shown)
    question = f"{name} was not agreed to yet. It asks to\n{listed}\nDo you trust it?"
    if not says_yes(question):
        raise NotAgreed(
            f"{name} was not agreed to yet, and asks to {'; to '.join(shown)}. Nothing was run, sent or read. If you "
            "trust it, repeat the command with --trust (in Python: with pinprompt.run.consent.answering(): ...); the "
            "answer is remembered"
        )
    _remember(requests.values())


def unread(recipe: Recipe, source: Path | str, given: Mapping[str, Any] | None = None) -> list[str]:
    """Files that a recipe of a file or a run folder names and that nobody agreed to read yet."""
    request, folders = request_of(recipe), _trusted_folders(source)
    if agreed_in_advance() or request.identity in _remembered():
        return []
    named = [
        path
        for setting, path in request.files
        if setting_in(given or {}, setting) is None and not _is_inside(path, folders)
    ]
    return [text(path, 200).replace("\n", "␊") for path in named[:MAX_LINES_SHOWN]]


def known(recipe: Recipe, source: Path | str) -> bool:
    """Whether a recipe of a file or run folder needs no further consent."""
    try:
        with answering(False):
            agree(recipe, source)
    except NotAgreed:
        return False
    return True


def vouch(recipe: Recipe) -> None:
    """Remember that the user gave this recipe, so that the run made from it needs no consent."""
    request = request_of(recipe)
    if request.foreign({}, [Path.cwd()], True) and request.identity not in _remembered():
        _remember([request])


def origin_of(module: str) -> str:
    """The file that a module would be imported from, found without importing it or its packages; '' if none."""
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
        return os.path.realpath(file) if file else ""
    here = os.getcwd()
    where: Sequence[str] | None = sys.path if here in sys.path else [here, *sys.path]
    spec, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, where)
        except (ImportError, ValueError, OSError):
            return ""
        if spec is None:
            return ""
        where = spec.submodule_search_locations or []
    return os.path.realpath(spec.origin) if spec is not None and spec.origin else ""


def _installed(place: str, origin: str) -> bool:
    """Whether an installed package provides this function, and it would be imported from that package's files."""
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if point.value == place and point.dist is not None and origin:
            root = os.path.realpath(str(point.dist.locate_file("")))
            if Path(origin).is_relative_to(root) and not Path(os.getcwd()).resolve().is_relative_to(root):
                return True
    return False


def _trusted_folders(source: Path | str) -> list[Path]:
    """The folders whose files need no consent: the working folder, and that of a file or run folder."""
    return [Path.cwd(), Path(source) if Path(source).is_dir() else Path(source).parent]


def _is_inside(path: str, folders: Sequence[Path]) -> bool:
    """Whether a file is below one of the folders, links resolved, and neither it nor a parent folder is hidden."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        there = Path(path).expanduser().resolve()
        for folder in folders:
            root = folder.resolve()
            if there.is_relative_to(root):
                return not any(part.startswith(".") for part in there.relative_to(root).parts)
    return False


def _path() -> Path:
    return home() / "agreed.json"


def _remembered() -> dict[str, Any]:
    """The stored answers by hash; a damaged or foreign file counts as empty."""
    try:
        tree = loads(read_file(_path(), MAX_BYTES) or b"{}")
    except (RunError, ValueError):
        return {}
    found = tree.get("agreed") if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}


def _remember(requests: Iterable[ConsentRequest]) -> None:
    """Store answers; if that fails, the user is asked again next time."""
    kept = _remembered()
    today = time.strftime("%Y-%m-%d")
    for request in requests:
        # Consent to a server includes the same without it: `evaluate --task-model` may use a local model instead.
        for agreed in {request, replace(request, server=None)}:
            kept.pop(agreed.identity, None)
            kept[agreed.identity] = {"when": today, "asked": agreed.lines()}
    with contextlib.suppress(OSError, PinpromptError):
        home().mkdir(parents=True, exist_ok=True)
        write_json(_path(), {"agreed": dict(list(kept.items())[-MAX_REMEMBERED:])})
