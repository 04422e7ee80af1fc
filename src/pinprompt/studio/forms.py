"""Uploads, stored in the folder's `uploads` and described before a search starts, and forms.

A form is turned into the equivalent command, and that command is run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt.data.examples import delimiter_of, read_columns, read_lines, read_objects, read_rows
from pinprompt.errors import DataError, PinpromptError
from pinprompt.files import write_atomically
from pinprompt.recipe.recipe import default_method, file_name, resolve
from pinprompt.studio.guard import Refused, plain_name, words

UPLOADS = "uploads"
MAX_UPLOAD_BYTES = {"table": 64 << 20, "lines": 64 << 20, "picture": 32 << 20}
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
NAME = re.compile(r"[\w.-]{1,120}")
SAMPLE, LOOKED = 8, 400
TEXT_NAMES = (
    "text", "sentence", "review", "comment", "content", "message", "body", "tweet", "question", "utterance", "input",
)  # fmt: skip
LABEL_NAMES = (
    "label", "labels", "class", "category", "sentiment", "target", "topic", "intent", "stars", "rating", "polarity",
)  # fmt: skip
WORDS = {
    "neg": "terrible", "negative": "terrible", "pos": "great", "positive": "great", "neutral": "okay", "true": "true",
    "false": "false", "yes": "yes", "no": "no",
}  # fmt: skip
"""Label words for common labels; any other label that is a word is its own label word."""


def keep(root: Path, kind: str, name: str, data: bytes) -> Path:
    """Store an upload under a name that we choose; the same content has the same name."""
    if not data.strip():
        raise Refused(400, "The file is empty.")
    given = Path(plain_name(name))
    stem = file_name(given.stem)[:60] if given.stem else ""
    suffix = given.suffix.lower()
    if kind == "table":
        suffix = suffix if suffix in TABLES else guess_suffix(data)
    elif kind == "lines":
        suffix = ".txt"
    elif kind == "picture":
        if suffix not in PICTURES:
            raise Refused(400, "JPEG, PNG, WebP and GIF pictures can be read.")
    else:
        raise Refused(400, "A table, a text file or a picture was expected.")
    folder = root / UPLOADS
    if folder.is_symlink():
        raise Refused(400, f"{UPLOADS} is a link, and the studio does not follow links. Remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem or 'data'}-{hashlib.sha256(data).hexdigest()[:8]}{suffix}"
    if not path.exists():
        write_atomically(path, data)
    return path


def kept(root: Path, name: object) -> Path:
    """An upload by its name."""
    path = root / UPLOADS / str(name)
    if not NAME.fullmatch(str(name)) or path.is_symlink() or (root / UPLOADS).is_symlink() or not path.is_file():
        raise Refused(404, "That file is not among the uploads. Drop it again.")
    return path


def guess_suffix(data: bytes) -> str:
    """The format of pasted text: JSON lines, or a table with tabs or commas."""
    first = data.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 1)[0]
    if first.startswith(b"{"):
        return ".jsonl"
    return ".tsv" if b"\t" in first else ".csv"


def describe_table(path: Path, text_column: str | None = None, label_column: str | None = None) -> dict[str, Any]:
    """Columns, a guess of text and label column, first rows, label counts, and problems with their line."""
    found: dict[str, Any] = {"file": path.name, "columns": [], "sample": [], "labels": [], "problems": [], "rows": 0}
    found["blank"] = 0
    try:
        columns, rows = _looked_at(path)
    except DataError as error:
        return found | {"problems": [_said(error, path)]}
    text_guess, label_guess = guess_columns(columns, rows)
    text_column = text_column if text_column in columns else text_guess
    label_column = label_column if label_column in columns else label_guess
    if len([name for name in columns if name]) < 2:
        what = "This is not a table: its first line has no two names that a comma, semicolon, tab or bar separates"
        message = f"{what}. The first line is: {' '.join(columns).strip()[:80]}"
        return found | {"problems": [{"line": 1, "message": message}]}
    found |= {"columns": columns, "text_column": text_column, "label_column": label_column}
    if text_column is None or label_column is None or text_column == label_column:
        what = "The file needs two columns, one with the text and one with the label"
        return found | {"problems": [{"line": 1, "message": f"{what}; the file has: {', '.join(columns) or 'none'}."}]}
    counts: Counter[str] = Counter()
    problems: list[dict[str, Any]] = []
    try:
        for line, (text, label) in read_columns(path, (text_column, label_column)):
            if not text.strip():
                found["blank"] += 1
                continue
            if not label.strip() and len(problems) < 20:
                problems.append({"line": line, "message": "The label is empty."})
            counts[label.strip()] += 1
            if len(found["sample"]) < SAMPLE:
                found["sample"].append({"line": line, "text": text[:300], "label": label.strip()[:60]})
            found["rows"] += 1
    except DataError as error:
        problems.append(_said(error, path))
    counts.pop("", None)
    found["labels"] = [
        {"label": label, "count": count, "word": word_for(label)} for label, count in counts.most_common(50)
    ]
    found["labels"].sort(key=lambda one: _natural(one["label"]))
    problems += _about_labels(counts, found["rows"])
    return found | {"problems": problems}


def describe_lines(path: Path) -> dict[str, Any]:
    """How many texts a file has, the first of them, and problems with their line."""
    found: dict[str, Any] = {"file": path.name, "rows": 0, "sample": [], "problems": []}
    try:
        lines = read_lines(path)
    except DataError as error:
        return found | {"problems": [_said(error, path)]}
    sample = [{"line": number, "text": line[:300]} for number, line in enumerate(lines[:SAMPLE], 1)]
    return found | {"rows": len(lines), "sample": sample}


def describe_picture(path: Path) -> dict[str, Any]:
    from pinprompt.models.images import load_picture

    try:
        image = load_picture(path).image
    except PinpromptError as error:
        return {"file": path.name, "problems": [{"line": None, "message": _without(str(error), path)}]}
    return {"file": path.name, "width": image.width, "height": image.height, "problems": []}


def guess_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str | None, str | None]:
    """The columns with the text and with the label, by their names and their values."""
    values = {name: [row[place] for row in rows if place < len(row)] for place, name in enumerate(columns)}
    lengths = {name: sum(map(len, cells)) / max(1, len(cells)) for name, cells in values.items()}

    def named(names: Sequence[str], taken: str | None = None) -> str | None:
        lowered = {name.lower(): name for name in columns if name != taken}
        return next((lowered[name] for name in names if name in lowered), None)

    label = named(LABEL_NAMES)
    if label is None:
        few = [
            (len(set(cells)), lengths[name], name)
            for name, cells in values.items()
            if name != named(TEXT_NAMES) and 2 <= len(set(cells)) <= max(2, min(50, len(cells) // 2))
        ]
        label = min(few)[2] if few else None
    text = named(TEXT_NAMES, label)
    if text is None:
        rest = [(lengths[name], name) for name in columns if name != label]
        text = max(rest)[1] if rest else None
    return text, label


def word_for(label: str) -> str:
    """A guess of the label word; '' if the label is not a word."""
    plain = label.strip().lower()
    if plain in WORDS:
        return WORDS[plain]
    cleaned = re.sub(r"[\s_/&-]+", " ", plain).strip()
    return cleaned if re.fullmatch(r"[^\W\d_]+(?: [^\W\d_]+)?", cleaned) else ""


def _looked_at(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the first rows, before the columns are chosen."""
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        objects = [row for _, row in itertools.islice(read_objects(path), LOOKED)]
        columns = list(dict.fromkeys(str(name) for row in objects for name in row))[:200]
        return columns, [[str(row.get(name, "")) for name in columns] for row in objects]
    rows: list[list[str]] = []
    try:
        rows += (row for _, row in itertools.islice(read_rows(path, delimiter=delimiter_of(path)), LOOKED))
    except DataError:
        if not rows:
            raise
        # Problems in later rows are reported when the rows are counted.
    return [name.strip() for name in rows[0]][:200], rows[1:]


