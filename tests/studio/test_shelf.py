"""Finding run folders and what their cards say, without a server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import run_samples as sample

from pinprompt.files import is_held
from pinprompt.run.folder import RunFolder
from pinprompt.studio import pages, shelf
from pinprompt.studio.guard import Refused
from pinprompt.studio.shelf import Shelf


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
    assert "No run matches" in pages.runs_page(found, "/x", {"state": "running"})


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
