"""Few-shot classification: a language model reads a text with the prompt and predicts a label's word."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pinprompt.errors import ModelError, SettingError, did_you_mean
from pinprompt.models.label_text import Frame
from pinprompt.recipe.task_sections import ClassificationSettings, ModelSettings, RemoteSettings
from pinprompt.tasks import label_models, label_scores, prompts
from pinprompt.tasks.label_models import manual_of, open_label_model
from pinprompt.tasks.label_scores import CONTENT_FREE, Calibrator, MeasuredOffsets, probabilities_of
from pinprompt.tasks.labelled_data import LabelledData, blocks_of_rows, load_data
from pinprompt.tasks.prompts import Template, whole
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Meter, Prompt, Score, derive

if TYPE_CHECKING:  # the models import torch and transformers, which are only needed when a task is built
    from pinprompt.models.labels import Inputs
    from pinprompt.tasks.label_models import LabelModel
    from pinprompt.tasks.soft_view import SoftView

_SHOWN = 5  # maximum number of truncated texts named in a note
_ROWS_KEPT = 4096  # maximum number of stored probabilities per prompt
_METRICS = {"accuracy": label_scores.accuracy, "macro_f1": label_scores.macro_f1}


class ClassificationTask(Task):
    """Label texts with a frozen language model."""

    name = "classification"
    stochastic = False
    primary = "accuracy"
    chunk = 16
    """Number of prompts scored together: they share passes and prefixes."""

    def __init__(
        self,
        settings: ClassificationSettings,
        data: LabelledData,
        template: Template,
        model: LabelModel,
        revision: str,
        seed: int = 0,
        models: ModelSettings | None = None,
    ) -> None:
        self._computed = models or ModelSettings()
        """How a local model computes: its answers depend on it, in the last bits or (precision) in more."""
        self.settings, self.data, self.template, self.model, self.seed = settings, data, template, model, seed
        self.labels, self.revision = tuple(data.words), revision
        self.billed = model.billed
        self._server: Any = model if model.billed is not None else None
        """The model, if it is remote: it counts tokens, and its answers may fail."""
        if self._server is not None:
            self.chunk = 1  # so that costs are per prompt; the examples of a prompt are still sent in parallel
        self.splits = tuple(name for name in ("train", "dev", "test") if data.splits.get(name))
        self.language = data.language
        self.notes = list(data.notes)
        """Notes about the data: overlaps, random draws, truncated texts."""
        self._targets = {
            name: np.array([self.labels.index(example.label) for example in rows], dtype=np.int64)
            for name, rows in data.splits.items()
        }
        self._calibrator = Calibrator(settings, self.labels, model.graded, self._targets)
        self.calibration, self.calibrates = self._calibrator.kind, self._calibrator.kind != "none"
        self._inputs: dict[str, Inputs] = {}
        for name in self.splits:
            inputs = model.prepare([example.text for example in data.splits[name]], keep=name != "test")
            self._inputs[name] = inputs
            if inputs.cut:
                lines = [str(data.splits[name][row].line) for row in inputs.cut]
                shown = ", ".join(lines[:_SHOWN]) + (", ..." if len(lines) > _SHOWN else "")
                self.notes.append(
                    f"{name}: {len(lines)} text(s) were truncated to fit the model's window of {model.encoder.window} "
                    f"tokens (line {shown}); the longest has {max(inputs.cut.values())}"
                )
        self.notes += self._calibrator.notes()
        self._free = model.prepare([model.mask_token or text if text == "[MASK]" else text for text in CONTENT_FREE])
        self.block_rows = blocks_of_rows(self._targets, len(self.labels), settings.first_block)
        self.blocks = tuple(self.block_rows)
        self._targets |= {
            name: np.array([self._targets[split][row] for split, row in rows], dtype=np.int64)
            for name, rows in self.block_rows.items()
        }
        self.fingerprints = {name: self._fingerprint(revision, (name,)) for name in (*self.splits, *self.blocks)}
        """One per split: a score on test does not depend on the rows of train."""
        self.fingerprint = self._fingerprint(revision, self.splits)
        self.data_fingerprint = self._fingerprint(revision, self.splits, computed={"precision"})
        """The same however the prompts are read (`models.read`), which is not the same for all methods."""
        self.notes += model.notes

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
    ) -> ClassificationTask:
        """The task of the settings; data and template are checked before a model is opened.

        `remote` has the settings of a remote model. Without `contact` no request is sent: such a task can only count
        calls and tokens.
        """
        models = models or ModelSettings()
        data, model, template, revision = open_label_model(
            settings, data or load_data(settings), device, remote or RemoteSettings(), contact, models
        )
        return cls(settings, data, template, model, revision, seed, models)

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        """The mean reward over the examples of a split; a prompt that leaves no room for the text is a failure.

        With a remote model, prompts are scored one by one: each has its own costs and failures.
        """
        if self._server is None:
            return self._scores(prompts, split)
        found = []
        for prompt in prompts:
            self._server.take()
            (score,) = self._scores([prompt], split)
            usage = self._server.take()
            details = {**score.details, "tokens_in": float(usage.tokens_in), "tokens_out": float(usage.tokens_out)}
            found.append(replace(score, details=details, failures=(*score.failures, *usage.failures)))
        return found

    def _scores(self, prompts: Sequence[Prompt], split: str) -> list[Score]:
        self._known(split)
        if self.calibration == "batch" and split in self.blocks:
            prompts = [
                replace(prompt, offsets=()) for prompt in prompts
            ]  # a block's offsets are measured on its own rows
        framed = [self.framed(prompt.text) for prompt in prompts]
        problems = [self._too_long(frame) for frame, _ in framed]
        usable = [prompt for prompt, problem in zip(prompts, problems, strict=True) if problem is None]
        answers = self._ask(usable, self.inputs(split))
        offsets = self._offsets(usable, split, answers)
        scored = iter([self._score(logs, own, split) for logs, own in zip(answers, offsets, strict=True)])
        return [
            Score(math.nan, calls=0, failures=(problem,)) if problem is not None else next(scored)
            for problem in problems
        ]

    def row_values(self, score: Score, split: str) -> list[float]:
        """The reward of every row of a split, from a score's answers and offsets."""
        if not score.answers:
            return []
        logs = label_scores.unpack_rows(score.answers, len(self.labels))
        return [float(value) for value in self._rewards(probabilities_of(logs, score.offsets), split)]

    def pooled(self, scores: Sequence[Score]) -> list[float]:
        """The rewards of all rows of the first blocks, calibrated on these rows together."""
        names = self.blocks[: len(scores)]
        if not all(score.answers for score in scores):  # a failed score has no rows: its value is used as it is
            return [score.value for score, name in zip(scores, names, strict=True) for _ in self.block_rows[name]]
        logs = np.concatenate([label_scores.unpack_rows(score.answers, len(self.labels)) for score in scores])
        targets = np.concatenate([self._targets[name] for name in names])
        offsets = scores[0].offsets
        if self.calibration == "batch":
            offsets = self._calibrator.of_batch(logs, targets)
        return [float(value) for value in self._rewarded(probabilities_of(logs, offsets), targets)]

    def whole_splits(self, scores: Sequence[Score]) -> dict[str, Score]:
        """The scores on train and dev, if the first blocks contain all of their rows."""
        found: dict[str, Score] = {}
        if not all(score.answers for score in scores):
            return found
        known = {
            place: logs
            for score, name in zip(scores, self.blocks, strict=False)
            for place, logs in zip(
                self.block_rows[name], label_scores.unpack_rows(score.answers, len(self.labels)), strict=True
            )
        }
        offsets = scores[0].offsets if scores else ()
        for split in ("train", "dev"):
            places = [(split, row) for row in range(len(self._targets.get(split, ())))]
            if not places or not all(place in known for place in places):
                break
            logs = np.stack([known[place] for place in places])
            if split == "train" and self.calibration == "batch":
                offsets = self._calibrator.of_batch(logs, self._targets[split])
            found[split] = replace(self._score(logs, MeasuredOffsets(offsets), split), calls=0)
        return found

    def answers(self) -> tuple[str, ...]:
        """The label words."""
        return tuple(self.data.words.values())

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        """Accuracy and macro-F1 with bootstrap intervals, a confusion matrix, and correct and wrong examples."""
        if self._server is None:
            return self._evaluated(prompt, split, seed)
        self._server.take()
        evaluation = self._evaluated(prompt, split, seed)
        usage = self._server.take()
        taken = {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
        return replace(evaluation, tables={**evaluation.tables, "usage": taken, "failures": list(usage.failures)[:20]})

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int = 0) -> list[Evaluation]:
        """The same for several prompts; a local model reads the texts once for all of them."""
        if self._server is not None:
            return [self.evaluate(prompt, split, seed) for prompt in prompts]
        return self._evaluations(prompts, split, seed)

    def evaluation_from(self, score: Score, split: str, seed: int = 0) -> Evaluation | None:
        """The evaluation from a score's answers, without further calls."""
        if not score.answers or score.failures or (self.calibrates and not score.offsets):
            return None
        logs = label_scores.unpack_rows(score.answers, len(self.labels))
        return replace(self._judged(logs, MeasuredOffsets(score.offsets), split, seed), calls=0)

    def _evaluated(self, prompt: Prompt, split: str, seed: int) -> Evaluation:
        return self._evaluations([prompt], split, seed)[0]

    def _evaluations(self, prompts: Sequence[Prompt], split: str, seed: int) -> list[Evaluation]:
        self._known(split)
        answers = self._ask(prompts, self.inputs(split))
        offsets = self._offsets(prompts, split, answers)
        return [self._judged(logs, own, split, seed) for logs, own in zip(answers, offsets, strict=True)]

    def _judged(self, logs: label_scores.Floats, measured: MeasuredOffsets, split: str, seed: int) -> Evaluation:
        """The metrics of label log-probabilities [N, C], both raw and calibrated."""
        raw = self.evaluation_of(np.exp(logs), split, seed)
        if not self.calibrates:
            return raw
        found = self.evaluation_of(probabilities_of(logs, measured.values), split, seed)
        return replace(
            found,
            metrics={**found.metrics, **{f"raw_{name}": value for name, value in raw.metrics.items()}},
            intervals={**found.intervals, **{f"raw_{name}": ends for name, ends in raw.intervals.items()}},
            calls=found.calls + measured.calls,
            tables={**found.tables, "calibration": self._calibrator.facts(measured.values)},
        )

    def evaluation_of(self, probabilities: label_scores.Floats, split: str, seed: int = 0) -> Evaluation:
        """The metrics of label probabilities [N, C]."""
        targets, classes = self._targets[split], len(self.labels)
        predicted = label_scores.predictions(probabilities, targets)
        table = label_scores.confusion(targets, predicted, classes)
        tables = {
            "confusion": {"labels": label_models.displayed(self), "counts": table.tolist()},
            "examples": label_models.examples(self, probabilities, predicted, split),
            "notes": list(self.notes),
        }
        return Evaluation(
            split=split,
            metrics={
                **{name: float(metric(table)) for name, metric in _METRICS.items()},
                "reward": float(np.mean(self._rewards(probabilities, split))),
            },
            rows=len(targets),
            calls=len(targets) * self.model.sequences,
            intervals=label_scores.intervals(targets, predicted, classes, _METRICS, derive(seed, "bootstrap")),
            tables=tables,
            outcomes={"accuracy": tuple((predicted == targets).astype(float).tolist())},
        )

    def predict(self, prompt: Prompt, texts: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
        """The most likely label of each text, and the probability of every label.

        A text without a usable answer is an error.
        """
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise SettingError(f"text {number} is empty")
        if not texts:
            return []
        if self._server is not None:
            self._server.take()
        logs = self._ask([prompt], self.model.prepare([text.strip() for text in texts]))
        (measured,) = self._offsets([prompt], "", logs)
        failures = () if self._server is None else self._server.take().failures
        if failures:
            raise ModelError(
                f"{self._server.client.settings.base_url} gave no usable answer for {len(failures)} of {len(texts)} "
                f"texts; the first: {failures[0]}"
            )
        rows = probabilities_of(logs[0], measured.values)
        return [(self.labels[int(row.argmax())], dict(zip(self.labels, map(float, row), strict=True))) for row in rows]

    def calls(self, split: str = "train") -> int:
        """The number of sequences of one prompt on a split; its offsets are measured with its score on train."""
        self._known(split)
        first = split in ("train", *self.blocks[:1])
        extra = len(CONTENT_FREE) if self.calibration == "content-free" and first else 0
        return (len(self._targets[split]) + extra) * self.model.sequences

    def attach(self, meter: Meter) -> bool:
        """Report every request to the server to a meter."""
        if self._server is None:
            return False
        self._server.client.attach(meter)
        return True

    def context(self) -> str:
        """Labelled examples in the template, up to the position of the prompt."""
        prompt, _ = self._manual()
        per_class, seed = self.settings.context_examples, derive(self.settings.split, "context")
        words = self.data.words
        return prompts.context_text(self.data.splits["train"], words, prompt, self.template, per_class, seed)

    def baselines(self) -> dict[str, str]:
        """Hand-written prompts: 'manual', 'instructions' if there is one, 'in-context' if an example fits."""
        prompt, manual = self._manual()
        found = {"manual": prompts.manual_text(prompt, manual, self.template)}
        instruction = self.settings.instruction or (self.data.card.instruction if self.data.card else None)
        if instruction:
            found["instructions"] = prompts.instructions_text(instruction, prompt, manual, self.model.kind)
        longest = max(map(len, self.model.encoder.pieces(self._inputs["train"].texts)))
        room = self.model.encoder.window - min(longest, self.model.encoder.window // 2)

        def fits(text: str) -> bool:
            return len(self.model.encoder.ids([text])[0]) <= room

        examples, seed = self.data.splits["train"], derive(self.seed, "in-context")
        shown = prompts.in_context_text(examples, self.data.words, prompt, manual, seed, fits)
        if shown is not None:
            found["in-context"] = shown
        return found

    def tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The maximum tokens in and out of a prompt on a split, if they are billed."""
        if self._server is None:
            return 0, 0
        return self._counted(self._server.most_tokens, prompt, split)

    def likely_tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The expected tokens in and out of a prompt on a split, if they are billed."""
        if self._server is None:
            return 0, 0
        return self._counted(self._server.likely_tokens, prompt, split)

    def _counted(self, count: Callable[[Frame, Any], tuple[int, int]], prompt: Prompt, split: str) -> tuple[int, int]:
        """Tokens in and out over all texts of a split, with a counting function."""
        frame, _ = self.framed(prompt.text)
        measured = self.calibration == "content-free" and split in ("train", *self.blocks[:1])
        wanted = [self.inputs(split), *([self._free] if measured else [])]
        counts = [count(frame, inputs) for inputs in wanted]
        return sum(one for one, _ in counts), sum(one for _, one in counts)

    def differentiable(self) -> SoftView | None:
        """The differentiable view for white-box methods: prompts as vectors; None for a remote model."""
        if self._server is not None:
            return None
        from pinprompt.tasks.soft_view import SoftView

        return SoftView(self)

    def inputs(self, split: str) -> Inputs:
        """The texts of a split in the model's format."""
        self._known(split)
        if split not in self._inputs:
            texts = [self.data.splits[name][row].text for name, row in self.block_rows[split]]
            self._inputs[split] = self.model.prepare(texts, keep=True)
        return self._inputs[split]

    def targets(self, split: str) -> label_scores.Ints:
        """The class number of every row of a split."""
        self._known(split)
        return self._targets[split]

    def score_of(self, probabilities: label_scores.Floats, split: str) -> Score:
        """The task's score of label probabilities [N, C], with its details."""
        targets, classes = self._targets[split], len(self.labels)
        predicted = label_scores.predictions(probabilities, targets)
        table = label_scores.confusion(targets, predicted, classes)
        details = {
            "accuracy": float(np.mean(label_scores.correct(probabilities, targets))),
            "gap": float(np.mean(label_scores.gaps(probabilities, targets))),
            "log_likelihood": float(np.mean(label_scores.log_likelihood(probabilities, targets))),
            "balanced_accuracy": label_scores.balanced_accuracy(table),
            "label_entropy": label_scores.label_entropy(table),
        }
        value = float(np.mean(self._rewards(probabilities, split)))
        rows = label_scores.packed(probabilities, predicted) if probabilities.size <= _ROWS_KEPT else ""
        return Score(value, calls=len(targets) * self.model.sequences, details=details, rows=rows)

    def sent(self, prompt: Prompt) -> dict[str, Any]:
        """The exact text around an input, the label words with their tokens, the offsets, and the model."""
        return label_models.sent(self, prompt)

    def shown_rows(self) -> dict[str, Any]:
        """The examples and the rows of each block, for the studio's matrix."""
        return label_models.shown_rows(self)

    def _score(self, logs: label_scores.Floats, measured: MeasuredOffsets, split: str) -> Score:
        """The score of label log-probabilities [N, C], with raw and calibrated details."""
        score = self.score_of(probabilities_of(logs, measured.values), split)
        details = dict(score.details)
        if self.calibrates:
            raw = self.score_of(np.exp(logs), split)
            details |= {"raw_score": raw.value, "raw_accuracy": raw.details["accuracy"]}
        return replace(
            score,
            calls=score.calls + measured.calls,
            details=details,
            answers=label_scores.pack_rows(logs),
            offsets=measured.values,
        )

    def _offsets(
        self, prompts: Sequence[Prompt], split: str, answers: Sequence[label_scores.Floats]
    ) -> list[MeasuredOffsets]:
        """The label offsets of each prompt, with the cost of measuring them."""

        def ask(unknown: Sequence[Prompt], free: bool) -> list[label_scores.Floats]:
            return self._ask(unknown, self._free if free else self._inputs["train"])

        return self._calibrator.offsets(prompts, split, answers, split in self.blocks, ask, self.model.sequences)

    def _ask(self, prompts: Sequence[Prompt], inputs: Inputs) -> list[label_scores.Floats]:
        """Label log-probabilities [N, C] of each prompt."""
        framed = [self.framed(prompt.text) for prompt in prompts]
        found: dict[Frame, label_scores.Floats] = {}
        for template in dict.fromkeys(template for _, template in framed):
            frames = [frame for frame, own in framed if own is template or own == template]
            words = None if template == self.template else self.model.words_for(template.frame("it"))
            for frame, logs in zip(frames, self.model.log_probs(frames, inputs, words), strict=True):
                found[frame] = logs.double().numpy()
        return [found[frame] for frame, _ in framed]

    def framed(self, prompt: str) -> tuple[Frame, Template]:
        """A prompt in its template; a hand-written prompt may have its own."""
        template = whole(prompt, self.model.kind) or self.template
        return template.frame(prompt), template

    def _too_long(self, frame: Frame) -> str | None:
        encoder, mask = self.model.encoder, self.model.mask_token
        size = len(encoder.ids([frame.around("", mask)[0]])[0]) + max(map(len, self.model.words.ids))
        if size < encoder.window:
            return None
        return f"the prompt has {size} tokens, which leaves no room for a text in the window of {encoder.window}"

    def _rewards(self, probabilities: label_scores.Floats, split: str) -> label_scores.Floats:
        return self._rewarded(probabilities, self._targets[split])

    def _rewarded(self, probabilities: label_scores.Floats, targets: label_scores.Ints) -> label_scores.Floats:
        settings = self.settings
        if settings.reward == "accuracy":
            return label_scores.correct(probabilities, targets).astype(np.float64)
        if settings.reward == "log-likelihood":
            return label_scores.log_likelihood(probabilities, targets)
        return label_scores.gap_reward(probabilities, targets, settings.weight_wrong, settings.weight_right)

    def _manual(self) -> tuple[str, Template]:
        return manual_of(self.settings, self.data, self.template, self.model.kind)

    def _known(self, split: str) -> None:
        if split not in self.splits and split not in self.blocks:
            raise SettingError(f"there is no split '{split}' in this task's data; {did_you_mean(split, self.splits)}")

    def _fingerprint(self, revision: str, splits: Sequence[str], computed: set[str] | None = None) -> str:
        """A hash of what scores on the splits depend on; `computed`: the model settings among it, None for all."""
        settings = self.settings
        parts: Mapping[str, Any] = {
            "model": revision,
            "kind": self.model.kind,
            "template": [self.template.source, self.template.spacing],
            "words": [list(self.data.words.items()), self.model.words.ids],
            "data": {
                name: [[e.text, e.label] for e in rows]
                for name, rows in sorted(self.data.splits.items())
                # Offsets are measured on the training rows, so every calibrated score depends on them; a block has its
                # own.
                if name in splits or (name == "train" and self.calibration == "batch" and splits[0] in self.splits)
            },
            **{
                name: [[self.data.splits[split][row].text, self.data.splits[split][row].label] for split, row in rows]
                for name, rows in self.block_rows.items()
                if name in splits
            },
            "reward": [settings.reward, settings.weight_wrong, settings.weight_right],
            "calibration": [self.calibration, *(map(float, self._calibrator.prior) if self.calibrates else ())],
            "computed": {} if self._server is not None else self._computed.model_dump(mode="json", include=computed),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
