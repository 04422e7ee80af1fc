"""Bootstrapped against Monte-Carlo targets on a task with a known answer (tests/house/tiny.py).

docs/deviations.md has the results.

Run it from the project's root: .venv/bin/python tools/toy_targets.py
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.house.tiny import TARGET, FindTheWords, recipe

from pinprompt.run import running

SEEDS = (0, 1, 2)


def solved(folder: Path, **learning: object) -> tuple[int, float]:
    """The number of seeds that found every word, and the mean number of prompts tried."""
    found, prompts = 0, 0
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as out:
            made = recipe(folder, seed=seed, q_learning=learning)
            result = running.run(made, Path(out) / "run", task=FindTheWords(), device="cpu", threads=1)
        found += result.score == len(TARGET)
        prompts += result.data["prompts"]
    return found, prompts / len(SEEDS)


def main() -> None:
    torch.set_num_threads(1)
    grids = {
        "monte-carlo": list(itertools.product((0.3, 0.6, 1.0), (3e-4,), (0.9,), (4,))),
        "bootstrap": list(itertools.product((0.1, 0.3), (3e-4, 1e-3), (0.5, 0.9), (4, 8))),
    }
    with tempfile.TemporaryDirectory() as folder:
        for target, grid in grids.items():
            total = 0
            for alpha, rate, rho, updates in grid:
                settings = {"alpha": alpha, "learning_rate": rate, "rho": rho, "updates": updates}
                found, prompts = solved(Path(folder), target=target, **settings)
                total += found
                sys.stdout.write(f"{target} {settings}: {found} of {len(SEEDS)} solved, {prompts:.0f} prompts\n")
                sys.stdout.flush()
            sys.stdout.write(f"{target}: {total} of {len(grid) * len(SEEDS)} runs solved\n")


if __name__ == "__main__":
    main()
