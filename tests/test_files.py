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

from pinprompt import files
from pinprompt.errors import RunError
from pinprompt.files import (
    AppendOnly,
    checksum_of,
    loads,
    read_lines,
    rename,
    sha256_of,
    whole_lines,
    write_atomically,
    write_tensors,
)


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
    ("text", "reason"),
    [
        ("[" * 100_000, "nested"),
        ("[" * 65 + "]" * 65, "nested deeper than 64"),
        ("9" * 5000, "more than 40 digits"),
        ('{"a": -' + "9" * 41 + "}", "more than 40 digits"),
        ("[" + "0," * 2_000_000 + "0]", "more than 2,000,000 values"),
        ("{", "Expecting"),
        (b'"\xff"', "decode"),
    ],
)
def test_json_beyond_the_limits_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        loads(text)


def test_json_that_we_wrote_is_read() -> None:
    tree = {"a": [1, -2.5, None, True, 10**40 - 1], "b": "9" * 5000, "c": {"d": "ü"}}
    assert loads(json.dumps(tree)) == tree
    assert loads(json.dumps(tree, ensure_ascii=False).encode()) == tree
    assert loads("[" * 64 + "]" * 64)


def test_lines_beyond_the_limits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert list(whole_lines(path)) == [b'{"a": 1}\n', b'{"a": 2}\n']
    for name, most, reason in (
        ("MAX_LINE_BYTES", 8, "line 1 is longer"),
        ("MAX_LINES", 2, "more than 2 lines"),
        ("MAX_FILE_BYTES", 20, "more than the limit of"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(files, name, most)
            with pytest.raises(RunError, match=reason):
                list(whole_lines(path))
            with pytest.raises(RunError, match=reason):
                list(read_lines(path))


def test_a_sparse_file_of_many_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.touch()
    os.truncate(path, 1 << 40)  # takes no room on the disk
    for read in (lambda: list(whole_lines(path)), lambda: checksum_of(path, 1 << 40), lambda: AppendOnly(path)):
        with pytest.raises(RunError, match="1,048,576 MiB"):
            read()
    with pytest.raises(OSError, match="1,048,576 MiB"):
        sha256_of(path)
