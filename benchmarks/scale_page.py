"""Write the cost of a paper-size sweep into docs/benchmarks.md, with a simulation of it on many GPUs.

`python -m benchmarks.scale_page` takes a minute. Nothing is measured: speeds and prices are inputs, given below with
their sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import scale
from benchmarks.rough import elapsed, rough
from pinprompt.recipe import recipe as recipes
from pinprompt.sweeps import Cell, read_sweep

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RECIPES = [ROOT / "recipes" / "paper" / f"table1-{part}.toml" for part in ("classification", "bootstrap", "calibrated")]

GPU, GPU_TFLOPS, GPU_HOUR = "A100", 60.0, 2.0
"""Useful TFLOP/s in half precision with full batches, and the price per hour in dollars: assumptions as of 2026-11."""
CPU_TFLOPS = 0.056
"""One core of an AMD EPYC with AVX-512 in float32, 32 rows at a time, by CPU time (2026-11-16)."""
SERVER, PRICE = "gpt-4o-mini", {"input": 0.15, "output": 0.60}
"""List price in dollars per million tokens, as of 2026-06."""
PER_MINUTE = 10_000
"""Requests per minute that the server allows: an assumption, a common limit for paid accounts."""


def cells(**settings: Any) -> list[Cell]:
    """The paper-size sweep: 13 methods x 7 sets x 5 splits x 3 seeds."""
    return [cell for path in RECIPES for cell in read_sweep(path, settings=settings).cells]


def hours(found: list[Cell], tflops: float) -> dict[str, float]:
    """Hours of each cell on a worker of that speed, by folder name."""
    return {cell.folder.name: rough(cell.recipe, tflops * 1e12 / 2)["minutes"] / 60 for cell in found}


def costs() -> Iterator[str]:
    """The cost of the sweep."""
    found = cells()
    calls = sum(rough(cell.recipe)["calls"] for cell in found)
    on_gpu, on_cpu = hours(found, GPU_TFLOPS), hours(found, CPU_TFLOPS)
    work, most = sum(on_gpu.values()), max(on_gpu.values())
    yield f"{len(found):,} cells, at most {calls:,} calls; the longest cell takes {most:.1f} {GPU} hours."
    yield ""
    yield "| where | work | elapsed | cost |"
    yield "|---|---:|---:|---:|"
    for count in (1, 8):
        after = elapsed(list(on_gpu.values()), count)
        yield f"| {count} x {GPU} | {work:,.0f} GPU hours | {after:,.0f} hours | ${work * GPU_HOUR:,.0f} |"
    slow = sum(on_cpu.values())
    yield f"| one core of a CPU | {slow:,.0f} core hours | {slow / 24 / 365:,.0f} years | - |"
    asked = cells(task={"model": f"remote:{SERVER}"}, budget={"prices": {SERVER: PRICE}})
    able = [cell for cell in asked if not _gradients(cell)]
    facts = [rough(cell.recipe) for cell in able]
    requests, money = sum(one["calls"] for one in facts), sum(one["money"] for one in facts)
    tokens = sum(one["tokens"] for one in facts)
    days = requests / PER_MINUTE / 60 / 24
    yield (
        f"| `{SERVER}` ({len(able):,} cells; the others need gradients) | {requests:,} requests, {tokens / 1e9:,.0f} "
        f"billion tokens | {days:,.0f} days at {PER_MINUTE:,} requests/min | ${money:,.0f} |"
    )


def _gradients(cell: Cell) -> bool:
    from pinprompt.methods.table import METHODS

    return METHODS[cell.recipe.method].gradients


def small() -> Iterator[str]:
    """The cost of the default search with the API, for comparison."""
    task = {"kind": "classification", "dataset": "sst-2", "model": f"remote:{SERVER}"}
    recipe = recipes.resolve({"profile": "quick", "task": task, "budget": {"prices": {SERVER: PRICE}}})
    facts = rough(recipe)
    yield (
        f"A default search (`{recipe.method}`, {facts['calls']:,} calls) costs {facts['tokens']:,} tokens, "
        f"${facts['money']:.3f}, at the same prices."
    )


def swept() -> Iterator[str]:
    """A simulation of the sweep on many workers."""
    found = cells()
    known = hours(found, GPU_TFLOPS)
    yield "| GPUs | lost nodes | cells finished | hours | ideal hours | ideal / actual |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for count in (8, 100, scale.WORKERS):
        one = scale.sweep(found, known, count)
        yield (
            f"| {count:,} | {one['lost_nodes']} | {one['finished']:,} of {one['cells']:,} | {one['hours']:.1f} | "
            f"{one['ideal_hours']:.1f} | {one['share_of_ideal']:.0%} |"
        )


def breaking() -> Iterator[str]:
    """The number of workers at which the driver is busy all the time."""
    driver = scale.MEASURED
    yield "| seconds per chunk | workers that one driver can keep busy |"
    yield "|---:|---:|"
    for seconds in (0.05, 0.5, 2.0, 20.0):
        # Each additional worker needs one more chunk in the same time, and makes every wait a little longer.
        fixed = driver.send + driver.wait + driver.get
        workers = 1
        while workers * (fixed + workers * driver.wait_each) < seconds:
            workers += 1
        yield f"| {seconds:g} | {workers:,} |"


def blocks() -> dict[str, str]:
    """Every table by its name on the page."""
    made = {"costs": costs(), "small": small(), "sweep": swept(), "breaking": breaking()}
    return {name: "\n".join(lines) for name, lines in made.items()}


def written(page: str, found: dict[str, str]) -> str:
    """The page with these tables inserted."""
    for name, text in found.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        head, rest = page.split(begin)
        page = f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    return page


def main() -> None:
    """Run the simulations and write the page."""
    PAGE.write_text(written(PAGE.read_text("utf-8"), blocks()), "utf-8")


if __name__ == "__main__":
    main()
