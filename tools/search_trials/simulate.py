"""Simulate whole searches on the tables of tables.py: no model is called, so thousands of splits and draws are cheap.

Run it from the project's root: .venv/bin/python tools/search_trials/simulate.py TABLE.npz... [--calls N] [--splits N]
A split draws 16 rows per class for train and as many for dev. The rest are test rows, which are used only to measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHOTS = 16
BATCH = 8  # prompts that the Gaussian process proposes at a time
SHARES = (0.2, 0.5, 0.8, 0.95)  # share of the prompts' variance that is explained by their states


@dataclass(frozen=True)
class Rule:
    """A variant of the search; the defaults are those of `race`."""

    sources: tuple[str, ...] = ()
    """Sources of the candidates; if empty, all that the LM wrote and the stock phrases, without hand-written ones."""
    cap: float = 400.0
    """The largest perplexity."""
    calibrate: bool = True
    reward: str = "gap"
    final: str = ""
    """The criterion of the final choice; if empty, the reward."""
    by_mass: bool = True
    """Order candidates by their label mass; otherwise, in the order in which they were drawn."""
    screen: bool = True
    """Let a Gaussian process on the writer's states propose later candidates."""
    first: float = 0.5
    """Share of the first block that the Gaussian process does not propose."""
    kappa: float = 1.0
    blocks: tuple[int, ...] = (8, 16, 32, 64)
    keep: float = 1 / 3
    floor: int = 4
    manual: bool = True
    fixed: str = ""
    """A prompt to use without a search."""


@dataclass
class Trial:
    """A table, and values that depend only on the table."""

    name: str
    data: dict[str, Any]
    kernel: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.kernel = (kernel(self.data["mean_state"]) + kernel(self.data["last_state"])) / 2


def kernel(states: Floats) -> Floats:
    """exp(-d^2 / median d^2) between states that are standardised over the pool and scaled to length 1."""
    z = (states - states.mean(0)) / (states.std(0) + 1e-6)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    distances = np.maximum(0, 2 - 2 * z @ z.T)
    return np.asarray(np.exp(-distances / np.median(distances[np.triu_indices(len(z), 1)])))


def calibrated(log_probs: Floats, rows: Sequence[int] | Ints) -> Floats:
    """Label log-probabilities [P, N, C] minus their mean over the given rows, normalised again."""
    shifted = log_probs - log_probs[:, rows].mean(1, keepdims=True)
    return np.asarray(shifted - np.logaddexp.reduce(shifted, axis=-1, keepdims=True))


def rewards(log_probs: Floats, targets: Ints, kind: str) -> Floats:
    """Rewards [P, N]: the paper's gap, the log-likelihood of the true class, or whether it is the most likely one."""
    rows = np.arange(len(targets))
    if kind == "log-likelihood":
        return np.asarray(log_probs[:, rows, targets])
    probabilities = np.exp(log_probs)
    others = probabilities.copy()
    others[:, rows, targets] = -np.inf
    gaps = probabilities[:, rows, targets] - others.max(-1)
    return (gaps > 0).astype(np.float64) if kind == "accuracy" else np.where(gaps > 0, 200 * gaps, 180 * gaps)


def split(targets: Ints, chance: np.random.Generator) -> tuple[Ints, Ints]:
    """Rows of train and dev, classes in turn, train first; and rows of test."""
    classes = [chance.permutation(np.flatnonzero(targets == label)) for label in range(targets.max() + 1)]
    parts = [np.stack([rows[a : a + SHOTS] for rows in classes], 1).ravel() for a in (0, SHOTS)]
    return np.concatenate(parts), np.concatenate([rows[2 * SHOTS :] for rows in classes])


def plan(prompts: int, rule: Rule) -> tuple[list[int], int]:
    """The number of prompts in each block, and the cost of all blocks."""
    counts = [prompts]
    for _ in rule.blocks[1:]:
        counts.append(min(counts[-1], max(rule.floor, int(np.ceil(counts[-1] * rule.keep)))))
    steps = np.diff((0, *rule.blocks))
    return counts, int(np.dot(counts, steps))


