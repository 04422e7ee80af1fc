"""Files are switched over at once, and the folder that names them is synced."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pinprompt.errors import RunError
from pinprompt.files import loads, rename, seal, sha256_of, unseal, whole_lines, write_atomically, write_tensors


def test_a_rename_is_followed_by_a_sync_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def replaced(source: Any, target: Any) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_atomically(tmp_path / "a.txt", "words")
    assert done == ["file", "rename", "folder"]
    done.clear()
    write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})
    assert done == ["file", "rename", "folder"]
    done.clear()
    (tmp_path / "made").mkdir()
    rename(tmp_path / "made", tmp_path / "whole")
    assert done == ["rename", "folder"]
    assert (tmp_path / "a.txt").read_text() == "words"
    assert load_file(tmp_path / "a.safetensors")["x"].tolist() == [1.0, 1.0]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(2)})

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left on device; free some space"):
        write_tensors(path, {"x": torch.zeros(2)})
    with pytest.raises(RunError, match="No space left on device"):
        write_atomically(tmp_path / "a.txt", "words")
    assert load_file(path)["x"].tolist() == [1.0, 1.0]
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize(
    ("text", "reason"), [("[" * 100_000, "nested"), ("9" * 5000, "digits"), ("{", "Expecting"), (b'"\xff"', "decode")]
)
def test_json_that_cannot_be_read_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        loads(text)


def test_a_sealed_line_is_json_and_belongs_to_one_owner() -> None:
    tree = {"a": [1, -2.5, None, True, 10**40], "b": "9" * 5000, "c": {"d": "ü\u2028\ud800"}}
    line = seal(tree, "one")
    assert {name: value for name, value in json.loads(line).items() if name != "crc"} == tree
    assert unseal(line, "one") == unseal(line + b"\n", "one") == tree
    assert unseal(line, "two") is None
    assert unseal(line) is None
    assert unseal(b"") is None
    assert unseal(b'{"a":1}') is None


def test_a_sparse_file_of_many_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.touch()
    os.truncate(path, 1 << 40)  # takes no room on the disk
    with pytest.raises(RunError, match="too large"):
        list(whole_lines(path))
    with pytest.raises(OSError, match="too large"):
        sha256_of(path)
