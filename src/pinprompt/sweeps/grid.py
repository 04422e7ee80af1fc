"""A sweep file becomes a list of recipes: every combination, pairs that go together, or random draws."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.seeds import derive

SECTIONS = ("name", "out", "base", "grid", "zip", "random", "where", "threads")
LARGEST = 10_000


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its recipe, and the folder that its recipe's hash names."""

    recipe: Recipe
    folder: Path
    varied: Mapping[str, Any]

    @property
    def done(self) -> bool:
        """True where the cell has its result."""
        return (self.folder / "result.json").exists()


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read."""

    name: str
    out: Path
    cells: list[Cell]
    threads: int
    """Threads per cell; the same for every engine, so that the numbers are the same too."""


def read_sweep(path: Path | str, out: Path | str | None = None, settings: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep in a TOML file.

    `[base]` is a recipe under all cells; `[grid]` lists values whose combinations are all run; the lists of `[zip]` go
    together; `[random]` draws `samples` settings; each `[[where]]` puts `set` over the cells that match `when`.
    `settings` go over `[base]`.
    """
    tree = recipes.read_toml(path)
    for name in tree:
        if name not in SECTIONS:
            raise SettingError(f"{path}: a sweep has no '{name}': {did_you_mean(name, SECTIONS)}")
    name = str(tree.get("name", Path(path).stem))
    folder = Path(out) if out else _below(str(tree.get("out", Path("runs") / recipes.file_name(name))), path)
    base = recipes.merge(_tree(tree, "base", path), settings or {})
    rules = _rules(tree, path)
    threads = tree.get("threads", 1)
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise SettingError(f"{path}: threads is a whole number from 1; given: {threads!r}")
    cells: dict[str, Cell] = {}
    for tried, varied in enumerate(_combinations(tree, path)):
        if tried >= LARGEST:
            raise SettingError(f"{path}: more than {LARGEST:,} cells; make the grid smaller")
        raw = base
        for setting, value in varied.items():
            raw = recipes.merge(raw, _nested(setting, value))
        for when, over in rules:
            if all(_at(raw, setting) == value for setting, value in when.items()):
                for setting, value in over.items():
                    raw = recipes.merge(raw, _nested(setting, value))
        recipe = recipes.resolve(raw)
        cells.setdefault(recipe.hash, Cell(recipe, folder / _folder_name(recipe), varied))
    return Sweep(name, folder, list(cells.values()), threads)


def _below(out: str, path: Path | str) -> Path:
    """The folder that a file names for its cells: below the working folder, since the file may be a stranger's."""
    try:
        whole = Path(out).resolve()
    except (OSError, RuntimeError, ValueError):
        whole = Path("/")
    if Path(out).is_absolute() or ".." in Path(out).parts or not whole.is_relative_to(Path.cwd().resolve()):
        raise SettingError(f"{path}: out = {out!r} leads out of the working folder; name such a folder with --out")
    return Path(out)


def plan(sweep: Sweep, device: str | None = None) -> list[dict[str, Any]]:
    """Each cell with what varies, a rough estimate, whether it is finished, and what it needs that cannot be had."""
    from pinprompt.run.estimating import multiplications, rough
    from pinprompt.run.needs import Known, missing

    speed, known = multiplications(device), Known()
    return [
        {
            "cell": cell.folder.name,
            "varied": dict(cell.varied),
            **rough(cell.recipe, speed),
            "done": cell.done,
            "missing": [] if cell.done else missing(cell.recipe, known),
        }
        for cell in sweep.cells
    ]


def _rules(tree: Mapping[str, Any], path: Path | str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """What `[[where]]` says: settings over the cells that match others."""
    found = []
    rules = tree.get("where", [])
    for rule in rules if isinstance(rules, list) else [rules]:
        parts = (rule.get("when", {}), rule.get("set", {})) if isinstance(rule, Mapping) else (None, None)
        if not isinstance(parts[0], Mapping) or not isinstance(parts[1], Mapping):
            raise SettingError(f"{path}: a [[where]] has a table 'when' and a table 'set'; given: {rule!r}")
        found.append((parts[0], parts[1]))
    return found


def _combinations(tree: Mapping[str, Any], path: Path | str) -> Iterator[dict[str, Any]]:
    grid, zipped = _lists(tree, "grid", path), _lists(tree, "zip", path)
    lengths = {len(values) for values in zipped.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{name} has {len(values)}" for name, values in zipped.items())
        raise SettingError(f"{path}: the lists of [zip] must be equally long; {told}")
    pairs = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    draws = list(_draws(_tree(tree, "random", path), path)) or [{}]
    for row in itertools.product(*grid.values()):
        for pair in pairs:
            for draw in draws:
                yield dict(zip(grid, row, strict=True)) | pair | draw


def _draws(section: Mapping[str, Any], path: Path | str) -> Iterator[dict[str, Any]]:
    if not section:
        return
    seed, samples = section.get("seed", 0), section.get("samples", 1)
    if not isinstance(seed, int) or not isinstance(samples, int) or not 1 <= samples <= LARGEST:
        raise SettingError(f"{path}: random.samples goes from 1 to {LARGEST:,}, and random.seed is a whole number")
    source = random.Random(derive(seed, "sweep"))  # nosec B311
    ranges = {name: value for name, value in section.items() if name not in ("samples", "seed")}
    for _ in range(samples):
        yield {name: _draw(value, source, f"{path}: random.{name}") for name, value in _flat(ranges)}


def _draw(value: Any, source: random.Random, where: str) -> Any:
    if isinstance(value, list) and value:
        return source.choice(value)
    if isinstance(value, Mapping) and {"low", "high"} <= set(value):
        try:
            low, high = float(value["low"]), float(value["high"])
        except (TypeError, ValueError, OverflowError):
            raise SettingError(f"{where}: low and high are numbers; given: {value!r}") from None
        if not -math.inf < low < high < math.inf or (value.get("log") and low <= 0):
            raise SettingError(f"{where}: low must be below high (and above 0 with log); given {low} and {high}")
        drawn = (
            math.exp(source.uniform(math.log(low), math.log(high))) if value.get("log") else source.uniform(low, high)
        )
        return round(drawn) if value.get("whole") else drawn
    raise SettingError(f"{where}: give a list of choices, or {{low = ..., high = ..., log = true}}")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"policy": {"k": [..]}}` and `{"policy.k": [..]}` mean the same."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _lists(tree: Mapping[str, Any], section: str, path: Path | str) -> dict[str, list[Any]]:
    found = dict(_flat(_tree(tree, section, path)))
    for name, values in found.items():
        if not isinstance(values, list) or not values:
            raise SettingError(f"{path}: {section}.{name} must be a list of values; given: {values!r}")
    return found


def _tree(tree: Mapping[str, Any], section: str, path: Path | str) -> dict[str, Any]:
    found = tree.get(section, {})
    if not isinstance(found, dict):
        raise SettingError(f"{path}: [{section}] must be a table; given: {found!r}")
    return found


def _nested(setting: str, value: Any) -> dict[str, Any]:
    for name in reversed(setting.split(".")):
        value = {name: value}
    return dict(value)


def _at(tree: Any, setting: str) -> Any:
    for name in setting.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _folder_name(recipe: Recipe) -> str:
    what = getattr(recipe.task, "dataset", None) or recipe.task.kind
    return recipes.file_name(f"{what}-{recipe.method}-{recipe.hash}")
