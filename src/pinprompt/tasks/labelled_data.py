"""The labelled examples of a classification task, and their label words.

Examples are read, split and checked before any model is called. If no label words are given, candidates are derived
from the names of the labels and chosen on the training rows. This needs meaningful names: 'pos', 'billing_issue', '1'
to '5' as stars; not 'A' or 0.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.data import datasets
from pinprompt.data.datasets import DatasetCard, lookup
from pinprompt.data.examples import TABLES, Example, check_labels, distinct, divide, read_columns, read_examples
from pinprompt.data.language import LANGUAGES, guess
from pinprompt.errors import DataError, SettingError, did_you_mean
from pinprompt.maths import labels as maths
from pinprompt.maths.labels import Floats, Ints
from pinprompt.recipe.task_sections import ClassificationSettings
from pinprompt.values import counted, derive


@dataclass(frozen=True)
class LabelledData:
    """Examples by split, the label words in the order of the classes, and notes."""

    splits: Mapping[str, list[Example]]
    words: Mapping[str, str]
    card: DatasetCard | None
    notes: tuple[str, ...]
    keep_right: frozenset[str] = frozenset()
    """Training texts whose labels must stay right."""
    proposed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """If no label words were given: candidates for each label, to be tried on the training rows."""

    @property
    def names(self) -> dict[str, str]:
        """What labels are called in an instruction: their names, or the words of those that are numbers."""
        if self.card is not None and self.card.names:
            return dict(zip(self.words, self.card.names, strict=True))
        return {label: word if label.lstrip("-").isdigit() else label for label, word in self.words.items()}

    @cached_property
    def language(self) -> str:
        """The language of the training texts; built-in datasets are English."""
        return "en" if self.card is not None else guess([row.text for row in self.splits.get("train", ())])


def load_data(settings: ClassificationSettings) -> LabelledData:
    """The data of the settings: a built-in dataset, or the user's own files."""
    if settings.dataset is not None and settings.train is not None:
        raise SettingError(
            f"both a dataset ('{settings.dataset}') and a training file ('{settings.train}') are given; give one."
        )
    card, words = _card_and_words(settings)
    proposed: Mapping[str, tuple[str, ...]] = {}
    if card is not None:
        found = datasets.load(card.name, settings.data, settings.split, settings.shots)
        splits = {"train": found.train, "dev": found.dev, "test": found.test or []}
        notes, paths = list(found.notes), dict.fromkeys(("train", "dev", "test"), settings.data or card.name)
    elif settings.train is not None:
        if not words:
            proposed = _proposed(settings)
            words = {label: own[0] for label, own in proposed.items()}
        splits, notes, paths = _own_files(settings, words)
    else:
        raise SettingError(
            "no data: name a built-in dataset (dataset = 'sst-2', with data = 'FOLDER'), or give a file of "
            "labelled examples (train = 'reviews.csv', text_column, label_column, words)."
        )
    must_stay = _must_stay(settings)
    if must_stay:  # asked with every prompt, and nowhere else
        texts = {example.text for example in must_stay}
        splits = {name: [one for one in rows if one.text not in texts] for name, rows in splits.items()}
        splits["train"] = [*splits["train"], *must_stay]
        notes.append(f"{len(must_stay)} examples must stay right; they are in train")
    check_labels(splits["train"], list(words), paths["train"])
    for name in ("dev", "test"):
        _check_known(splits[name], list(words), paths[name])
    absent = [label for label in words if label not in {example.label for example in splits["train"]}]
    if absent:
        notes.append(f"labels without a training example: {', '.join(absent)}")
    if settings.test_rows is not None and len(splits["test"]) > settings.test_rows:
        notes.append(f"test is a draw of {settings.test_rows} of {len(splits['test'])} rows")
        splits["test"] = _drawn(splits["test"], settings.test_rows)
    stripped = {
        name: [Example(example.text.strip(), example.label, example.line) for example in rows]
        for name, rows in splits.items()
        if rows
    }
    keep_right = frozenset(example.text.strip() for example in must_stay)
    return LabelledData(stripped, words, card, tuple(notes), keep_right, proposed)


YES = ("1", "yes", "true", "x")
"""What marks an example that must stay right."""


def _must_stay(settings: ClassificationSettings) -> list[Example]:
    """The examples that must stay right: those of a file, or those that a column of the training file marks."""
    given = settings.keep_right
    if given is None:
        return []
    if settings.train is None or Path(given).suffix.lower() in TABLES:
        return read_examples(given, settings.text_column, settings.label_column)
    columns = (settings.text_column, settings.label_column, given)
    marked = [
        Example(text, label.strip(), line)
        for line, (text, label, mark) in read_columns(Path(settings.train), columns)
        if mark.strip().lower() in YES and text.strip()
    ]
    if not marked:
        raise DataError(f"no row has {', '.join(YES[:-1])} or {YES[-1]} in the column '{given}'", path=settings.train)
    return marked


