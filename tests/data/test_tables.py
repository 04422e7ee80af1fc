"""Tables of texts: every format in, every column out, in order."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from pinprompt.data.examples import Example, delimiter_of, read_examples
from pinprompt.data.tables import check_output, keep_frame, names_for, read_table, write_table
from pinprompt.errors import DataError, SettingError


def write(path: Path, content: str) -> Path:
    path.write_text(content, "utf-8")
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_by_the_header(tmp_path: Path, delimiter: str) -> None:
    file = write(tmp_path / "a.csv", f'id{delimiter}text{delimiter}label\n1{delimiter}"one, two; three"{delimiter}0\n')
    assert read_examples(file) == [Example("one, two; three", "0", 2)]
    assert delimiter_of(file) == delimiter  # also before anybody has named a column


def test_a_comma_inside_a_quoted_header_is_no_delimiter(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", '"text, as typed";label\nfine;0\n')
    assert read_examples(file, "text, as typed") == [Example("fine", "0", 2)]
    with pytest.raises(DataError, match=r"has 3 fields, the header has 2; put a text that holds a semicolon"):
        read_examples(write(tmp_path / "b.csv", "text;label\na;b;0\n"))


def test_every_column_and_row_comes_back_in_order(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", 'id;text;note\n3;"two\nlines";"a ""quote"""\n1;  ;x\n2;plain;é\n')
    table = read_table(file)
    assert table.texts == ["two\nlines", "", "plain"]
    assert table.places == ["line 2", "line 4", "line 5"]
    write_table(tmp_path / "b.csv", table, [{"label": "p"}, {"label": None}, {"label": "n"}])
    with open(tmp_path / "b.csv", encoding="utf-8", newline="") as handle:
        assert list(csv.reader(handle, delimiter=";")) == [
            ["id", "text", "note", "label"],
            ["3", "two\nlines", 'a "quote"', "p"],
            ["1", "  ", "x", ""],
            ["2", "plain", "é", "n"],
        ]


def test_jsonl_keeps_values_as_they_are(tmp_path: Path) -> None:
    rows = [{"text": "a", "tags": ["x"], "n": 1}, {"n": 2.5, "text": None}]
    file = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    table = read_table(file)
    assert table.texts == ["a", ""]
    write_table(tmp_path / "b.jsonl", table, [{"label": "0"}, {"label": None}])
    written = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert written == [{**rows[0], "label": "0"}, {**rows[1], "label": None}]
    write_table(tmp_path / "b.tsv", table, [{"label": "0"}, {"label": None}])
    assert (tmp_path / "b.tsv").read_text().splitlines()[0].split("\t") == ["text", "tags", "n", "label"]


def test_folders_text_files_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    for name, text in (("b.txt", "second\nletter\n"), ("a.txt", "first"), ("c.txt", ""), ("d.md", "not a letter")):
        write(folder / name, text)
    table = read_table(folder)
    assert [(row["file"], row["text"]) for row in table.rows] == [
        ("a.txt", "first"), ("b.txt", "second\nletter"), ("c.txt", "")
    ]  # fmt: skip
    assert read_table(write(tmp_path / "a.txt", "one\n\ntwo\n")).texts == ["one", "", "two"]

    def stdin(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    stdin(b"a text, not a header\nmore\n")
    assert read_table("-").texts == ["a text, not a header", "more"]
    stdin(b"id;review\n1;fine\n")
    assert read_table("-", "review").rows == [{"id": "1", "review": "fine"}]
    stdin(b'{"review": "fine"}\n')
    assert read_table("-", "review").texts == ["fine"]


def test_data_frames_are_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["a", None, "b"], "label": [1, 0, 1], "score": [0.5, float("nan"), 2.0]})
    table = read_table(frame)
    assert table.texts == ["a", "", "b"]
    assert table.rows[1] == {"text": None, "label": 0, "score": None}
    kept = keep_frame(frame.dropna(), tmp_path / "frames")
    assert read_examples(kept) == [Example("a", "1", 1), Example("b", "1", 2)]
    assert keep_frame(frame.dropna(), tmp_path / "frames") == kept
    lines = keep_frame(pd.DataFrame({"sentence": ["one\ntwo", "three"]}), tmp_path / "frames", lines=True)
    assert Path(lines).read_text() == "one two\nthree\n"


def test_lists_of_dicts_are_tables(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, {"text": None, "more": {"x": 2}}]
    table = read_table(rows)
    assert (table.columns, table.texts, table.rows) == (["text", "label", "more"], ["a", ""], rows)
    assert read_table(keep_frame(rows, tmp_path)).rows == rows
    with pytest.raises(SettingError, match="not a list"):
        read_table(["a", "b"])
    with pytest.raises(DataError, match="no column 'body'"):
        read_table(rows, "body")


def test_columns_are_asked_for_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "id,review\n1,fine\n")
    with pytest.raises(DataError, match=r"no column 'reviews'; did you mean 'review'\?"):
        read_table(file, "reviews")
    assert read_table(file, usual="review").texts == ["fine"]
    assert read_table(write(tmp_path / "one.csv", "whatever\nfine\n")).texts == ["fine"]
    with pytest.raises(DataError, match="twice"):
        read_table(write(tmp_path / "two.csv", "text,x,x\na,b,c\n"))
    with pytest.raises(DataError, match="no columns"):
        read_table(write(tmp_path / "a.txt", "x"), "text")
    with pytest.raises(DataError, match="a text"):
        read_table(write(tmp_path / "a.jsonl", '{"text": ["x"]}'))
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / "none.csv")


def test_names_that_a_table_has_already_are_left_alone() -> None:
    assert names_for(["label", "p"], ["text", "label", "predicted_label"]) == {
        "label": "predicted_predicted_label", "p": "p"
    }  # fmt: skip


def test_an_output_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "text\nx\n")
    for path, said in (
        (tmp_path / "a.xlsx", "must end in"), (tmp_path / "no" / "a.csv", "does not exist"), (file, "is also the input")
    ):  # fmt: skip
        with pytest.raises(SettingError, match=said):
            check_output(path, file)
