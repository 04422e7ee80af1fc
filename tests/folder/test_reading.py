"""Reading run folders: tolerant of what a kill leaves, bounded and closed against what a stranger may plant."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
import run_samples as sample
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprompt.errors import RunError
from pinprompt.files import seal
from pinprompt.folder import reading
from pinprompt.folder.reading import changed_since, number, read_run


def test_reads_every_file(tmp_path: Path) -> None:
    record = read_run(sample.classification(tmp_path / "run", seed=3, split=21))
    assert record.recipe["task"]["split"] == 21
    assert record.setting("policy", "k") == 256
    assert record.setting("policy", "k", "deeper") is None
    assert len(record.of("step")) == 40
    assert len(record.costs) == 40
    assert record.result["seed"] == 3
    assert record.environment["device"] == "cpu"
    assert record.notes == ()


def test_torn_last_line_is_skipped(tmp_path: Path) -> None:
    folder = sample.write(tmp_path / "run", {"events.jsonl": '{"event": "start", "step": 0}\n{"event": "st'})
    record = read_run(folder)
    assert [event["event"] for event in record.events] == ["start"]
    assert record.notes == ()


def test_broken_line_in_the_middle_is_told(tmp_path: Path) -> None:
    folder = sample.write(tmp_path / "run", {"events.jsonl": '{"event": "start"}\nnonsense\n{"event": "end"}\n'})
    record = read_run(folder)
    assert [event["event"] for event in record.events] == ["start", "end"]
    assert "1 lines were left out of events.jsonl" in record.notes[0]


def test_missing_parts_are_empty(tmp_path: Path) -> None:
    record = read_run(sample.write(tmp_path / "run", {"recipe.toml": "seed = 1\n"}))
    assert (record.events, record.costs, record.result) == ([], [], {})


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run folder at"):
        read_run(tmp_path / "none")
    with pytest.raises(RunError, match="is not a run folder"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["recipe.toml", "result.json", "events.jsonl", "costs.jsonl"])
def test_links_are_not_followed(tmp_path: Path, name: str) -> None:
    folder = sample.classification(tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_text('{"prompt": "the secret"}')
    (folder / name).unlink()
    (folder / name).symlink_to(secret)
    with pytest.raises(RunError, match="is a link"):
        read_run(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    (folder / "costs.jsonl").unlink()
    os.mkfifo(folder / "costs.jsonl")
    with pytest.raises(RunError, match="not a regular file"):
        read_run(folder)


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sample.classification(tmp_path / "run")
    monkeypatch.setattr(reading, "MAX_BYTES", 1000)
    with pytest.raises(RunError, match="more than the"):
        read_run(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "[1, 2]"),
        ("result.json", "{"),
        ("result.json", '{"a": ' + "[" * 100_000),
        ("result.json", '{"a": ' + "9" * 10_000 + "}"),
        ("recipe.toml", "a = "),
        ("recipe.toml", "a = " + "[" * 50_000),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(RunError, match=name):
        read_run(sample.write(tmp_path / "run", {name: content}))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["recipe.toml", "result.json", "events.jsonl", "costs.jsonl"]), st.binary())
def test_any_bytes_give_a_record_or_a_run_error(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = sample.write(Path(place), {"recipe.toml": "seed = 1\n"})
        (folder / name).write_bytes(content)
        try:
            said = str(read_run(folder).folder / name)
        except RunError as error:
            said = str(error)
        assert name in said


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        ("2.5", 2.5),
        (True, None),
        (None, None),
        ("nan", None),
        (float("inf"), None),
        ([], None),
        (10**400, None),
    ],
)
def test_number(value: object, expected: float | None) -> None:
    assert number(value) == expected


def test_what_cannot_be_opened_gives_a_clear_error(tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    (folder / "result.json").unlink()
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(folder / "result.json"))
        with pytest.raises(RunError, match=r"result\.json cannot be read"):
            read_run(folder)


def test_the_checksums_of_a_newer_version_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(seal({"format": 99, "files": {"recipe.toml": "0" * 64}}))
    assert changed_since(tmp_path, ["recipe.toml"]) == []
