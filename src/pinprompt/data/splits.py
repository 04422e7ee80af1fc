"""Few-shot splits: drawn by seed from a pile of examples, or read from the layout in which they were published."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from pinprompt.data.readers import Example, read_examples
from pinprompt.errors import DataError
from pinprompt.seeds import derive


@dataclass(frozen=True)
class Splits:
    """What a task learns from, chooses on and reports on, with remarks on the data that a reader should know."""

    train: list[Example]
    dev: list[Example]
    test: list[Example] | None
    notes: tuple[str, ...] = ()


def distinct(examples: Sequence[Example]) -> list[Example]:
    """The examples without repeated texts, whatever their label."""
    seen: dict[str, Example] = {}
    for example in examples:
        seen.setdefault(example.text.strip(), example)
    return list(seen.values())


def k_shot(examples: Sequence[Example], shots: int, seed: int) -> tuple[list[Example], list[Example], list[Example]]:
    """Draw `shots` examples per class for train and as many for dev; no text is in two of train, dev and rest.

    The draw orders a class by a hash of seed and text, so that it depends neither on the order of the file nor on the
    version of Python. Classes take turns, so that the first rows of a split hold every class.
    """
    classes: dict[str, list[Example]] = defaultdict(list)
    pile = distinct(examples)
    for example in pile:
        classes[example.label].append(example)
    train, dev = [], []
    for label, members in sorted(classes.items()):
        if len(members) < 2 * shots:
            most = len(members) // 2
            raise DataError(
                f"the class '{label}' has {len(members)} distinct texts; {shots} for train and {shots} for dev need "
                f"{2 * shots}. "
                + (f"Set shots to at most {most}, or give more data" if most else "Give more data of this class")
            )
        drawn = sorted(members, key=lambda example: derive(seed, "k-shot", example.label, example.text))
        train.append(drawn[:shots])
        dev.append(drawn[shots : 2 * shots])
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
        notes.append("dev equals train byte for byte: what is chosen on dev is chosen on the training examples")
    else:
        notes += _overlap(train, dev, "train", "dev")
    notes += _overlap(train, test or [], "train", "test") + _overlap(dev, test or [], "dev", "test")
    if test is None:
        notes.append("there is no test.tsv: nothing can be reported on test")
    return Splits(train, dev, test, tuple(notes))


def _read(path: Path, notes: list[str]) -> list[Example]:
    blanks: list[int] = []
    try:
        examples = read_examples(path, "text", "label", blanks=blanks)
    except DataError as error:
        if "no column 'text'" not in str(error):
            raise
        # Published copies of the same data name the column either way.
        examples = read_examples(path, "sentence", "label", blanks=blanks)
    if blanks:
        notes.append(f"{path.name}: {len(blanks)} row(s) without text left out")
    return examples


def _overlap(left: list[Example], right: list[Example], left_name: str, right_name: str) -> list[str]:
    texts = {example.text.strip() for example in left}
    both = {example.text.strip() for example in right} & texts
    return [f"{len(both)} text(s) of {left_name} are also in {right_name}"] if both else []
