"""The journals of a run: rows survive kills and damage, and no question to a server is paid for twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import child
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remote_servers import cut, hang_up, raw, refuse, reply, said, serving

from pinprompt.errors import BudgetSpent, RunError, ServerDown
from pinprompt.files import AppendOnly, whole_lines
from pinprompt.recipe.sections import BudgetSettings, Price
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import BadAnswer, RemoteClient
from pinprompt.remote.http import NoAnswer, Response
from pinprompt.scoring.budget import Amounts, Budget
from pinprompt.scoring.journal import NAMED, Answers, Journal, journal_damage, read_rows


def row(number: int, text: str = "x") -> dict[str, object]:
    return {"kind": "score", "n": number, "place": 0, "split": "train", "text": text}


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "scores.jsonl")
    journal.append([row(0, "a\u2028b"), row(1, "\ud800 lone")])
    journal.append([])
    journal.append([row(2)])
    assert journal.rows == 3
    assert [entry["n"] for entry in read_rows(journal.path)] == [0, 1, 2]  # readable while it is open
    assert read_rows(journal.path)[1]["text"] == "\ud800 lone"
    journal.close()
    assert Journal(journal.path).rows == 3


def test_a_torn_last_line_is_forgotten_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text(json.dumps(row(0)) + "\n" + '{"n": 1, "te')
    journal = Journal(path)
    assert journal.rows == 1
    journal.append([row(1, "again")])
    journal.close()
    assert [entry["text"] for entry in read_rows(path)] == ["x", "again"]


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"nonsense\n", b"[1]\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_row_is_named_and_left_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_bytes(json.dumps(row(0)).encode() + b"\n" + damage)
    journal = Journal(path)
    assert journal.split_at(0) == ([], [row(0)])
    assert [problem.split(": ")[0] for problem in journal.problems] == [f"{path}:2"]
    path.write_bytes(json.dumps(row(0)).encode() + b"\n" + damage)
    with pytest.raises(RunError, match=r"scores.jsonl:2: the row was changed"):
        Journal(path).split_at(2)


def written(path: Path, run: str, count: int = 3) -> list[bytes]:
    journal = Journal(path, run)
    journal.append([row(number) for number in range(count)])
    journal.close()
    return list(whole_lines(path))


def test_every_row_is_checked(tmp_path: Path) -> None:
    """Any changed byte of any row is noticed: the row comes back as it was, or not at all."""
    path = tmp_path / "scores.jsonl"
    line = written(path, "one", 1)[0]
    for place in range(len(line) - 1):
        path.write_bytes(line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :])
        Journal(path).spare_path.unlink(missing_ok=True)
        _, spare = Journal(path, "one").split_at(0)
        assert spare in ([], [row(0)])


def test_rows_of_another_run_are_refused(tmp_path: Path) -> None:
    foreign = written(tmp_path / "other" / "scores.jsonl", "two")
    path = tmp_path / "scores.jsonl"
    mine = written(path, "one")
    path.write_bytes(mine[0] + foreign[1] + mine[2])
    path.with_name("scores.spare.jsonl").write_bytes(foreign[2])
    with pytest.raises(RunError, match=r"scores.jsonl:2: .* of another run"):
        Journal(path, "one").split_at(3)
    journal = Journal(path, "one")
    history, spare = journal.split_at(1)
    assert [entry["n"] for entry in history + spare] == [0, 2]
    assert sum("of another run" in problem for problem in journal.problems) == 2


def test_a_row_that_was_taken_out_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    journal = Journal(path, "one")
    journal.append([row(0), row(1)])
    crc = journal.crc
    journal.append([row(2)])
    journal.close()
    lines = list(whole_lines(path))
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(RunError, match="was changed"):
        Journal(path, "one").split_at(2, crc)
    path.write_bytes(b"".join(lines))
    assert [entry["n"] for entry in Journal(path, "one").split_at(2, crc)[0]] == [0, 1]


def test_what_follows_the_checkpoint_becomes_spare(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "scores.jsonl")
    journal.append([row(number) for number in range(5)])
    journal.close()
    history, spare = Journal(journal.path).split_at(2)
    assert [entry["n"] for entry in history] == [0, 1]
    assert [entry["n"] for entry in spare] == [2, 3, 4]
    assert len(list(whole_lines(journal.path))) == 2


def test_kills_one_after_the_other_lose_and_double_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "scores.jsonl")
    journal.append([row(number) for number in range(4)])
    journal.close()
    for _ in range(3):  # killed again before anything was scored
        _, spare = Journal(journal.path).split_at(1)
        assert [entry["n"] for entry in spare] == [1, 2, 3]
    again = Journal(journal.path)
    again.split_at(1)
    again.append([row(1), row(2), row(9)])  # the resumed run went another way after two rows
    again.close()
    history, spare = Journal(journal.path).split_at(2)
    assert [entry["n"] for entry in history] == [0, 1]
    assert [entry["n"] for entry in spare] == [1, 2, 3, 9]


def test_killed_between_copy_and_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "scores.jsonl")
    journal.append([row(number) for number in range(3)])
    journal.close()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pinprompt.scoring.journal.AppendOnly", _only_spare(die))
        with pytest.raises(KeyboardInterrupt):
            Journal(journal.path).split_at(1)
    _, spare = Journal(journal.path).split_at(1)
    assert [entry["n"] for entry in spare] == [1, 2]
    assert len(list(whole_lines(journal.spare_path))) == 2


def _only_spare(instead: Callable[..., Any]) -> Callable[..., Any]:
    """Opens spare files as ever, and does something else with the journal itself."""
    return lambda path, *more, **named: (AppendOnly if "spare" in path.name else instead)(path, *more, **named)


def test_a_journal_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "scores.jsonl")
    journal.append([row(0)])
    with pytest.raises(RunError, match="has 1 rows but the checkpoint counts 2"):
        journal.split_at(2)


FULL_DISK = """
import resource, sys
from pathlib import Path
from pinprompt.errors import RunError
from pinprompt.scoring.journal import Journal, read_rows
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
journal = Journal(Path(sys.argv[1]))
number = 0
try:
    while True:
        journal.append([{"n": number, "text": "w" * 700}])
        number += 1
