"""A run folder followed while it grows, is cut back by a resumed run, or is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprompt.scoring import journal
from pinprompt.studio import following
from pinprompt.studio.following import ScoredPrompts, Tail
from pinprompt.tasks import label_scores
from pinprompt.values import Score


def append(path: Path, *rows: Any) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def row(text: str, value: float, split: str = "train", **more: Any) -> dict[str, Any]:
    return {"kind": "score", "n": 0, "place": 0, "split": split, "text": text, "value": value, **more}


def test_only_whole_lines_count_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    append(path, {"n": 1}, {"n": 2})
    with path.open("a") as file:
        file.write('{"n": 3')
    assert [event["n"] for _, event in tail.new()] == [1, 2]
    assert tail.new() == []
    with path.open("a") as file:
        file.write("}\nnonsense\n[]\n")
    assert [event["n"] for _, event in tail.new()] == [3]
    assert Tail(path, tail.offset).new() == []  # a reader that comes back goes on where it was


def test_a_file_that_was_cut_back_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, {"n": 1}, {"n": 2})
    tail = Tail(path)
    tail.new()
    path.write_text('{"n": 1}\n')
    assert [event["n"] for _, event in tail.new()] == [1]
    assert tail.cuts == 1


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    import os

    append(tmp_path / "secret", {"n": 1})
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "secret")
    assert Tail(tmp_path / "events.jsonl").new() == []
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert Tail(tmp_path / "pipe.jsonl").new() == []


def test_the_book_has_every_prompt_once_with_its_scores(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    book = ScoredPrompts(tmp_path)
    (tmp_path / "rows.json").write_text(json.dumps({"labels": ["no", "yes"], "rows": [{"text": "x", "label": 1}]}))
    append(path, row("a", 1.0, details={"accuracy": 0.5}, rows="00fe"), row("b", 3.0), row("a", 0.4, "dev"))
    book.update()
    assert [(column.prompt, column.score, column.dev) for column in book.columns] == [("a", 1.0, 0.4), ("b", 3.0, None)]
    assert [column.prompt for column in book.best()] == ["b", "a"]
    append(path, row("a", 2.0), {"kind": "evaluation"}, row("c", 5.0))
    book.update()
    assert [column.prompt for column in book.columns] == ["a", "b", "c"]
    assert book.columns[0].cells == "00fe"
    before = book.edition
    path.write_text(json.dumps(row("z", 1.0)) + "\n")
    book.update()
    assert [column.prompt for column in book.columns] == ["z"]
    assert book.edition != before


def test_blocks_of_rows_come_together(tmp_path: Path) -> None:
    """A prompt that is raced is scored on a few rows first, and on more while it may still win."""
    splits = {"train": [0, 1, 2], "train-1-2": [2, 0], "train-3-3": [1]}
    rows = [{"text": word, "label": 0} for word in "xyz"]
    (tmp_path / "rows.json").write_text(json.dumps({"labels": ["no", "yes"], "rows": rows, "splits": splits}))
    book = ScoredPrompts(tmp_path)
    append(tmp_path / "scores.jsonl", row("a", 4.0, "train-1-2", details={"accuracy": 0.5}, rows="fe0000fe"))
    append(tmp_path / "scores.jsonl", row("b", 1.0, "train-1-2", rows="00fefe00"))
    book.update()
    assert [column.cells for column in book.columns] == ["00fe----fe00", "fe00----00fe"]
    seen = book.clock
    append(tmp_path / "scores.jsonl", row("a", 1.0, "train-3-3", details={"accuracy": 1.0}, rows="aa11"))
    book.update()
    assert [(at, column.prompt) for at, column in book.since(seen, 10)] == [(0, "a")]  # b has not changed
    assert book.columns[0].cells == "00feaa11fe00"
    assert book.columns[0].score == 3.0  # (4 + 4 + 1) / 3
    assert book.columns[0].accuracy == pytest.approx(2 / 3)
    append(tmp_path / "scores.jsonl", row("a", 2.5, rows="00fe00fe00fe"))
    book.update()
    assert (book.columns[0].score, book.columns[0].cells) == (2.5, "00fe00fe00fe")


@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 2**32 - 1), st.booleans())
def test_packed_rows_keep_who_is_right(rows: int, classes: int, seed: int, even: bool) -> None:
    """The largest byte of a row is the predicted class, also where probabilities tie or all but tie."""
    source = np.random.default_rng(seed)
    raw = source.random((rows, classes)) ** (1 if even else 12)
    if seed % 3 == 0:
        raw = np.round(raw * 3) / 3 + 1e-9
    probabilities = raw / raw.sum(axis=1, keepdims=True)
    labels = source.integers(0, classes, rows)
    predicted = label_scores.predictions(probabilities, labels)
    packed = np.frombuffer(bytes.fromhex(label_scores.packed(probabilities, predicted)), dtype=np.uint8)
    levels = packed.reshape(rows, classes).astype(int)
    assert (levels.argmax(axis=1) == predicted).all()
    others = levels.copy()
    others[np.arange(rows), predicted] = -1
    assert (levels[np.arange(rows), predicted] > others.max(axis=1)).all()
    assert levels.max() < 255
    assert np.abs(levels / 254 - probabilities).max() <= 2 / 254


def test_a_score_keeps_its_rows_on_the_way_through_the_journal() -> None:
    score = journal.clean(Score(1.0, 2, rows="00fe"), "task", "prompt")
    again = journal.unpack_score(json.loads(journal.dumps(journal.pack_score(score))))
    assert again == score
    assert again.rows == "00fe"
    # Scores of earlier versions have none, and those without are written as they always were.
    assert "rows" not in journal.pack_score(Score(1.0, 2))
    assert journal.unpack_score(journal.pack_score(Score(1.0, 2))).rows == ""


def test_a_matrix_of_no_measure_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "CELLS", 40)
    rows = {"labels": ["no", "yes"], "rows": [{"text": "x", "label": 1}] * 5, "splits": {"train": [0]}}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    append(tmp_path / "scores.jsonl", *(row(name, 0.5, rows="ff00") for name in "abcd"))
    book = ScoredPrompts(tmp_path)
    book.update()
    assert [column.cells[:4] for column in book.columns] == ["ff00", "ff00", "", ""]


@pytest.mark.parametrize("labels", ["x", [], None, 5])
def test_labels_of_another_kind_give_no_cells(tmp_path: Path, labels: Any) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"labels": labels, "rows": 5, "splits": {"train": []}}))
    append(tmp_path / "scores.jsonl", row("a", 0.5, rows="ff00"))
    book = ScoredPrompts(tmp_path)
    book.update()
    assert [column.cells for column in book.columns] == [""]
