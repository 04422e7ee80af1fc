"""Finding run folders and what their cards say, without a server."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_samples as sample
from hypothesis import given
from hypothesis import strategies as st

from pinprompt.answers.table import pack_answers
from pinprompt.files import is_held
from pinprompt.folder.folder import RunFolder
from pinprompt.maths import labels as label_maths
from pinprompt.studio import pages, runs
from pinprompt.studio.guard import Refused
from pinprompt.studio.runs import RunList, ScoredPrompts, Tail
from pinprompt.values import Answers


def cards(root: Path) -> dict[str, runs.Card]:
    found = RunList(root)
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
    assert RunList(tmp_path / "run").path(".") == tmp_path / "run"


def test_a_card_says_what_the_result_says(tmp_path: Path) -> None:
    sample.classification(tmp_path / "a", test=0.75, manual=0.5, seed=3)
    card = cards(tmp_path)["a"]
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert card.state == "finished"
    assert card.prompt == result["prompt"].strip()
    assert card.figure.replace("\N{NO-BREAK SPACE}", " ") == "75.0 %"
    assert card.interval.replace("\N{NO-BREAK SPACE}", " ") == "71.0 % to 79.0 %"
    assert card.rival.replace("\N{NO-BREAK SPACE}", " ") == "manual 50.0 %"
    assert (card.method, card.data, card.calls, card.seed) == ("pin", "sst-2", "12,288", "3")


def test_a_card_is_read_again_when_the_run_has_changed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    folder = sample.classification(root / "a", test=0.75)
    found = RunList(root)
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
    real = runs.read_json
    monkeypatch.setattr(runs, "read_json", lambda folder, name: read.append(folder) or real(folder, name))
    found = RunList(tmp_path)
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
    found = RunList(tmp_path)
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
    [pair] = pages._row_by_row(RunList(tmp_path).places())  # the other split has other rows
    clean = {name: said.replace("\N{NO-BREAK SPACE}", " ") for name, said in pair.items()}
    assert (clean["first"], clean["second"], clean["difference"]) == ("a: 75.0 %", "b: 50.0 %", "25.0 %")
    assert clean["p"] == "p = 0.002"  # ten rows differ, all one way: 2 / 2 ** 10
    assert clean["rows"] == "40 rows of test, accuracy"


def test_a_sweep_is_one_card(tmp_path: Path) -> None:
    sample.sweep(tmp_path / "grid", splits=(13,))
    page = pages.runs_page(RunList(tmp_path), "/x", {})
    assert "3 of 3 runs finished" in page
    assert "run/grid/pin-13-0" not in page
    assert "run/grid/pin-13-0" in pages.runs_page(RunList(tmp_path), "/x", {"group": "grid"})


@pytest.mark.parametrize("name", ["..", "a/..", "a/../..", "/a", "a//b", "a\0", "\\a", "a/b/c/d/e", "link", "file"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b" / "c" / "d" / "e").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused):
        RunList(tmp_path).folder(name)


def append(path: Path, *rows: Any) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def line(text: str, rows: tuple[int, ...], contents: Any, **more: Any) -> dict[str, Any]:
    """A line of answers.jsonl: the answers of a prompt on some rows."""
    answers = pack_answers(Answers(rows, contents))
    return {"request": 0, "report": False, "draw": "", "text": text, "ids": [], **answers, **more}


def logs(*chances: float) -> Any:
    """The log-probabilities of no and yes on each row, from those of yes."""
    return np.log([[1 - chance, chance] for chance in chances])


def rows_file(folder: Path, *rows: tuple[int, str], **more: Any) -> None:
    """rows.json with the label and the split of each row."""
    shown = [{"text": f"text {place}", "label": label, "split": split} for place, (label, split) in enumerate(rows)]
    content = {"labels": ["no", "yes"], "rows": shown, "reward": ["gap", 1.0, 1.0], **more}
    (folder / "rows.json").write_text(json.dumps(content))


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


def test_every_prompt_is_there_once_with_its_scores(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    scored = ScoredPrompts(tmp_path)
    rows_file(tmp_path, (1, "train"), (0, "train"), (1, "dev"))
    append(path, line("a", (0, 1), logs(0.75, 0.625)), line("b", (0, 1), logs(0.875, 0.25)))
    append(path, line("a", (2,), logs(0.25)))
    scored.update()
    # The gap of a row is p(true) - p(other): 0.5 and -0.25 for a, 0.75 and 0.5 for b, and -0.5 for a on dev.
    assert [(column.prompt, column.dev) for column in scored.columns] == [("a", pytest.approx(-0.5)), ("b", None)]
    assert [column.score for column in scored.columns] == pytest.approx([0.125, 0.625])
    assert [column.accuracy for column in scored.columns] == [0.5, 1.0]
    assert [column.prompt for column in scored.best()] == ["b", "a"]
    # 254 x 0.25, 0.75; 0.375, 0.625; 0.75, 0.25 as hexadecimal numbers; b was not asked on dev.
    assert [column.cells for column in scored.columns] == ["40be" + "5f9f" + "be40", "20de" + "be40" + "----"]
    append(path, line("r", (2,), logs(0.5), report=True), {"no": "answers"}, line("c", (0, 1), logs(0.9, 0.1)))
    scored.update()
    assert [column.prompt for column in scored.columns] == ["a", "b", "c"], "what the report asks is no part of it"
    before = scored.edition
    path.write_text(json.dumps(line("z", (0, 1), logs(0.9, 0.1))) + "\n")
    scored.update()
    assert [column.prompt for column in scored.columns] == ["z"]
    assert scored.edition != before


def test_blocks_of_rows_come_together(tmp_path: Path) -> None:
    """A prompt that is raced is asked on a few rows first, and on more while it may still win."""
    rows_file(tmp_path, (0, "train"), (0, "train"), (0, "train"))
    path, scored = tmp_path / "answers.jsonl", ScoredPrompts(tmp_path)
    append(path, line("a", (2, 0), logs(0.125, 0.875)), line("b", (2, 0), logs(0.5, 0.5)))
    scored.update()
    assert [column.cells for column in scored.columns] == ["20de" + "----" + "de20", "7f80" + "----" + "7f80"]
    assert [column.score for column in scored.columns] == pytest.approx([0.0, 0.0])
    seen = scored.clock
    append(path, line("a", (1,), logs(0.0625)))
    scored.update()
    assert [(at, column.prompt) for at, column in scored.since(seen, 10)] == [(0, "a")]  # b has not changed
    assert scored.columns[0].cells == "20de" + "ee10" + "de20"
    assert scored.columns[0].score == pytest.approx((0.75 - 0.75 + 0.875) / 3)
    assert scored.columns[0].accuracy == pytest.approx(2 / 3)
    seen = scored.clock
    append(path, line("a", (2, 0), logs(0.5, 0.5)))  # a session that was killed may have written what is known
    scored.update()
    assert scored.since(seen, 10) == []


def test_calibrated_labels_are_shown_calibrated(tmp_path: Path) -> None:
    """A prompt that prefers yes by the same factor everywhere is as good as one that does not."""
    rows_file(tmp_path, (1, "train"), (0, "train"), reading="calibrated", prior=[0.5, 0.5])
    path, scored = tmp_path / "answers.jsonl", ScoredPrompts(tmp_path)
    fair = logs(0.8, 0.2)
    append(path, line("fair", (0, 1), fair), line("biased", (0, 1), fair + np.array([0.0, 3.0])))
    scored.update()
    assert [column.accuracy for column in scored.columns] == [1.0, 1.0]
    assert scored.columns[0].cells == scored.columns[1].cells


@pytest.mark.parametrize(
    ("contents", "score"),
    [
        (np.array([2.0, 4.0]), 3.0),  # a function
        (np.array([[2.0, 9.0], [4.0, 9.0]]), 3.0),  # a picture: the target, then each picture
        ([[[1.0, 50.0, 9.0], [3.0, 9.0, 9.0]], [[4.0, 9.0, 9.0]]], 3.0),  # rewrites: draws with their score first
        (np.array([2.0, np.nan]), 2.0),  # an answer that failed
        (np.array([np.nan, np.nan]), None),
    ],
)
def test_tasks_without_labels_have_scores(tmp_path: Path, contents: Any, score: float | None) -> None:
    append(tmp_path / "answers.jsonl", line("a", (0, 1), contents))
    scored = ScoredPrompts(tmp_path)
    scored.update()
    assert [(column.score, column.cells) for column in scored.columns] == [(score, "")]


def test_of_several_draws_the_latest_is_shown(tmp_path: Path) -> None:
    path, scored = tmp_path / "answers.jsonl", ScoredPrompts(tmp_path)
    append(path, line("a", (0,), np.array([2.0]), draw="0.0"), line("a", (0,), np.array([5.0]), draw="1.0"))
    scored.update()
    assert [column.score for column in scored.columns] == [5.0]


@pytest.mark.parametrize("labelled", [True, False])
def test_lines_that_no_run_writes_are_skipped(tmp_path: Path, labelled: bool) -> None:
    if labelled:
        rows_file(tmp_path, (1, "train"), (0, "train"))
    good = line("good", (0, 1), logs(0.8, 0.2) if labelled else np.array([1.0, 1.0]))
    strange: list[dict[str, Any]] = [
        {"rows": [[0, 10**7]] * 1000}, {"rows": [[-1, 1]]}, {"rows": "x"}, {"rows": [[0, 10**30]]}, {"rows": [[0, 1]]},
        {"contents": 5}, {"contents": [[], []]}, {"contents": ["xx", "yy"]}, {"contents": [{"a": "b"}, {"a": "b"}]},
        {"contents": [10**400, 1]}, {"contents": [None, None]}, {"text": 7}, {"report": "no"}, {"rows": [[5, 7]]},
        {"contents": {"dtype": "<f8", "shape": [2], "data": "!!"}}, {"contents": {"dtype": "O", "shape": [2]}},
        {"contents": {"dtype": "<f8", "shape": [10**12, 0], "data": ""}, "rows": [[0, 10**7]]},
        {"failures": 3}, {"tokens": [1]},
    ]  # fmt: skip
    append(tmp_path / "answers.jsonl", *({**good, "text": f"bad {place}", **one} for place, one in enumerate(strange)))
    append(tmp_path / "answers.jsonl", good)
    scored = ScoredPrompts(tmp_path)
    scored.update()
    assert scored.columns[-1].prompt == "good"
    assert scored.columns[-1].score is not None
    json.dumps([column.data(0) for column in scored.columns], allow_nan=False)


@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 2**32 - 1), st.booleans())
def test_packed_rows_keep_who_is_right(rows: int, classes: int, seed: int, even: bool) -> None:
    """The largest byte of a row is the predicted class, also where probabilities tie or all but tie."""
    source = np.random.default_rng(seed)
    raw = source.random((rows, classes)) ** (1 if even else 12)
    if seed % 3 == 0:
        raw = np.round(raw * 3) / 3 + 1e-9
    probabilities = raw / raw.sum(axis=1, keepdims=True)
    labels = source.integers(0, classes, rows)
    predicted = label_maths.predictions(probabilities, labels)
    packed = np.frombuffer(bytes.fromhex(label_maths.packed(probabilities, predicted)), dtype=np.uint8)
    levels = packed.reshape(rows, classes).astype(int)
    assert (levels.argmax(axis=1) == predicted).all()
    others = levels.copy()
    others[np.arange(rows), predicted] = -1
    assert (levels[np.arange(rows), predicted] > others.max(axis=1)).all()
    assert levels.max() < 255
    assert np.abs(levels / 254 - probabilities).max() <= 2 / 254


def test_a_matrix_of_no_measure_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CELLS", 40)
    rows_file(tmp_path, *[(1, "train")] * 5)
    append(tmp_path / "answers.jsonl", *(line(name, (0,), logs(0.0625)) for name in "abcd"))
    scored = ScoredPrompts(tmp_path)
    scored.update()
    assert [column.cells[:8] for column in scored.columns] == ["ee10----", "ee10----", "", ""]


@pytest.mark.parametrize("labels", ["x", [], None, 5])
def test_labels_of_another_kind_give_no_cells(tmp_path: Path, labels: Any) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"labels": labels, "rows": 5}))
    append(tmp_path / "answers.jsonl", line("a", (0,), logs(0.5)))
    scored = ScoredPrompts(tmp_path)
    scored.update()
    assert [column.cells for column in scored.columns] == [""]


def test_the_studio_shows_the_same_figures_as_the_run(earlier: dict[int, Path]) -> None:
    """The matrix is computed from answers alone, by code of its own: its scores are those of prompts.csv."""
    folder = earlier[1]
    with (folder / "prompts.csv").open(newline="", encoding="utf-8") as file:
        told = {row["prompt"]: row for row in csv.DictReader(file)}
    scored = ScoredPrompts(folder)
    scored.update()
    assert [column.prompt for column in scored.columns] == list(told)
    for column in scored.columns:
        for found, said in ((column.score, told[column.prompt]["train"]), (column.dev, told[column.prompt]["dev"])):
            assert (found is None) == (said == "")
            assert found is None or found == pytest.approx(float(said), abs=1e-9)
    assert sum(column.dev is not None for column in scored.columns) >= 3
