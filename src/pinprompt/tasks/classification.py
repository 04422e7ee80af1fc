"""Few-shot classification: a prompt beside a text, and a language model that says a label's word."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pinprompt.data.readers import Example
from pinprompt.errors import ModelError, SettingError, did_you_mean
from pinprompt.models.label_text import Frame
from pinprompt.recipe.sections import ClassificationSettings, ModelSettings, RemoteSettings
from pinprompt.remote.open import is_remote, open_classifier
from pinprompt.seeds import derive
from pinprompt.tasks import calibration, label_words, metrics, prompts
from pinprompt.tasks.labelled_data import LabelledData, load_data
from pinprompt.tasks.prompts import Template, parse, whole
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Meter, Prompt, Score

if TYPE_CHECKING:  # the models bring torch and transformers, which are imported when a task is built
    from pinprompt.models.causal_labels import CausalLabels, Inputs
    from pinprompt.models.masked_labels import MaskedLabels
    from pinprompt.tasks.soft_view import SoftView

    LabelModel = CausalLabels | MaskedLabels

_CONTENT_FREE = ("N/A", "", "[MASK]")
_SHOWN = 5  # examples right, and as many wrong, that a report shows
_ROWS_KEPT = 4096  # probabilities of one prompt that are kept for people to look at
_METRICS = {"accuracy": metrics.accuracy, "macro_f1": metrics.macro_f1}


@dataclass(frozen=True)
class _Measured:
    """The label offsets of a prompt, and the calls that it took to measure them."""

    values: tuple[float, ...]
    calls: int = 0


def _probabilities(logs: metrics.Floats, offsets: Sequence[float]) -> metrics.Floats:
    """Label probabilities [N, C], calibrated where there are offsets."""
    return calibration.calibrated(logs, offsets) if offsets else np.exp(logs)


class ClassificationTask(Task):
    """Label texts with a frozen language model."""

    name = "classification"
    stochastic = False
    primary = "accuracy"
    chunk = 16
    """Prompts that an executor sends at a time: prompts scored together share passes and beginnings."""

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
        """How a model on this machine computes: its answers depend on it, in the last bits or (precision) in more."""
        self.settings, self.data, self.template, self.model, self.seed = settings, data, template, model, seed
        self.labels, self.revision = tuple(data.words), revision
        self.billed = model.billed
        self._server: Any = model if model.billed is not None else None
        """The model, if it is behind an API: it counts tokens, and its answers may fail."""
        if self._server is not None:
            self.chunk = 1  # so that each prompt has its own bill; its examples are still sent side by side
        self.calibration = settings.calibrate if model.graded else "none"
        self.calibrates = self.calibration != "none"
        self.prior = calibration.prior_of(settings.prior, self.labels)
        self._asked: dict[str, tuple[float, ...]] = {}
        """Offsets by prompt text that were not given and had to be measured, so that they are measured once."""
        self.splits = tuple(name for name in ("train", "dev", "test") if data.splits.get(name))
        self.language = data.language
        self.notes = list(data.notes)
        """What a reader should know of data and texts: overlaps, draws, texts that were cut."""
        self._targets = {
            name: np.array([self.labels.index(example.label) for example in rows], dtype=np.int64)
            for name, rows in data.splits.items()
        }
        self._inputs: dict[str, Inputs] = {}
        for name in self.splits:
            inputs = model.prepare([example.text for example in data.splits[name]], keep=name != "test")
            self._inputs[name] = inputs
            if inputs.cut:
                lines = [str(data.splits[name][row].line) for row in inputs.cut]
                shown = ", ".join(lines[:_SHOWN]) + (", ..." if len(lines) > _SHOWN else "")
                self.notes.append(
                    f"{name}: {len(lines)} text(s) were cut to fit the model's window of {model.encoder.window} tokens "
                    f"(line {shown}); the longest has {max(inputs.cut.values())}"
                )
        self.notes += self._calibration_notes()
        self._free = model.prepare([model.mask_token or text if text == "[MASK]" else text for text in _CONTENT_FREE])
        self._rows = self._block_rows(settings.first_block)
        self.blocks = tuple(self._rows)
        self._targets |= {
            name: np.array([self._targets[split][row] for split, row in rows], dtype=np.int64)
            for name, rows in self._rows.items()
        }
        self.fingerprints = {name: self._fingerprint(revision, (name,)) for name in (*self.splits, *self.blocks)}
        """One per split: a score on test does not depend on the rows of train."""
        self.fingerprint = self._fingerprint(revision, self.splits)
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
        """The task that the settings describe; data and template are checked before a model is opened.

        `remote` says how to reach a model behind an API. Without `contact` no request is sent: such a
        task can count, but not yet score.
        """
        data = data or load_data(settings)
        models = models or ModelSettings()
        if is_remote(settings.model):
            model, template, revision = _open_server(settings, data, remote or RemoteSettings(), contact)
        else:
            model, template, revision = _open_model(settings, data, device, models)
        if data.proposed:
            data = _with_words(settings, data, model, template)
        return cls(settings, data, template, model, revision, seed, models)

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        """The mean reward over the examples of a split; a prompt that leaves no room for a text is a failure.

        A server's prompts are scored one by one: each has its own bill, and its own examples without a usable answer.
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
            prompts = [replace(prompt, offsets=()) for prompt in prompts]  # a block's rows measure their own
        framed = [self._frame(prompt.text) for prompt in prompts]
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
        """The reward of every row of a split, by a score's answers and offsets."""
        if not score.answers:
            return []
        logs = calibration.unpack_rows(score.answers, len(self.labels))
        return [float(value) for value in self._rewards(_probabilities(logs, score.offsets), split)]

    def pooled(self, scores: Sequence[Score]) -> list[float]:
        """The rewards of all rows of the first blocks, calibrated by these rows together."""
        names = self.blocks[: len(scores)]
        if not all(score.answers for score in scores):  # one that failed has no rows: it counts as it was scored
            return [score.value for score, name in zip(scores, names, strict=True) for _ in self._rows[name]]
        logs = np.concatenate([calibration.unpack_rows(score.answers, len(self.labels)) for score in scores])
        targets = np.concatenate([self._targets[name] for name in names])
        offsets = scores[0].offsets
        if self.calibration == "batch":
            offsets = tuple(calibration.batch_offsets(logs, targets, self.prior))
        return [float(value) for value in self._rewarded(_probabilities(logs, offsets), targets)]

    def whole_splits(self, scores: Sequence[Score]) -> dict[str, Score]:
        """The scores on train and dev whose rows are all among those of the first blocks."""
        found: dict[str, Score] = {}
        if not all(score.answers for score in scores):
            return found
        known = {
            place: logs
            for score, name in zip(scores, self.blocks, strict=False)
            for place, logs in zip(
                self._rows[name], calibration.unpack_rows(score.answers, len(self.labels)), strict=True
            )
        }
        offsets = scores[0].offsets if scores else ()
        for split in ("train", "dev"):
            places = [(split, row) for row in range(len(self._targets.get(split, ())))]
            if not places or not all(place in known for place in places):
                break
            logs = np.stack([known[place] for place in places])
            if split == "train" and self.calibration == "batch":
                offsets = tuple(map(float, calibration.batch_offsets(logs, self._targets[split], self.prior)))
            found[split] = replace(self._score(logs, _Measured(offsets), split), calls=0)
        return found

    def answers(self) -> tuple[str, ...]:
        """The label words."""
        return tuple(self.data.words.values())

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        """Accuracy and macro-F1 with bootstrap intervals, a confusion matrix, and examples right and wrong."""
        if self._server is None:
            return self._evaluated(prompt, split, seed)
        self._server.take()
        evaluation = self._evaluated(prompt, split, seed)
        usage = self._server.take()
        taken = {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
        return replace(evaluation, tables={**evaluation.tables, "usage": taken, "failures": list(usage.failures)[:20]})

    def evaluate_many(self, prompts: Sequence[Prompt], split: str, seed: int = 0) -> list[Evaluation]:
        """The same of several prompts, whose texts a model on this machine reads once for all of them."""
        if self._server is not None:
            return [self.evaluate(prompt, split, seed) for prompt in prompts]
        return self._evaluations(prompts, split, seed)

    def evaluation_from(self, score: Score, split: str, seed: int = 0) -> Evaluation | None:
        """The evaluation by a score's answers, which are the model's own; its calls were the score's."""
        if not score.answers or score.failures or (self.calibrates and not score.offsets):
            return None
        logs = calibration.unpack_rows(score.answers, len(self.labels))
        return replace(self._judged(logs, _Measured(score.offsets), split, seed), calls=0)

    def _evaluated(self, prompt: Prompt, split: str, seed: int) -> Evaluation:
        return self._evaluations([prompt], split, seed)[0]

    def _evaluations(self, prompts: Sequence[Prompt], split: str, seed: int) -> list[Evaluation]:
        self._known(split)
        answers = self._ask(prompts, self.inputs(split))
        offsets = self._offsets(prompts, split, answers)
        return [self._judged(logs, own, split, seed) for logs, own in zip(answers, offsets, strict=True)]

    def _judged(self, logs: metrics.Floats, measured: _Measured, split: str, seed: int) -> Evaluation:
        """The metrics of label log-probabilities [N, C], with the raw figures beside the calibrated ones."""
        raw = self.evaluation_of(np.exp(logs), split, seed)
        if not self.calibrates:
            return raw
        found = self.evaluation_of(_probabilities(logs, measured.values), split, seed)
        return replace(
            found,
            metrics={**found.metrics, **{f"raw_{name}": value for name, value in raw.metrics.items()}},
            intervals={**found.intervals, **{f"raw_{name}": ends for name, ends in raw.intervals.items()}},
            calls=found.calls + measured.calls,
            tables={**found.tables, "calibration": self.calibration_facts(measured.values)},
        )

    def evaluation_of(self, probabilities: metrics.Floats, split: str, seed: int = 0) -> Evaluation:
        """The metrics of label probabilities [N, C], however they were made."""
        targets, classes = self._targets[split], len(self.labels)
        predicted = metrics.predictions(probabilities, targets)
        table = metrics.confusion(targets, predicted, classes)
        tables = {
            "confusion": {"labels": [self._display(label) for label in self.labels], "counts": table.tolist()},
            "examples": self._shown(probabilities, predicted, split),
            "notes": list(self.notes),
        }
        return Evaluation(
            split=split,
            metrics={
                **{name: metric(table) for name, metric in _METRICS.items()},
                "reward": float(np.mean(self._rewards(probabilities, split))),
            },
            rows=len(targets),
            calls=len(targets) * self.model.sequences,
            intervals=metrics.intervals(targets, predicted, classes, _METRICS, derive(seed, "bootstrap")),
            tables=tables,
            outcomes={"accuracy": tuple((predicted == targets).astype(float).tolist())},
        )

    def predict(self, prompt: Prompt, texts: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
        """The likeliest label of each text, and the probability of every label.

        A text without a usable answer is refused rather than given a made-up label.
        """
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise SettingError(f"text {number} is empty: there is nothing to label.")
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
        rows = _probabilities(logs[0], measured.values)
        return [(self.labels[int(row.argmax())], dict(zip(self.labels, map(float, row), strict=True))) for row in rows]

    def calls(self, split: str = "train") -> int:
        """Sequences that one prompt costs on a split; its offsets are measured with its score on train."""
        self._known(split)
        first = split in ("train", *self.blocks[:1])
        extra = len(_CONTENT_FREE) if self.calibration == "content-free" and first else 0
        return (len(self._targets[split]) + extra) * self.model.sequences

    def attach(self, meter: Meter) -> bool:
        """Tell a meter of every request to the server."""
        if self._server is None:
            return False
        self._server.client.attach(meter)
        return True

    def context(self) -> str:
        """Labelled examples in the template, up to where a prompt would be written."""
        prompt, _ = self._manual()
        per_class, seed = self.settings.context_examples, derive(self.settings.split, "context")
        words = self.data.words
        return prompts.context_text(self.data.splits["train"], words, prompt, self.template, per_class, seed)

    def baselines(self) -> dict[str, str]:
        """Hand-written prompts: 'manual', 'instructions' where there is one, 'in-context' where an example fits."""
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
        """The most tokens in and out that a prompt can take on a split, where they are billed."""
        if self._server is None:
            return 0, 0
        return self._counted(self._server.most_tokens, prompt, split)

    def likely_tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The tokens in and out that a prompt will take on a split, where they are billed."""
        if self._server is None:
            return 0, 0
        return self._counted(self._server.likely_tokens, prompt, split)

    def _counted(self, count: Callable[[Frame, Any], tuple[int, int]], prompt: Prompt, split: str) -> tuple[int, int]:
        """Tokens in and out of all texts that a prompt is asked on, by a way of counting."""
        frame, _ = self._frame(prompt.text)
        measured = self.calibration == "content-free" and split in ("train", *self.blocks[:1])
        wanted = [self.inputs(split), *([self._free] if measured else [])]
        counts = [count(frame, inputs) for inputs in wanted]
        return sum(one for one, _ in counts), sum(one for _, one in counts)

    def differentiable(self) -> SoftView | None:
        """The view that white-box methods ask for: prompts as vectors at the prompt's place; an API has none."""
        if self._server is not None:
            return None
        from pinprompt.tasks.soft_view import SoftView

        return SoftView(self)

    def inputs(self, split: str) -> Inputs:
        """The texts of a split as the model has them."""
        self._known(split)
        if split not in self._inputs:
            texts = [self.data.splits[name][row].text for name, row in self._rows[split]]
            self._inputs[split] = self.model.prepare(texts, keep=True)
        return self._inputs[split]

    def targets(self, split: str) -> metrics.Ints:
        """The class number of every row of a split."""
        self._known(split)
        return self._targets[split]

    def score_of(self, probabilities: metrics.Floats, split: str) -> Score:
        """The task's score of label probabilities [N, C], however they were made, with its details."""
        targets, classes = self._targets[split], len(self.labels)
        predicted = metrics.predictions(probabilities, targets)
        table = metrics.confusion(targets, predicted, classes)
        details = {
            "accuracy": float(np.mean(metrics.correct(probabilities, targets))),
            "gap": float(np.mean(metrics.gaps(probabilities, targets))),
            "log_likelihood": float(np.mean(metrics.log_likelihood(probabilities, targets))),
            "balanced_accuracy": metrics.balanced_accuracy(table),
            "label_entropy": metrics.label_entropy(table),
        }
        value = float(np.mean(self._rewards(probabilities, split)))
        rows = metrics.packed(probabilities, predicted) if probabilities.size <= _ROWS_KEPT else ""
        return Score(value, calls=len(targets) * self.model.sequences, details=details, rows=rows)

    def sent(self, prompt: Prompt) -> dict[str, Any]:
        """The exact text around an input, the label words with their tokens, the offsets, and the model."""
        from pinprompt.models.wheels import ALIASES

        frame, template = self._frame(prompt.text)
        sides, mask = {"before": frame.before, "after": frame.after}, self.model.mask_token
        if frame.mask is not None:
            side, place = frame.mask
            sides[side] = sides[side][:place] + mask + sides[side][place:]
        words = self.model.words if template == self.template else self.model.words_for(template.frame("it"))
        chat: dict[str, Any] = {}
        if self._server is not None:
            chat = {"way": self._server.way, "messages": [], "word_ids": {}, "source": "remote"}
            if self._server.way != "completions":
                chat["messages"] = self._server.messages(f"{sides['before']}{{text}}{sides['after']}")
        name = self.settings.model
        source = "alias" if name in ALIASES else "gguf" if name.lower().endswith(".gguf") else "hub"
        return {
            **sides,
            "template": self.template.source,
            "mask": mask,
            "words": dict(self.data.words),
            "word_ids": {label: list(ids) for label, ids in zip(self.labels, words.ids, strict=True)},
            "offsets": dict(zip(self.labels, prompt.offsets, strict=True)) if prompt.offsets else {},
            "model": name,
            "revision": self.revision,
            "kind": self.model.kind,
            "source": "folder" if Path(name).is_dir() else source,
            **chat,
        }

    def shown_rows(self) -> dict[str, Any]:
        """The examples as a page can show them beside what each prompt makes of them, and which rows a block has."""
        splits: list[str] = [split for split in ("train", "dev") if split in self.splits]
        places = [(split, row) for split in splits for row in range(len(self._targets[split]))]
        at = {place: number for number, place in enumerate(places)}
        rows = [(self.data.splits[split][row].text, int(self._targets[split][row])) for split, row in places]
        return {
            "labels": [self._display(label) for label in self.labels],
            "rows": [{"text": text, "label": label} for text, label in rows],
            "splits": {
                **{split: [number for (own, _), number in at.items() if own == split] for split in splits},
                **{name: [at[place] for place in block] for name, block in self._rows.items()},
            },
        }

    def calibration_facts(self, offsets: Sequence[float]) -> dict[str, Any]:
        """How a prompt's labels were calibrated, as result.json has it."""
        return {
            "kind": self.calibration,
            "offsets": dict(zip(self.labels, offsets, strict=True)),
            "prior": dict(zip(self.labels, map(float, self.prior), strict=True)),
            "rows": len(self._targets.get("train", ())) if self.calibration == "batch" else len(_CONTENT_FREE),
        }

    def _score(self, logs: metrics.Floats, measured: _Measured, split: str) -> Score:
        """The score of label log-probabilities [N, C], with the raw figures beside the calibrated ones."""
        score = self.score_of(_probabilities(logs, measured.values), split)
        details = dict(score.details)
        if self.calibrates:
            raw = self.score_of(np.exp(logs), split)
            details |= {"raw_score": raw.value, "raw_accuracy": raw.details["accuracy"]}
        return replace(
            score,
            calls=score.calls + measured.calls,
            details=details,
            answers=calibration.pack_rows(logs),
            offsets=measured.values,
        )

    def _offsets(self, prompts: Sequence[Prompt], split: str, answers: Sequence[metrics.Floats]) -> list[_Measured]:
        """The offsets of each prompt: its own, or measured on the answers if these are train's, or asked for now."""
        if not self.calibrates:
            return [_Measured(())] * len(prompts)
        for prompt in prompts:
            if prompt.offsets and len(prompt.offsets) != len(self.labels):
                raise SettingError(
                    f"the prompt has {len(prompt.offsets)} label offsets, and the task has {len(self.labels)} labels"
                )
        unknown = [prompt for prompt in prompts if not prompt.offsets]
        if unknown and split != "train" and all(prompt.text in self._asked for prompt in unknown):
            return [_Measured(prompt.offsets or self._asked[prompt.text]) for prompt in prompts]
        if self.calibration == "content-free":
            logs = self._ask(unknown, self._free)
            measure, calls = calibration.content_free_offsets, len(_CONTENT_FREE)
            values = [measure(one, self.prior) for one in logs]
        else:
            if unknown and "train" not in self.splits:
                raise SettingError("the prompt has no label offsets, and there are no training rows to measure them on")
            here = split == "train" or split in self.blocks
            if here:
                logs = [one for prompt, one in zip(prompts, answers, strict=True) if not prompt.offsets]
            else:
                logs = self._ask(unknown, self._inputs["train"]) if unknown else []
            calls = 0 if here or not unknown else len(self._targets["train"])
            values = [
                calibration.batch_offsets(one, self._targets[split if here else "train"], self.prior) for one in logs
            ]
        vectors = [tuple(map(float, one)) for one in values]
        if split != "train" and split not in self.blocks:
            self._asked |= {prompt.text: vector for prompt, vector in zip(unknown, vectors, strict=True)}
        measured = iter(_Measured(vector, calls * self.model.sequences) for vector in vectors)
        return [_Measured(prompt.offsets) if prompt.offsets else next(measured) for prompt in prompts]

    def _calibration_notes(self) -> list[str]:
        if self.settings.calibrate == "none":
            if self.settings.prior:
                raise SettingError("task.prior needs task.calibrate: set it to batch or content-free")
            return []
        if not self.calibrates:
            return ["the task model gives no log-probabilities, so labels are not calibrated"]
        few = None
        if self.calibration == "batch" and "train" in self.splits:
            few = calibration.few_rows(self._targets["train"], len(self.labels))
        return [few] if few else []

    def _ask(self, prompts: Sequence[Prompt], inputs: Inputs) -> list[metrics.Floats]:
        """Label log-probabilities [N, C] of each prompt."""
        framed = [self._frame(prompt.text) for prompt in prompts]
        found: dict[Frame, metrics.Floats] = {}
        for template in dict.fromkeys(template for _, template in framed):
            frames = [frame for frame, own in framed if own is template or own == template]
            words = None if template == self.template else self.model.words_for(template.frame("it"))
            for frame, logs in zip(frames, self.model.log_probs(frames, inputs, words), strict=True):
                found[frame] = logs.double().numpy()
        return [found[frame] for frame, _ in framed]

    def _frame(self, prompt: str) -> tuple[Frame, Template]:
        template = whole(prompt, self.model.kind) or self.template
        return template.frame(prompt), template

    def _too_long(self, frame: Frame) -> str | None:
        encoder, mask = self.model.encoder, self.model.mask_token
        size = len(encoder.ids([frame.around("", mask)[0]])[0]) + max(map(len, self.model.words.ids))
        if size < encoder.window:
            return None
        return f"the prompt takes {size} tokens, which leaves no room for a text in the window of {encoder.window}"

    def _rewards(self, probabilities: metrics.Floats, split: str) -> metrics.Floats:
        return self._rewarded(probabilities, self._targets[split])

    def _rewarded(self, probabilities: metrics.Floats, targets: metrics.Ints) -> metrics.Floats:
        settings = self.settings
        if settings.reward == "accuracy":
            return metrics.correct(probabilities, targets).astype(np.float64)
        if settings.reward == "log-likelihood":
            return metrics.log_likelihood(probabilities, targets)
        return metrics.gap_reward(probabilities, targets, settings.weight_wrong, settings.weight_right)

    def _shown(self, probabilities: metrics.Floats, predicted: metrics.Ints, split: str) -> list[dict[str, Any]]:
        rows = self.data.splits[split]
        right = [row for row in range(len(rows)) if predicted[row] == self._targets[split][row]]
        wrong = [row for row in range(len(rows)) if predicted[row] != self._targets[split][row]]
        return [
            self._row(rows[row], probabilities[row], int(predicted[row])) for row in (*right[:_SHOWN], *wrong[:_SHOWN])
        ]

    def _row(self, example: Example, probabilities: metrics.Floats, predicted: int) -> dict[str, Any]:
        return {
            "text": example.text,
            "label": self._display(example.label),
            "predicted": self._display(self.labels[predicted]),
            "probability": float(probabilities[predicted]),
        }

    def _display(self, label: str) -> str:
        """A label as people read it: its word, where the label itself is only a number."""
        return self.data.words[label] if label.lstrip("-").isdigit() else label

    def _manual(self) -> tuple[str, Template]:
        return _manual(self.settings, self.data, self.template, self.model.kind)

    def _block_rows(self, first: int) -> dict[str, list[tuple[str, int]]]:
        """Blocks by name: rows of train, then of dev, classes in turn; the total doubles until a split is used up."""
        classes = len(self.labels)
        size = -(-first // classes) * classes
        blocks: dict[str, list[tuple[str, int]]] = {}
        for split in ("train", "dev"):
            targets = self._targets.get(split, np.zeros(0, np.int64))
            seen = [0] * classes
            turns = []
            for row, label in enumerate(targets):
                turns.append((seen[label], int(label), row))
                seen[label] += 1
            rows = [(split, row) for _, _, row in sorted(turns)]
            begin = 0
            while begin < len(rows):
                end = min(begin + max(size, begin), len(rows))
                blocks[f"{split}-{begin + 1}-{end}"] = rows[begin:end]
                begin = end
            size = max(size, len(rows))
        return blocks

    def _known(self, split: str) -> None:
        if split not in self.splits and split not in self.blocks:
            raise SettingError(f"there is no split '{split}' in this task's data; {did_you_mean(split, self.splits)}")

    def _fingerprint(self, revision: str, splits: Sequence[str]) -> str:
        settings = self.settings
        parts: Mapping[str, Any] = {
            "model": revision,
            "kind": self.model.kind,
            "template": [self.template.source, self.template.spacing],
            "words": [list(self.data.words.items()), self.model.words.ids],
            "data": {
                name: [[e.text, e.label] for e in rows]
                for name, rows in sorted(self.data.splits.items())
                # Offsets come from the training rows, so every calibrated score depends on them; a block has its own.
                if name in splits or (name == "train" and self.calibration == "batch" and splits[0] in self.splits)
            },
            **{
                name: [[self.data.splits[split][row].text, self.data.splits[split][row].label] for split, row in rows]
                for name, rows in self._rows.items()
                if name in splits
            },
            "reward": [settings.reward, settings.weight_wrong, settings.weight_right],
            "calibration": [self.calibration, *(map(float, self.prior) if self.calibrates else ())],
            "computed": self._computed.model_dump(mode="json") if self._server is None else {},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _manual(
    settings: ClassificationSettings, data: LabelledData, template: Template, kind: str
) -> tuple[str, Template]:
    own = settings.manual
    if own is None and data.card is None:
        own = label_words.fitting_prompt(list(data.words.values()), settings.label_column, data.language)
    return prompts.manual_prompt(data.card, template, kind, own)


def _with_words(settings: ClassificationSettings, data: LabelledData, model: Any, template: Template) -> LabelledData:
    """The data with the best of the proposed label words, by the hand-written prompt on the training rows.

    A model behind an API is not asked: its calls belong to the search, and the first proposal is good enough to begin.
    """
    words, tried = dict(data.words), ""
    if model.billed is None:
        rows = data.splits["train"]
        candidates = list(dict.fromkeys(word for own in data.proposed.values() for word in own))
        frame = _manual(settings, data, template, model.kind)[0]
        ids = model.words_for(template.frame("it"), {word: word for word in candidates})
        inputs = model.prepare([row.text for row in rows])
        logs = model.log_probs([template.frame(frame)], inputs, ids)[0].double().numpy()
        targets = np.array([list(words).index(row.label) for row in rows], dtype=np.int64)
        words = label_words.chosen(data.proposed, candidates, logs, targets)
        model.words = model.words_for(template.frame("it"), words)
        tried = f", the best of {len(candidates)} words on {len(rows)} training rows"
    pairs = ", ".join(f"{label}={word}" for label, word in words.items())
    note = f"label words by the labels' names: {pairs}{tried}; --word label=word sets your own"
    return replace(data, words=words, notes=(*data.notes, note), proposed={})


def _open_server(
    settings: ClassificationSettings, data: LabelledData, remote: RemoteSettings, contact: bool
) -> tuple[Any, Template, str]:
    """A task model behind an API, with the template that fits it and what its answers depend on."""
    template = parse(settings.template or prompts.default_template(data.card, "causal"), "causal", settings.spacing)
    server = open_classifier(settings.model, remote, data.words, contact)
    return server, template, server.revision


def _open_model(
    settings: ClassificationSettings, data: LabelledData, device: str, models: ModelSettings
) -> tuple[Any, Template, str]:
    """A task model on this machine, with the template that fits it and what its answers depend on."""
    from pinprompt.models import sources

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
        from pinprompt.models.masked_labels import MaskedLabels

        # A dataset's published way of writing its words counts with its published template only.
        published = data.card is not None and not settings.words and source == data.card.template(kind)
        spaced = data.card.spaced if published and data.card is not None else None
        lm, tokenizer = sources.load_masked_lm(settings.model, device, precision=models.precision)
        model = MaskedLabels(lm, tokenizer, data.words, probe, strict=settings.strict_words, spaced=spaced)
    else:
        from pinprompt.models.causal_labels import CausalLabels

        lm, tokenizer = sources.load_causal_lm(settings.model, device, precision=models.precision)
        names = [name for name, _ in template.parts]
        ahead = names.index("text") < names.index("prompt")
        model = CausalLabels(
            lm, tokenizer, data.words, probe, strict=settings.strict_words, share=ahead, read=models.read,
            tokens=models.tokens,
        )  # fmt: skip
    return model, template, sources.resolve(settings.model).revision