def proposed(gram: Floats, known: Ints, means: Floats, noise: float, kappa: float) -> Floats:
    """mu + kappa sd of every prompt, from the mean rewards of the known ones."""
    centred = means - means.mean()
    total = max(centred.var() - noise, 0.1 * centred.var(), 1e-9)
    best: tuple[float, float, Floats, Floats] | None = None
    for share in SHARES:
        covariance = share * total * gram[np.ix_(known, known)] + ((1 - share) * total + noise) * np.eye(len(known))
        root = np.linalg.cholesky(covariance)
        white = np.linalg.solve(root, centred)
        evidence = float(-0.5 * white @ white - np.log(np.diag(root)).sum())
        if best is None or evidence > best[0]:
            best = evidence, share, root, white
    assert best is not None
    _, share, root, white = best
    across = np.linalg.solve(root, share * total * gram[known])
    spread = np.sqrt(np.maximum(total - (across**2).sum(0), 0))
    return np.asarray(means.mean() + across.T @ white + kappa * spread)


def search(trial: Trial, rule: Rule, rows: Ints, calls: int, order: Ints) -> int:
    """The prompt that a search with this budget finds."""
    data = trial.data
    texts, logs, targets = data["texts"], data["log_probs"], data["targets"]
    manual = int(np.flatnonzero(np.isin(texts, ("It was", "Topic:")))[0])
    if rule.fixed:
        return manual if rule.fixed == "manual" else int(np.flatnonzero(texts == rule.fixed)[0])
    allowed = (data["perplexity"] <= rule.cap) & (data["dictionary"] == 1) & (data["source"] != "hand")
    if rule.sources:
        allowed = np.isin(data["source"], rule.sources) & (data["perplexity"] <= rule.cap)
    pool = [int(one) for one in order if allowed[one] and one != manual]
    if rule.by_mass:
        pool.sort(key=lambda one: -data["label_mass"][one])
    taken = [manual] if rule.manual else []
    count = 1
    while count < len(pool) + len(taken) and plan(count + 1, rule)[1] <= calls:
        count += 1
    counts, _ = plan(count, rule)

    def scored(prompts: Ints, size: int, kind: str) -> Floats:
        chosen = logs[prompts][:, rows[:size]]
        return rewards(calibrated(chosen, np.arange(size)) if rule.calibrate else chosen, targets[rows[:size]], kind)

    taken += pool[: max(BATCH, int(rule.first * count)) if rule.screen else count]
    taken = taken[:count]
    while len(taken) < count:
        known = np.array(taken)
        first = scored(known, rule.blocks[0], rule.reward)
        noise = float((first - first.mean(0)).var(1, ddof=1).mean() / rule.blocks[0])
        worth = proposed(trial.kernel, known, first.mean(1), noise, rule.kappa)
        left = sorted(set(pool) - set(taken), key=lambda one: -worth[one])
        taken += left[: min(BATCH, count - len(taken))]
    alive = np.array(taken)
    for block, size in enumerate(rule.blocks):
        last = block + 1 == len(rule.blocks)
        means = scored(alive, size, (rule.final or rule.reward) if last else rule.reward).mean(1)
        alive = alive[np.argsort(-means, kind="stable")[: 1 if last else counts[block + 1]]]
    return int(alive[0])


Found = list[tuple[float, float]]


def run(trial: Trial, rules: dict[str, Rule], calls: int, splits: int, seed: int = 0) -> dict[str, Found]:
    """Test accuracy and log-perplexity of the prompt that each rule finds, on the same splits and draws."""
    chance, data = np.random.default_rng(seed), trial.data
    logs, targets = data["log_probs"], data["targets"]
    found: dict[str, Found] = {name: [] for name in rules}
    for _ in range(splits):
        rows, test = split(targets, chance)
        order = chance.permutation(len(logs))
        accurate = {
            on: rewards(calibrated(logs, rows) if on else logs, targets, "accuracy")[:, test].mean(1)
            for on in (True, False)
        }
        for name, rule in rules.items():
            one = search(trial, rule, rows, calls, order)
            found[name].append((float(accurate[rule.calibrate][one]), float(np.log(data["perplexity"][one]))))
    return found


