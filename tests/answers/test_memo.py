"""The memo: shared by processes, safe under kills, and never worth losing a run for."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from children import LIMIT, child
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.answers.memo import VERSION, Memo, memo_key
from pinprompt.errors import RunError

ANSWER = {"contents": [0.1 + 0.2, {"text": "yes", "seed": 5}], "calls": 32}


def given_up(memo: Memo) -> bool:
    """Whether a memo no longer keeps anything."""
    memo.keep({"new": ANSWER})
    return not memo.look_up(["new"])


def test_keys_tell_every_part_apart() -> None:
    parts = ["f", "train 0", "a prompt"]
    keys = {memo_key(*parts)}
    for place in range(3):
        keys.add(memo_key(*(part + "x" if number == place else part for number, part in enumerate(parts))))
    keys |= {memo_key("f", "train 0a", " prompt"), memo_key("f", "train 0", "\ud800")}
    assert len(keys) == 6


def test_answers_come_back_to_the_last_bit(tmp_path: Path) -> None:
    with_one = Memo(tmp_path / "deep" / "memo.sqlite")
    with_one.keep({"k": ANSWER})
    with_one.keep({"k": {**ANSWER, "contents": [9.0]}})  # the first answer stays
    with_one.close()
    assert Memo(tmp_path / "deep" / "memo.sqlite").look_up(["k", "other"]) == {"k": ANSWER}


def test_many_keys_at_once(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite")
    memo.keep({str(number): {**ANSWER, "contents": [number]} for number in range(1500)})
    found = memo.look_up([str(number) for number in range(0, 3000, 2)])
    assert len(found) == 750
    assert found["1000"]["contents"] == [1000]
    assert memo.look_up([]) == {}


def test_the_size_is_shown_and_all_answers_can_be_deleted(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite")
    memo.keep({str(number): {**ANSWER, "pad": "p" * 9800} for number in range(10)})
    memo.close()
    memo = Memo(tmp_path / "memo.sqlite")
    entries, size = memo.size()
    assert entries == 10
    assert size > 98_000
    memo.clear()
    memo.close()
    assert Memo(tmp_path / "memo.sqlite").size() < (1, size)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be looked at" * 40, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_no_memo_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "memo.sqlite"
    path.write_bytes(content)
    warned: list[str] = []
    assert given_up(Memo(path, warn=warned.append))
    assert "continues without it" in warned[0]
    assert path.read_bytes() == content


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memo.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE letters (text)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    warned: list[str] = []
    assert given_up(Memo(path, warn=warned.append))
    assert "another program" in warned[0]
    assert path.read_bytes() == before


def test_an_altered_memo_is_not_used(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute(f"PRAGMA application_id={VERSION}")
    connection.execute("CREATE TABLE totals (name, number)")
    connection.execute("CREATE VIEW answers AS SELECT 1 AS key, 2 AS value")
    connection.commit()
    connection.close()
    warned: list[str] = []
    assert given_up(Memo(other, warn=warned.append))
    assert len(warned) == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good memo."""
    path = tmp_path_factory.mktemp("whole") / "memo.sqlite"
    memo = Memo(path)
    memo.keep({str(number): ANSWER for number in range(40)})
    memo.close()
    return path


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(noise=st.binary(max_size=300), at=st.integers(0, 20_000))
def test_any_bytes_give_a_memo_or_a_sentence(whole: Path, tmp_path: Path, noise: bytes, at: int) -> None:
    path = tmp_path / "memo.sqlite"
    for old in tmp_path.iterdir():
        old.unlink()
    content = bytearray(whole.read_bytes())
    at %= len(content)
    content[at : at + len(noise)] = noise
    path.write_bytes(content)
    warned: list[str] = []
    try:
        memo = Memo(path, warn=warned.append)
        for answer in memo.look_up([str(number) for number in range(40)]).values():
            assert isinstance(answer, dict)
        memo.keep({"new": ANSWER})
        memo.size()
        memo.close()
    except RunError:
        pass


