"""Readers of every kind of file with what is wrong in it, and few-shot splits."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.data import examples
from pinprompt.data.examples import Example, check_labels, k_shot, published, read_examples, read_lines
from pinprompt.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(path: Path, line: int | None, *words: str, **options: str) -> None:
    with pytest.raises(DataError) as caught:
        read_examples(path, **options)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    for word in words:
        assert word in str(caught.value)


def test_the_three_formats_give_the_same_examples(tmp_path: Path) -> None:
    expected = [Example("good, really", "1", 2), Example("schlecht — übel 🙁", "0", 3)]
    files = [
        write(tmp_path / "a.csv", 'text,label\n"good, really",1\nschlecht — übel 🙁,0\n'),
        write(tmp_path / "a.tsv", "label\tid\ttext\n1\tx\tgood, really\n0\ty\tschlecht — übel 🙁"),
        write(tmp_path / "A.CSV", '\ufefftext,label\r\n"good, really",1\r\nschlecht — übel 🙁,0\r\n'),
    ]
    for file in files:
        assert read_examples(file) == expected
    rows = [{"text": e.text, "label": int(e.label)} for e in expected]
    lines = write(tmp_path / "a.jsonl", "\n" + "\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert read_examples(lines) == expected


def test_quoted_tabs_quotes_and_line_breaks_and_the_lines_after_them(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", 'text\tlabel\n"one\ttab"\t0\n"two\r\nlines"\t1\n"a ""word"""\t1\n\n last \t 0 \n')
    assert read_examples(file) == [
        Example("one\ttab", "0", 2),
        Example("two\r\nlines", "1", 3),
        Example('a "word"', "1", 5),
        Example(" last ", "0", 7),
    ]


def test_other_columns_can_be_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "review,stars\nfine,5\n")
    assert read_examples(file, "review", "stars") == [Example("fine", "5", 2)]
    refused(file, 1, "no column 'reviews'", "did you mean 'review'?", text_column="reviews", label_column="stars")
    refused(file, 1, "no column 'label'", "review, stars", text_column="review")


