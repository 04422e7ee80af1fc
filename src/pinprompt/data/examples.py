"""Labelled examples and plain texts: read from files, and divided into few-shot splits.

Files are CSV, TSV, JSONL or one text per line; every error names the file and the line. Splits are drawn with a seed
from a pool of examples, or read from the published layout.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from pinprompt.errors import DataError, did_you_mean
from pinprompt.values import counted, derive

LARGEST_FILE = 1 << 30
LARGEST_FIELD = 10_000_000

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
DELIMITERS = (",", ";", "\t", "|")
"""Delimiters of .csv files, depending on the program that wrote them."""
_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
JSONL = {".jsonl", ".ndjson"}
TABLES = {*_DELIMITERS, *JSONL}
"""Suffixes of files with named columns."""


@dataclass(frozen=True)
class Example:
    """A labelled text, and the line of the file where it starts."""

    text: str
    label: str
    line: int = 0


def read_examples(
    path: str | Path, text_column: str = "text", label_column: str = "label", *, blanks: list[int] | None = None
) -> list[Example]:
    """The labelled examples of a .csv, .tsv or .jsonl file, in order; labels are kept as text.

    A row without text is an error, unless `blanks` is given: then it is left out and its line is added there.
    """
    path = Path(path)
    if path.suffix.lower() not in TABLES:
        raise DataError(
            f"labelled examples are read from .csv, .tsv or .jsonl files, not from '{path.suffix or 'no suffix'}'; "
            f"save them with the columns '{text_column}' and '{label_column}'",
            path=path,
        )
    found = []
    for line, (text, label) in read_columns(path, (text_column, label_column)):
        if not text.strip():
            if blanks is None:
                raise DataError(f"the text is empty (column '{text_column}'); remove the row", path=path, line=line)
            blanks.append(line)
            continue
        if not label.strip():
            raise DataError(f"the label is empty (column '{label_column}')", path=path, line=line)
        found.append(Example(text, label.strip(), line))
    if not found:
        raise DataError("the file has no examples", path=path)
    return found


def read_columns(path: Path, columns: Sequence[str], delimiter: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """The values of some columns, row by row, with the line where each row starts; the suffix determines the format."""
    if path.suffix.lower() in JSONL:
        for line, found in read_objects(path):
            for column in columns:
                place_of(list(found), column, path, line)
            yield line, [as_text(found[column], column, path, line) for column in columns]
        return
    places: list[int] | None = None
    for line, row in read_rows(path, delimiter=delimiter or delimiter_of(path, columns)):
        if places is None:
            places = [place_of(row, column, path, line) for column in columns]
        else:
            yield line, [row[place] for place in places]


def delimiter_of(path: Path, columns: Sequence[str] = (), raw: Iterable[bytes] | None = None) -> str:
    """The delimiter of a table: the suffix's own, or another one that fits the header.

    It fits if all required columns exist. If none fits, it is the usual one if that gives several columns, otherwise
    the one that gives most.
    """
    usual = _DELIMITERS.get(path.suffix.lower(), ",")
    lines = [text for _, text in islice(_decoded(path, raw), 20)]  # a header may contain line breaks

    def header(delimiter: str) -> list[str]:
        try:
            rows = csv.reader(lines, delimiter=delimiter)
            return next(([name.strip() for name in row] for row in rows if row), [])
        except csv.Error:
            return []

    headers = {delimiter: header(delimiter) for delimiter in dict.fromkeys((usual, *DELIMITERS))}
    fitting = [delimiter for delimiter, names in headers.items() if columns and set(columns) <= set(names)]
    if fitting:
        return fitting[0]
    return usual if len(headers[usual]) > 1 else max(headers, key=lambda delimiter: len(headers[delimiter]))


def read_rows(path: Path, raw: Iterable[bytes] | None = None, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The header of a table and then its rows, each with the line where it starts; all have the same length."""
    # Strict: otherwise an unclosed quote silently turns the rest of the file into one text.
    rows = csv.reader((text for _, text in _decoded(path, raw)), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        line = rows.line_num + 1
        row = _next_row(rows, path, line, delimiter)
        if row is None:
            break
        if not row:
            continue  # csv's representation of a blank line
        if header is None:
            header = row = [name.strip() for name in row]
        if len(row) != len(header):
            raise DataError(
                f"the row has {len(row)} fields, the header has {len(header)}; put a text that holds "
                f"{_NAMES.get(delimiter, repr(delimiter))}, a quote or a line break in double quotes",
                path=path,
                line=line,
            )
        yield line, row
    if header is None:
        raise DataError("the file is empty", path=path)


def read_objects(path: Path, raw: Iterable[bytes] | None = None) -> Iterator[tuple[int, dict[str, object]]]:
    """The objects of a JSONL file, each with its line."""
    for line, text in _decoded(path, raw):
        if not text.strip():
            continue
        if len(text) > LARGEST_FIELD:
            raise DataError(f"the line is longer than {LARGEST_FIELD:,} characters", path=path, line=line)
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"this line is not JSON: {error}", path=path, line=line) from None
        if not isinstance(row, dict):
            raise DataError('every line must be an object, such as {"text": "...", "label": "0"}', path=path, line=line)
        yield line, row


