"""The arena's own code with a tiny model: the meter, the server, reading answers, rows that are written and resumed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from style_toys import causal_lm, tokenizer

from benchmarks.arena import __main__ as arena
from benchmarks.arena.host import Beginnings, Host, serve
from benchmarks.arena.meter import Meter, Spent
from benchmarks.arena.tasks import Task, open_task, read_answer
from pinprompt.models.chat import Chat

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} . {% endfor %}assistant"
TEXTS = ("the food was bad", "great", "bad bad food", "it was great food and it was bad")


@pytest.fixture
def host() -> Host:
    spoken = tokenizer()
    spoken.chat_template = TEMPLATE
    return Host(causal_lm("llama"), spoken)


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "the food"}, {"role": "user", "content": text}]


def task() -> Task:
    rows = [
        {"input": text, "target": target} for text, target in zip(TEXTS, ("bad", "great", "bad", "great"), strict=True)
    ]
    return Task("toy", "bad or great ?", ("bad", "great"), {"train": rows, "dev": rows, "test": rows})


def test_a_meter_allows_no_call_beyond_its_limit() -> None:
    meter = Meter(3)
    meter.take(2)
    with pytest.raises(Spent, match="2 of 3 calls are used, 2 more were asked for"):
        meter.take(2)
    meter.take()
    assert (meter.calls, meter.refused) == (3, 2)


def test_calls_at_the_same_time_are_all_counted() -> None:
    meter = Meter(500)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: meter.take(), range(400)))
    assert meter.calls == 400


@pytest.mark.parametrize(
    ("answer", "labels", "read"),
    [
        ("Positive.", ("negative", "positive"), "positive"),
        ("It is not a positive review, so negative", ("negative", "positive"), "positive"),
        ("positively", ("negative", "positive"), None),
        ("negative? <final_answer>positive</final_answer> negative", ("negative", "positive"), "positive"),
        ("[[ ## label ## ]]\nnegative\n\n[[ ## completed ## ]]", ("negative", "positive"), "negative"),
        (' "A-12345". ', (), "A-12345"),
        ("The number is A-12345", (), "The number is A-12345"),
        ("<final_answer>A-12345</final_answer>", (), "A-12345"),
    ],
)
def test_an_answer_is_read_in_the_same_way_for_all(answer: str, labels: tuple[str, ...], read: str | None) -> None:
    assert read_answer(answer, labels) == read


def test_the_shop_writes_its_order_numbers_in_another_way_than_its_customers() -> None:
    one, other = open_task("orders", 13), open_task("orders", 21)
    assert [len(one.rows[part]) for part in ("train", "dev", "test")] == [16, 16, 100]
    assert one.rows["test"] == other.rows["test"]
    assert one.rows["train"] != other.rows["train"]
    texts = [row["input"] for rows in one.rows.values() for row in rows]
    assert len(set(texts)) == len(texts)
    for row in one.rows["train"]:
        assert row["target"] not in row["input"]
        assert row["target"].replace("-", "") in row["input"]


def test_a_common_beginning_is_found_and_short_ones_are_not_worth_it() -> None:
    known = Beginnings()
    start = list(range(40))
    assert known.shared([*start, 100, 101]) == 0
    assert known.shared([*start, 102, 103]) == 40
    assert known.shared([*start, 102, 104]) == 40, "one more token is not worth another beginning"
    assert known.shared(start) == 39, "something must be left to read"
    assert known.shared([7, 8, 9]) == 0


def test_the_host_answers_as_the_model_does_alone(host: Host) -> None:
    alone = Chat(host.chat.model, host.chat.tokenizer, max_new_tokens=6).answers([chat(text) for text in TEXTS])
    host.meters["a"] = Meter(10)
    assert host.ask([chat(text) for text in TEXTS], 6, "a") == alone
    assert host.meters["a"].calls == 4
    assert host.meters["a"].tokens_in == sum(len(host.chat.ids(chat(text))) for text in TEXTS)


def test_the_server_counts_calls_by_cell_and_ends_at_the_limit(host: Host) -> None:
    host.meters["a"], host.meters["b"] = Meter(2), Meter(2)
    server = serve(host)

    def post(cell: str) -> dict[str, Any]:
        body = {"model": "any", "messages": chat("great"), "max_tokens": 3}
        url = f"http://127.0.0.1:{server.server_port}/{cell}/v1/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    try:
        first = post("a")
        assert first == post("a")
        assert first["choices"][0]["message"]["content"] == host.ask([chat("great")], 3)[0].text
        for cell, status in (("a", 402), ("c", 404)):
            with pytest.raises(urllib.error.HTTPError) as error:
                post(cell)
            assert error.value.code == status
        assert [host.meters[cell].calls for cell in "ab"] == [2, 0]
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(arena, "open_task", lambda name, split, rows: task())
    monkeypatch.setattr(arena, "BUILD", tmp_path)
    return tmp_path / "arena.csv"


def fake(host: Host, who: arena.Contestant, given: Task, split: int, folder: Path) -> arena.Found:
    """A contestant that asks two rows, and one that breaks."""
    if who.name == "broken":
        raise RuntimeError("no model of this size")
    host.ask([chat(row["input"]) for row in given.rows["train"][:2]], 3, folder.name)
    chats = {part: [chat(row["input"]) for row in rows] for part, rows in given.rows.items()}
    return arena.Found("bad or great ?", chats=chats, note="a fake")


def test_a_cell_has_a_row_with_what_it_cost_and_one_with_learnt_labels(host: Host, toy: Path) -> None:
    rows = arena.run_cell(host, (arena.Contestant("fake"), "toy", 13), fake, calls=5, test_rows=4)
    assert [(row["labels"], row["calls"], row["rows"]) for row in rows] == [("text", 2, 4), ("learnt", 2, 4)]
    said = host.ask([chat(text) for text in TEXTS], arena.TOKENS)
    hits = [task().correct(reply.text, row["target"]) for reply, row in zip(said, task().rows["test"], strict=True)]
    assert rows[0]["hits"] == "".join(str(int(hit)) for hit in hits)
    assert rows[0]["accuracy"] == sum(hits) / 4


def test_rows_are_kept_at_once_and_a_second_run_does_what_is_left(host: Host, toy: Path) -> None:
    both = (arena.Contestant("fake"), arena.Contestant("broken"))
    wanted = arena.cells(both, ("toy",), (13, 21))
    assert [(who.name, split) for who, _, split in wanted] == [
        ("fake", 13),
        ("broken", 13),
        ("fake", 21),
        ("broken", 21),
    ]
    for cell in wanted[:2]:
        arena.add_rows(toy, arena.run_cell(host, cell, fake))
    assert arena.left(toy, wanted) == wanted[2:]
    assert arena.left(toy, wanted, again=True) == wanted[1:]
    known = arena.read_rows(toy)
    assert [row["failed"] for row in known] == ["", "", "RuntimeError: no model of this size"]
    assert "| fake | text | " not in arena.table([]), "a table of no rows has a head only"


def test_the_table_pairs_rows_of_the_test(toy: Path) -> None:
    plain = dict.fromkeys(arena.FIELDS, "") | {"task": "orders", "split": "13", "calls": "300"}
    rows = [{**plain, "contestant": "race", "labels": "own", "accuracy": "0.75", "hits": "1110"},
            {**plain, "contestant": "peer", "labels": "text", "accuracy": "0.25", "hits": "0010"}]  # fmt: skip
    lines = arena.table(rows).splitlines()
    assert lines[2].startswith("| race | own | 75.0 (1) | 300 |")
    assert lines[3].startswith("| peer | text | 25.0 (1) | 300 |")
    assert "| +50.0 [" in lines[3]
