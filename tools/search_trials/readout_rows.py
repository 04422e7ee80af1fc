"""Further rows for the table of learnt labels: what one pass over the texts gives without a search.

Run it from the project's root after readout_table.py, whose found prompts it takes from the CSV file:
    .venv/bin/python tools/search_trials/readout_rows.py docs/results/readout.csv docs/results/readout-rows.csv
For every cell (dataset and split), with the task model in bfloat16, the same labelled rows and the same test rows:
- hidden state + regression: on the last hidden state after the hand-written prompt, which no server gives;
- manual, 20 words and race, 20 words: the prompts of these rows, read as from a server that gives its 20 most likely
  words with log-probabilities.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pinprompt.maths import readout
from pinprompt.recipe.task_sections import ClassificationSettings, ModelSettings
from pinprompt.tasks.classification import ClassificationTask

FIELDS = ("row", "dataset", "split", "accuracy", "prompt")
TOP = 20


def main() -> None:
    """Measure the cells that are missing in the second file; each is written at once."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("found", type=Path)
    options.add_argument("csv", type=Path)
    options.add_argument("--test-rows", type=int, default=200)
    given = options.parse_args()
    torch.set_num_threads(1)
    with given.found.open(encoding="utf-8", newline="") as file:
        found = {
            (row["dataset"], int(row["split"])): row["prompt"] for row in csv.DictReader(file) if row["row"] == "race"
        }
    known = set()
    if given.csv.exists():
        with given.csv.open(encoding="utf-8", newline="") as file:
            known = {(row["dataset"], int(row["split"])) for row in csv.DictReader(file)}
    else:
        given.csv.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    for (dataset, split), prompt in sorted(found.items()):
        if (dataset, split) in known:
            continue
        settings = ClassificationSettings(dataset=dataset, split=split, model="smollm2", test_rows=given.test_rows)
        task = ClassificationTask.build(settings, models=ModelSettings(precision="bf16"))
        manual = next(draft.text for draft in task.drafts() if draft.name == "manual")
        with given.csv.open("a", encoding="utf-8", newline="") as file:
            for row, text, accuracy in rows_of(task, manual, prompt):
                csv.DictWriter(file, FIELDS).writerow(
                    {"row": row, "dataset": dataset, "split": split, "accuracy": round(accuracy, 4), "prompt": text}
                )
                print(row, dataset, split, f"{100 * accuracy:.1f}", flush=True)


def rows_of(task: ClassificationTask, manual: str, found: str) -> list[tuple[str, str, float]]:
    """The rows of a cell: name, prompt, accuracy on test."""
    hidden, said = passes(task, manual)
    rows = [("hidden state + regression", manual, accuracy(task, readout.Said(hidden), readout.regression))]
    rows.append(("manual, 20 words", manual, accuracy(task, said, readout.fit)))
    rows.append(("race, 20 words", found, accuracy(task, passes(task, found)[1], readout.fit)))
    return rows


@torch.no_grad()
def passes(task: ClassificationTask, prompt: str) -> tuple[np.ndarray, readout.Said]:
    """The last hidden state [N, d] of every row of the task, and what the model says there in 20 words."""
    model: Any = task.model
    frame, template = task.framed(prompt)
    own = [ids[0] for ids in model.words_for(template.frame("it")).ids]
    states, contents = [], []
    for row in task.rows:
        ids, _ = model.encoder.fit(frame, [row.input])
        out = model.model(torch.tensor(ids), output_hidden_states=True)
        states.append(out.hidden_states[-1][0, -1].double().numpy())
        logs = torch.log_softmax(out.logits[0, -1].double(), -1)
        best = logs.topk(TOP)
        words = {str(token): float(log) for token, log in zip(best.indices.tolist(), best.values, strict=True)}
        least = float(best.values[-1])
        labels = np.array([max(float(logs[token]), least) if str(token) in words else least for token in own])
        labels -= np.logaddexp.reduce(labels)
        contents.append(readout.as_content(labels.tolist(), words))
    return np.stack(states), readout.said(contents, len(own))


def accuracy(task: ClassificationTask, said: readout.Said, fit: Any) -> float:
    """The accuracy on test of what train and dev teach."""
    places = {split: [at for at, row in enumerate(task.rows) if (row.split == "test") == (split == "test")]
              for split in ("fit", "test")}  # fmt: skip
    taught, read = (_part(said, own) for own in places.values())
    given = taught if fit is readout.fit else taught.own
    learnt = fit(given, task.targets(places["fit"]), task.prior).readout
    return float((learnt.probabilities(read).argmax(1) == task.targets(places["test"])).mean())


def _part(said: readout.Said, rows: list[int]) -> readout.Said:
    if not said.likeliest:
        return readout.Said(said.own[rows])
    return readout.said(
        [readout.as_content(said.own[at].tolist(), said.likeliest[at]) for at in rows], said.own.shape[1]
    )


if __name__ == "__main__":
    main()