def _about_labels(counts: Counter[str], rows: int) -> list[dict[str, Any]]:
    if not rows:
        said = "The file has no examples below its header."
    elif len(counts) == 1:
        said = f"All rows have the label '{next(iter(counts))}'; at least two labels are needed."
    elif len(counts) > 50:
        said = f"{len(counts)} different labels: is this the column with the labels?"
    else:
        return []
    return [{"line": None, "message": said}]


def _natural(label: str) -> tuple[int, float, str]:
    return (0, float(label), "") if re.fullmatch(r"-?\d{1,9}", label) else (1, 0.0, label)


def _said(error: DataError, path: Path) -> dict[str, Any]:
    return {"line": error.line, "message": _without(str(error), path)}


def _without(message: str, path: Path) -> str:
    """A message without the line number, which the page shows separately."""
    said = re.sub(rf"^{re.escape(str(path))}(?::\d+)?: ", "", message)
    return said[:1].upper() + said[1:]


TASKS = {"classify": "classification", "restyle": "style-transfer", "invert": "inversion"}
CHARSETS = ("any", "ascii", "letters")


@dataclass(frozen=True)
class SearchCommand:
    """A search to be run: the arguments of `pinprompt`, and its run folder."""

    arguments: tuple[str, ...]
    folder: Path
    title: str

    @property
    def command(self) -> str:
        """The command as typed in a terminal."""
        return shlex.join(["pinprompt", *self.arguments])

    def process(self, *more: str) -> list[str]:
        """The command as this Python runs it; -P: modules in the studio's folder are not imported."""
        return [sys.executable, "-P", "-m", "pinprompt", *self.arguments, *more]