def test_a_damaged_value_is_simply_unknown(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite")
    memo.keep({"a": ANSWER, "b": ANSWER, "c": ANSWER})
    connection = sqlite3.connect(tmp_path / "memo.sqlite")
    connection.execute("UPDATE answers SET value = '{' WHERE key = 'a'")
    connection.execute("UPDATE answers SET value = '[1]' WHERE key = 'b'")
    connection.commit()
    connection.close()
    assert list(memo.look_up(["a", "b", "c"])) == ["c"]


def test_an_answer_that_was_changed_or_swapped_or_has_no_checksum_is_unknown(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite")
    memo.keep({"a": ANSWER, "b": {**ANSWER, "contents": [2.0]}, "c": ANSWER, "d": ANSWER})
    connection = sqlite3.connect(tmp_path / "memo.sqlite")
    connection.execute("UPDATE answers SET value = CAST(replace(value, '32', '33') AS BLOB) WHERE key = 'a'")
    connection.execute("UPDATE answers SET value = (SELECT value FROM answers WHERE key = 'c') WHERE key = 'b'")
    connection.execute("UPDATE answers SET value = ? WHERE key = 'c'", (json.dumps(ANSWER).encode(),))
    connection.commit()
    connection.close()
    assert memo.look_up(["a", "b", "c", "d"]) == {"d": ANSWER}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_costs_one_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    warned: list[str] = []
    memo = Memo(tmp_path / "memo.sqlite", warn=warned.append)
    assert given_up(memo)
    assert len(warned) == 1


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    warned: list[str] = []
    memo = Memo(tmp_path / "file" / "memo.sqlite", warn=warned.append)
    memo.keep({"a": ANSWER})
    assert memo.look_up(["a"]) == {}
    memo.clear()
    assert memo.size() == (0, 0)
    assert given_up(memo)
    assert len(warned) == 1
    assert "continues without it" in warned[0]


def test_by_default_a_warning_is_a_python_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="continues without it"):
        Memo(tmp_path / "file" / "memo.sqlite")


def test_a_memo_that_cannot_be_read_or_cleared_gives_a_clear_error(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.sqlite", busy_seconds=0.1)
    memo.keep({"a": ANSWER})
    other = sqlite3.connect(tmp_path / "memo.sqlite")
    other.isolation_level = None
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RunError, match=r"cannot clear the memo.*another run"):
        memo.clear()
    other.execute("DROP TABLE answers")
    other.execute("COMMIT")
    with pytest.raises(RunError, match="cannot read the memo"):
        memo.size()
    other.close()


def test_a_full_disk_costs_one_warning_and_what_was_kept_stays(tmp_path: Path) -> None:
    warned: list[str] = []
    memo = Memo(tmp_path / "memo.sqlite", warn=warned.append)
    memo.keep({"a": ANSWER})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        for number in range(20):
            memo.keep({f"big {number}": {**ANSWER, "pad": "p" * 50_000}})
        memo.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(warned) == 1
    assert "continues without it" in warned[0]
    assert Memo(tmp_path / "memo.sqlite").look_up(["a"]) == {"a": ANSWER}


def test_a_memo_that_is_locked_for_long_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "memo.sqlite"
    warned: list[str] = []
    memo = Memo(path, warn=warned.append, busy_seconds=0.1)
    memo.keep({"a": ANSWER})
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    memo.keep({"b": ANSWER})
    other.close()
    assert len(warned) == 1
    assert given_up(memo)


def test_a_memo_that_breaks_under_way_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "memo.sqlite"
    warned: list[str] = []
    memo = Memo(path, warn=warned.append)
    memo.keep({"a": ANSWER})
    other = sqlite3.connect(path)
    other.execute("DROP TABLE answers")
    other.close()
    assert memo.look_up(["a"]) == {}
    assert given_up(memo)
    assert len(warned) == 1
    assert "continues without it" in warned[0]


def test_a_key_that_sqlite_cannot_hold_gives_the_memo_up(tmp_path: Path) -> None:
    warned: list[str] = []
    memo = Memo(tmp_path / "memo.sqlite", warn=warned.append)
    memo.keep({"\ud800": ANSWER})
    assert given_up(memo)
    assert len(warned) == 1


@pytest.mark.parametrize("seconds", [0.1, LIMIT])
def test_making_a_memo_waits_for_another_that_makes_it(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "memo.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # an empty file that somebody is about to fill
    opener = threading.Timer(0.5, other.rollback)
    if seconds > 1:
        opener.start()
    warned: list[str] = []
    memo = Memo(path, warn=warned.append, busy_seconds=seconds)
    assert given_up(memo) == (seconds <= 1)
    assert len(warned) == (seconds < 1)
    opener.cancel()
    other.close()


WORKER = """
import sys
from pathlib import Path
from pinprompt.answers.memo import Memo, memo_key
name, path = sys.argv[1], Path(sys.argv[2])
memo = Memo(path)
print("open", flush=True)
for number in range(int(sys.argv[3])):
    text = f"{name} {number}"
    answer = {"contents": [number / 3, name], "calls": 1}
    keys = [memo_key("f", "train 0", text), memo_key("f", "train 0", f"shared {number}")]
    memo.keep(dict.fromkeys(keys, answer))
    found = memo.look_up([memo_key("f", "train 0", text)])
    assert found[memo_key("f", "train 0", text)] == answer
    print(number, flush=True)
memo.close()
"""


def writer(name: str, path: Path, count: int) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER, name, str(path), str(count)]
    return child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_share_a_memo_that_they_make_together(tmp_path: Path) -> None:
    path = tmp_path / "memo.sqlite"
    with writer("0", path, 60) as first, writer("1", path, 60) as second, writer("2", path, 60) as third:
        for process in (first, second, third):
            _, errors = process.communicate()
            assert process.returncode == 0, errors
    assert Memo(path).size()[0] == 3 * 60 + 60


def test_a_killed_process_leaves_a_whole_memo(tmp_path: Path) -> None:
    path = tmp_path / "memo.sqlite"
    for turn in range(3):
        with writer(str(turn), path, 10**6) as process:
            assert process.stdout is not None
            while (line := process.stdout.readline()).strip() != str(20 + 7 * turn):
                assert line, "the process ended"
            process.kill()
            output, _ = process.communicate()
        lines = [line for line in output.split("\n")[:-1] if line.isdigit()]
        last = int(lines[-1]) if lines else 20 + 7 * turn
        memo = Memo(path)
        keys = [memo_key("f", "train 0", f"{turn} {number}") for number in range(last + 1)]
        assert len(memo.look_up(keys)) == last + 1
        memo.close()
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()
