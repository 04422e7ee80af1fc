"""The model that labels texts, local or remote, and what reports and other tools show of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pinprompt.errors import ModelError
from pinprompt.models.wheels import ALIASES
from pinprompt.recipe.task_sections import ClassificationSettings, ModelSettings, RemoteSettings
from pinprompt.remote.client import is_remote
from pinprompt.remote.labels import open_classifier
from pinprompt.tasks import labelled_data, prompts
from pinprompt.tasks.labelled_data import LabelledData
from pinprompt.tasks.prompts import Template, parse
from pinprompt.values import Prompt

if TYPE_CHECKING:  # the models import torch and transformers, which are only needed when a task is built
    from pinprompt.models.labels import CausalLabels, MaskedLabels
    from pinprompt.tasks.classification import ClassificationTask
    from pinprompt.tasks.label_scores import Floats, Ints

    LabelModel = CausalLabels | MaskedLabels


def open_label_model(
    settings: ClassificationSettings,
    data: LabelledData,
    device: str,
    remote: RemoteSettings,
    contact: bool,
    models: ModelSettings,
) -> tuple[LabelledData, Any, Template, str]:
    """The data with their label words, the model, its template, and its revision, on which its answers depend.

    Without `contact` nothing is sent to a remote model.
    """
    if is_remote(settings.model):
        model, template, revision = _open_server(settings, data, remote, contact)
    else:
        model, template, revision = _open_model(settings, data, device, models)
    if data.proposed:
        data = _with_words(settings, data, model, template)
    return data, model, template, revision


def manual_of(
    settings: ClassificationSettings, data: LabelledData, template: Template, kind: str
) -> tuple[str, Template]:
    """The hand-written prompt of a task, with its template."""
    own = settings.manual
    if own is None and data.card is None:
        own = labelled_data.fitting_prompt(list(data.words.values()), settings.label_column, data.language)
    return prompts.manual_prompt(data.card, template, kind, own)


def _with_words(settings: ClassificationSettings, data: LabelledData, model: Any, template: Template) -> LabelledData:
    """The data with the best of the proposed label words, chosen with the hand-written prompt on the training rows.

    A remote model is not called for this: the first proposal is used.
    """
    words, tried = dict(data.words), ""
    if model.billed is None:
        rows = data.splits["train"]
        candidates = list(dict.fromkeys(word for own in data.proposed.values() for word in own))
        frame = manual_of(settings, data, template, model.kind)[0]
        ids = model.words_for(template.frame("it"), {word: word for word in candidates})
        inputs = model.prepare([row.text for row in rows])
        logs = model.log_probs([template.frame(frame)], inputs, ids)[0].double().numpy()
        targets = np.array([list(words).index(row.label) for row in rows], dtype=np.int64)
        words = labelled_data.chosen(data.proposed, candidates, logs, targets)
        model.words = model.words_for(template.frame("it"), words)
        tried = f", the best of {len(candidates)} words on {len(rows)} training rows"
    pairs = ", ".join(f"{label}={word}" for label, word in words.items())
    note = f"label words from the labels' names: {pairs}{tried}; set your own with --word label=word"
    return replace(data, words=words, notes=(*data.notes, note), proposed={})


def _open_server(
    settings: ClassificationSettings, data: LabelledData, remote: RemoteSettings, contact: bool
) -> tuple[Any, Template, str]:
    """A remote task model, with its template and revision."""
    template = parse(settings.template or prompts.default_template(data.card, "causal"), "causal", settings.spacing)
    server = open_classifier(settings.model, remote, data.words, contact)
    return server, template, server.revision


def _open_model(
    settings: ClassificationSettings, data: LabelledData, device: str, models: ModelSettings
) -> tuple[Any, Template, str]:
    """A local task model, with its template and revision."""
    from pinprompt.models import loading, sources

    kind = settings.model_kind if settings.model_kind != "auto" else sources.kind_of(settings.model)
    if kind not in ("masked", "causal"):
        raise ModelError(
            f"the task model '{settings.model}' is of the kind '{kind}': classification needs a masked or a causal "
            "language model (with its head). If you know better, set model_kind."
        )
    source = settings.template or prompts.default_template(data.card, kind)
    template = parse(source, kind, settings.spacing)
    probe = template.frame("it")
    model: LabelModel
    if kind == "masked":
        from pinprompt.models.labels import MaskedLabels

        # A dataset's published word format only applies with its published template.
        published = data.card is not None and not settings.words and source == data.card.template(kind)
        spaced = data.card.spaced if published and data.card is not None else None
        lm, tokenizer = loading.load_masked_lm(settings.model, device, precision=models.precision)
        model = MaskedLabels(lm, tokenizer, data.words, probe, strict=settings.strict_words, spaced=spaced)
    else:
        from pinprompt.models.labels import CausalLabels

        lm, tokenizer = loading.load_causal_lm(settings.model, device, precision=models.precision)
        names = [name for name, _ in template.parts]
        ahead = names.index("text") < names.index("prompt")
        model = CausalLabels(
            lm, tokenizer, data.words, probe, strict=settings.strict_words, share=ahead, read=models.read,
            tokens=models.tokens,
        )  # fmt: skip
    return model, template, sources.resolve(settings.model).revision


_SHOWN = 5  # number of correct, and of wrong, examples in a report


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
    """The examples and the rows of each block, for the studio's matrix."""
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
    """A few rows of a split with correct labels, then a few with wrong ones."""
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
    """The labels for display."""
    return [_display(task, label) for label in task.labels]


def _display(task: ClassificationTask, label: str) -> str:
    """A label for display: its word if the label itself is only a number."""
    return task.data.words[label] if label.lstrip("-").isdigit() else label