def test_json_values_that_are_labels(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": "yes"}\n')
    assert [e.label for e in read_examples(file)] == ["true", "yes"]


@pytest.mark.parametrize(
    ("name", "content", "line", "words"),
    [
        ("a.csv", b"", None, "empty"),
        ("a.csv", b"\n\n", None, "empty"),
        ("a.csv", b"text,label\n", None, "no examples"),
        ("a.jsonl", b"\n", None, "no examples"),
        ("a.csv", b"text,label\nfine,1\ncaf\xe9,0\n", 3, "byte 4 of the line (0xe9) is not UTF-8"),
        ("a.csv", "text,label\nfine,1\n".encode("utf-16"), 1, "NUL"),
        ("a.tsv", b"text\tlabel\nfine\0\t1\n", 2, "NUL"),
        ("a.csv", b"text,label\n  ,1\n", 2, "the text is empty"),
        ("a.csv", b"text,label\nfine,\n", 2, "the label is empty"),
        ("a.csv", b"text,label\nfine\n", 2, "has 1 fields, the header has 2"),
        ("a.csv", b"text,label\nfine, it was,1\n", 2, "has 3 fields, the header has 2; put a text that holds a comma"),
        ("a.csv", b'text,label\nok,0\n"never closed,1\nmore,0\n', 3, "not CSV"),
        ("a.tsv", b'text\tlabel\n"Yes" he said\t1\n', 2, "not TSV"),
        ("a.csv", b"text,text,label\na,b,0\n", 1, "is twice"),
        ("a.jsonl", b'{"text": "a", "label": 0}\n{"text": \n', 2, "not JSON"),
        ("a.jsonl", b'["a", 0]\n', 1, "must be an object"),
        ("a.jsonl", b'{"text": "a", "lable": 0}\n', 1, "did you mean 'lable'"),
        ("a.jsonl", b'{"text": null, "label": 0}\n', 1, "holds null, not a text"),
        ("a.jsonl", b'{"text": "\\ud83d", "label": 0}\n', 1, "invalid character"),
        ("a.jsonl", b"[" * 100_000 + b"\n", 1, "not JSON"),
        ("a.xlsx", b"PK", None, ".csv, .tsv or .jsonl"),
        ("a", b"x", None, "no suffix"),
    ],
)
def test_bad_files_are_refused_with_file_and_line(
    tmp_path: Path, name: str, content: bytes, line: int | None, words: str
) -> None:
    refused(write(tmp_path / name, content), line, words)


def test_files_that_are_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(tmp_path / "no.csv", None, "no such file")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", None, "a folder")
    with open(tmp_path / "huge.csv", "wb") as handle:
        handle.truncate(3 << 30)  # sparse: takes no room
    refused(tmp_path / "huge.csv", None, "3.2 GB")


def test_long_fields_are_read_and_endless_ones_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import csv

    before = csv.field_size_limit()
    file = write(tmp_path / "a.csv", "text,label\n" + "x" * 300_000 + ",0\n")
    assert len(read_examples(file)[0].text) == 300_000
    monkeypatch.setattr(examples, "LARGEST_FIELD", 1000)
    refused(file, 2, "field larger")
    refused(write(tmp_path / "a.jsonl", '{"text": "' + "x" * 2000 + '", "label": 0}'), 1, "longer than 1,000")
    assert csv.field_size_limit() == before


def test_labels_are_checked_with_their_line() -> None:
    rows = [Example("a", "0", 2), Example("b", "1", 3), Example("c", "grate", 4)]
    check_labels(rows[:2], ("0", "1"), "x.csv")
    with pytest.raises(DataError, match=r"^x.csv:4: the label 'grate' is unknown; did you mean 'great'\?"):
        check_labels(rows, ("0", "1", "great"), "x.csv")
    with pytest.raises(DataError, match=r"^x.csv: all examples have the label '0'"):
        check_labels(rows[:1], ("0", "1"), "x.csv")


def test_lines(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a.txt", "\ufeffone\r\n two \nthrée\n\n\n")) == ["one", " two ", "thrée"]
    gap = write(tmp_path / "b.txt", "one\n\ntwo\n")
    with pytest.raises(DataError, match=r"b.txt:2: the line is empty"):
        read_lines(gap)
    assert read_lines(gap, skip_blank=True) == ["one", "two"]
    with pytest.raises(DataError, match=r"c.txt: the file is empty"):
        read_lines(write(tmp_path / "c.txt", "\n \n"))
    with pytest.raises(DataError, match=r"d.txt:2: byte 1 .*not UTF-8"):
        read_lines(write(tmp_path / "d.txt", b"ok\n\xff\n"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), name=st.sampled_from(["f.csv", "f.tsv", "f.jsonl"]))
def test_any_bytes_are_read_or_refused_never_a_crash(tmp_path: Path, content: bytes, name: str) -> None:
    prefix = b"" if name == "f.jsonl" else b"text,label\n".replace(b",", b"," if name == "f.csv" else b"\t")
    with contextlib.suppress(DataError):
        assert all(row.text.strip() and row.label for row in read_examples(write(tmp_path / name, prefix + content)))


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


def test_repeated_texts_are_never_in_two_splits() -> None:
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
    assert any("dev is identical to train" in note for note in same.notes)
    assert any("no test.tsv" in note for note in same.notes)
    leaky = published(layout(tmp_path / "cr", 'x\t0\ny\t1\n""\t1\n', "y\t0\nw\t1\n", "x\t0\ny\t1\nz\t1\n"), 13)
    assert len(leaky.train) == 2
    assert leaky.notes == (
        "train.tsv: 1 row without text left out",
        "1 text of train is also in dev",
        "2 texts of train are also in test",
        "1 text of dev is also in test",
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