def read_numbered_lines(path: Path, raw: Iterable[bytes] | None = None) -> Iterator[tuple[int, str]]:
    """Every line of a text file with its number, including blank ones, without line breaks."""
    for line, text in _decoded(path, raw):
        yield line, text.rstrip("\r\n")


def read_lines(path: str | Path, *, skip_blank: bool = False) -> list[str]:
    """The texts of a file with one text per line; blank lines are ignored at the end, elsewhere an error or skipped."""
    path = Path(path)
    found: list[str] = []
    blank = None
    for line, text in read_numbered_lines(path):
        if not text.strip():
            blank = blank or line
            continue
        if blank is not None and not skip_blank:
            raise DataError("the line is empty; every line must have one text", path=path, line=blank)
        found.append(text)
    if not found:
        raise DataError("the file is empty", path=path)
    return found


def check_labels(examples: Iterable[Example], labels: Sequence[str], path: object = None) -> None:
    """Raise an error for unknown labels, and for examples of a single class."""
    seen = set()
    for example in examples:
        if example.label not in labels:
            raise DataError(
                f"the label '{example.label}' is unknown; {did_you_mean(example.label, labels)} "
                "(labels are matched as text; 'words' says which label has which word)",
                path=path,
                line=example.line or None,
            )
        seen.add(example.label)
    if len(seen) == 1:
        raise DataError(f"all examples have the label '{seen.pop()}'; at least two classes are needed", path=path)


