"""pinprompt's own contestants, in the host's process and on the same meter; and what needs no prompt at all."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena.meter import Meter
from benchmarks.arena.tasks import Task
from pinprompt.maths import readout
from pinprompt.recipe import recipe as recipes
from pinprompt.run import build, running
from pinprompt.values import Prompt


class _MeteredModel:
    """A chat model whose calls are counted."""

    def __init__(self, model: Any, meter: Meter) -> None:
        self._model, self._meter = model, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def drawn(self, chats: Sequence[Any], seeds: Sequence[int]) -> Any:
        self._meter.take(len(chats))
        return self._model.drawn(chats, seeds)


def search(task: Task, method: str, model: str, meter: Meter, seed: int, folder: Path) -> tuple[str, list[str], str]:
    """Run a method of pinprompt; returns its prompt, an answer for each test row, and a note."""
    files = {part: _written(folder / f"{part}.csv", rows) for part, rows in task.rows.items()}
    kind = {"kind": "classification", "text_column": "input", "label_column": "target", "embeddings": "none"}
    if not task.labels:
        kind = {"kind": "answers", "input_column": "input", "target_column": "target", "metric": "exact",
                "max_new_tokens": 32, "prompts": [task.instruction]}  # fmt: skip
    recipe = recipes.resolve(
        {
            "profile": "quick",
            "method": method,
            "seed": seed,
            "task": {**kind, **task.settings, **files, "model": model},
            "budget": {"calls": meter.limit},
            "models": {"precision": "bf16"},
            "scoring": {"memo": False},
        }
    )
    opened: Any = build.build_task(recipe, "cpu")
    meter.take(opened.info.opening_calls)  # spent on finding the words that a readout may use
    asked = opened.ask

    def ask(prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Any] = ()) -> Any:
        meter.take(len(prompts) * len(rows))
        return asked(prompts, rows, draws)

    opened.ask = ask
    if not task.labels:
        opened._proposer = _MeteredModel(opened._proposer, meter)
    result = running.run(recipe, folder / "run", task=opened, device="cpu", report=False, resume=True)
    found = Prompt(result.prompt)
    test = [number for number, row in enumerate(opened.rows) if row.split == "test"]
    learning = f"; {result.data['updates']} updates" if "updates" in result.data else ""
    note = f"writer {recipe.policy.model}" + learning
    if not task.labels:
        [answers] = asked([found], test)
        return result.prompt, [str(one["text"]) for one in answers.contents], note
    fit = list(opened.fit_rows)
    [answers] = asked([found], [*fit, *test])
    chances = opened.probabilities(answers, test, fit)
    return result.prompt, [opened.labels[place] for place in chances.argmax(1)], f"{note}; {recipe.task.labels} labels"


def _written(path: Path, rows: Sequence[dict[str, str]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("input", "target"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def embeddings(task: Task) -> list[str]:
    """Labels of the test rows by a regression on sentence embeddings, learnt from the same labelled rows."""
    from pinprompt.judges.frozen import embed

    labelled, test = task.labelled(), task.rows["test"]
    vectors = embed("minilm", [row["input"] for row in labelled + test])
    targets = np.array([task.labels.index(row["target"]) for row in labelled])
    prior = np.full(len(task.labels), 1 / len(task.labels))
    learnt = readout.regression(vectors[: len(labelled)], targets, prior).readout
    return [task.labels[place] for place in learnt.probabilities(readout.Said(vectors[len(labelled) :])).argmax(1)]


def learnt_labels(logs: np.ndarray, labelled: int, targets: Sequence[int], own: Sequence[int]) -> list[int]:
    """Labels of the rows after the first `labelled`, by a readout that these teach.

    `logs` [N, V] are log-probabilities of the next token, `own` the tokens of the label words, `targets` the labels of
    the labelled rows. The readout is pinprompt's own: label words and the 500 words that the model says most.
    """
    mean = np.exp(logs[:labelled]).mean(0)
    others = [token for token in np.argsort(-mean)[:500].tolist() if token not in own]
    prior = np.full(len(own), 1 / len(own))
    words = tuple(str(token) for token in others)
    taught, read = (readout.Said(part[:, own], words, part[:, others]) for part in (logs[:labelled], logs[labelled:]))
    learnt = readout.fit(taught, np.array(targets), prior).readout
    return learnt.probabilities(read).argmax(1).tolist()
