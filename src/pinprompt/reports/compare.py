"""The paper's tables from run folders: methods by datasets, with standard errors and significance.

Runs share a table if they have the same task, task model, judges, metric and split. A column is one dataset with one
budget; a row is one method (with its settings, if a sweep varied them). Runs that are not comparable are never
averaged: they get their own table, column or row, or raise an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pinprompt.errors import RunError, SettingError
from pinprompt.maths.bootstrap import Difference, Unit, compare_paired, mean, standard_error
from pinprompt.methods.table import ROWS
from pinprompt.reports.entries import Entry, read_entries
from pinprompt.wording import LOWER_IS_BETTER, title

READABILITY = ("perplexity", "in_text", "dictionary_words", "repeated_tokens", "stable")
WRITTEN = tuple(row.name for row in ROWS if row.kind == "handwritten")  # they come first, as in the paper
RAW = ", raw"
LABELS = "task.labels"
DEFAULTS = {LABELS: "words"}  # settings at their defaults are not in a recipe


@dataclass(frozen=True)
class Measured:
    """The values of one row in one column, by split and seed."""

    values: dict[Unit, float]

    @property
    def mean(self) -> float:
        """The mean over splits and seeds."""
        return mean(list(self.values.values()))

    @property
    def error(self) -> float | None:
        """The standard error over splits, each the mean of its seeds, as in the paper; with one split, over seeds."""
        splits: dict[str, list[float]] = {}
        for (split, _), value in self.values.items():
            splits.setdefault(split, []).append(value)
        return standard_error([mean(seeds) for seeds in splits.values()] if len(splits) > 1 else list(*splits.values()))


@dataclass(frozen=True)
class Contrast:
    """The best row of a column against the second; `difference` is None for fewer than two pairs."""

    column: str
    row: str
    baseline: str
    difference: Difference | None


@dataclass(frozen=True)
class ScoreTable:
    """Runs that can be compared: rows are methods, columns are data."""

    facts: dict[str, str]
    metric: str
    split: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: dict[tuple[str, str], Measured]
    readability: dict[tuple[str, str], Measured]
    metrics: dict[tuple[str, str, str], Measured]
    """Everything that was measured, by row, column and metric."""
    contrasts: tuple[Contrast, ...]
    runs: dict[tuple[str, str], tuple[Entry, ...]]
    title: str = ""

    def runs_of(self, row: str) -> list[Entry]:
        """The runs of a row, in order of their folders; none for a prompt that was measured by other runs."""
        found = [entry for (name, _), group in self.runs.items() if name == row for entry in group]
        return sorted(found, key=lambda entry: str(entry.folder))

    def too_few(self, row: str, column: str) -> bool:
        """Whether a run of this cell had fewer calls than a Q-learning method needs to learn."""
        return any(entry.too_few for entry in self.runs.get((row, column), ()))

    def ranked(self, column: str) -> list[str]:
        """The rows of a column, best first."""
        sign = 1 if self.metric in LOWER_IS_BETTER else -1
        known = [row for row in self.rows if (row, column) in self.cells]
        return sorted(known, key=lambda row: (sign * self.cells[row, column].mean, self.rows.index(row)))

    def rank(self, row: str, column: str) -> int:
        """As `rank_of`."""
        return rank_of(self.cells, row, column, self.metric)


def rank_of(cells: Mapping[tuple[str, str], Measured], row: str, column: str, metric: str) -> int:
    """1 for the best of a column, 2 for the second, 0 for the rest; equal means share a rank."""
    means = {cell.mean for (_, other), cell in cells.items() if other == column}
    best = sorted(means, reverse=metric not in LOWER_IS_BETTER)[:2]
    cell = cells.get((row, column))
    return best.index(cell.mean) + 1 if cell is not None and cell.mean in best and len(best) > 1 else 0


@dataclass(frozen=True)
class Comparison:
    """One table per set of comparable runs, with notes on what was left out."""

    tables: tuple[ScoreTable, ...]
    notes: tuple[str, ...] = field(default=())


def compare(folders: Iterable[Path | str], metric: str | None = None) -> Comparison:
    """Compare run folders: mean and standard error over splits and seeds, and the best row against the second.

    `metric` names one of the metrics in result.json; none takes each run's primary one.
    """
    entries, notes = read_entries(folders, metric)
    if not entries:
        raise RunError(
            "There are no finished runs to compare. " + (" ".join(notes) or "Name the folders of finished runs.")
        )
    _same_data(entries)
    groups: dict[tuple[tuple[str, str], ...], list[Entry]] = {}
    for entry in _budgets_by_column(entries):
        groups.setdefault(tuple(entry.facts.items()), []).append(entry)
    columns = _column_labels(entries)
    tables = [_table(dict(key), group, columns, notes) for key, group in sorted(groups.items())]
    if len(tables) > 1:
        differing = " or ".join(sorted(varying([table.facts for table in tables])))
        notes.append(f"{len(tables)} tables: runs that differ in {differing} are not mixed.")
    titled = tuple(_titled(table, tables) for table in tables)
    return Comparison(titled, tuple(dict.fromkeys(notes)))


def _budgets_by_column(entries: Sequence[Entry]) -> list[Entry]:
    """Budgets may differ between the columns of a table, but not within a column."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        shared = [said for name, said in entry.facts.items() if name != "budget"]
        groups.setdefault(tuple(shared), []).append(entry)
    found = []
    for group in groups.values():
        labels = _column_labels(group)
        budgets: dict[str, set[str]] = {}
        for entry in group:
            budgets.setdefault(labels[entry.folder], set()).add(entry.facts["budget"])
        said = group[0].facts["budget"]
        if len(set.union(*budgets.values())) > 1:
            if any(len(one) > 1 for one in budgets.values()):
                found += group
                continue
            said = "; ".join(f"{column}: {next(iter(one))}" for column, one in sorted(budgets.items()))
        found += [replace(entry, facts=entry.facts | {"budget": said}) for entry in group]
    return found