def with_test(data: LabelledData, path: str, text_column: str, label_column: str) -> LabelledData:
    """The same data with the rows of a file as its test split."""
    rows = read_examples(path, text_column, label_column, blanks=[])
    _check_known(rows, list(data.words), path)
    test = [Example(row.text.strip(), row.label, row.line) for row in rows]
    return replace(data, splits={**data.splits, "test": test}, proposed={})


def without_rows(settings: ClassificationSettings) -> LabelledData:
    """The label words only, for labelling texts with a run's prompt; no file is read."""
    card, words = _card_and_words(settings)
    return LabelledData({}, words, card, ())


def _card_and_words(settings: ClassificationSettings) -> tuple[DatasetCard | None, dict[str, str]]:
    card = lookup(settings.dataset) if settings.dataset is not None else None
    given = settings.words or (card.words if card else {})
    return card, {label.strip(): word.strip() for label, word in given.items()}


def _drawn(rows: list[Example], count: int) -> list[Example]:
    """`count` rows in their order, stratified by class; the same draw for every split, so that runs are comparable."""
    chooser = random.Random(derive(0, "test-rows"))
    order = chooser.sample(range(len(rows)), len(rows))
    # A row's rank within its class as a share of the class: taking the lowest keeps the class proportions.
    sizes, seen = Counter(row.label for row in rows), Counter[str]()
    ranks = []
    for place in order:
        label = rows[place].label
        ranks.append((seen[label] / sizes[label], place))
        seen[label] += 1
    return [rows[place] for place in sorted(place for _, place in sorted(ranks)[:count])]


FEWEST_TESTED = 20
"""With fewer rows for the report there is no test split, unless train has as few because few shots were asked for."""
RARE = 6
"""A label with fewer rows is mentioned."""


def _own_files(
    settings: ClassificationSettings, words: Mapping[str, str]
) -> tuple[dict[str, list[Example]], list[str], dict[str, str]]:
    notes: list[str] = []

    def read(path: str) -> list[Example]:
        blanks: list[int] = []
        rows = read_examples(path, settings.text_column, settings.label_column, blanks=blanks)
        notes.extend(_oddities(path, rows, blanks))
        return rows

    assert settings.train is not None
    train = read(settings.train)
    check_labels(train, list(words), settings.train)
    test = read(settings.test) if settings.test else []
    paths = {"train": settings.train, "dev": settings.dev or settings.train, "test": settings.test or settings.train}
    if settings.dev is not None:
        dev = read(settings.dev)
        parts = {"train": train, "dev": dev}
        for name, rows in parts.items():
            parts[name] = _at_most(rows, settings.shots, derive(settings.split, name))
            if len(parts[name]) < len(rows):
                notes.append(f"{name} is a draw of {settings.shots} per class from {len(rows)} rows (shots)")
        return {**parts, "test": test}, notes, paths
    chosen, dev, rest = divide(train, settings.shots, settings.split, 2 if test else 3)
    counts = Counter(example.label for example in distinct(train))
    plenty = min(counts.values()) >= 3 * settings.shots
    said = f"of each label a third, at most {settings.shots} rows, for training and for choosing"
    if not test and (plenty or len(rest) >= FEWEST_TESTED):
        test = rest
    elif not test:
        chosen, dev, rest = divide(train, settings.shots, settings.split, 2)
        dev += rest
        said = f"too few for a test split of {FEWEST_TESTED} rows, so figures are those of the rows for choosing"
    if not dev:
        raise DataError("every label has only one example; add examples or give a dev file", path=settings.train)
    notes.append(f"rows: {len(chosen)} for training, {len(dev)} for choosing, {len(test)} for the report ({said})")
    if rare := [f"{label} ({count})" for label, count in counts.items() if count < RARE]:
        notes.append(f"labels with few rows: {', '.join(rare)}; what is said of them is uncertain, so add examples")
    return {"train": chosen, "dev": dev, "test": test}, notes, paths


def _oddities(path: str, rows: Sequence[Example], blanks: Sequence[int]) -> list[str]:
    """Notes on rows without text, repeated texts and texts with several labels."""
    first = {example.text.strip(): example for example in reversed(rows)}
    other = [row for row in rows if first[row.text.strip()].label != row.label]
    again = [row for row in rows if first[row.text.strip()] is not row and row not in other]
    kinds = (
        ("no text", blanks),
        ("repeats an earlier text", [row.line for row in again]),
        ("gives an earlier text another label", [row.line for row in other]),
    )
    return [f"{path}: {_lines(lines)} left out: {what}" for what, lines in kinds if lines]


def _lines(lines: Sequence[int]) -> str:
    """How many lines, and which: "2 rows (lines 3, 5)"."""
    named = "line" if len(lines) == 1 else "lines"
    more = ", ..." if len(lines) > 10 else ""
    return f"{counted(len(lines), 'row')} ({named} {', '.join(map(str, lines[:10]))}{more})"


def _proposed(settings: ClassificationSettings) -> dict[str, tuple[str, ...]]:
    """Label words from the labels' names, or an error if the names are not meaningful."""
    assert settings.train is not None
    rows = read_examples(settings.train, settings.text_column, settings.label_column, blanks=[])
    labels = sorted({row.label for row in rows})
    found = proposed(labels, guess([row.text for row in rows]))
    if not found:
        raise SettingError(
            f"no label words: '{settings.train}' has the labels {', '.join(labels[:8])}; give a word that the model "
            f'would say for each, such as words = {{"{labels[0]}": "terrible", ...}} (--word {labels[0]}=terrible).'
        )
    return found


