"""Finding run folders and what their cards say, without a server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_samples as sample
from hypothesis import given
from hypothesis import strategies as st

from pinprompt.files import is_held
from pinprompt.run.folder import RunFolder
from pinprompt.scoring import journal
from pinprompt.studio import pages, shelf
from pinprompt.studio.guard import Refused
from pinprompt.studio.shelf import ScoredPrompts, Shelf, Tail
from pinprompt.tasks import label_scores
from pinprompt.values import Score


def cards(root: Path) -> dict[str, shelf.Card]:
    found = Shelf(root)
    return {place.id: found.card(place) for place in found.places()}


def test_runs_are_found_at_any_depth_but_not_behind_links(tmp_path: Path) -> None:
    sample.classification(tmp_path / "root" / "a")
    sample.classification(tmp_path / "root" / "sweep" / "b")
    sample.classification(tmp_path / "root" / "sweep" / "more" / "c")
    sample.classification(tmp_path / "root" / ".hidden" / "d")
    sample.classification(tmp_path / "outside")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    assert set(cards(tmp_path / "root")) == {"a", "sweep/b", "sweep/more/c"}


def test_a_folder_that_is_itself_a_run(tmp_path: Path) -> None:
    sample.classification(tmp_path / "run")
    assert set(cards(tmp_path / "run")) == {"."}
    assert Shelf(tmp_path / "run").path(".") == tmp_path / "run"


def test_a_card_says_what_the_result_says(tmp_path: Path) -> None:
    sample.classification(tmp_path / "a", test=0.75, manual=0.5, seed=3)
    card = cards(tmp_path)["a"]
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert card.state == "finished"
    assert card.prompt == result["prompt"].strip()
    assert card.figure.replace("\N{NO-BREAK SPACE}", " ") == "75.0 %"
    assert card.interval.replace("\N{NO-BREAK SPACE}", " ") == "71.0 % to 79.0 %"
    assert card.rival.replace("\N{NO-BREAK SPACE}", " ") == "50.0 %"
    assert (card.method, card.data, card.calls, card.seed) == ("pin", "sst-2", "12,288", "3")


def test_a_card_is_read_again_when_the_run_has_changed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    folder = sample.classification(root / "a", test=0.75)
    found = Shelf(root)
    [place] = found.places()
    assert found.card(place).value == 0.75
    sample.classification(root / "a", test=0.875)
    os.utime(folder / "result.json", (1, 1))
    assert found.card(place).value == 0.875


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "Stopped before its first step"),
        ([{"event": "start", "step": 0}], "Stopped before its first step"),
        ([{"event": "step", "step": 4, "calls": 320, "best_prompt": " a b"}],
         "Stopped after step 5, 320 calls; best so far: “a b”"),
        ([{"event": "problem", "step": 4, "reason": "the loss is no number"}],
         "It could not continue: the loss is no number"),
        ([{"event": "evaluating", "name": "found", "split": "dev", "step": 9}], "Stopped while evaluating"),
    ],
)  # fmt: skip
def test_an_unfinished_run_says_what_happened(tmp_path: Path, events: list[dict[str, Any]], said: str) -> None:
    sample.write(tmp_path / "a", {"recipe.toml": 'method = "pin"\n', "events.jsonl": events})
    card = cards(tmp_path)["a"]
    assert (card.state, card.happened) == ("stopped", said)


def test_a_run_at_work_is_known_by_its_lock(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "a") as record:
        record.begin('method = "pin"\n')
        assert cards(tmp_path)["a"].state == "running"
    assert cards(tmp_path)["a"].state == "stopped"


def test_a_lock_of_a_process_that_is_gone_or_made_up_holds_nothing(tmp_path: Path) -> None:
    sample.write(tmp_path / "a", {"recipe.toml": ""})
    for said in (f"process {2**31 - 1}", "process 99999999999999999999", "", "process -1", f"process {os.getpid()}"):
        (tmp_path / "a" / ".lock").write_text(said)
        assert not is_held(tmp_path / "a")


def test_the_first_page_of_five_hundred_runs_reads_one_page_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(500):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps({"prompt": f"words {number}", "score": number}))
        os.utime(folder / "result.json", (1000 + number, 1000 + number))
    read = []
    real = shelf.read_result
    monkeypatch.setattr(shelf, "read_result", lambda folder: read.append(folder) or real(folder))
    found = Shelf(tmp_path)
    page = pages.runs_page(found, "/x", {})
    assert "1 to 60 of 500" in page
    assert "words 499" in page  # the latest first
    assert "words 439" not in page
    assert len(read) == pages.PAGE
    pages.runs_page(found, "/x", {})
    assert len(read) == pages.PAGE  # known cards are not read again
    assert "words 379" in pages.runs_page(found, "/x", {"from": "120"})


def test_runs_are_sorted_and_filtered(tmp_path: Path) -> None:
    for name, value in (("low", 0.5), ("high", 0.9), ("middle", 0.7)):
        sample.classification(tmp_path / name, test=value)
    sample.inversion(tmp_path / "picture")
    found = Shelf(tmp_path)
    page = pages.runs_page(found, "/x", {"sort": "figure"})
    assert page.index("run/high") < page.index("run/middle") < page.index("run/low")
    page = pages.runs_page(found, "/x", {"q": "inversion"})
    assert "run/picture" in page
    assert "run/high" not in page
    assert "No matching runs" in pages.runs_page(found, "/x", {"state": "running"})


def test_runs_on_the_same_rows_are_compared_row_by_row(tmp_path: Path) -> None:
    outcomes = {"a": "1" * 30 + "0" * 10, "b": "1" * 20 + "0" * 20, "other": "1" * 20 + "0" * 20}
    for name, right in outcomes.items():
        folder = sample.classification(tmp_path / name, split=99 if name == "other" else 13, test=right.count("1") / 40)
        result = json.loads((folder / "result.json").read_text())
        result["test"]["outcomes"] = {"accuracy": right}
        (folder / "result.json").write_text(json.dumps(result))
    [pair] = pages._row_by_row(Shelf(tmp_path).places())  # the other split has other rows
    clean = {name: said.replace("\N{NO-BREAK SPACE}", " ") for name, said in pair.items()}
    assert (clean["first"], clean["second"], clean["difference"]) == ("a: 75.0 %", "b: 50.0 %", "25.0 %")
    assert clean["p"] == "p = 0.002"  # ten rows differ, all one way: 2 / 2 ** 10
    assert clean["rows"] == "40 rows of test, accuracy"


def test_a_sweep_is_one_card(tmp_path: Path) -> None:
    sample.sweep(tmp_path / "grid", splits=(13,))
    page = pages.runs_page(Shelf(tmp_path), "/x", {})
    assert "3 of 3 runs finished" in page
    assert "run/grid/pin-13-0" not in page
    assert "run/grid/pin-13-0" in pages.runs_page(Shelf(tmp_path), "/x", {"group": "grid"})


@pytest.mark.parametrize("name", ["..", "a/..", "a/../..", "/a", "a//b", "a\0", "\\a", "a/b/c/d/e", "link", "file"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b" / "c" / "d" / "e").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused):
        Shelf(tmp_path).folder(name)


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
    monkeypatch.setattr(shelf, "CELLS", 40)
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
