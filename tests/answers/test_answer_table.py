"""The table of answers and its file: lines survive kills and damage, and what was paid for is never lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answer_toys import prompts
from children import child
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.answers import log as logs
from pinprompt.answers.log import Log
from pinprompt.answers.table import Table, pack_answers, pack_rows, unpack_answers, unpack_rows
from pinprompt.errors import RunError
from pinprompt.files import seal, whole_lines
from pinprompt.values import Answers, Prompt

SPENT = {"spent": {"money": "0", "seconds": 0.0, "paid_calls": 0}}


def line(number: int, text: str = "x") -> dict[str, Any]:
    return {"request": number, "text": text}


def written(path: Path, run: str, count: int = 3) -> list[bytes]:
    """The bytes of a file with the given number of lines of a run."""
    log = Log(path, run)
    for number in range(count):
        log.append(line(number))
    log.close()
    return list(whole_lines(path))


# The file.


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    log = Log(tmp_path / "deep" / "answers.jsonl", "one")
    for number, text in enumerate(["a\u2028b", "\ud800 lone", "c"]):
        assert log.append(line(number, text)) == number
    # Readable while it is open: what was written survives a kill.
    assert Log(log.path, "one").lines == [line(0, "a\u2028b"), line(1, "\ud800 lone"), line(2, "c")]
    log.close()
    again = Log(log.path, "one")
    assert again.append(line(3)) == 3
    again.close()
    assert Log(log.path, "one").count == 4


def test_a_torn_last_line_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first, second = written(path, "one", 2)
    path.write_bytes(first + second[:20])
    log = Log(path, "one")
    assert (log.lines, log.bad()) == ([line(0)], "")
    log.append(line(1, "again"))
    log.close()
    assert Log(path, "one").lines == [line(0), line(1, "again")]


@pytest.mark.parametrize("harm", [b"\xff\xfe\n", b"nonsense\n", b"[1]\n", b"{}\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_line_is_named_and_left_out(tmp_path: Path, harm: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    first, _, third = written(path, "one")
    path.write_bytes(first + harm + third)
    log = Log(path, "one")
    assert log.lines == [line(0), None, line(2)]
    assert log.bad() == f"{path} has 1 lines that were changed or belong to another run (lines 2)"


def test_every_line_is_checked(tmp_path: Path) -> None:
    """Any changed byte of a line is noticed: it comes back as it was, or not at all."""
    path = tmp_path / "answers.jsonl"
    (whole,) = written(path, "one", 1)
    for place in range(len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        log = Log(path, "one")
        assert [one for one in log.lines if one is not None] in ([], [line(0)])


def test_lines_of_another_run_are_refused(tmp_path: Path) -> None:
    foreign = written(tmp_path / "other" / "answers.jsonl", "two")
    path = tmp_path / "answers.jsonl"
    mine = written(path, "one")
    path.write_bytes(mine[0] + foreign[1] + mine[2])
    log = Log(path, "one")
    assert log.lines == [line(0), None, line(2)]
    assert "another run" in log.bad()


def test_lines_that_were_changed_or_moved_or_taken_out_have_another_checksum(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first, second, third = written(path, "one")
    before = Log(path, "one")
    assert before.crc == before.sum_of(range(3)) == before.sum_of([2], before.sum_of([0, 1]))
    assert before.sum_of([0, 3]) == ""
    for changed in (first + third, second + first + third, first + second.replace(b"x", b"y") + third, first):
        path.write_bytes(changed)
        assert Log(path, "one").sum_of([0, 1]) != before.sum_of([0, 1])
    path.write_bytes(first + second)
    assert Log(path, "one").sum_of([0, 1]) == before.sum_of([0, 1])


def test_lines_after_a_position_are_cut_when_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = b"".join(written(path, "one"))
    log = Log(path, "one")
    log.cut(1)
    assert path.read_bytes() == whole
    assert log.append(line(7), line(8)) == 1
    log.close()
    assert Log(path, "one").lines == [line(0), line(7), line(8)]
    assert Log(path, "one").crc == log.crc


def test_many_damaged_lines_are_counted_and_not_all_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b"nonsense\n" * 30)
    assert "30 lines that were changed or belong to another run (lines 1, 2, 3, 4, 5, ...)" in Log(path, "one").bad()


FULL_DISK = """
import resource, sys
from pathlib import Path
from pinprompt.answers.log import Log
from pinprompt.errors import RunError
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
log = Log(Path(sys.argv[1]), "one")
number = 0
try:
    while True:
        log.append({"n": number, "text": "w" * 700})
        number += 1
