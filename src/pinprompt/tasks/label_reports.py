"""What a report and other tools show of a classification task: the exact text sent, examples, rows, labels in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinprompt.models.wheels import ALIASES
from pinprompt.values import Prompt

if TYPE_CHECKING:
    from pinprompt.tasks.classification import ClassificationTask
    from pinprompt.tasks.metrics import Floats, Ints

_SHOWN = 5  # examples right, and as many wrong, that a report shows


def sent(task: ClassificationTask, prompt: Prompt) -> dict[str, Any]:
    """The exact text around an input, the label words with their tokens, the offsets, and the model."""
    frame, template = task.framed(prompt.text)
    sides, mask = {"before": frame.before, "after": frame.after}, task.model.mask_token
    if frame.mask is not None:
        side, place = frame.mask
        sides[side] = sides[side][:place] + mask + sides[side][place:]
    words = task.model.words if template == task.template else task.model.words_for(template.frame("it"))
    chat: dict[str, Any] = {}
    if task.billed is not None:
        server: Any = task.model
        chat = {"way": server.way, "messages": [], "word_ids": {}, "source": "remote"}
        if server.way != "completions":
            chat["messages"] = server.messages(f"{sides['before']}{{text}}{sides['after']}")
    name = task.settings.model
    source = "alias" if name in ALIASES else "gguf" if name.lower().endswith(".gguf") else "hub"
    return {
        **sides,
        "template": task.template.source,
        "mask": mask,
        "words": dict(task.data.words),
        "word_ids": {label: list(ids) for label, ids in zip(task.labels, words.ids, strict=True)},
        "offsets": dict(zip(task.labels, prompt.offsets, strict=True)) if prompt.offsets else {},
        "model": name,
        "revision": task.revision,
        "kind": task.model.kind,
        "source": "folder" if Path(name).is_dir() else source,
        **chat,
    }


def shown_rows(task: ClassificationTask) -> dict[str, Any]:
    """The examples as a page can show them beside what each prompt makes of them, and which rows a block has."""
    splits: list[str] = [split for split in ("train", "dev") if split in task.splits]
    places = [(split, row) for split in splits for row in range(len(task.targets(split)))]
    at = {place: number for number, place in enumerate(places)}
    rows = [(task.data.splits[split][row].text, int(task.targets(split)[row])) for split, row in places]
    return {
        "labels": displayed(task),
        "rows": [{"text": text, "label": label} for text, label in rows],
        "splits": {
            **{split: [number for (own, _), number in at.items() if own == split] for split in splits},
            **{name: [at[place] for place in block] for name, block in task.block_rows.items()},
        },
    }


def examples(task: ClassificationTask, probabilities: Floats, predicted: Ints, split: str) -> list[dict[str, Any]]:
    """A few rows of a split that were labelled right, then a few that were labelled wrong."""
    rows, targets = task.data.splits[split], task.targets(split)
    right = [row for row in range(len(rows)) if predicted[row] == targets[row]]
    wrong = [row for row in range(len(rows)) if predicted[row] != targets[row]]
    return [
        {
            "text": rows[row].text,
            "label": _display(task, rows[row].label),
            "predicted": _display(task, task.labels[int(predicted[row])]),
            "probability": float(probabilities[row][int(predicted[row])]),
        }
        for row in (*right[:_SHOWN], *wrong[:_SHOWN])
    ]


def displayed(task: ClassificationTask) -> list[str]:
    """The labels as people read them."""
    return [_display(task, label) for label in task.labels]


def _display(task: ClassificationTask, label: str) -> str:
    """A label as people read it: its word, where the label itself is only a number."""
    return task.data.words[label] if label.lstrip("-").isdigit() else label