def _decoded(path: Path, given: Iterable[bytes] | None = None) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, decoded as UTF-8; streamed, so that a large file is rejected before it is in memory."""
    for line, raw in enumerate(_raw_lines(path) if given is None else given, 1):
        if b"\0" in raw:
            raise DataError(
                "there is a NUL byte, so this is not UTF-8 text (UTF-16, or a binary file?); save it as UTF-8",
                path=path,
                line=line,
            )
        try:
            yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"byte {error.start + 1} of the line (0x{raw[error.start]:02x}) is not UTF-8; save the file as UTF-8 "
                "(it may be Latin-1 or Windows-1252)",
                path=path,
                line=line,
            ) from None


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        if path.is_dir():
            raise DataError("this is a folder, a file was expected", path=path)
        size = path.stat().st_size
        if size == 0:
            raise DataError("the file is empty", path=path)
        if size > LARGEST_FILE:
            raise DataError(
                f"the file has {size / 1e9:.1f} GB; at most {LARGEST_FILE / 1e9:.1f} GB are read. A few hundred rows "
                "are plenty: give a part of it",
                path=path,
            )
        with open(path, "rb") as handle:
            yield from handle
    except FileNotFoundError:
        raise DataError("there is no such file", path=path) from None
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}", path=path) from error


def _next_row(rows: Iterator[list[str]], path: Path, line: int, delimiter: str) -> list[str] | None:
    # The limit is a process-wide setting: it is only changed while a row is read.
    before = csv.field_size_limit(LARGEST_FIELD)
    try:
        return next(rows, None)
    except csv.Error as error:
        kind = "TSV" if delimiter == "\t" else "CSV"
        raise DataError(
            f"this row is not {kind} ({error}); a text that holds double quotes is put in double quotes, with each "
            "inner one doubled",
            path=path,
            line=line,
        ) from None
    finally:
        csv.field_size_limit(before)


def place_of(header: list[str], column: str, path: Path, line: int) -> int:
    """The index of a column in a header; a missing or repeated one is an error."""
    if column not in header:
        raise DataError(
            f"there is no column '{column}'; {did_you_mean(column, header)} "
            "(--text-column and --label-column, in Python text_column and label_column, name the columns)",
            path=path,
            line=line,
        )
    if header.count(column) > 1:
        raise DataError(f"the column '{column}' is twice in the header", path=path, line=line)
    return header.index(column)


def as_text(value: object, column: str, path: Path, line: int) -> str:
    """A JSON value as a text or a label."""
    if isinstance(value, bool):
        return "true" if value else "false"  # as in JSON, so that a recipe can name it as in the file
    if isinstance(value, (str, int, float)):
        try:
            text = str(value)
            text.encode("utf-8")
        except (UnicodeEncodeError, ValueError):
            problem = f"the column '{column}' contains an invalid character or a huge number"
            raise DataError(problem, path=path, line=line) from None
        return text
    raise DataError(f"the column '{column}' holds {json.dumps(value)[:60]}, not a text", path=path, line=line)


@dataclass(frozen=True)
class Splits:
    """The train, dev and test examples of a task, with notes about the data."""

    train: list[Example]
    dev: list[Example]
    test: list[Example] | None
    notes: tuple[str, ...] = ()


def distinct(examples: Sequence[Example]) -> list[Example]:
    """The examples without repeated texts, regardless of their label."""
    seen: dict[str, Example] = {}
    for example in examples:
        seen.setdefault(example.text.strip(), example)
    return list(seen.values())


def k_shot(examples: Sequence[Example], shots: int, seed: int) -> tuple[list[Example], list[Example], list[Example]]:
    """Draw `shots` examples per class for train and as many for dev; no text is in two of train, dev and rest.

    The draw orders a class by a hash of seed and text, so that it depends neither on the order of the file nor on the
    version of Python. Classes alternate, so that the first rows of a split contain every class.
    """
    for label, count in sorted(Counter(example.label for example in distinct(examples)).items()):
        if count < 2 * shots:
            most = count // 2
            raise DataError(
                f"the class '{label}' has {count} distinct texts; {shots} for train and {shots} for dev need "
                f"{2 * shots}. "
                + (f"Set shots to at most {most}, or give more data" if most else "Give more data of this class")
            )
    return divide(examples, shots, seed, 2)


def divide(
    examples: Sequence[Example], shots: int, seed: int, parts: int
) -> tuple[list[Example], list[Example], list[Example]]:
    """Train, dev and the rest: of each class one of `parts` equal parts, at most `shots`, for train and for dev.

    A class with a single text gives it to train.
    """
    classes: dict[str, list[Example]] = defaultdict(list)
    pile = distinct(examples)
    for example in pile:
        classes[example.label].append(example)
    train, dev = [], []
    for _, members in sorted(classes.items()):
        drawn = sorted(members, key=lambda example: derive(seed, "k-shot", example.label, example.text))
        size = max(1, min(shots, len(drawn) // parts))
        train.append(drawn[:size])
        dev.append(drawn[size : 2 * size])
    taken = {example.text.strip() for example in chain(*train, *dev)}
    rest = [example for example in pile if example.text.strip() not in taken]
    return _take_turns(train), _take_turns(dev), rest


def _take_turns(groups: list[list[Example]]) -> list[Example]:
    return [example for row in zip_longest(*groups) for example in row if example is not None]


def published(folder: str | Path, split: int, shots: int = 16) -> Splits:
    """Read `<shots>-<split>/{train,dev}.tsv` and `test.tsv` (beside them, or one folder up; it may be missing)."""
    folder = Path(folder)
    place = folder / f"{shots}-{split}"
    if not place.is_dir():
        there = sorted(child.name for child in folder.glob("*-*") if re.fullmatch(r"\d+-\d+", child.name))
        what = f"it has {', '.join(there)}" if there else "it has no folders named <shots>-<seed>"
        raise DataError(f"there is no split '{place.name}' here; {what}", path=folder)
    notes: list[str] = []
    train = _read(place / "train.tsv", notes)
    dev = _read(place / "dev.tsv", notes)
    test_file = next((file for file in (place / "test.tsv", folder / "test.tsv") if file.is_file()), None)
    test = _read(test_file, notes) if test_file else None
    if (place / "train.tsv").read_bytes() == (place / "dev.tsv").read_bytes():
        notes.append("dev is identical to train, so the best prompt is chosen on the training examples")
    else:
        notes += _overlap(train, dev, "train", "dev")
    notes += _overlap(train, test or [], "train", "test") + _overlap(dev, test or [], "dev", "test")
    if test is None:
        notes.append("there is no test.tsv, so there are no test results")
    return Splits(train, dev, test, tuple(notes))


def _read(path: Path, notes: list[str]) -> list[Example]:
    blanks: list[int] = []
    try:
        examples = read_examples(path, "text", "label", blanks=blanks)
    except DataError as error:
        if "no column 'text'" not in str(error):
            raise
        # Published copies of the same data use either name.
        examples = read_examples(path, "sentence", "label", blanks=blanks)
    if blanks:
        notes.append(f"{path.name}: {counted(len(blanks), 'row')} without text left out")
    return examples


def _overlap(left: list[Example], right: list[Example], left_name: str, right_name: str) -> list[str]:
    texts = {example.text.strip() for example in left}
    both = {example.text.strip() for example in right} & texts
    verb = "is" if len(both) == 1 else "are"
    return [f"{counted(len(both), 'text')} of {left_name} {verb} also in {right_name}"] if both else []
