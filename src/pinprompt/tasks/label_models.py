"""The model that labels texts, local or remote, and what reports and other tools show of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pinprompt.data.examples import Example
from pinprompt.errors import ModelError
from pinprompt.models.wheels import ALIASES
from pinprompt.recipe.task_sections import ClassificationSettings, ModelSettings, RemoteSettings, is_remote
from pinprompt.remote.client import open_client
from pinprompt.remote.labels import RemoteClassifier
from pinprompt.tasks import labelled_data, prompts
from pinprompt.tasks.labelled_data import LabelledData
from pinprompt.tasks.prompts import Template, parse
from pinprompt.values import Evaluation, Prompt, derive

if TYPE_CHECKING:  # the models import torch and transformers, which are only needed when a task is built
    from pinprompt.maths.labels import Floats, Ints
    from pinprompt.models.labels import CausalLabels, MaskedLabels
    from pinprompt.tasks.classification import ClassificationTask

    LabelModel = CausalLabels | MaskedLabels


def open_label_model(
    settings: ClassificationSettings,
    data: LabelledData,
    device: str,
    remote: RemoteSettings,
    contact: bool,
    models: ModelSettings,
    function: Callable[..., Any] | None = None,
) -> tuple[LabelledData, Any, Template, str]:
    """The data with their label words, the model, its template, and its revision, on which its answers depend.

    Without `contact` nothing is sent to a remote model, and label words are not tried. `function` is the user's own
    model.
    """
    model: Any
    if function is None and not is_remote(settings.model):
        model, template, revision = _open_model(settings, data, device, models)
    else:
        source = prompts.default_template(data.card, "causal")
        if function is None:
            names = data.words if settings.words else data.names
            model = RemoteClassifier(open_client(settings.model, remote), data.words, contact, names)
            source = model.template or source
        else:
            from pinprompt.remote.callables import CallableLabels

            model = CallableLabels(function, data.words)
        template, revision = parse(settings.template or source, "causal"), model.revision
    if data.proposed:
        data = _with_words(settings, data, model, template, contact)
    return data, model, template, revision


def manual_of(
    settings: ClassificationSettings, data: LabelledData, template: Template, kind: str
) -> tuple[str, Template]:
    own = settings.manual
    if own is None and data.card is None:
        own = labelled_data.fitting_prompt(list(data.words.values()), settings.label_column, data.language)
    return prompts.manual_prompt(data.card, template, kind, own)


def _with_words(
    settings: ClassificationSettings, data: LabelledData, model: Any, template: Template, contact: bool
) -> LabelledData:
    """The data with the best of the proposed label words, chosen with the hand-written prompt on the training rows.

    A remote model or a callable is not called for this: the first proposal is used.
    """
    words, tried = dict(data.words), ""
    if contact and not hasattr(model, "answers"):
        rows = data.splits["train"]
        candidates = list(dict.fromkeys(word for own in data.proposed.values() for word in own))
        frame = manual_of(settings, data, template, model.kind)[0]
        ids = model.words_for(template.frame("it"), {word: word for word in candidates})
        inputs = _openings(model, rows)
        logs = model.log_probs([template.frame(frame)], inputs, ids)[0].double().numpy()
        targets = np.array([list(words).index(row.label) for row in rows], dtype=np.int64)
        words = labelled_data.chosen(data.proposed, candidates, logs, targets)
        model.words = model.words_for(template.frame("it"), words)
        tried = f", the best of {len(candidates)} words on {len(rows)} training rows"
    pairs = ", ".join(f"{label}={word}" for label, word in words.items())
    note = f"label words from the labels' names: {pairs}{tried}; set your own with --word label=word"
    return replace(data, words=words, notes=(*data.notes, note), proposed={})


WORDS = 500
"""How many words besides the label words are read from every answer, if labels are learnt."""
OPENING_ROWS = 32
"""Training rows that these words are chosen on: each costs a call."""
OPENING_TOKENS = 256
"""Tokens of a text that are read to choose words."""


def add_words(
    settings: ClassificationSettings, data: LabelledData, model: Any, template: Template, known: Iterable[str] | None,
    contact: bool = True,
) -> int:  # fmt: skip
    """Let a local model read other words than the label words; returns the number of calls that this took.

    These are the words of a known readout or, if one is to be learnt (`known` is None), the words that the model is
    most likely to say after some training texts and the hand-written prompt. For an estimate (without `contact`) one
    text is enough.
    """
    if hasattr(model, "answers") or settings.labels != "learnt":
        return 0
    if known is not None:
        model.words = replace(model.words, others=model.tokens_of(list(known)))
        return 0
    rows = sorted(data.splits.get("train", []), key=lambda row: derive(settings.split, "words", row.text))[
        :OPENING_ROWS
    ]
    if not rows:
        return 0
    prompt, own = manual_of(settings, data, template, model.kind)
    inputs = _openings(model, rows if contact else rows[:1])
    model.words = replace(model.words, others=model.likely_words(own.frame(prompt), inputs, WORDS))
    return len(rows)


def _openings(model: Any, rows: Sequence[Example]) -> Any:
    """The beginnings of texts: no time limit applies before the search begins."""
    return model.prepare([model.encoder.shorten(row.text, OPENING_TOKENS) for row in rows])


def _open_model(
    settings: ClassificationSettings, data: LabelledData, device: str, models: ModelSettings
) -> tuple[Any, Template, str]:
    from pinprompt.models import loading, sources

    kind = sources.kind_of(settings.model)
    if kind not in ("masked", "causal"):
        raise ModelError(
            f"the task model '{settings.model}' is of the kind '{kind}': classification needs a masked or a causal "
            "language model (with its head)"
        )
    source = settings.template or prompts.default_template(data.card, kind)
    template = parse(source, kind)
    probe = template.frame("it")
    model: LabelModel
    if kind == "masked":
        from pinprompt.models.labels import MaskedLabels

        # A dataset's published word format only applies with its published template.
        published = data.card is not None and not settings.words and source == data.card.template(kind)
        spaced = data.card.spaced if published and data.card is not None else None
        lm, tokenizer = loading.load_masked_lm(settings.model, device, precision=models.precision)
        model = MaskedLabels(lm, tokenizer, data.words, probe, spaced=spaced)
    else:
        from pinprompt.models.labels import CausalLabels

        lm, tokenizer = loading.load_causal_lm(settings.model, device, precision=models.precision)
        names = [name for name, _ in template.parts]
        ahead = names.index("text") < names.index("prompt")
        model = CausalLabels(lm, tokenizer, data.words, probe, share=ahead, names=data.names)
    return model, template, sources.resolve(settings.model).revision


_EXAMPLES = 5  # number of correct, and of wrong, examples in a report


def sent(task: ClassificationTask, prompt: Prompt, evaluation: Evaluation | None) -> dict[str, Any]:
    """The exact text around an input, the label words with their tokens, the offsets, and the model."""
    readout = {} if evaluation is None else evaluation.tables.get("readout", {})
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
            chat["messages"] = server.messages(frame, "{text}")
    name = task.settings.model
    source = "alias" if name in ALIASES else "gguf" if name.lower().endswith(".gguf") else "hub"
    source = "callable" if name.startswith("callable:") else source
    return {
        **sides,
        "template": task.template.source,
        "mask": mask,
        "words": dict(words.words),
        "word_ids": {label: list(ids) for label, ids in zip(task.labels, words.ids, strict=True)},
        "offsets": dict(readout.get("offsets", {})),
        "readout": _sent_readout(task, readout) if readout.get("words") else {},
        "model": name,
        "revision": task.revision,
        "kind": task.model.kind,
        "source": "folder" if Path(name).is_dir() else source,
        **chat,
    }


def _sent_readout(task: ClassificationTask, readout: dict[str, Any]) -> dict[str, Any]:
    """A learnt readout with the tokens of its words, if they are known."""
    tokens: dict[str, int] = getattr(task.model.words, "others", {})
    words = [{**one, "token": tokens[one["word"]]} if one["word"] in tokens else one for one in readout["words"]]
    return {"bias": readout["bias"], "own": readout["own"], "words": words}


def shown_rows(task: ClassificationTask) -> dict[str, Any]:
    """The training and dev examples, for the studio's matrix; their positions are those of the task's rows."""
    rows = [row for row in task.rows if row.split != "test"]
    return {
        "labels": displayed(task),
        "reading": task.reading,
        "words": list(getattr(task.model.words, "others", ())),
        "prior": [float(share) for share in task.prior],
        "reward": list(task.reward),
        "rows": [{"text": row.input, "label": row.target, "split": row.split} for row in rows],
    }


def examples(
    task: ClassificationTask, probabilities: Floats, predicted: Ints, rows: Sequence[int]
) -> list[dict[str, Any]]:
    """A few rows with correct labels, then a few with wrong ones."""
    targets = task.targets(rows)
    right = [at for at in range(len(rows)) if predicted[at] == targets[at]]
    wrong = [at for at in range(len(rows)) if predicted[at] != targets[at]]
    return [
        {
            "text": task.rows[rows[at]].input,
            "label": _display(task, task.labels[int(targets[at])]),
            "predicted": _display(task, task.labels[int(predicted[at])]),
            "probability": float(probabilities[at][int(predicted[at])]) if task.model.graded else None,
        }
        for at in (*right[:_EXAMPLES], *wrong[:_EXAMPLES])
    ]


def displayed(task: ClassificationTask) -> list[str]:
    return [_display(task, label) for label in task.labels]


def _display(task: ClassificationTask, label: str) -> str:
    """A label for display: its word if the label itself is only a number."""
    return task.data.words[label] if label.lstrip("-").isdigit() else label