except RunError as error:
    print(error)
assert [row["n"] for row in read_rows(journal.path)] == list(range(number)), "torn"
assert journal.path.read_bytes().endswith(b"\\n"), "half a row"
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.append([{"n": number}])
assert len(read_rows(journal.path)) == number + 1
"""


def test_a_full_disk_is_a_sentence_and_tears_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert "free some space" in done.stdout


def test_no_space_left_is_a_sentence_and_the_next_row_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "scores.jsonl")
    journal.append([row(0)])
    journal.close()
    with Path("/dev/full").open("ab", buffering=0) as full:  # the kernel's own full disk
        journal.append([row(1)])
        assert journal._file is not None
        whole, journal._file._file = journal._file._file, full  # type: ignore[assignment]
        with pytest.raises(RunError, match=r"scores\.jsonl cannot be written: No space left on device; free"):
            journal.append([row(9)])
        journal._file._file = whole
    assert journal.rows == 2
    journal.append([row(2)])
    journal.close()
    assert [entry["n"] for entry in read_rows(journal.path)] == [0, 1, 2]


def test_rows_reach_the_disk_itself_about_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    monkeypatch.setattr("pinprompt.scoring.journal.SYNC_SECONDS", 3600.0)
    journal = Journal(tmp_path / "scores.jsonl")
    journal.append([row(0)])
    assert synced == []
    monkeypatch.setattr("pinprompt.scoring.journal.SYNC_SECONDS", 0.0)
    journal.append([row(1)])
    assert len(synced) == 1
    journal.close()


def test_a_folder_in_the_way_is_a_sentence(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "file" / "scores.jsonl")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RunError, match="cannot be written"):
        journal.append([row(0)])
    for reader in (Journal, read_rows):
        with pytest.raises(RunError, match="cannot be read"):
            reader(tmp_path)


def test_a_journal_that_cannot_be_cut_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "scores.jsonl")
    journal.append([row(0), row(1)])
    journal.close()

    def full(path: Path, *_: object) -> None:
        raise RunError(f"{path} cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pinprompt.scoring.journal.AppendOnly", _only_spare(full))
        with pytest.raises(RunError, match="No space left on device"):
            Journal(journal.path).split_at(1)
    assert [entry["n"] for entry in read_rows(journal.path)] == [0, 1]


WRITER = """
import sys
from pathlib import Path
from pinprompt.scoring.journal import Journal
journal = Journal(Path(sys.argv[1]))
number = 0
while True:
    row = {"kind": "score", "place": 0, "split": "train", "text": "w" * 5000}
    journal.append([row | {"n": number + i} for i in range(3)])
    number += 3
    print(number, flush=True)
"""


def test_a_killed_process_leaves_every_row_it_counted(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    with child([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        for _ in range(100):
            assert process.stdout.readline()
        process.kill()
        output, _ = process.communicate()
    counted = int(output.split("\n")[-2]) if output.count("\n") else 300
    rows = read_rows(path)
    assert len(rows) >= counted >= 300
    assert [entry["n"] for entry in rows] == list(range(len(rows)))


PRICES = {"small": Price(input=3.0, output=15.0)}


def session(path: Path, url: str, budget: Budget | None = None, **more: Any) -> tuple[RemoteClient, Answers]:
    """A client that tells a run's journal of its requests, as a session of the run has it."""
    answers = Answers(Journal(path), budget or Budget(BudgetSettings(prices=PRICES)), "small")
    answers.restore()
    answers.budget.metered = True
    given = {"base_url": url, "timeout": 900, "concurrency": 4, **more}
    client = RemoteClient(RemoteSettings(**given), "small", sleep=lambda seconds: None)
    client.attach(answers)
    return client, answers


