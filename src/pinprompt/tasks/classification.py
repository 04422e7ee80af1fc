"""Few-shot classification: a language model reads a text with the prompt and predicts a label's word.

An answer is the log-probabilities of the label words, [C], and, if labels are learnt, of other words that the model
tends to say, [W]. Everything else is arithmetic on answers: how labels are read from them (`task.labels`) is measured
on a prompt's answers on labelled rows, without a call. Calibration subtracts offsets from the label words
(`maths/labels.py`); a learnt readout also uses the other words (`maths/readout.py`).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pinprompt.answers.requests import Requests
from pinprompt.errors import ModelError, SettingError
from pinprompt.maths import labels as maths
from pinprompt.maths import readout as readouts
from pinprompt.maths.labels import Floats, Ints
from pinprompt.maths.readout import Readout
from pinprompt.models.label_text import Frame
from pinprompt.recipe.task_sections import ClassificationSettings, ModelSettings, RemoteSettings
from pinprompt.tasks import label_models, prompts
from pinprompt.tasks.label_models import manual_of, open_label_model
from pinprompt.tasks.labelled_data import LabelledData, load_data
from pinprompt.tasks.prompts import Template, whole
from pinprompt.tasks.protocol import CHAT, IN_CONTEXT, SPLITS, Draft, Shown, TaskInfo, report_fit_rows
from pinprompt.values import Answers, Draw, Evaluation, Prompt, Row, counted, derive

if TYPE_CHECKING:  # the models import torch and transformers, which are only needed when a task is built
    from pinprompt.models.labels import Inputs
    from pinprompt.tasks.label_models import LabelModel
    from pinprompt.tasks.soft_view import SoftView

CHUNK = 16
"""Number of prompts asked about together: they share passes and prefixes."""
_CUT_SHOWN = 5  # maximum number of truncated texts named in a note
_METRICS = {"accuracy": maths.accuracy, "macro_f1": maths.macro_f1}
EXAMPLE_TOKENS = 256
"""Maximum number of tokens of a prompt with examples: each of its calls reads them all."""
MISTAKES = 100
"""How many mistakes a wrong label counts for on a row that must stay right."""


class ClassificationTask(Shown):
    """Label texts with a frozen language model."""

    def __init__(
        self,
        settings: ClassificationSettings,
        data: LabelledData,
        template: Template,
        model: LabelModel,
        revision: str,
        seed: int = 0,
        models: ModelSettings | None = None,
        readout: Readout | None = None,
        opening_calls: int = 0,
    ) -> None:
        """`readout` is the known one of the only prompt that this task will be asked about."""
        self._computed = models or ModelSettings()
        """How a local model computes: its answers depend on it, in the last bits or (precision) in more."""
        self.settings, self.data, self.template, self.model, self.seed = settings, data, template, model, seed
        self.labels, self.revision, self.billed = tuple(data.words), revision, model.billed
        self._server: Any = model if model.billed is not None else None
        """The model, if it is behind an API: it counts tokens."""
        self._fallible: Any = model if hasattr(model, "answers") else None
        """The model, if single answers may fail: behind an API, or a callable."""
        self.rows = self._rows()
        self._targets: Ints = np.array([row.target for row in self.rows], dtype=np.int64)
        self.reading = settings.labels if model.graded else "words"
        """How labels are read from answers: words, calibrated or learnt."""
        self.prior = maths.prior_of(settings.prior, self.labels)
        self.readout = self._checked(readout)
        self._inputs: dict[tuple[int, ...], Inputs] = {}
        self.info = TaskInfo(
            name="classification",
            fingerprint=self._fingerprint(data=True),
            primary=settings.metric.replace("-", "_"),
            score_is=self._score_is(),
            answered_by=self._fingerprint(data=False),
            together=self._fallible is None,
            # With a server one at a time, so that costs are per prompt; its texts are still sent in parallel.
            chunk=CHUNK if self._fallible is None else 1,
            language=data.language,
            notes=(*data.notes, *self._notes_on_texts(), *self._notes_on_labels(), *model.notes),
            learns=self.reading == "learnt" and self.readout is None,
            opening_calls=opening_calls,
        )

    @classmethod
    def build(
        cls,
        settings: ClassificationSettings,
        device: str = "cpu",
        seed: int = 0,
        *,
        data: LabelledData | None = None,
        remote: RemoteSettings | None = None,
        contact: bool = True,
        models: ModelSettings | None = None,
        readout: Readout | None = None,
        words: Sequence[str] = (),
        model: Callable[..., Any] | None = None,
    ) -> ClassificationTask:
        """The task of the settings; data and template are checked before a model is opened.

        `remote` has the settings of a remote model. Without `contact` no request is sent and no words are chosen: such
        a task can only count calls and tokens. `readout` is the known one of the only prompt that this task will be
        asked about, `words` are words of further prompts' readouts. `model` is the user's own callable, which replaces
        the model that the settings name.
        """
        models = models or ModelSettings()
        data, opened, template, revision = open_label_model(
            settings, data or load_data(settings), device, remote or RemoteSettings(), contact, models, model
        )
        known = None if readout is None else dict.fromkeys((*readout.words, *words))
        spent = label_models.add_words(settings, data, opened, template, known, contact)
        return cls(settings, data, template, opened, revision, seed, models, readout, spent)

    # What costs calls.

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        """Log-probabilities [N, C + W] of each prompt; a prompt that leaves no room for the text is a failure."""
        rows = tuple(rows)
        problems = [self._too_long(self.framed(prompt.text)[0]) for prompt in prompts]
        if draws and draws[0].report:  # a report shows whatever the model makes of a hand-written prompt
            problems = [None] * len(prompts)
        usable = [prompt for prompt, problem in zip(prompts, problems, strict=True) if problem is None]
        answered = iter(self._answered(usable, rows) if usable else [])
        width = len(self.labels) + len(self._others)
        unanswered = np.full((len(rows), width), np.nan, dtype=np.float32)
        return [
            next(answered) if problem is None else Answers(rows, unanswered, dict.fromkeys(rows, problem))
            for problem in problems
        ]

    def _answered(self, prompts: Sequence[Prompt], rows: tuple[int, ...]) -> list[Answers]:
        """Answers of each prompt; a row that is one of a prompt's examples is asked without it."""
        apart = {prompt: self._examples_in(prompt, rows) for prompt in prompts}
        plain = [prompt for prompt in prompts if not apart[prompt]]
        found = dict(zip(plain, self._ask_model(plain, rows, self.inputs(rows)), strict=True)) if plain else {}
        for prompt, shown in apart.items():
            if shown:
                others = tuple(row for row in rows if row not in shown)
                parts = [(prompt, others), *((Prompt(text), (row,)) for row, text in shown.items())]
                answers = Answers()
                for asked, own in parts:
                    inputs = self.model.prepare([self.rows[row].input for row in own])
                    answers = answers.joined(self._ask_model([asked], own, inputs)[0]) if own else answers
                found[prompt] = replace(answers, rows=rows, contents=answers.on(rows))
        return [found[prompt] for prompt in prompts]

    def _examples_in(self, prompt: Prompt, rows: Sequence[int]) -> dict[int, str]:
        """The rows that are among a prompt's examples, each with the prompt without it."""
        if "{text}" not in prompt.text:
            return {}
        words = list(self.data.words.values())
        found = {
            row: prompts.without_example(prompt.text, self.rows[row].input, words[self._targets[row]], self.template)
            for row in rows
            if self.rows[row].input in prompt.text
        }
        return {row: text for row, text in found.items() if text is not None}

    def _ask_model(self, prompts: Sequence[Prompt], rows: tuple[int, ...], inputs: Inputs) -> list[Answers]:
        if self._fallible is None:
            return [Answers(rows, logs) for logs in self._log_probs(prompts, inputs)]
        found = []
        for prompt in prompts:
            logs, failures, usage = self._fallible.answers(
                self.framed(prompt.text)[0], inputs, self.reading == "learnt"
            )
            found.append(Answers(rows, logs, {rows[at]: reason for at, reason in failures.items()}, usage))
        return found

    def _log_probs(self, prompts: Sequence[Prompt], inputs: Inputs) -> list[Any]:
        """A local model's log-probabilities [N, C + W] of each prompt, in float32."""
        framed = [self.framed(prompt.text) for prompt in prompts]
        found: dict[Frame, Any] = {}
        for template in dict.fromkeys(template for _, template in framed):
            frames = [frame for frame, own in framed if own is template or own == template]
            words = None if template == self.template else self.model.words_for(template.frame("it"))
            for frame, logs in zip(frames, self.model.log_probs(frames, inputs, words), strict=True):
                found[frame] = logs.numpy()
        return [found[frame] for frame, _ in framed]

    # Arithmetic on answers.

    @property
    def fit_rows(self) -> tuple[int, ...]:
        """The training rows, on which the readout is measured; none if it is known or not needed."""
        if self.reading == "words" or self.readout is not None:
            return ()
        return tuple(number for number, row in enumerate(self.rows) if row.split == "train")

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """The reward of every row."""
        if np.isnan(self._said(answers, rows).own).any():  # the prompt left no room for the texts
            return np.full(len(rows), np.nan)
        chances, targets = self.probabilities(answers, rows, fit), self._targets[list(rows)]
        found = maths.reward_of(chances, targets, *self.reward)
        if self.settings.metric == "macro-f1":
            found = found * self._balance[targets]
        wrong = self._must_stay[list(rows)] & ~maths.correct(chances, targets)
        return np.where(wrong, found - MISTAKES * self._mistake, found)

    @cached_property
    def _balance(self) -> Floats:
        """The weight of each class [C] with which every class counts alike among the rows of train and dev."""
        searched = [number for number, row in enumerate(self.rows) if row.split != "test"]
        counts = np.bincount(self._targets[searched], minlength=len(self.labels))
        return np.asarray(len(searched) / (np.count_nonzero(counts) * np.maximum(1, counts)))

    @cached_property
    def _must_stay(self) -> NDArray[np.bool_]:
        """Which rows must stay right."""
        return np.array([row.split == "train" and row.input in self.data.keep_right for row in self.rows], dtype=bool)

    @property
    def _mistake(self) -> float:
        """What a typical mistake costs."""
        return self.settings.weight_wrong if self.settings.reward == "gap" else 1.0

    def probabilities(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """Label probabilities [N, C]; a row of `fit` is read without what the row itself has taught."""
        given = self._said(answers, rows)
        if self.reading == "words" or (self.readout is None and not fit):
            return np.exp(given.own)
        if self.readout is not None:
            return self.readout.probabilities(given)
        learnt = self._fitted(answers, fit)
        found = learnt.readout.probabilities(given)
        place = {row: number for number, row in enumerate(fit)}
        inside = [at for at, row in enumerate(rows) if row in place]
        found[inside] = learnt.left_out[[place[rows[at]] for at in inside]]
        return found

    def confusion(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Ints:
        chances, targets = self.probabilities(answers, rows, fit), self._targets[list(rows)]
        return maths.confusion(targets, maths.predictions(chances, targets), len(self.labels))

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        """Accuracy and macro-F1 with bootstrap intervals, a confusion matrix, and correct and wrong examples.

        The same for simpler readings of the labels: `raw_accuracy` by the label words as they are, and, if labels are
        learnt, `calibrated_accuracy`.
        """
        own = self._said(answers, rows).own
        found = self._evaluation(self.probabilities(answers, rows, fit), rows, seed)
        simpler: dict[str, Floats] = {}
        if self.reading != "words" and (fit or self.readout is not None):
            simpler["raw"] = np.exp(own)
            if self.reading == "learnt" and fit:
                simpler["calibrated"] = maths.calibrated(own, self._offsets(answers, fit))
            found = replace(found, tables={**found.tables, "readout": self._readout_facts(answers, fit)})
        for name, chances in simpler.items():
            other = self._evaluation(chances, rows, seed)
            found = replace(
                found,
                metrics={**found.metrics, **{f"{name}_{key}": value for key, value in other.metrics.items()}},
                intervals={**found.intervals, **{f"{name}_{key}": ends for key, ends in other.intervals.items()}},
            )
        if lines := self._broken(answers, fit):
            note = f"{len(lines)} of {int(self._must_stay.sum())} examples that must stay right are wrong (line "
            notes = [*found.tables["notes"], f"{note}{', '.join(map(str, lines))})"]
            found = replace(found, tables={**found.tables, "notes": notes})
        if self._fallible is None:
            return found
        usage = {"tokens_in": answers.tokens[0], "tokens_out": answers.tokens[1]}
        return replace(found, tables={**found.tables, "usage": usage, "failures": list(answers.failed(rows))[:20]})

    def with_half(self, answers: Answers, rows: Sequence[int]) -> float:
        """The share of these rows that is right if each half is read by what the other half teaches."""
        order = sorted(rows, key=lambda row: (self._targets[row], row))  # each half has its share of every class
        halves, right = (order[::2], order[1::2]), 0
        for taught, read in (halves, halves[::-1]):
            found = readouts.fit(self._said(answers, taught), self._targets[taught], self.prior)
            chances = found.readout.probabilities(self._said(answers, read))
            right += int(maths.correct(chances, self._targets[read]).sum())
        return right / len(order)

    def _broken(self, answers: Answers, fit: Sequence[int]) -> list[int]:
        """The lines of examples that must stay right and are wrong."""
        rows = [int(row) for row in np.flatnonzero(self._must_stay) if not answers.missing([int(row)])]
        if not rows:
            return []
        right = maths.correct(self.probabilities(answers, rows, fit), self._targets[rows])
        examples = self.data.splits["train"]
        return [examples[self.rows[row].index].line for row, good in zip(rows, right, strict=True) if not good]

    def combined(self, answers: Sequence[Answers], rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """The log-likelihood of each row's label under the mean of several prompts' probabilities."""
        return maths.log_likelihood(self._mean(answers, rows, fit, ()), self._targets[list(rows)])

    def combined_metrics(
        self,
        answers: Sequence[Answers],
        rows: Sequence[int],
        fit: Sequence[int] = (),
        seed: int = 0,
        *,
        readouts: Sequence[Readout] = (),
        embeddings: bool = False,
    ) -> Evaluation | None:
        """The metrics of the mean of several prompts' probabilities, or of its mean with those of embeddings."""
        if embeddings and (self.settings.embeddings is None or isinstance(self._embedded, str)):
            return None
        found = self._mean(answers, rows, fit, readouts)
        if embeddings:
            found = (found + self._embedded[1][list(rows)]) / 2
        return self._evaluation(found, rows, seed)

    def _mean(
        self, answers: Sequence[Answers], rows: Sequence[int], fit: Sequence[int], known: Sequence[Readout]
    ) -> Floats:
        if known:
            each = [own.probabilities(self._said(one, rows)) for own, one in zip(known, answers, strict=True)]
        else:
            each = [self.probabilities(one, rows, fit) for one in answers]
        return np.asarray(np.mean(each, axis=0))

    @cached_property
    def _embedded(self) -> Any:
        """A regression on embeddings of the texts and its probabilities for all rows, or why there is none.

        It is learnt from train and dev; a row of these is read without what the row itself has taught.
        """
        fit = [number for number, row in enumerate(self.rows) if row.split != "test"]
        if np.bincount(self._targets[fit], minlength=len(self.labels)).min() < 2:
            return "a label has fewer than two rows"
        from pinprompt.judges.frozen import embed

        try:
            vectors = embed(str(self.settings.embeddings), [row.input for row in self.rows])
        except ModelError as error:
            return str(error).rstrip(".")
        learnt = readouts.regression(vectors[fit], self._targets[fit], self.prior)
        chances = learnt.readout.probabilities(readouts.Said(vectors))
        chances[fit] = learnt.left_out
        return learnt.readout, chances, len(fit)

    def without_prompt(self) -> dict[str, Any]:
        name = self.settings.embeddings
        if name is None:
            return {}
        if isinstance(self._embedded, str):
            return {"prompt": "", "missing": self._embedded}
        learnt, chances, count = self._embedded
        found: dict[str, Any] = {
            "prompt": "",
            "about": f"no prompt: regression on embeddings ({name}) of {count} labelled rows",
            "weights": dict(zip(self.labels, learnt.weights.tolist(), strict=True)),
            "bias": dict(zip(self.labels, learnt.bias.tolist(), strict=True)),
        }
        for split in ("dev", "test"):
            rows = [number for number, row in enumerate(self.rows) if row.split == split]
            if rows:
                found[split] = self._evaluation(chances[rows], rows, 0).facts()
        return found

    def _evaluation(self, probabilities: Floats, rows: Sequence[int], seed: int) -> Evaluation:
        targets, classes = self._targets[list(rows)], len(self.labels)
        predicted = maths.predictions(probabilities, targets)
        table = maths.confusion(targets, predicted, classes)
        split, said = self.rows[rows[0]].split, dict[str, tuple[float, ...]]()
        if split == "dev":  # what `predict --unsure` is measured on
            said["label"] = tuple(map(float, probabilities.argmax(axis=1)))
            if self.model.graded:
                said["probability"] = tuple(probabilities.max(axis=1).round(4).tolist())
        return Evaluation(
            split=split,
            metrics={
                **{name: float(metric(table)) for name, metric in _METRICS.items()},
                "majority": float(np.bincount(targets).max() / len(targets)),
                "reward": float(np.mean(maths.reward_of(probabilities, targets, *self.reward))),
            },
            rows=len(targets),
            intervals=maths.intervals(targets, predicted, classes, _METRICS, derive(seed, "bootstrap")),
            tables={
                "confusion": {"labels": label_models.displayed(self), "counts": table.tolist()},
                "examples": label_models.examples(self, probabilities, predicted, rows),
                "notes": list(self.info.notes),
            },
            outcomes={
                "accuracy": tuple((predicted == targets).astype(float).tolist()),
                **self._balanced(predicted, targets),
                **said,
            },
        )

    def _balanced(self, predicted: Ints, targets: Ints) -> dict[str, tuple[float, ...]]:
        """Values of macro-F1 per row, if that is the metric, so that prompts can be tested by it."""
        if self.info.primary != "macro_f1":
            return {}
        found = maths.pseudo_values(targets, predicted, len(self.labels), maths.macro_f1)
        return {"macro_f1": tuple(found.round(6).tolist())}

    @property
    def passes(self) -> int:
        """How many forward passes a call takes: label words of several tokens with other beginnings take one each."""
        return 1 if self._fallible is not None else len({tuple(ids[:-1]) for ids in self.model.words.ids})

    @property
    def _others(self) -> tuple[str, ...]:
        """The words besides the label words whose log-probabilities are in every answer."""
        return tuple(getattr(self.model.words, "others", ()))

    def _said(self, answers: Answers, rows: Sequence[int]) -> readouts.Said:
        """What the model said on rows."""
        return readouts.said(answers.on(rows), len(self.labels), self._others)

    def _offsets(self, answers: Answers, fit: Sequence[int]) -> tuple[float, ...]:
        own = self._said(answers, fit).own
        return tuple(map(float, maths.batch_offsets(own, self._targets[list(fit)], self.prior)))

    def _fitted(self, answers: Answers, fit: Sequence[int]) -> readouts.Fit:
        """The readout that a prompt's answers on the rows of `fit` teach.

        The words of a local model are learnt once all training rows are answered: from a few rows, a readout says more
        about the rows than about the prompt. A server often gives no label word, so its words are learnt at once.
        """
        learns = self.reading == "learnt" and (self._fallible is not None or set(self.fit_rows) <= set(fit))
        words = None if learns else ()
        return readouts.fit(self._said(answers, fit), self._targets[list(fit)], self.prior, words)

    def _readout_facts(self, answers: Answers, fit: Sequence[int]) -> dict[str, Any]:
        """How labels are read from a prompt's answers, as in result.json."""
        found = self.readout if self.readout is not None else self._fitted(answers, fit).readout
        offsets: Sequence[float] = (0.0 - found.bias).tolist()
        if found.words:
            offsets = self._offsets(answers, fit) if fit else ()
        return {
            "kind": self.reading,
            "offsets": dict(zip(self.labels, offsets, strict=False)),
            "prior": dict(zip(self.labels, map(float, self.prior), strict=True)),
            "rows": len(fit),
            **readouts.pack(found, self.labels),
        }

    # New texts.

    def measured(self, answers: Answers) -> Readout | None:
        """A prompt's readout, from its answers on the rows of train and dev; None if labels are read as they are."""
        fit = report_fit_rows(self)
        return self._fitted(answers, fit).readout if fit else self.readout

    def predict(
        self, prompt: Prompt, texts: Sequence[str], readout: Readout | None = None
    ) -> list[tuple[str, dict[str, float]]]:
        """The most likely label of each text, and the probability of every label.

        `readout` is the prompt's own, if the task was not made with it. A text without a usable answer is an error.
        """
        readout = self._checked(readout) or self.readout
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise SettingError(f"text {number} is empty")
        if not texts:
            return []
        if self.reading != "words" and readout is None:
            raise SettingError("the prompt has no readout of its labels, and there are no training rows to learn one")
        places = tuple(range(len(texts)))
        inputs = self.model.prepare([text.strip() for text in texts])
        [answers] = self._ask_model([prompt], places, inputs)
        if answers.failures:
            first = next(iter(answers.failures.values()))
            raise ModelError(
                f"{self.settings.model} gave no usable answer for {len(answers.failures)} of {len(texts)} texts; the "
                f"first: {first}"
            )
        given = self._said(answers, places)
        found = np.exp(given.own) if readout is None else readout.probabilities(given)
        shares = [dict(zip(self.labels, map(float, row), strict=True)) if self.model.graded else {} for row in found]
        return [(self.labels[int(row.argmax())], share) for row, share in zip(found, shares, strict=True)]

    # What it tells the writer and the report.

    def context(self) -> str:
        """Labelled examples in the template, up to the position of the prompt."""
        prompt, _ = self._manual()
        seed = derive(self.settings.split, "context")
        return prompts.context_text(self.data.splits["train"], self.data.words, prompt, self.template, seed)

    def drafts(self) -> list[Draft]:
        """Prompts to compare with: 'manual' (the user's or the dataset's own) and 'default' (from the names of labels).

        Besides these 'instructions' if there are any, 'in-context' if an example fits, and for a model with a chat
        template 'chat': a plain instruction in its chat format. The user's own instruction is in that format too. In a
        chat behind an API all are system messages: the default is a plain instruction, 'chat' are common ones.
        """
        prompt, manual = self._manual()
        card, own, names = self.data.card, self.settings.manual is not None, tuple(self.data.names.values())
        in_system = self._server is not None and self._server.template is not None
        instruction = self.settings.instruction or (card.instruction if card else None)
        text, default = prompts.manual_text(prompt, manual, self.template), prompts.chat_instruction(None, names)
        if not in_system:
            unset = self.settings.model_copy(update={"manual": None})
            default = prompts.manual_text(*manual_of(unset, self.data, self.template, self.model.kind), self.template)
        found = [Draft(text, "manual")] if own or card is not None else [Draft(default, "default")]
        if default != text and (own or (card is not None and in_system and not instruction)):
            found.append(Draft(default, "default"))
        chats = self._chats()
        if self.settings.instruction and chats:
            found.append(Draft(chats.pop(0), "instructions"))
        elif instruction and in_system:
            found.append(Draft(prompts.chat_instruction(instruction, names), "instructions"))
        elif instruction:
            found.append(Draft(prompts.instructions_text(instruction, prompt, manual, self.model.kind), "instructions"))

        def fits(text: str) -> bool:
            return len(self.model.encoder.ids([text])[0]) <= self._room

        examples, seed = self.data.splits["train"], derive(self.seed, IN_CONTEXT)
        shown = prompts.in_context_text(examples, self.data.words, prompt, manual, seed, fits)
        if in_system:
            chats = [one.format(labels=prompts.alternatives(names)) for one in prompts.CHAT_INSTRUCTIONS]
        found += [Draft(text, CHAT) for text in chats]
        return found if shown is None else [*found, Draft(shown, IN_CONTEXT)]

    def before_text(self, best: Sequence[Prompt], seed: int) -> list[Prompt]:
        """The best prompts with examples before the text, in turn: one per class, or two; and with each opening."""
        plain = [prompt.text for prompt in best if "{text}" not in prompt.text]
        members = prompts.by_label(self.data.splits["train"], self.labels)
        found: list[str] = []
        for number in range(self.settings.examples if plain and all(members) else 0):
            chance = random.Random(derive(seed, "examples", number))
            each = 1 + number // len(plain) % 2 if len(self.labels) == 2 else 1
            drawn = [one for own in members for one in chance.sample(own, min(each, len(own)))]
            chance.shuffle(drawn)
            text = prompts.with_examples(drawn, self.data.words, plain[number % len(plain)], self.template)
            if len(self.model.encoder.ids([text])[0]) <= min(EXAMPLE_TOKENS, self._room):
                found.append(text)
        in_system = self._server is not None and self._server.template is not None
        if self.info.language == "en" and not in_system:
            openings = prompts.shipped("classification")["openings"]
            found += [prompts.opened(self.template, text, f"{one} ") for one in openings for text in plain]
        return [Prompt(text) for text in dict.fromkeys(found)]

    def _chats(self) -> list[str]:
        """The user's instruction and a plain one, in the model's chat format."""
        if self._fallible is not None:
            return []
        asked = [
            prompts.chat_instruction(one, tuple(self.data.names.values())) for one in (self.settings.instruction, None)
        ]
        return [text for one in dict.fromkeys(asked) for text in self.model.chats(one) if whole(text, "causal")]

    @cached_property
    def _room(self) -> int:
        """Tokens that a prompt may have beside the longest training text; texts may have megabytes: counted once."""
        longest = max(map(len, self.model.encoder.pieces([row.input for row in self.rows if row.split == "train"])))
        return int(self.model.encoder.window - min(longest, self.model.encoder.window // 2))

    def label_words(self) -> tuple[str, ...]:
        return tuple(self.data.words.values())

    def sent(self, prompt: Prompt, evaluation: Evaluation | None) -> dict[str, Any]:
        """The exact text around an input, the label words with their tokens, the offsets, and the model."""
        return label_models.sent(self, prompt, evaluation)

    def shown_rows(self) -> dict[str, Any]:
        return label_models.shown_rows(self)

    # Costs.

    def most_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        return (0, 0) if self._server is None else self._counted(self._server.most_tokens, prompt, rows)

    def likely_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        return (0, 0) if self._server is None else self._counted(self._server.likely_tokens, prompt, rows)

    def _counted(
        self, count: Callable[[Frame, Any], tuple[int, int]], prompt: Prompt, rows: Sequence[int]
    ) -> tuple[int, int]:
        return count(self.framed(prompt.text)[0], self.inputs(tuple(rows)))

    def attach(self, meter: Requests) -> bool:
        if self._server is None:
            return False
        self._server.client.attach(meter)
        return True

    # For white-box methods.

    def differentiable(self) -> SoftView | None:
        """The differentiable view: prompts as vectors; None for a model that can only be called."""
        if self._fallible is not None:
            return None
        from pinprompt.tasks.soft_view import SoftView

        return SoftView(self)

    def inputs(self, rows: tuple[int, ...]) -> Inputs:
        """The texts of rows in the model's format; those of train and dev are kept for many prompts."""
        if rows not in self._inputs:
            keep = all(self.rows[row].split != "test" for row in rows)
            self._inputs[rows] = self.model.prepare([self.rows[row].input for row in rows], keep=keep)
        return self._inputs[rows]

    def targets(self, rows: Sequence[int]) -> Ints:
        return self._targets[list(rows)]

    def framed(self, prompt: str) -> tuple[Frame, Template]:
        """A prompt in its template; a hand-written prompt may have its own."""
        template = whole(prompt, self.model.kind) or self.template
        return template.frame(prompt), template

    def _rows(self) -> tuple[Row, ...]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        return tuple(
            Row(split, index, one.text, numbers[one.label], f"{split}\n{one.text}")
            for split in SPLITS
            for index, one in enumerate(self.data.splits.get(split, ()))
        )

    @property
    def reward(self) -> tuple[str, float, float]:
        """How rows are valued, for `maths.labels.reward_of`."""
        return self.settings.reward, self.settings.weight_wrong, self.settings.weight_right

    def _score_is(self) -> str:
        _, wrong, right = self.reward
        return {
            "gap": f"A score is the mean reward of the rows: the probability of the correct label minus that of the "
            f"best other label, times {right:g} if it is positive and {wrong:g} if not; at most {right:g}.",
            "accuracy": "A score is the share of correct labels, from 0 to 1.",
            "log-likelihood": "A score is the mean log-probability of the correct labels, at most 0.",
        }[self.settings.reward]

    def _too_long(self, frame: Frame) -> str | None:
        encoder, mask = self.model.encoder, self.model.mask_token
        size = len(encoder.ids([frame.around("", mask)[0]])[0]) + max(map(len, self.model.words.ids))
        if size < encoder.window:
            return None
        return f"the prompt has {size} tokens, which leaves no room for a text in the window of {encoder.window}"

    def _manual(self) -> tuple[str, Template]:
        return manual_of(self.settings, self.data, self.template, self.model.kind)

    def _checked(self, readout: Readout | None) -> Readout | None:
        if readout is not None and len(readout.bias) != len(self.labels):
            raise SettingError(f"the readout has {len(readout.bias)} labels, but the task has {len(self.labels)}")
        return readout if self.reading != "words" else None

    def _notes_on_texts(self) -> list[str]:
        notes = []
        for split in SPLITS:
            rows = tuple(number for number, row in enumerate(self.rows) if row.split == split)
            cut = self.inputs(rows).cut if rows else {}
            if cut:
                lines = [str(self.data.splits[split][row].line) for row in cut]
                shown = ", ".join(lines[:_CUT_SHOWN]) + (", ..." if len(lines) > _CUT_SHOWN else "")
                notes.append(
                    f"{split}: {counted(len(lines), 'text')} truncated to fit the model's window of "
                    f"{self.model.encoder.window} tokens (line {shown}); the longest has {max(cut.values())}"
                )
        return notes

    def _notes_on_labels(self) -> list[str]:
        if self.settings.labels == "words":
            if self.settings.prior:
                raise SettingError("task.prior needs task.labels: set it to calibrated or learnt")
            return []
        if self.reading == "words":
            return ["the task model gives no log-probabilities, so labels are neither calibrated nor learnt"]
        few = maths.few_rows(self._targets[list(self.fit_rows)], len(self.labels)) if self.fit_rows else None
        return [few] if few else []

    def _fingerprint(self, data: bool) -> str:
        """A hash of what answers depend on and, with `data`, of what scores depend on."""
        parts: Mapping[str, Any] = {
            "model": self.revision,
            "kind": self.model.kind,
            "template": self.template.source,
            "words": [list(self.data.words.items()), self.model.words.ids, *([self._others] if self._others else [])],
            **({"answers": "learnt"} if self._fallible is not None and self.reading == "learnt" else {}),
            "computed": {} if self._fallible is not None else self._computed.model_dump(mode="json"),
        }
        if data:
            parts = {
                **parts,
                "data": [[row.split, row.input, row.target] for row in self.rows],
                "reward": list(self.reward),
                **({"metric": self.settings.metric} if self.settings.metric != "accuracy" else {}),
                **({"keep_right": np.flatnonzero(self._must_stay).tolist()} if self._must_stay.any() else {}),
                "labels": [self.reading, *(map(float, self.prior) if self.reading != "words" else ())],
            }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