def _same_data(entries: Sequence[Entry]) -> None:
    """Check that runs with the same task settings had the same data and models."""
    seen: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        known = seen.setdefault((entry.task, *entry.facts.values()), entry)
        if entry.fingerprint and known.fingerprint and known.fingerprint != entry.fingerprint:
            raise SettingError(
                f"{known.folder} and {entry.folder} have the same task section, but their data or models were not the "
                f"same (fingerprints {known.fingerprint[:16]} and {entry.fingerprint[:16]}). Compare them apart, or "
                "run one of them again."
            )


def _table(facts: dict[str, str], entries: list[Entry], columns: dict[Path, str], notes: list[str]) -> ScoreTable:
    rows = _row_labels(entries)
    cells: dict[tuple[str, str], dict[Unit, Entry]] = {}
    for entry in entries:
        place = cells.setdefault((rows[entry.folder], columns[entry.folder]), {})
        twin = place.setdefault(entry.unit, entry)
        if twin is not entry:
            if twin.value != entry.value:
                raise SettingError(
                    f"{twin.folder} and {entry.folder} have the same method, data, split and seed, yet different "
                    f"results ({twin.value} and {entry.value}). Leave one of them out."
                )
            notes.append(f"{entry.folder} repeats {twin.folder} and was counted once.")
    values = {place: Measured({unit: entry.value for unit, entry in found.items()}) for place, found in cells.items()}
    by_hand = _by_hand(entries, columns, {row.split(" (")[0] for row, _ in values}, notes)
    readability, metrics = _readability(cells), by_hand | _metrics(cells)
    values |= {(row, column): cell for (row, column, name), cell in by_hand.items() if name == facts["metric"]}
    # Calibrated labels: a hand-written prompt is shown with and without calibration.
    values |= {
        (f"{row}{RAW}", column): cell
        for (row, column, name), cell in metrics.items()
        if name == f"raw_{facts['metric']}" and row in WRITTEN
    }
    names = sorted({row for row, _ in values}, key=_order)
    table = ScoreTable(
        facts=facts,
        metric=facts["metric"],
        split=facts["split"],
        columns=tuple(sorted({columns[entry.folder] for entry in entries})),
        rows=tuple(names),
        cells=values,
        readability=readability,
        metrics=metrics,
        contrasts=(),
        runs={place: tuple(found.values()) for place, found in cells.items()},
    )
    return replace(table, contrasts=_contrasts(table))


def _order(row: str) -> tuple[int, list[tuple[float, str]]]:
    """Hand-written prompts, then the searches by name."""
    name = row.removesuffix(RAW).split(" (")[0]
    return (WRITTEN.index(name) if name in WRITTEN else len(WRITTEN)), by_number(row)


def by_number(text: str) -> list[tuple[float, str]]:
    """A key to sort texts by the value of the numbers in them: k=64 before k=256, alpha=0.05 before alpha=0.2."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(float(part), "") if part[0].isdecimal() else (-1.0, part) for part in parts]


def _column_labels(entries: Sequence[Entry]) -> dict[Path, str]:
    """The dataset's name, with the task settings that distinguish columns of the same dataset."""
    labels: dict[Path, str] = {}
    for name in {entry.dataset for entry in entries}:
        group = [entry for entry in entries if entry.dataset == name]
        differing = varying([entry.data for entry in group])
        labels |= {entry.folder: labelled(name, entry.data, differing) for entry in group}
    return labels