def _at_most(examples: Sequence[Example], shots: int, seed: int) -> list[Example]:
    """At most `shots` examples per class, drawn by seed, in the order of the file."""
    ranked = sorted(range(len(examples)), key=lambda row: derive(seed, examples[row].text, row))
    counts: Counter[str] = Counter()
    kept = []
    for row in ranked:
        counts[examples[row].label] += 1
        if counts[examples[row].label] <= shots:
            kept.append(row)
    return [examples[row] for row in sorted(kept)]


def _check_known(examples: Sequence[Example], labels: Sequence[str], path: object) -> None:
    for example in examples:
        if example.label not in labels:
            raise DataError(
                f"the label '{example.label}' has no word and is not among the classes; "
                f"{did_you_mean(example.label, labels)}",
                path=path,
                line=example.line or None,
            )


_WORDS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "label_words.toml").read_text("utf-8"))
STARS = {stars: tuple(words) for stars, words in _WORDS["stars"].items()}
FEELINGS = frozenset(_WORDS["feelings"]).union(
    *((*known.positive, *known.negative, *known.neutral) for known in LANGUAGES.values())
)
_MAX_WORDS = 4


def proposed(labels: Sequence[str], language: str = "en") -> dict[str, tuple[str, ...]]:
    """Candidate words for each label, the most likely first; empty if the name of a label is not meaningful.

    Words for positive and negative are in the texts' language, if it is known.
    """
    names = [label.strip() for label in labels]
    if set(names) == set(STARS):
        return {label: STARS[label] for label in names}
    found = {label: _words(label, language) for label in names}
    if not all(found.values()):
        return {}
    first: dict[str, tuple[str, ...]] = {}
    for label, words in found.items():
        taken = {own[0] for own in first.values()}
        free = tuple(word for word in words if word not in taken)
        if not free:
            return {}
        first[label] = free
    return first


def _words(label: str, language: str) -> tuple[str, ...]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label)
    parts = [part for part in re.split(r"[\s_\-/.&+,:]+", spaced) if part]
    if not parts or not all(part.isalpha() for part in parts) or len(label) < 2:
        return ()
    lower = [part.lower() for part in parts]
    if len(lower) == 1:
        name = _WORDS["short"].get(lower[0], lower[0])
        known = LANGUAGES.get(language, LANGUAGES["en"])
        opinions = {"positive": known.positive, "negative": known.negative, "neutral": known.neutral}
        return opinions.get(name, (name, parts[0]) if parts[0] != name and parts[0].lower() == name else (name,))
    telling = [part for part in lower if part not in _WORDS["fillers"] and len(part) > 2]
    if "." in label or "/" in label:
        telling.reverse()  # from general to specific: the last part is the most informative
    whole = [" ".join(lower)] if len(lower) <= 3 else []
    return tuple(dict.fromkeys([*telling[:2], *whole]))[:_MAX_WORDS]


def chosen(
    candidates: Mapping[str, Sequence[str]], words: Sequence[str], logs: Floats, targets: Ints
) -> dict[str, str]:
    """One word for each label: those that make the training rows' labels most likely after calibration.

    `logs` [N, W] are the log-probabilities of `words` after every training row. Starting from the first word of each
    label, one label's word is changed at a time while that helps; different labels have different words.
    """
    place = {word: number for number, word in enumerate(words)}
    labels = list(candidates)
    best = {label: candidates[label][0] for label in labels}

    def worth(choice: Mapping[str, str]) -> float:
        own = logs[:, [place[choice[label]] for label in labels]]
        own = own - np.logaddexp.reduce(own, axis=1, keepdims=True)
        offsets = maths.batch_offsets(own, targets, np.full(len(labels), 1 / len(labels)))
        chances = maths.calibrated(own, offsets)[np.arange(len(targets)), targets]
        return float(np.log(np.maximum(chances, np.finfo(np.float64).tiny)).mean())

    value, improved = worth(best), True
    while improved:
        improved = False
        for label in labels:
            for word in candidates[label]:
                if word in best.values():
                    continue
                changed = {**best, label: word}
                if (more := worth(changed)) > value:
                    best, value, improved = changed, more, True
    return best


def fitting_prompt(words: Sequence[str], label_column: str, language: str = "en") -> str:
    """A hand-written prompt for label words, in the texts' language."""
    lower = {word.lower() for word in words}
    known = LANGUAGES.get(language, LANGUAGES["en"])
    if lower <= FEELINGS:
        return known.opinion
    if known is not LANGUAGES["en"]:
        return known.topic
    if lower <= set(_WORDS["answers"]):
        return "The answer is"
    name = re.sub(r"[\s_\-]+", " ", label_column).strip()
    if name.replace(" ", "").isalpha() and len(name) > 2 and name.lower() not in _WORDS["nameless"]:
        return f"{name[:1].upper()}{name[1:]}:"
    return known.topic