LM = ("plain", "head", "opener", "plain-top", "head-top", "opener-top")
RANDOM = Rule(
    sources=("lm5", "plain"),
    cap=np.inf,
    calibrate=False,
    by_mass=False,
    screen=False,
    blocks=(32, 64),
    keep=0.15,
    floor=8,
    manual=False,
)
RULES = {
    "race": Rule(),
    "manual, raw": Rule(fixed="manual", calibrate=False),
    "manual": Rule(fixed="manual"),
    "random, raw": RANDOM,
    "random, raw, all 6,400 calls": RANDOM,
    "LM only": Rule(sources=LM),
    "stock only": Rule(sources=("stock",)),
    "hand-written only": Rule(sources=("hand",), cap=np.inf),
    "without calibration": Rule(calibrate=False),
    "without racing (64 rows each)": Rule(blocks=(64,)),
    "without label mass": Rule(by_mass=False),
    "without screening": Rule(screen=False),
    "without both": Rule(by_mass=False, screen=False),
    "without the cap on perplexity": Rule(cap=np.inf),
    "log-likelihood": Rule(reward="log-likelihood"),
    "accuracy": Rule(reward="accuracy"),
    "chosen by log-likelihood": Rule(final="log-likelihood"),
    "first block of 4": Rule(blocks=(4, 8, 16, 32, 64)),
    "first block of 16": Rule(blocks=(16, 32, 64)),
    "keep a half": Rule(keep=1 / 2),
    "keep a quarter": Rule(keep=1 / 4),
    "at least 8 finalists": Rule(floor=8),
    "a third not proposed": Rule(first=1 / 3),
    "kappa 0": Rule(kappa=0.0),
    "kappa 2": Rule(kappa=2.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--splits", type=int, default=25)
    given = parser.parse_args()
    for path in given.tables:
        trial = Trial(path, dict(np.load(path)))
        show_sources(trial)
        found = run(trial, {k: r for k, r in RULES.items() if "6,400" not in k}, given.calls, given.splits)
        found |= run(trial, {k: r for k, r in RULES.items() if "6,400" in k}, 6400, given.splits)
        base = np.array(found["race"])[:, 0]
        print(f"{path}, {given.calls} calls, {given.splits} splits: test accuracy, perplexity, difference to race")
        for name, values in found.items():
            accuracy, surprise = np.array(values).T
            gap = 100 * (accuracy - base)
            error = gap.std(ddof=1) / np.sqrt(len(gap))
            print(
                f"  {name:32} {accuracy.mean():.3f} {np.exp(surprise.mean()):7.0f}  {gap.mean():+6.2f} +- {error:.2f}"
            )


def show_sources(trial: Trial) -> None:
    """Print the quality of the prompts of each source, raw and calibrated over all rows."""
    data = trial.data
    logs, targets = data["log_probs"], data["targets"]
    free = logs - data["content_free"].mean(1, keepdims=True)
    how: dict[str, Callable[[], Floats]] = {
        "raw": lambda: logs,
        "content-free": lambda: np.asarray(free - np.logaddexp.reduce(free, axis=-1, keepdims=True)),
        "batch": lambda: calibrated(logs, np.arange(len(targets))),
    }
    accuracy = {name: rewards(make(), targets, "accuracy").mean(1) for name, make in how.items()}
    print(f"{trial.name}: mean accuracy of prompts by source; perplexity; share below 400")
    for source in dict.fromkeys(data["source"].tolist()):
        its = data["source"] == source
        means = "  ".join(f"{name} {values[its].mean():.3f}" for name, values in accuracy.items())
        surprise = data["perplexity"][its]
        middle = np.exp(np.log(surprise).mean())
        best = accuracy["batch"][its].max()
        print(f"  {source:12} {its.sum():3}  {means}  best {best:.3f}  {middle:6.0f}  {(surprise < 400).mean():.2f}")
    for key in ("label_mass", "likelihood"):
        print(f"  correlation of {key} with calibrated accuracy {np.corrcoef(data[key], accuracy['batch'])[0, 1]:.2f}")


if __name__ == "__main__":
    main()
