"""Tables of texts: read with all columns, and written with added columns.

A table comes from a CSV, TSV or JSONL file, a text file (one text per line), a folder of text files, stdin, a data
frame or a list of dicts. The order of rows is kept, including rows without a text.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt.data import examples
from pinprompt.errors import DataError, SettingError, did_you_mean
from pinprompt.files import write_atomically
from pinprompt.models.cache import home

STDIN = "-"
_WRITTEN = (".csv", ".tsv", ".jsonl")
_LARGEST_FOLDER = 100_000


@dataclass(frozen=True)
class TextTable:
    """Rows with named columns, one of which is the text; `places` has the origin of each row."""

    columns: list[str]
    rows: list[dict[str, Any]]
    text_column: str
    places: list[str]
    delimiter: str = ","

    @property
    def texts(self) -> list[str]:
        """The text of each row; '' if there is none."""
        values = [row.get(self.text_column) for row in self.rows]
        return ["" if value is None else str(value).strip() for value in values]


def is_frame(thing: object) -> bool:
    """True for a pandas or polars data frame, without importing either, and for rows as a list of dicts."""
    if isinstance(thing, list | tuple):
        return bool(thing) and all(isinstance(row, Mapping) for row in thing)
    return hasattr(thing, "columns") and (hasattr(thing, "to_dicts") or hasattr(thing, "to_dict"))


def read_table(source: object, text_column: str | None = None, usual: str = "text") -> TextTable:
    """The table at a path, in a folder, on stdin ('-'), in a data frame or in a list of dicts.

    Without `text_column` the text is in the column `usual`, or in the only column. Stdin is read as a table (CSV, TSV
    or JSONL) if a column is given; otherwise every line is a text.
    """
    if is_frame(source):
        return _from_frame(source, text_column, usual)
    if not isinstance(source, str | Path):
        raise SettingError(f"a table is a path, '-', a data frame or a list of dicts, not a {type(source).__name__}")
    if str(source) == STDIN:
        return _from_stdin(text_column, usual)
    path = Path(source)
    if path.is_dir():
        return _from_folder(path)
    return _from_file(path, None, path.suffix.lower(), text_column, usual)


def check_output(path: Path, source: object) -> None:
    """Raise an error if the output cannot be written, before anything is computed."""
    if path.suffix.lower() not in _WRITTEN:
        raise SettingError(f"the output '{path}' must end in .csv, .tsv or .jsonl")
    if not path.parent.is_dir():
        raise SettingError(f"the folder of the output '{path}' does not exist; create it first")
    if isinstance(source, str | Path) and Path(source).exists() and path.exists() and path.samefile(source):
        raise SettingError(f"the output '{path}' is also the input; choose another name")


def write_table(path: Path, table: TextTable, added: Sequence[Mapping[str, Any]]) -> None:
    """Write every column of a table and the added ones, in the format of the suffix."""
    rows = [{**row, **more} for row, more in zip(table.rows, added, strict=True)]
    if path.suffix.lower() == ".jsonl":
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows))
        return
    columns = list(dict.fromkeys([*table.columns, *(name for more in added for name in more)]))
    text = io.StringIO()
    delimiter = "\t" if path.suffix.lower() == ".tsv" else "," if table.delimiter == "\t" else table.delimiter
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    write_atomically(path, text.getvalue())


def keep_frame(frame: object, folder: Path, *, lines: bool = False) -> str:
    """`keep_rows` of a data frame, or with `lines` `keep_lines` of its column 'text' or its only column."""
    return keep_lines(read_table(frame).texts, folder) if lines else keep_rows(_records(frame), folder)


def keep_lines(texts: Iterable[str], folder: Path) -> str:
    """Write texts to a file with one text per line, named by its content, and return the path."""
    return _keep("".join(" ".join(text.split()) + "\n" for text in texts), ".txt", folder)


def keep_rows(rows: Iterable[Mapping[str, Any]], folder: Path) -> str:
    """Write rows to a JSONL file named by its content, and return the path."""
    return _keep("".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows), ".jsonl", folder)


def _keep(written: str, suffix: str, folder: Path) -> str:
    path = folder / f"{hashlib.sha256(written.encode()).hexdigest()[:16]}{suffix}"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, written)
    return str(path)


def _from_file(path: Path, raw: Sequence[bytes] | None, suffix: str, text_column: str | None, usual: str) -> TextTable:
    if suffix in examples.JSONL:
        numbered = list(examples.read_objects(path, raw))
        rows = [row for _, row in numbered]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        column = _text_column(columns, text_column, usual, path)
        for line, row in numbered:
            if row.get(column) is not None:
                examples.as_text(row[column], column, path, line)
        return TextTable(columns, rows, column, [f"line {line}" for line, _ in numbered])
    if suffix in examples.TABLES:
        wanted = [text_column or usual]
        delimiter = examples.delimiter_of(path, wanted, raw)
        (_, columns), *found = examples.read_rows(path, raw, delimiter)
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"the column '{twice}' is twice in the header", path=path, line=1)
        column = _text_column(columns, text_column, usual, path)
        rows = [dict(zip(columns, row, strict=True)) for _, row in found]
        return TextTable(columns, rows, column, [f"line {line}" for line, _ in found], delimiter)
    if suffix not in ("", ".txt", ".text", ".md"):
        raise DataError(
            "texts are read from .csv, .tsv, .jsonl and .txt files (one text per line) and from folders of .txt files",
            path=path,
        )
    if text_column is not None:
        raise DataError(f"a text file has no columns, and '{text_column}' was named; every line is a text", path=path)
    lines = list(examples.read_numbered_lines(path, raw))
    return TextTable(["text"], [{"text": text} for _, text in lines], "text", [f"line {line}" for line, _ in lines])


def _from_stdin(text_column: str | None, usual: str) -> TextTable:
    content = sys.stdin.buffer.read(examples.LARGEST_FILE + 1)
    if len(content) > examples.LARGEST_FILE:
        raise DataError(f"stdin has more than {examples.LARGEST_FILE / 1e9:.1f} GB; give it in parts")
    raw, suffix = list(io.BytesIO(content)), ".txt"
    if text_column is not None:
        suffix = ".jsonl" if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else ".csv"
    return _from_file(Path("stdin"), raw, suffix, text_column, usual)


def _from_folder(folder: Path) -> TextTable:
    """The .txt files of a folder, each one text, in the order of their names."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".txt" and path.is_file())
    if not paths:
        raise DataError("there is no .txt file in this folder; each file is one text", path=folder)
    if len(paths) > _LARGEST_FOLDER:
        raise DataError(f"there are more than {_LARGEST_FOLDER:,} files in this folder", path=folder)
    rows = []
    for path in paths:
        lines = examples.read_numbered_lines(path) if path.stat().st_size else ()
        rows.append({"file": path.name, "text": "\n".join(text for _, text in lines).strip()})
    return TextTable(["file", "text"], rows, "text", [path.name for path in paths])