def search_command(root: Path, form: Mapping[str, Any]) -> SearchCommand:
    """The search that a form describes; empty fields have the defaults of the command line."""
    kind = form.get("kind")
    if kind not in TASKS:
        raise Refused(400, "Choose the kind of search: labels, a style or a picture.")
    arguments, name = _SUBJECTS[kind](root, form)
    arguments += _text_option(form, "model", "--model" if kind == "invert" else "--task-model")
    arguments += _text_option(form, "method", "--method") + _limits(form)
    arguments += _whole_option(form, "seed", 0)
    for setting in constraints(form) + words(str(form.get("sets") or "").splitlines()):
        arguments += ["--set", setting]
    folder = unused(root, file_name(str(form.get("name") or name))[:80])
    return SearchCommand((kind, *arguments, "--out", shown(folder)), folder, folder.name)


def resumption(root: Path, folder: Path, form: Mapping[str, Any]) -> SearchCommand:
    recipe = shown(folder / "recipe.toml")
    arguments = ("tune", recipe, "--out", shown(folder), "--resume", *_limits(form))
    return SearchCommand(arguments, folder, folder.name)


def variation(root: Path, folder: Path, recipe: Mapping[str, Any], form: Mapping[str, Any]) -> SearchCommand:
    """A search like an earlier one with a word banned or required; known scores are not paid for again."""
    word, what = str(form.get("word") or "").strip(), form.get("what")
    if not word or len(word) > 60 or any(letter.isspace() for letter in word):
        raise Refused(400, "Give one word.")
    if what not in ("banned", "required"):
        raise Refused(400, "A word can be banned or required.")
    policy = recipe.get("policy")
    earlier = policy.get("constraints", {}) if isinstance(policy, Mapping) else {}
    known = earlier.get(what, []) if isinstance(earlier, Mapping) else []
    chosen = [*dict.fromkeys([*(str(one) for one in known if isinstance(one, str)), word])]
    stem = file_name(f"{folder.name}-{'without' if what == 'banned' else 'with'}-{word}")[:100]
    target = unused(root, stem)
    setting = f"policy.constraints.{what}={json.dumps(chosen, ensure_ascii=False)}"
    arguments = ("tune", shown(folder / "recipe.toml"), "--set", setting, "--out", shown(target))
    return SearchCommand(arguments, target, target.name)


def defaults() -> dict[str, dict[str, Any]]:
    """The command line's defaults for empty fields, by kind of search."""
    found = {}
    for kind, task in TASKS.items():
        recipe = resolve({"method": default_method(task, "quick"), "profile": "quick", "task": {"kind": task}})
        found[kind] = {
            "calls": recipe.budget.calls or "no limit",
            "minutes": recipe.budget.minutes or "no limit",
            "length": recipe.policy.length,
            "seed": recipe.seed,
        }
    return found


def constraints(form: Mapping[str, Any]) -> list[str]:
    found = []
    for name in ("banned", "required"):
        given = words(str(form.get(name) or "").replace("\n", ",").split(","))
        if given:
            found.append(f"policy.constraints.{name}={json.dumps(given, ensure_ascii=False)}")
    for name, setting in (("length", "policy.length"), ("max_chars", "policy.constraints.max_chars")):
        value = _number(form, name, whole=True, least=1)
        found += [] if value is None else [f"{setting}={value}"]
    charset = form.get("charset")
    if charset:
        if charset not in CHARSETS:
            raise Refused(400, f"Characters must be one of: {', '.join(CHARSETS)}.")
        found.append(f'policy.constraints.charset="{charset}"')
    if form.get("dictionary"):
        found.append("policy.constraints.dictionary=true")
    return found