def ask(client: RemoteClient, text: str) -> str:
    def send() -> str:
        answer = client.complete(text, 5)
        return str(answer["choices"][0]["message"]["content"])

    return client.once(["question", text], send, lambda value: isinstance(value, str))


def test_an_answer_is_asked_for_once_in_a_run(tmp_path: Path) -> None:
    with serving(lambda n, p, body: reply(said(body["prompt"].upper(), tokens=(7, 3)))) as server:
        client, answers = session(tmp_path / "answers.jsonl", server.url)
        assert client.each(lambda text: ask(client, text), ["a", "b", "c"]) == ["A", "B", "C"]
        assert ask(client, "a") == "A"
        answers.close()
        again, later = session(tmp_path / "answers.jsonl", server.url)
        assert ask(again, "b") == "B"
        assert ask(again, "d") == "D"
        assert Counter(body["prompt"] for _, body, _ in server.seen) == Counter("abcd")
    # What was known counts for its prompt's bill as if it had been asked for now; what is paid counts once.
    usage = client.take()
    assert (usage.tokens_in, usage.tokens_out) == (28, 12)
    assert again.take().tokens_in == 14
    assert later.budget.sent == Amounts(4, 28, 12, later.budget.price("small", 28, 12))
    assert later.lost == later.untold == 0


@pytest.mark.parametrize("action", [cut, hang_up, raw(b"<html>")])
def test_requests_without_an_answer_are_counted_at_their_most(tmp_path: Path, action: Any) -> None:
    with serving(lambda n, *_: action if n < 2 else reply(said("hi", tokens=(7, 3)))) as server:
        client, answers = session(tmp_path / "answers.jsonl", server.url, resends=2)
        assert ask(client, "four") == "hi"
        assert answers.budget.sent.calls == len(server.seen) == 3
    assert answers.lost == 2
    assert answers.budget.sent.tokens_out == 5 + 5 + 3
    assert answers.budget.sent.tokens_in >= 4 + 4 + 7
    assert client.take().tokens_in == 7  # the prompt's bill is that of its answer
    assert session(tmp_path / "answers.jsonl", server.url)[1].budget.sent == answers.budget.sent


def test_what_the_server_refuses_is_not_counted(tmp_path: Path) -> None:
    with serving(lambda n, *_: refuse(503) if n < 3 else reply(said("hi"))) as server:
        client, answers = session(tmp_path / "answers.jsonl", server.url)
        ask(client, "x")
    assert answers.budget.sent.calls == 1
    assert answers.budget.flying == Amounts()


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 12}])
def test_a_server_that_tells_no_usage_is_counted_by_us(tmp_path: Path, usage: Any) -> None:
    with serving(lambda *_: reply({**said("hi"), "usage": usage})) as server:
        client, answers = session(tmp_path / "answers.jsonl", server.url)
        ask(client, "one two three")
    assert answers.untold == 1
    assert answers.budget.sent.tokens_in >= len("one two three")
    assert answers.budget.sent.tokens_out == 5
    assert answers.budget.paid() > 0


def test_what_a_killed_process_left_on_its_way_counts_at_its_most(tmp_path: Path) -> None:
    first = session(tmp_path / "answers.jsonl", "http://127.0.0.1:9/v1")[1]
    number = first.sending(1, 100, 5)
    first.sending(2, 30, 10)
    first.ended(number, 1, 60, 1)
    first.close()
    later = session(tmp_path / "answers.jsonl", "http://127.0.0.1:9/v1")[1]
    assert later.budget.sent == Amounts(3, 90, 11, later.budget.price("small", 90, 11))
    assert later.lost == 2
    assert later.sending(1, 1, 1) == 2


def test_questions_before_the_run_are_counted_in_it(tmp_path: Path) -> None:
    answers = Answers(Journal(tmp_path / "answers.jsonl"), Budget(BudgetSettings()), "small")
    with serving(lambda *_: reply(said("hi", tokens=(7, 3)))) as server:
        client = RemoteClient(RemoteSettings(base_url=server.url), "small")
        client.complete("probe", 1)
        client.attach(answers)
        client.complete("row", 1)
    assert answers.budget.sent == Amounts(2, 14, 6)


