"""Sweeps: a file defines many recipes, which run one after the other in this process or in parallel on Ray."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt.answers.executors import start_ray, work_in
from pinprompt.errors import FolderInUse, MissingExtra, PinpromptError, RunError, SettingError, did_you_mean
from pinprompt.folder import identity as identities
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.reports.report import write_report
from pinprompt.run import running
from pinprompt.run.estimating import prompts_planned

SECTIONS = ("name", "out", "base", "grid", "zip", "where", "threads")
MAX_CELLS = 10_000


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its recipe, and its folder, named by the recipe's hash."""

    recipe: Recipe
    folder: Path
    varied: Mapping[str, Any]

    @property
    def done(self) -> bool:
        """Whether the cell is whole: its run ended with a report, and no file has changed since."""
        try:
            identity = identities.read(self.folder)
        except RunError:
            return False  # running it says why
        files = None if identity is None else identity.files
        return files is not None and "report.html" in files and not identities.changed_files(self.folder, files)


@dataclass(frozen=True)
class Sweep:
    """The content of a sweep file."""

    name: str
    out: Path
    cells: list[Cell]
    threads: int
    """Threads per cell; the same for every engine, so that results are the same too."""


def read_sweep(
    path: Path | str,
    out: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
) -> Sweep:
    """The sweep in a TOML file.

    `[base]` has the settings that all cells share; `[grid]` lists values, of which all combinations are run; the lists
    of `[zip]` are combined element by element; each `[[where]]` applies `set` to the cells that match `when`.
    `settings` override `[base]` and `[[where]]`; a setting that varies is refused. `only` lists values for some of the
    varied settings and leaves out every cell with another value.
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
        raise SettingError(f"{path}: threads must be a whole number of at least 1; given: {threads!r}")
    cells: dict[str, Cell] = {}
    combinations = list(itertools.islice(_combinations(tree, path), MAX_CELLS + 1))
    if len(combinations) > MAX_CELLS:
        raise SettingError(f"{path}: more than {MAX_CELLS:,} cells; make the grid smaller")
    for setting, value in _flat(settings or {}):
        if any(setting in varied for varied in combinations):
            raise SettingError(f"{path} varies '{setting}'; --only {setting}={value} chooses among its values")
    for varied in _chosen(combinations, only or {}, path):
        raw = _with(base, varied)
        for when, over in rules:
            if all(recipes.setting_in(raw, setting) == value for setting, value in when.items()):
                raw = _with(raw, over)
        recipe = recipes.resolve(recipes.merge(raw, settings or {}))
        what = getattr(recipe.task, "dataset", None) or recipe.task.kind
        own = folder / recipes.file_name(f"{what}-{recipe.method}-{recipe.hash}")
        cells.setdefault(recipe.hash, Cell(recipe, own, varied))
    return Sweep(name, folder, list(cells.values()), threads)


def _below(out: str, path: Path | str) -> Path:
    """The folder for the cells; it must be below the working folder, since the file may be untrusted."""
    try:
        whole = Path(out).resolve()
    except (OSError, RuntimeError, ValueError):
        whole = Path("/")
    if Path(out).is_absolute() or ".." in Path(out).parts or not whole.is_relative_to(Path.cwd().resolve()):
        raise SettingError(f"{path}: out = {out!r} is outside the working folder; use --out for such a folder")
    return Path(out)


def plan(sweep: Sweep) -> list[dict[str, Any]]:
    """Each cell with what varies, the most prompts and calls, whether it is finished, and what it lacks here."""
    from pinprompt.needs import Known, missing

    known = Known()
    return [
        {
            "cell": cell.folder.name,
            "varied": dict(cell.varied),
            "prompts": sum(prompts_planned(cell.recipe)),
            "calls": cell.recipe.budget.calls,
            "done": cell.done,
            "missing": [] if cell.done else missing(cell.recipe, known),
        }
        for cell in sweep.cells
    ]


def longest_first(cells: Sequence[Cell]) -> list[Cell]:
    """Cells by decreasing number of prompts; in the order of the file if it is equal."""
    return sorted(cells, key=lambda cell: -sum(prompts_planned(cell.recipe)))


def _rules(tree: Mapping[str, Any], path: Path | str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Apply `[[where]]`: settings for the cells that match a condition."""
    found = []
    rules = tree.get("where", [])
    for rule in rules if isinstance(rules, list) else [rules]:
        when, over = (rule.get("when", {}), rule.get("set", {})) if isinstance(rule, Mapping) else (None, None)
        if not isinstance(when, Mapping) or not isinstance(over, Mapping):
            raise SettingError(f"{path}: [[where]] needs a table 'when' and a table 'set'; given: {rule!r}")
        found.append((when, over))
    return found