def _row_labels(entries: Sequence[Entry]) -> dict[Path, str]:
    """The method's name, with the settings that a sweep varied; settings determined by the data are not shown."""
    labels: dict[Path, str] = {}
    for method in {entry.method for entry in entries}:
        group = [entry for entry in entries if entry.method == method]
        differing: set[str] = set()
        columns: dict[tuple[object, ...], list[dict[str, str]]] = {}
        for entry in group:
            columns.setdefault((entry.dataset, *entry.data.items()), []).append(entry.settings)
        for trees in columns.values():
            differing |= varying(trees)
        labels |= {entry.folder: labelled(method, entry.settings, differing) for entry in group}
    return labels


def varying(trees: Sequence[dict[str, str]]) -> set[str]:
    """The names whose values differ between the trees; a false value counts as absent."""
    names = {name for tree in trees for name in tree}
    off = {"false": "none"}
    return {
        name
        for name in names
        if len({off.get(value, value) for value in (tree.get(name, "none") for tree in trees)}) > 1
    }


def labelled(name: str, tree: dict[str, str], differing: set[str]) -> str:
    """A name with the settings that distinguish it: pin (k=256)."""
    said = ", ".join(
        f"{key.rsplit('.', 1)[-1]}={tree.get(key, DEFAULTS.get(key, 'none'))}" for key in sorted(differing)
    )
    return f"{name} ({said})" if said else name


def _by_hand(
    entries: Sequence[Entry], columns: dict[Path, str], taken: set[str], notes: list[str]
) -> dict[tuple[str, str, str], Measured]:
    """The metrics of hand-written prompts that other runs measured, if they have no runs of their own.

    Runs with calibrated or learnt labels measure them with the label words as they are, too.
    """
    found: dict[tuple[str, str, str], dict[Unit, float]] = {}
    measured = {columns[entry.folder] for entry in entries if LABELS in entry.settings}
    for entry in entries:
        if columns[entry.folder] in measured and LABELS not in entry.settings:
            continue
        for row, metrics in entry.baselines.items():
            for name, value in metrics.items() if row not in taken else ():
                place = found.setdefault((row, columns[entry.folder], name), {})
                other = f"The {row} prompt has other figures in {entry.folder}; the first ones were kept."
                if place.setdefault(entry.unit, value) != value and other not in notes:
                    notes.append(other)
    noisy = {(row, column) for (row, column, _), values in found.items() if _by_split(values) is None}
    return {
        place: Measured(values if place[:2] in noisy else _by_split(values) or values)
        for place, values in found.items()
    }


def _by_split(values: dict[Unit, float]) -> dict[Unit, float] | None:
    """One value per split, for a prompt that does not depend on the seed; None if it does."""
    splits: dict[Unit, float] = {}
    for (split, _), value in values.items():
        if splits.setdefault((split, None), value) != value:
            return None
    return splits


def _readability(cells: dict[tuple[str, str], dict[Unit, Entry]]) -> dict[tuple[str, str], Measured]:
    found: dict[tuple[str, str], dict[Unit, float]] = {}
    for (row, column), group in cells.items():
        for (split, seed), entry in group.items():
            for name in READABILITY:
                if name in entry.readability:
                    found.setdefault((row, name), {})[f"{column}/{split}", seed] = entry.readability[name]
    return {place: Measured(values) for place, values in found.items()}


def _metrics(cells: dict[tuple[str, str], dict[Unit, Entry]]) -> dict[tuple[str, str, str], Measured]:
    found: dict[tuple[str, str, str], dict[Unit, float]] = {}
    for (row, column), group in cells.items():
        for unit, entry in group.items():
            for name, value in entry.metrics.items():
                found.setdefault((row, column, name), {})[unit] = value
    return {place: Measured(values) for place, values in found.items()}


def _contrasts(table: ScoreTable) -> tuple[Contrast, ...]:
    """The best row of each column against the second."""
    found = []
    sign = -1 if table.metric in LOWER_IS_BETTER else 1
    for column in table.columns:
        best = table.ranked(column)[:2]
        if len(best) == 2:
            pair = [table.cells[row, column].values for row in best]
            signed = [{unit: sign * value for unit, value in values.items()} for values in pair]
            found.append(Contrast(column, best[0], best[1], compare_paired(*signed)))
    return tuple(found)


def _titled(table: ScoreTable, tables: Sequence[ScoreTable]) -> ScoreTable:
    """The task and the split, and what distinguishes this table from the others."""
    differing = sorted(varying([other.facts for other in tables]) - {"task", "split", "metric"})
    said = [f"{table.facts['task'].replace('_', ' ')}, {title(table.metric)} on {table.split}"]
    # The names of judges are long, so they are below the table.
    said += ["its own judges" if name == "judges" else f"{name} {table.facts[name] or 'none'}" for name in differing]
    return replace(table, title="; ".join(said))