@pytest.mark.parametrize(
    "row", [{"kind": "took"}, {"kind": "send", "number": 0, "most": [-1, 0, 0]}, {"kind": "answer", "key": "x"}]
)
def test_a_damaged_journal_is_a_sentence(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "answers.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    with pytest.raises(RunError, match=r"answers\.jsonl"):
        session(tmp_path / "answers.jsonl", "http://127.0.0.1:9/v1")


def test_an_answer_that_does_not_fit_is_asked_for_again(tmp_path: Path) -> None:
    with serving(lambda *_: reply(said("hi"))) as server:
        client, _ = session(tmp_path / "answers.jsonl", server.url)
        ask(client, "x")
        assert client.once(["question", "x"], lambda: 7, lambda value: isinstance(value, int)) == 7


def test_minutes_end_waiting_and_sending(tmp_path: Path) -> None:
    now = [0.0]
    budget = Budget(BudgetSettings(minutes=1), clock=lambda: now[0])
    budget.start()
    with serving(lambda *_: refuse(429, Retry_After="3600")) as server:
        client, answers = session(tmp_path / "answers.jsonl", server.url, budget, longest_wait=7200)
        client._sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)
        with pytest.raises(BudgetSpent, match="minutes"):
            ask(client, "x")
        assert now == [60.0]
        assert len(server.seen) == 1
        with pytest.raises(BudgetSpent, match="minutes"):
            ask(client, "y")
        assert len(server.seen) == 1
        answers.limited = False  # a report is made whatever the clock says
        server.script = lambda *_: reply(said("hi"))
        assert ask(client, "z") == "hi"


def test_too_many_lost_answers_stop_the_run(tmp_path: Path) -> None:
    budget = Budget(BudgetSettings(total_calls=10))
    with serving(lambda n, *_: cut if n % 2 else reply(said("hi"))) as server:
        client, _ = session(tmp_path / "answers.jsonl", server.url, budget)
        for number in range(5):
            ask(client, str(number))
        with pytest.raises(ServerDown, match="10 calls in all is used up by 10 requests"):
            ask(client, "one more")
        assert len(server.seen) == budget.sent.calls == 10


class Wire:
    """A server without a wire: does by turns what a trace says, and keeps what it was asked and what it answered."""

    def __init__(self, trace: bytes) -> None:
        self.acts = iter(trace)
        self.billed = 0
        self.answered: Counter[str] = Counter()

    def post(self, path: str, body: dict[str, Any], fresh: bool = False) -> Response:
        act = next(self.acts, 0) % 8
        if act == 1:
            return Response(503, b"busy", None)
        if act == 2:
            raise NoAnswer("no connection", billed=False)
        self.billed += 1
        if act == 3:
            raise NoAnswer("cut", billed=True)
        if act == 4:
            raise NoAnswer("closed", billed=True, stale=True)
        if act == 5:
            raise Killed
        self.answered[body["prompt"]] += 1
        told = said(body["prompt"], tokens=(3, 1)) if act != 6 else {"choices": said(body["prompt"])["choices"]}
        return Response(200, json.dumps(told).encode(), None)

    def alive(self) -> bool:
        return True


class Killed(BaseException):
    """The process dies."""


@settings(max_examples=1000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(trace=st.binary(max_size=80))
def test_whatever_a_server_does_every_request_is_counted_and_no_answer_is_bought_twice(
    trace: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wire, path = Wire(trace), tmp_path_factory.mktemp("run") / "answers.jsonl"
    for _ in range(40):
        budget = Budget(BudgetSettings(total_calls=24))
        client, answers = session(path, "http://127.0.0.1:9/v1", budget, retries=1, resends=1, give_up_after=100)
        client._door = wire  # type: ignore[assignment]
        assert budget.sent.calls == wire.billed
        try:
            for number in range(12):
                try:
                    assert ask(client, f"text {number}") == f"text {number}"
                except BadAnswer:
                    continue
            break
        except (Killed, ServerDown):
            continue
        finally:
            answers.close()
    assert wire.billed == budget.sent.calls <= 24
    assert set(wire.answered.values()) <= {1}


def test_many_damaged_rows_are_counted_and_not_all_named(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_bytes(b"nonsense\n" * (NAMED + 5))
    journal = Journal(path)
    assert journal.split_at(0) == ([], [])
    assert len(journal.problems) == NAMED + 1
    assert journal.problems[-1].endswith("5 more rows were changed or are of another run")
    journal.close()


@pytest.mark.parametrize("rows", [-1, "three", None])
def test_a_count_of_rows_that_is_none_is_said(tmp_path: Path, rows: Any) -> None:
    path = tmp_path / "scores.jsonl"
    assert journal_damage(path, "", {"rows": rows}) == f"the checkpoint's count of {path} cannot be read"
