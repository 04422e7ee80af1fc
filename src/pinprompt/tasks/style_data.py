"""The texts of a style-transfer run: the texts to rewrite in each split, and the judges' training texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from pinprompt.data.examples import read_lines
from pinprompt.data.style import StyleCard, ends_of, load_style, lookup_style
from pinprompt.errors import DataError, SettingError
from pinprompt.judges.style import LEAST_LINES
from pinprompt.recipe.task_sections import StyleTransferSettings
from pinprompt.values import derive

T = TypeVar("T")
LEAST_TEXTS = 50
"""Minimum number of texts per style: two fifths to rewrite, two halves of the rest for two judges."""
TRAINED = "trained"
"""The style judge that is trained on the texts of both styles."""
HELD_OUT = 100
"""Maximum number of test texts held out from a source file."""


@dataclass(frozen=True)
class StyleData:
    """Disjoint parts: texts to rewrite by split, and two halves of the rest for the judges of search and report."""

    sources: Mapping[str, tuple[str, ...]]
    references: tuple[str, ...]
    """Human rewrites of the test texts, if any."""
    halves: tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]
    """(source texts, target texts) for the judge of the search, and for the judge of the report."""
    styles: tuple[str, str]
    """Names of the source and the target style."""
    label: str
    """The target's label number in classifiers that were trained on such data."""
    manual: str
    instruction: str
    lower: bool
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Changes with any text."""
        parts = [*self.sources.values(), self.references, *(texts for half in self.halves for texts in half)]
        return hashlib.sha256("\0\0".join("\0".join(part) for part in parts).encode()).hexdigest()


def style_data(settings: StyleTransferSettings) -> StyleData:
    """Read the data of the settings, and draw the parts by `settings.split`."""
    if settings.dataset is not None:
        if settings.source or settings.target:
            raise SettingError("give either a dataset or source and target files, not both")
        return _of_catalogue(settings, settings.dataset)
    if not settings.source or not settings.target:
        raise SettingError(
            "style transfer needs texts: a dataset (books, vader-products; yelp, shakespeare with their data folder), "
            "or a source and a target file with one text per line"
        )
    return _of_files(settings, Path(settings.source), Path(settings.target))


def _of_catalogue(settings: StyleTransferSettings, name: str) -> StyleData:
    card = lookup_style(name)
    direction = settings.direction or card.directions[0]
    source, target = ends_of(card, direction)
    folder = Path(settings.data).expanduser() if settings.data else None
    loaded = [load_style(card.name, folder, part, settings.split) for part in _parts(card, folder)]
    test = load_style(card.name, folder, "test", settings.split)
    lines = {style: [text for part in loaded for text in part.texts[style]] for style in (source, target)}
    draw = _drawn(list(range(len(test.texts[source]))), settings.split, "test")[: settings.test_sources]
    chosen = sorted(draw)
    human = test.references.get(source, [])
    hints = card.hints
    return _divide(
        settings,
        lines[source],
        lines[target],
        test=[test.texts[source][row] for row in chosen],
        references=[human[row] for row in chosen] if human else [],
        styles=(source, target),
        label=str(card.styles.index(target)),
        manual=settings.manual or card.manual[direction],
        instruction=settings.instruction
        or f"You are given a sentence of {hints[source]}. Write it anew as {hints[target]}, and keep what it says.",
        lower=card.lower,
        notes=tuple(note for part in loaded for note in part.notes),
    )


def _parts(card: StyleCard, folder: Path | None) -> list[str]:
    """The splits to use: a package has train, a published folder also dev, a smaller copy may only have dev."""
    if folder is None:
        return ["train"]
    place = folder / card.name if (folder / card.name).is_dir() else folder
    return ["train", "dev"] if card.shots is not None or any(place.glob("*train*")) else ["dev"]


def _of_files(settings: StyleTransferSettings, source: Path, target: Path) -> StyleData:
    lines, wanted = read_lines(source, skip_blank=True), read_lines(target, skip_blank=True)
    references = read_lines(settings.references) if settings.references else []
    test = read_lines(settings.test) if settings.test else None
    if references and (test is None or len(test) != len(references)):
        raise SettingError(
            f"references are line by line for the test file: {len(references)} references, "
            f"{'no test file' if test is None else f'{len(test)} test texts'}"
        )
    if test is not None and settings.test_sources is not None:
        rows = sorted(_drawn(list(range(len(test))), settings.split, "test")[: settings.test_sources])
        test, references = [test[row] for row in rows], [references[row] for row in rows] if references else []
    names = (
        settings.source_style or source.stem.replace("_", " "),
        settings.target_style or target.stem.replace("_", " "),
    )
    return _divide(
        settings,
        lines,
        wanted,
        test=test,
        references=references,
        styles=names,
        label="1",
        manual=settings.manual or f"Change the following sentence from {names[0]} to {names[1]}.",
        instruction=settings.instruction
        or f"You are given a sentence that is {names[0]}. Write it anew to be {names[1]}, and keep what it says.",
        lower=False,
    )


def _divide(
    settings: StyleTransferSettings,
    source: Sequence[str],
    target: Sequence[str],
    *,
    test: list[str] | None,
    references: list[str],
    styles: tuple[str, str],
    label: str,
    manual: str,
    instruction: str,
    lower: bool,
    notes: tuple[str, ...] = (),
) -> StyleData:
    """Draw the parts: first the texts to rewrite, then two halves of the rest for the judges."""
    taken = set(test or ())
    lines = _drawn([line for line in dict.fromkeys(source) if line not in taken], settings.split, "source")
    wanted = _drawn(list(dict.fromkeys(target)), settings.split, "target")
    if len(lines) < 2:
        raise DataError(
            f"there are {len(lines)} different source texts; {LEAST_TEXTS} of each style are enough to train the style "
            "judges and leave texts to search and to choose on (2 with style judges that are named)",
            path=settings.source or settings.data,
        )
    trained = TRAINED in (settings.style, settings.test_style)
    shared = len(set(lines) & set(wanted))
    if trained and not settings.force_judge and shared > min(len(lines), len(wanted)) / 2:
        raise DataError(
            f"{shared} of the {len(lines)} source texts are also target texts, so no judge can tell the styles apart; "
            "give texts of two different styles (--force-judge uses these anyway)",
            path=settings.source or settings.data,
        )
    few = max(1, len(lines) // 5)  # in a short file no part takes more than a fifth
    # The pool to draw from; every method except Q-learning takes the first `sources` of them.
    train = few if settings.draw == "step" else min(settings.sources, few)
    dev = min(settings.dev_sources, few)
    held = min(settings.test_sources or HELD_OUT, few) if test is None and len(lines) > 2 else 0
    cuts = np.cumsum([train, dev, held]).tolist()
    split = {"train": lines[: cuts[0]], "dev": lines[cuts[0] : cuts[1]]}
    tested = test if test is not None else lines[cuts[1] : cuts[2]]
    if tested:
        split["test"] = tested
    rest, most = lines[cuts[2] :], settings.judge_lines
    halves = tuple((rest[side::2][:most], wanted[side::2][:most]) for side in (0, 1))
    if trained and min(len(texts) for half in halves for texts in half) < LEAST_LINES:
        raise DataError(
            f"there are {len(lines)} different texts in the source style and {len(wanted)} in the target style, too "
            f"few to train two style judges; {LEAST_TEXTS} of each are enough (--source, --target)",
            path=settings.source or settings.data,
        )
    used = f"{styles[0]}: {len(lines)} texts, of which {train} for the search, {dev} for choosing"
    used += f", {held} for the report" if held else ""
    both = [sum(len(half[side]) for half in halves) for side in (0, 1)]
    used += f", {both[0]} for two style judges; {styles[1]}: {both[1]} texts for the judges"
    return StyleData(
        sources={name: tuple(texts) for name, texts in split.items()},
        references=tuple(references),
        halves=(halves[0], halves[1]),
        styles=styles,
        label=label,
        manual=manual,
        instruction=instruction,
        lower=lower,
        notes=(*notes, used) if trained else notes,
    )


def _drawn(items: list[T], split: int, name: str) -> list[T]:
    random = np.random.Generator(np.random.Philox(derive(split, "style data", name)))
    return [items[place] for place in random.permutation(len(items))]
