"""Few-shot splits: balanced, disjoint, seeded, and honest about the flaws of published ones."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from pinprompt.data.readers import Example
from pinprompt.data.splits import k_shot, published
from pinprompt.errors import DataError


def pile(per_class: int, labels: str = "012") -> list[Example]:
    return [Example(f"text {n} of {label}", label, n + 1) for n in range(per_class) for label in labels]


def texts(rows: list[Example]) -> set[str]:
    return {row.text for row in rows}


def test_balanced_disjoint_and_complete() -> None:
    rows = pile(40)
    train, dev, rest = k_shot(rows, 16, seed=13)
    assert Counter(row.label for row in train) == Counter(row.label for row in dev) == {"0": 16, "1": 16, "2": 16}
    assert not texts(train) & texts(dev)
    assert not (texts(train) | texts(dev)) & texts(rest)
    assert len(rest) == 120 - 96
    assert {row.label for row in train[:3]} == {"0", "1", "2"}


def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_the_file() -> None:
    rows = pile(40)
    shuffled = rows[:]
    random.Random(5).shuffle(shuffled)
    assert k_shot(rows, 4, 13)[:2] == k_shot(shuffled, 4, 13)[:2]
    draws = [frozenset(texts(k_shot(rows, 4, seed)[0])) for seed in (0, 1, 13)]
    assert len(set(draws)) == 3


def test_repeated_texts_never_stand_on_both_sides() -> None:
    rows = pile(8, "01")
    twice = rows + [Example(f" {row.text} ", row.label, 99) for row in rows]
    train, dev, rest = k_shot(twice, 4, 0)
    everything = [row.text.strip() for row in (*train, *dev, *rest)]
    assert len(everything) == len(set(everything)) == 16


def test_too_few_examples_say_how_many_would_do() -> None:
    with pytest.raises(DataError, match=r"'1' has 7 distinct texts; 4 for train and 4 for dev need 8.*at most 3"):
        k_shot(pile(8, "0") + pile(7, "1"), 4, 0)


def layout(folder: Path, train: str, dev: str, test: str | None = None, column: str = "text") -> Path:
    (folder / "16-13").mkdir(parents=True)
    for name, rows in (("16-13/train", train), ("16-13/dev", dev), ("test", test)):
        if rows is not None:
            (folder / f"{name}.tsv").write_text(f"{column}\tlabel\n{rows}")
    return folder


def test_published_layout(tmp_path: Path) -> None:
    splits = published(layout(tmp_path / "a", "x\t0\ny\t1\n", "v\t0\nw\t1\n", "t\t0\nu\t1\n"), 13)
    assert [row.text for row in splits.train] == ["x", "y"]
    assert [row.label for row in splits.dev] == ["0", "1"]
    assert splits.test is not None
    assert [row.text for row in splits.test] == ["t", "u"]
    assert splits.notes == ()
    assert published(layout(tmp_path / "b", "x\t0\n", "v\t0\n", column="sentence"), 13).train[0].text == "x"


def test_published_flaws_are_noted(tmp_path: Path) -> None:
    same = published(layout(tmp_path / "subj", "x\t0\ny\t1\n", "x\t0\ny\t1\n"), 13)
    assert same.test is None
    assert any("dev equals train byte for byte" in note for note in same.notes)
    assert any("no test.tsv" in note for note in same.notes)
    leaky = published(layout(tmp_path / "cr", 'x\t0\ny\t1\n""\t1\n', "y\t0\nw\t1\n", "x\t0\ny\t1\nz\t1\n"), 13)
    assert len(leaky.train) == 2
    assert leaky.notes == (
        "train.tsv: 1 row(s) without text left out",
        "1 text(s) of train are also in dev",
        "2 text(s) of train are also in test",
        "1 text(s) of dev are also in test",
    )


def test_a_missing_split_names_those_that_are_there(tmp_path: Path) -> None:
    folder = layout(tmp_path / "a", "x\t0\n", "v\t0\n")
    with pytest.raises(DataError, match=r"no split '16-99' here; it has 16-13"):
        published(folder, 99)
    (folder / "16-13" / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"dev.tsv: there is no such file"):
        published(folder, 13)
    with pytest.raises(DataError, match="no folders named"):
        published(tmp_path / "nowhere", 13)
