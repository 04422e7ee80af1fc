"""The cache: what was put there is what is read from it."""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import child
from filelock import FileLock

from pinprompt import doctor
from pinprompt.errors import ModelError
from pinprompt.models import cache


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path))
    target = tmp_path / "models" / "one-1.0"
    with cache.place(target, "a model") as folder:
        assert folder is not None
        (folder / "inner").mkdir()
        (folder / "inner" / "model.safetensors").write_bytes(b"weights")
    return target


def test_weights_are_checked_once_a_day_and_on_request(target: Path) -> None:
    (target / "inner" / "model.safetensors").write_bytes(b"weightz")
    with cache.place(target, "a model") as folder:
        assert folder is None, "it was checked today"
    assert any("one-1.0" in problem for problem in doctor.examine(deep=True)["problems"])
    aged = (target / cache.HASHES).stat().st_mtime - 2 * cache.DAY
    os.utime(target / cache.HASHES, (aged, aged))
    with pytest.raises(ModelError, match=r"model.safetensors changed.*fetched again"), cache.place(target, "a model"):
        pass
    (target / "inner" / "model.safetensors").write_bytes(b"weights")
    with cache.place(target, "a model") as folder:
        assert folder is None
    assert (target / cache.HASHES).stat().st_mtime > aged + cache.DAY, "the check is remembered"
    assert cache.damaged_folders() == []


def test_damaged_hashes_are_a_change(target: Path) -> None:
    (target / "inner" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors changed"):
        cache.check(target, deep=True)
    (target / cache.HASHES).write_text("{")
    with pytest.raises(ModelError, match="was changed since it was cached"):
        cache.check(target, deep=True)


def test_a_check_in_the_future_is_not_trusted(target: Path) -> None:
    (target / "inner" / "model.safetensors").write_bytes(b"weightz")
    future = time.time() + 1000 * cache.DAY
    os.utime(target / cache.HASHES, (future, future))
    with pytest.raises(ModelError, match=r"model\.safetensors changed"), cache.place(target, "a model"):
        pass


def test_a_hash_of_a_file_from_the_future_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    weights, future = tmp_path / "weights", time.time() + 1000 * cache.DAY
    for content in (b"one", b"two"):
        weights.write_bytes(content)
        os.utime(weights, (future, future))
        assert cache.known_sha256_of(weights) == hashlib.sha256(content).hexdigest()


def test_what_a_killed_download_left_is_deleted_by_the_next_one(target: Path, tmp_path: Path) -> None:
    staging = tmp_path / "tmp"
    (staging / "other-2.0.abc").mkdir()  # killed, and nobody wants that model any more
    (staging / "busy-1.0.abc").mkdir()
    with FileLock(tmp_path / "locks" / "busy-1.0.lock"), cache.place(tmp_path / "models" / "new-1.0", "new") as folder:
        assert folder is not None
        assert sorted(path.name.rpartition(".")[0] for path in staging.iterdir()) == ["busy-1.0", "new-1.0"]


FILL = """
import os, signal, sys, time
from pathlib import Path
from pinprompt.models import cache
home = Path(os.environ["PINPROMPT_HOME"])
with cache.place(home / "models" / "big-1.0", "a model") as folder:
    if folder is not None:
        (folder / "half").write_bytes(b"half")
        print("half", flush=True)
        sys.stdin.readline()
        (folder / "whole").write_bytes(b"whole")
print("done", sorted(path.name for path in (home / "models" / "big-1.0").iterdir()), flush=True)
"""


def test_two_at_once_of_which_one_is_killed_half_way(tmp_path: Path) -> None:
    command, environment = [sys.executable, "-c", FILL], {**os.environ, "PINPROMPT_HOME": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with child(command, **pipes) as first, child(command, **pipes) as second:
        [begun, *_], _, _ = select.select([first.stdout, second.stdout], [], [])
        one, other = (first, second) if begun is first.stdout else (second, first)
        one.kill()
        assert other.stdout.readline() == "half\n"  # it waited for the lock, and begins from the start
        assert not (tmp_path / "models" / "big-1.0").exists()
        other.stdin.write("\n")
        other.stdin.flush()
        assert "'half', 'whole'" in other.stdout.readline()
    assert list((tmp_path / "tmp").iterdir()) == []
