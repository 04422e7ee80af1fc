"""Classification by a model behind an API: the same task, with tokens counted and failed examples recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pinprompt.errors import ModelError
from pinprompt.recipe.sections import ClassificationSettings, RemoteSettings
from pinprompt.remote.open import open_classifier
from pinprompt.tasks import prompts
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.labelled_data import LabelledData, load_data
from pinprompt.tasks.prompts import parse
from pinprompt.values import Evaluation, Prompt, Score


class RemoteClassificationTask(ClassificationTask):
    """A classification task whose model is billed by the token."""

    chunk = 1
    """A prompt at a time, so that each has its own bill; its examples are still sent side by side."""

    def differentiable(self) -> None:  # type: ignore[override]
        """None: a model behind an API has no gradients."""

    @classmethod
    def open(
        cls,
        settings: ClassificationSettings,
        remote: RemoteSettings,
        seed: int = 0,
        contact: bool = True,
        data: LabelledData | None = None,
    ) -> RemoteClassificationTask:
        """The task that the settings describe; the data are checked before the server is asked anything.

        Without `contact` it is asked nothing at all: such a task can count, but not yet score.
        """
        data = data or load_data(settings)
        source = settings.template or prompts.default_template(data.card, "causal")
        template = parse(source, "causal", settings.spacing)
        model: Any = open_classifier(settings.model, remote, data.words, contact)  # has the interface of a local model
        task = cls(settings, data, template, model, model.revision, seed)
        task.notes += model.notes
        task.billed = model.billed
        return task

    def tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The most tokens in and out that a prompt can take on a split."""
        frame, _ = self._frame(prompt.text)
        measured = self.calibration == "content-free" and split == "train"
        wanted = [self._inputs[split], *([self._free] if measured else [])]
        most = [self._server.most_tokens(frame, inputs) for inputs in wanted]
        return sum(one for one, _ in most), sum(one for _, one in most)

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        """As the task scores, with what each prompt took and which examples had no usable answer."""
        found = []
        for prompt in prompts:
            self._server.take()
            (score,) = super().score([prompt], (), split)
            usage = self._server.take()
            details = {**score.details, "tokens_in": float(usage.tokens_in), "tokens_out": float(usage.tokens_out)}
            found.append(replace(score, details=details, failures=(*score.failures, *usage.failures)))
        return found

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        """As the task evaluates, with what it took."""
        self._server.take()
        evaluation = super().evaluate(prompt, split, seed)
        usage = self._server.take()
        taken = {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
        return replace(evaluation, tables={**evaluation.tables, "usage": taken, "failures": list(usage.failures)[:20]})

    def predict(self, prompt: Prompt, texts: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
        """As the task predicts; a text without a usable answer is refused rather than given a made-up label."""
        self._server.take()
        predicted = super().predict(prompt, texts)
        failures = self._server.take().failures
        if failures:
            raise ModelError(
                f"{self._server.client.settings.base_url} gave no usable answer for {len(failures)} of {len(texts)} "
                f"texts; the first: {failures[0]}"
            )
        return predicted

    @property
    def _server(self) -> Any:
        return self.model