except RunError as error:
    print(error)
assert [line["n"] for line in Log(log.path, "one").lines] == list(range(number)), "torn"
assert log.path.read_bytes().endswith(b"\\n"), "half a line"
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert log.append({"n": number}) == number
assert len(Log(log.path, "one").lines) == number + 1
"""


def test_a_full_disk_is_a_sentence_and_tears_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert "free some space" in done.stdout


def test_no_space_left_is_a_sentence_and_the_next_line_is_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "answers.jsonl", "one")
    log.append(line(0))
    with Path("/dev/full").open("ab", buffering=0) as full:  # the kernel's own full disk
        assert log._file is not None
        whole, log._file = log._file, full  # type: ignore[assignment]
        with pytest.raises(RunError, match=r"answers\.jsonl cannot be written: No space left on device; free"):
            log.append(line(9))
        log._file = whole
    assert log.append(line(1)) == 1
    log.close()
    assert Log(log.path, "one").lines == [line(0), line(1)]


def test_lines_reach_the_disk_itself_about_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    monkeypatch.setattr(logs, "SYNC_SECONDS", 3600.0)
    log = Log(tmp_path / "answers.jsonl")
    log.append(line(0))
    assert synced == []
    log.sync()
    assert len(synced) == 1
    monkeypatch.setattr(logs, "SYNC_SECONDS", 0.0)
    log.append(line(1))
    assert len(synced) == 2
    log.close()


def test_a_folder_in_the_way_gives_a_clear_error(tmp_path: Path) -> None:
    log = Log(tmp_path / "file" / "answers.jsonl")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RunError, match="cannot be written"):
        log.append(line(0))
    with pytest.raises(RunError, match="cannot be read"):
        Log(tmp_path)


WRITER = """
import sys
from pathlib import Path
from pinprompt.answers.log import Log
log = Log(Path(sys.argv[1]), "one")
while True:
    print(log.append({"n": log.count, "text": "w" * 5000}) + 1, flush=True)
