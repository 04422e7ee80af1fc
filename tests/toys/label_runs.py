"""A finished classification run of a tiny model, for tests of what can be done with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.house.tiny import make_lm
from tests.toys import label_toys

from pinprompt.recipe import recipe as recipes
from pinprompt.reports.report import write_report
from pinprompt.run import running

ROWS = [
    ("a truly wonderful drama", "pos"),
    ("the story felt good", "pos"),
    ("this film was great", "pos"),
    ("a big heart", "pos"),
    ("dull , slow and awful", "neg"),
    ("the plot felt bad", "neg"),
    ("this film was terrible", "neg"),
    ("slow from the start to the end", "neg"),
]


def write_rows(path: Path, delimiter: str = ",") -> Path:
    """The rows as a table with the columns review and stars."""
    lines = [f"review{delimiter}stars", *(f'"{text}"{delimiter}{label}' for text, label in ROWS)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def settings_of(folder: Path, **over: Any) -> dict[str, Any]:
    """Recipe settings for a run of the manual prompt on the rows, with models that are made in the folder."""
    model = folder / "label-model"
    if not (model / "config.json").exists():
        label_toys.save("gpt2", model)
    raw: dict[str, Any] = {
        "method": "manual",
        "task": {
            "kind": "classification",
            "train": str(write_rows(folder / "reviews.csv")),
            "text_column": "review",
            "label_column": "stars",
            "words": label_toys.WORDS,
            "model": str(model),
            "shots": 2,
            "embeddings": None,
        },
        "policy": {"model": str(make_lm(folder)), "length": 3, "k": None, "context": "none"},
        "scoring": {"memo": False},
    }
    return recipes.merge(raw, over)


def make_run(folder: Path, **over: Any) -> Path:
    """The folder of such a run."""
    return running.run(recipes.resolve(settings_of(folder, **over)), folder / "run", reporter=write_report).folder