def _from_frame(frame: object, text_column: str | None, usual: str) -> TextTable:
    rows = _records(frame)
    columns = [str(name) for name in getattr(frame, "columns", dict.fromkeys(name for row in rows for name in row))]
    column = _text_column(columns, text_column, usual, "the data frame" if hasattr(frame, "columns") else "the rows")
    return TextTable(columns, rows, column, [f"row {number}" for number in range(1, len(rows) + 1)])


def _records(frame: Any) -> list[dict[str, Any]]:
    """The rows of a data frame as plain values; missing values are None."""
    if isinstance(frame, list | tuple):
        rows: Any = frame
    else:
        rows = frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records")
    return [{str(name): _value(value) for name, value in row.items()} for row in rows]


def _value(value: Any) -> Any:
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if getattr(value, "shape", None) == ():  # a numpy scalar
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def _text_column(columns: Sequence[str], asked: str | None, usual: str, path: object) -> str:
    if asked is None and usual not in columns and len(columns) == 1:
        return columns[0]
    column = asked if asked is not None else usual
    if column not in columns:
        raise DataError(
            f"there is no column '{column}'; {did_you_mean(column, columns)} "
            "(--text-column, or text_column= in Python, names the one with the texts)",
            path=path,
        )
    return column


def _cell(value: object) -> object:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value


def names_for(added: Iterable[str], columns: Sequence[str]) -> dict[str, str]:
    """A column name for each added column: its own, or with the prefix 'predicted_' if it is taken."""
    found: dict[str, str] = {}
    for name in added:
        free = name
        while free in columns or free in found.values():
            free = f"predicted_{free}"
        found[name] = free
    return found


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings for a recipe: paths as text, data frames and lists of dicts as files in the cache."""

    def plain(value: Any) -> Any:
        if is_frame(value):
            return keep_frame(value, home() / "frames", lines="source" in settings)  # styles are read line by line
        return str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in settings.items()}
