"""The cache: what was put there is what is read from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
    assert any("one-1.0" in problem for problem in doctor.examine(weights=True)["problems"])
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