def _combinations(tree: Mapping[str, Any], path: Path | str) -> Iterator[dict[str, Any]]:
    grid, zipped = _lists(tree, "grid", path), _lists(tree, "zip", path)
    lengths = {len(values) for values in zipped.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{name} has {len(values)}" for name, values in zipped.items())
        raise SettingError(f"{path}: the lists of [zip] must be equally long; {told}")
    pairs = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    for row in itertools.product(*grid.values()):
        for pair in pairs:
            yield dict(zip(grid, row, strict=True)) | pair


def _chosen(
    combinations: Sequence[dict[str, Any]], only: Mapping[str, Sequence[Any]], path: Path | str
) -> list[dict[str, Any]]:
    """The combinations whose settings have one of the values in `only`; values that leave none are refused."""
    for setting, values in only.items():
        found = [varied[setting] for varied in combinations if setting in varied]
        if not found:
            raise SettingError(f"{path} does not vary '{setting}': {did_you_mean(setting, set().union(*combinations))}")
        for value in values:
            if value not in found:
                known = ", ".join(dict.fromkeys(map(str, found)))
                raise SettingError(f"{path}: no run has {setting}={value}; its values: {known}")
    chosen = [
        varied
        for varied in combinations
        if all(setting in varied and varied[setting] in values for setting, values in only.items())
    ]
    if only and not chosen:
        raise SettingError(f"{path}: no run has all of these values; --dry-run lists its runs")
    return chosen


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"policy": {"k": [..]}}` and `{"policy.k": [..]}` mean the same."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
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


def _with(tree: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    for setting, value in settings.items():
        tree = recipes.with_setting(tree, setting, value)
    return tree


# Engines: cells run one after the other in this process, or in parallel on Ray.


Tell = Callable[[Cell, str], None]


@dataclass(frozen=True)
class Swept:
    """The outcome of each cell, by folder name: 'finished', 'already finished' or 'failed: ...'."""

    folder: Path
    cells: dict[str, str]

    @property
    def failed(self) -> dict[str, str]:
        return {name: outcome for name, outcome in self.cells.items() if outcome.startswith("failed")}


def run_sweep(
    sweep: Sweep,
    notes: Callable[[str], None],
    *,
    engine: str = "inline",
    device: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_cell: float = 0.0,
) -> Swept:
    """Run a sweep's cells with an engine, with a note when each ends."""

    # Checking every result whenever a cell ends would be a million file accesses for a thousand cells.
    done = {cell.folder.name for cell in sweep.cells if cell.done}

    def tell(cell: Cell, what: str) -> None:
        if what.endswith("finished"):
            done.add(cell.folder.name)
        notes(f"[{len(done)}/{len(sweep.cells)}] {cell.folder.name}: {what}")

    if engine == "inline":
        return Swept(sweep.out, run_inline(sweep, tell, device))
    if engine == "ray":
        return Swept(sweep.out, run_on_ray(sweep, tell, device, address, workers, gpus_per_cell))
    raise SettingError(f"there is no engine '{engine}': choose inline or ray")


def run_cell(cell: Cell, device: str | None, threads: int, patience: float = 0.0) -> str:
    """Run, resume or skip one cell; returns its outcome. A cell that fails does not end the sweep.

    `patience` is how many seconds to wait for a process that still uses the cell's folder.
    """
    until = time.monotonic() + patience
    while not cell.done:
        try:
            running.run(cell.recipe, cell.folder, device=device, threads=threads, resume=True, reporter=write_report)
        except FolderInUse as error:
            if time.monotonic() >= until:
                return f"failed: {error}"
            time.sleep(0.2)
        except PinpromptError as error:
            return f"failed: {error}"
        else:
            return "finished"
    return "already finished"


def run_inline(sweep: Sweep, tell: Tell, device: str | None = None) -> dict[str, str]:
    """Run a sweep's cells in order; after Ctrl-C the sweep can be resumed."""
    outcomes = {}
    for cell in sweep.cells:
        tell(cell, "starts")
        outcomes[cell.folder.name] = run_cell(cell, device, sweep.threads)
        tell(cell, outcomes[cell.folder.name])
    return outcomes


RETRIES = 5
"""How often a cell is restarted after its worker or node died; it resumes from its folder."""

LAST_BREATH = 300.0
"""Seconds that a restarted cell waits for the process on its lost node, which may still be running."""


def run_on_ray(
    sweep: Sweep,
    tell: Tell,
    device: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    gpus_per_cell: float = 0.0,
) -> dict[str, str]:
    """Run a sweep's cells on Ray; each declares its threads as CPUs, so that cells do not compete for cores.

    The longest cells start first, so that no worker is left alone with a long one. On a cluster the sweep's folder must
    be visible to every node.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "--engine ray") from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not ray.is_initialized():
        own: dict[str, Any] = {"num_cpus": workers and workers * sweep.threads, "include_dashboard": False}
        try:
            start_ray(logging_level="warning", **({"address": address} if address else own))
        except ConnectionError as error:
            raise SettingError(
                f"no Ray cluster answers at '{address}': {error}; omit --address to use this machine"
            ) from None
    remote = ray.remote(_run_cell).options(
        num_cpus=sweep.threads, num_gpus=gpus_per_cell, max_retries=RETRIES, retry_exceptions=False
    )
    outcomes: dict[str, str] = {}
    waiting: dict[Any, Cell] = {}
    for cell in longest_first(sweep.cells):
        if cell.done:
            outcomes[cell.folder.name] = "already finished"
            tell(cell, "already finished")
        else:
            recipe = cell.recipe.model_dump(mode="json")
            waiting[remote.remote(recipe, str(cell.folder.resolve()), device, sweep.threads, os.getcwd())] = cell
    try:
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            cell = waiting.pop(ready[0])
            try:
                outcomes[cell.folder.name] = str(ray.get(ready[0]))
            except ray.exceptions.RayError as error:
                outcomes[cell.folder.name] = f"failed: {str(error).splitlines()[0]}"
            tell(cell, outcomes[cell.folder.name])
    except KeyboardInterrupt:
        for reference in waiting:
            ray.cancel(reference, force=True)
        raise
    return outcomes


def _run_cell(recipe: dict[str, Any], folder: str, device: str | None, threads: int, working: str) -> str:
    """Runs on a worker: the same as inline, in its own process."""
    work_in(working)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    from pinprompt.recipe import recipe as recipes

    outcome = run_cell(Cell(recipes.validate(recipe), Path(folder), {}), device, threads, LAST_BREATH)
    # Only unfinished cells are sent: an earlier attempt finished this one, but its node was lost before it could
    # report.
    return "finished" if outcome == "already finished" else outcome