"""


def test_a_killed_process_leaves_every_line_it_counted(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with child([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        for _ in range(300):
            assert process.stdout.readline()
        process.kill()
        output, _ = process.communicate()
    counted = int(output.split("\n")[-2]) if output.count("\n") else 300
    lines = Log(path, "one").lines
    assert len(lines) >= counted >= 300
    assert [one and one["n"] for one in lines] == list(range(len(lines)))


# Answers as JSON values.


@given(rows=st.lists(st.integers(0, 50), max_size=20))
def test_rows_come_back_from_their_ranges(rows: list[int]) -> None:
    assert unpack_rows(json.loads(json.dumps(pack_rows(rows)))) == tuple(rows)


def test_a_split_is_one_range() -> None:
    assert pack_rows(range(16, 10_016)) == [[16, 10_016]]


@pytest.mark.parametrize(
    "contents",
    [
        np.array([0.1 + 0.2, 1e-300, -np.inf]),
        np.array([[0.1, 0.2], [3e-38, 1], [np.nan, 7]], dtype=np.float32),
        [{"text": "a\u2028b", "seed": 5}, None, [1.5, "x"]],
    ],
)
def test_answers_come_back_to_the_last_bit(contents: Any) -> None:
    given = Answers((3, 4, 9), contents, {4: "no"}, (12, 5))
    again = unpack_answers(json.loads(json.dumps(pack_answers(given))))
    assert (again.rows, again.failures, again.tokens) == ((3, 4, 9), {4: "no"}, (12, 5))
    if isinstance(contents, np.ndarray):
        assert again.contents.dtype == contents.dtype
        np.testing.assert_array_equal(again.contents, contents)
    else:
        assert again.contents == contents


GOOD = pack_answers(Answers((0, 1), np.array([1.0, 2.0])))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [[0, 3]]},
        {"rows": [[1, 0]]},
        {"rows": None},
        {"rows": 5},
        {"contents": [1.0]},
        {"contents": None},
        {"contents": {**GOOD["contents"], "dtype": "O"}},
        {"contents": {**GOOD["contents"], "dtype": "<f4", "shape": [2, 3]}},
        {"contents": {**GOOD["contents"], "data": "?"}},
        {"contents": {**GOOD["contents"], "shape": [10**9]}},
        {"failures": [1]},
        {"tokens": ["many", 1]},
        {"tokens": [1]},
    ],
)
def test_a_line_that_holds_no_answers_is_refused(change: dict[str, Any]) -> None:
    assert unpack_answers(GOOD).rows == (0, 1)
    with pytest.raises(ValueError, match=r"."):
        unpack_answers({**GOOD, **change})


# The table.


def tabled(path: Path, lines: Any = (), private: bool = False) -> Table:
    """The table of a run that is resumed at these lines."""
    table = Table(Log(path, "one"), private)
    table.restore(list(lines))
    return table


def add(table: Table, text: str, rows: Sequence[int], draw: str = "", report: bool = False) -> None:
    """Answers as a model would give them: each is a function of the prompt and the row."""
    answers = Answers(tuple(rows), np.array([len(text) + row / 10 for row in rows]))
    table.add(prompts(text)[0], answers, draw, 0, report, SPENT)


def held(table: Table, text: str, draw: str = "") -> dict[int, float]:
    found = table.get(text, draw)
    return dict(zip(found.rows, map(float, found.contents), strict=True))


def test_cells_are_added_row_by_row(tmp_path: Path) -> None:
    table = tabled(tmp_path / "answers.jsonl")
    add(table, "ab", (0, 1))
    add(table, "ab", (4,))
    add(table, "c", (0,), report=True)
    assert held(table, "ab") == {0: 2.0, 1: 2.1, 4: 2.4}
    assert table.get("ab").missing((4, 5, 0)) == (5,)
    assert list(table.get("ab").on((4, 0))) == [2.4, 2.0]
    with pytest.raises(KeyError):
        table.get("ab").on((0, 7))
    assert table.get("unknown").rows == ()
    assert list(table.prompts) == ["ab", "c"]
    assert table.searched == 1  # the report's own prompt is not one of the search


def test_draws_of_a_stochastic_task_are_kept_apart(tmp_path: Path) -> None:
    table = tabled(tmp_path / "answers.jsonl")
    add(table, "ab", (0,), "0.0")
    add(table, "ab", (0, 1), "1.0")
    assert held(table, "ab", "0.0") == {0: 2.0}
    assert held(table, "ab") == {}
    assert table.prompts["ab"].draws == ["0.0", "1.0"]


def test_what_follows_the_checkpoint_waits_and_nothing_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = tabled(path)
    add(first, "ab", (0, 1))
    place = first.position()["lines"]
    add(first, "ab", (2, 3))
    add(first, "cd", (0, 1))
    first.log.close()  # type: ignore[union-attr]
    before = path.read_bytes()
    for _ in range(3):  # killed again before anything was asked
        again = tabled(path, place)
        assert held(again, "ab") == {0: 2.0, 1: 2.1}
        assert held(again, "cd") == {}
        assert (again.searched, again.position()["lines"]) == (1, place)
        assert again.waiting("ab", "", (1, 2, 9)).rows == (2,)
        assert again.waiting("cd", "", (0, 1)).rows == (0, 1)
        assert again.waiting("cd", "1.0", (0, 1)).rows == ()
    assert path.read_bytes() == before
    # The resumed search asks for them in another order: they are part of the run without a second line.
    again.add(prompts("cd")[0], again.waiting("cd", "", (0, 1)), "", 1, False, SPENT)
    assert path.read_bytes() == before
    assert again.waiting("cd", "", (0, 1)).rows == ()
    assert unpack_rows(again.position()["lines"]) == (0, 2)
    later = tabled(path, again.position()["lines"])
    assert held(later, "cd") == {0: 2.0, 1: 2.1}
    assert later.waiting("ab", "", (2, 3)).rows == (2, 3)


def test_tokens_are_counted_once_however_often_a_run_is_killed(tmp_path: Path) -> None:
    path, prompt = tmp_path / "answers.jsonl", prompts("ab")[0]
    first = tabled(path)
    first.add(prompt, Answers((0, 1), np.array([0.0, 0.1]), {}, (10, 2)), "", 0, False, SPENT)
    first.log.close()  # type: ignore[union-attr]
    again = tabled(path)  # asked about a row more: its own answers are new, the others were waiting
    new = Answers((2,), np.array([0.2]), {}, (5, 1))
    again.add(prompt, again.waiting("ab", "", (0, 1, 2)).joined(new), "", 0, False, SPENT)
    again.log.close()  # type: ignore[union-attr]
    for lines in ((), again.position()["lines"]):
        later = tabled(path, lines)
        known = later.waiting("ab", "", (0, 1, 2)) if not lines else later.get("ab")
        assert (known.rows, known.tokens) == ((0, 1, 2), (15, 3))


def test_a_line_that_is_asked_for_in_parts_is_lost_in_none(tmp_path: Path) -> None:
    """The resumed search may ask on some of a line's rows: at any checkpoint after that, every cell is there."""
    path = tmp_path / "answers.jsonl"
    first = tabled(path)
    add(first, "ab", (0, 1, 2, 3))
    first.log.close()  # type: ignore[union-attr]
    again = tabled(path)
    again.add(prompts("ab")[0], again.waiting("ab", "", (0, 1)), "", 0, False, SPENT)
    assert held(again, "ab") == {0: 2.0, 1: 2.1}
    assert again.waiting("ab", "", (2, 3)).rows == (2, 3)
    later = tabled(path, again.position()["lines"])
    assert held(later, "ab") == {0: 2.0, 1: 2.1}
    assert later.waiting("ab", "", (2, 3)).rows == (2, 3)


def test_a_private_run_stores_no_text_of_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    table = tabled(path, private=True)
    answers = Answers((0, 1), [{"text": "my secret", "value": 0.5}, {"text": "another secret", "value": 1.0}])
    table.add(Prompt("a", (1,)), answers, "", 0, False, SPENT)
    assert table.get("a").contents[0]["text"] == "my secret"  # the run itself has it
    table.log.close()  # type: ignore[union-attr]
    assert b"secret" not in path.read_bytes()
    assert tabled(path, [[0, 1]]).get("a").contents == [{"value": 0.5}, {"value": 1.0}]


LINE: dict[str, Any] = {
    "request": 0,
    "report": False,
    "draw": "",
    "text": "a",
    "ids": [97],
    **GOOD,
    **SPENT,
}
ODD = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(0, 2))
    | st.just({"a": 1})
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.dictionaries(st.sampled_from(sorted(LINE)), ODD, max_size=2))
def test_any_line_with_the_right_checksum_is_read_or_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(seal({**LINE, **changes}, "one") + b"\n")
    for lines in ([], [[0, 1]]):
        try:
            tabled(path, lines)
        except RunError as error:
            assert "answers.jsonl:1 cannot be read" in str(error)  # noqa: PT017
