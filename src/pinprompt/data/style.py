"""Built-in style-transfer datasets: styles, directions, and the files or packages with their texts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinprompt.data.examples import check_labels, published, read_lines
from pinprompt.data.packaged import styles_of
from pinprompt.errors import DataError, SettingError, did_you_mean


@dataclass(frozen=True)
class StyleCard:
    """Two styles, label '0' first. `shots` is None for files with one sentence per line."""

    name: str
    title: str
    styles: Sequence[str]
    manual: Mapping[str, str]
    """Direction to a hand-written prompt."""
    hints: Mapping[str, str]
    """Style to a description."""
    lower: bool = False
    """Whether outputs are lower-cased, like the data."""
    shots: int | None = None
    packaged: bool = False
    """Whether it is on the package index, so that no folder is needed."""

    @property
    def directions(self) -> tuple[str, str]:
        """The names of both directions."""
        first, second = self.styles
        return f"{first}-to-{second}", f"{second}-to-{first}"


@dataclass(frozen=True)
class StyleTexts:
    """The texts of one split by style; `references` are human rewrites of the test sources, if any."""

    texts: Mapping[str, list[str]]
    references: Mapping[str, list[str]]
    notes: tuple[str, ...] = ()


def _cards() -> Iterator[StyleCard]:
    cards = tomllib.loads((Path(__file__).parent / "styles.toml").read_text("utf-8"))
    for name, card in cards.items():
        if (other := card.pop("like", None)) is not None:
            card |= {field: cards[other][field] for field in ("styles", "manual")}
        yield StyleCard(name, **card)


STYLES = {card.name: card for card in _cards()}


def lookup_style(name: str) -> StyleCard:
    """The card of a style dataset; the error for an unknown name suggests others."""
    wanted = name.strip().lower()
    if wanted not in STYLES:
        raise DataError(f"there is no built-in style dataset '{name}'; {did_you_mean(wanted, STYLES)}")
    return STYLES[wanted]


def ends_of(card: StyleCard, direction: str) -> tuple[str, str]:
    """The source and target style of a direction."""
    if direction not in card.directions:
        raise SettingError(f"'{card.name}' has no direction '{direction}'; {did_you_mean(direction, card.directions)}")
    first, second = card.styles
    return (first, second) if direction == card.directions[0] else (second, first)


def load_style(name: str, folder: str | Path | None, part: str, split: int = 13) -> StyleTexts:
    """The texts of 'train', 'dev' or 'test' by style; without a folder from a package, which has no 'dev'.

    One sentence per line: `<part>.<style>.txt` and `ref.<style>.txt`, or the published names
    `sentiment.<part>.<0|1>.clean`. Few-shot: `<shots>-<split>/{train,dev}.tsv` and `test.tsv`.
    """
    card = lookup_style(name)
    if folder is None:
        return _from_package(card, part)
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError("there is no such folder", path=folder)
    if (folder / card.name).is_dir():
        folder = folder / card.name
    return _lines(card, folder, part) if card.shots is None else _few_shot(card, folder, part, split)


def _from_package(card: StyleCard, part: str) -> StyleTexts:
    if not card.packaged:
        raise SettingError(f"the style data '{card.name}' need a folder: set data = '<folder>'")
    parts = dict(zip(("train", "test"), styles_of(card.name), strict=True))
    if part not in parts:
        raise DataError(f"'{card.name}' has no split '{part}'; it has train and test")
    return StyleTexts({style: parts[part][str(label)] for label, style in enumerate(card.styles)}, {})


def _lines(card: StyleCard, folder: Path, part: str) -> StyleTexts:
    texts = {style: read_lines(_file(card, folder, part, style)) for style in card.styles}
    references: dict[str, list[str]] = {}
    for style in card.styles if part == "test" else ():
        file = _file(card, folder, "ref", style)
        if file.is_file():
            references[style] = read_lines(file)
            if len(references[style]) != len(texts[style]):
                raise DataError(
                    f"there are {len(references[style])} references for {len(texts[style])} sources; line n rewrites "
                    "line n",
                    path=file,
                )
    return StyleTexts(texts, references)


def _file(card: StyleCard, folder: Path, part: str, style: str) -> Path:
    other = folder / f"sentiment.{part}.{card.styles.index(style)}.clean"
    return other if other.is_file() else folder / f"{part}.{style}.txt"


def _few_shot(card: StyleCard, folder: Path, part: str, split: int) -> StyleTexts:
    splits = published(folder, split, card.shots or 0)
    rows = {"train": splits.train, "dev": splits.dev, "test": splits.test or []}.get(part)
    if not rows:
        raise DataError(f"there are no texts for the split '{part}'", path=folder)
    check_labels(rows, ("0", "1"), folder)
    texts = {style: [row.text for row in rows if row.label == str(label)] for label, style in enumerate(card.styles)}
    return StyleTexts(texts, {}, splits.notes)