def unused(root: Path, stem: str) -> Path:
    """A folder below the root that does not exist yet."""
    for number in range(1, 10_000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        if not os.path.lexists(path):
            return path
    raise Refused(400, "There are too many runs of this name; choose another.")


def shown(path: Path) -> str:
    """A path as typed in a terminal: relative if it is below the current folder."""
    whole = path.absolute()
    try:
        return str(whole.relative_to(Path.cwd()))
    except ValueError:
        return str(whole)


def _labels(root: Path, form: Mapping[str, Any]) -> tuple[list[str], str]:
    dataset = str(form.get("dataset") or "").strip()
    pairs = form.get("words")
    words_given = {str(a).strip(): str(b).strip() for a, b in pairs.items()} if isinstance(pairs, Mapping) else {}
    found: list[str] = []
    if dataset:
        if dataset.startswith("-"):
            raise Refused(400, "A dataset's name cannot start with a dash.")
        arguments, name = [dataset], dataset
    else:
        path = kept(root, form.get("train"))
        arguments, name = ["--train", shown(path)], path.stem.rpartition("-")[0]
        for column, option in (("text_column", "--text-column"), ("label_column", "--label-column")):
            given = str(form.get(column) or "")
            if given and given != column.removesuffix("_column"):
                found.append(f"{option}={given}")
        missing = [label for label, word in words_given.items() if not word]
        if missing:
            raise Refused(400, f"The label '{missing[0]}' has no word. Fill it in below the labels.")
    for label, word in words_given.items():
        if "=" in label:
            raise Refused(400, f"The label '{label}' contains '=', which the command line does not support. Rename it.")
        found.append(f"--word={label}={word}")
    return arguments + found + _whole_option(form, "test_rows", 1), name


def _style(root: Path, form: Mapping[str, Any]) -> tuple[list[str], str]:
    source, target = kept(root, form.get("source")), kept(root, form.get("target"))
    names = [path.stem.rpartition("-")[0] for path in (source, target)]
    return ["--source", shown(source), "--target", shown(target)], f"{names[0]}-to-{names[1]}"


def _picture(root: Path, form: Mapping[str, Any]) -> tuple[list[str], str]:
    given = form.get("pictures")
    names: Sequence[Any] = given if isinstance(given, list) else []
    paths = [kept(root, name) for name in names[:20]]
    if not paths:
        raise Refused(400, "Drop a picture first.")
    return [shown(path) for path in paths], f"words-for-{paths[0].stem.rpartition('-')[0]}"


_SUBJECTS = {"classify": _labels, "restyle": _style, "invert": _picture}


def _limits(form: Mapping[str, Any]) -> list[str]:
    calls, minutes = _whole_option(form, "calls", 1), _number(form, "minutes", least=0.01)
    return calls + ([] if minutes is None else ["--minutes", f"{minutes:g}"])


def _whole_option(form: Mapping[str, Any], name: str, least: int) -> list[str]:
    value = _number(form, name, whole=True, least=least)
    return [] if value is None else [f"--{name.replace('_', '-')}", str(value)]


def _text_option(form: Mapping[str, Any], name: str, option: str) -> list[str]:
    given = str(form.get(name) or "").strip()
    if len(given) > 300 or any(ord(letter) < 32 for letter in given):
        raise Refused(400, f"The {name} is not a name.")
    return [f"{option}={given}"] if given.startswith("-") else [option, given] if given else []


def _number(form: Mapping[str, Any], name: str, *, whole: bool = False, least: float = 0) -> float | int | None:
    given = form.get(name)
    if given is None or given == "":
        return None
    kind = "a whole number" if whole else "a number"
    try:
        value = int(str(given)) if whole else float(str(given))
    except (ValueError, OverflowError):
        raise Refused(400, f"{name.replace('_', ' ')}: {kind} is needed, not '{str(given)[:40]}'.") from None
    if not least <= value < 1e12:
        raise Refused(400, f"{name.replace('_', ' ')}: {kind} from {least:g} is needed.")
    return value
