"""Readers: what they read, and that each bad input is refused with its file and line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.data import readers
from pinprompt.data.readers import Example, check_labels, read_examples, read_lines
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
        ("a.jsonl", b'{"text": "\\ud83d", "label": 0}\n', 1, "half a character"),
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
    monkeypatch.setattr(readers, "LARGEST_FIELD", 1000)
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
