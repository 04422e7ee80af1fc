"""Style transfer by a model behind an API: the same task, with tokens counted and failed requests recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pinprompt.recipe.sections import RemoteSettings, StyleTransferSettings
from pinprompt.remote.generator import RemoteGenerator
from pinprompt.remote.open import open_client
from pinprompt.tasks.style_data import style_data
from pinprompt.tasks.style_judges import build_judges
from pinprompt.tasks.style_transfer import StyleTransferTask
from pinprompt.values import Evaluation, Prompt, Score


class RemoteStyleTransferTask(StyleTransferTask):
    """A style-transfer task whose model is billed by the token."""

    chunk = 1
    """A prompt at a time, so that each has its own bill; its requests are still sent side by side."""
    notes: list[str]

    @classmethod
    def open(
        cls,
        settings: StyleTransferSettings,
        remote: RemoteSettings,
        writer: str,
        device: str = "cpu",
        contact: bool = True,
    ) -> RemoteStyleTransferTask:
        """Read the texts, load or train the judges, then ask the server how it writes (unless without `contact`).

        A model behind an API tells no perplexity: that of `settings.fluency_model` is reported, else the `writer`'s.
        """
        data = style_data(settings)
        judged = settings.model_copy(update={"fluency_model": settings.fluency_model or writer})
        judges = build_judges(judged, data, device, None)
        generator: Any = RemoteGenerator(  # has the interface of a local one
            open_client(settings.model, remote),
            template=settings.template,
            top_k=settings.top_k,
            temperature=settings.temperature,
            lower=data.lower,
            max_new_tokens=settings.max_new_tokens,
        )
        if contact:
            generator.probe(max(settings.samples * settings.bootstraps, settings.test_samples))
        task = cls(settings, data, generator, judges, generator.revision)
        task.notes = [*generator.notes, f"perplexity and fluency by {judges.lm.name}"]
        task.billed = generator.billed
        return task

    def tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The most tokens in and out that a prompt can take on a split."""
        count = self._samples(split) * self._blocks(split)
        most = [self._server.most_tokens(prompt.text, source, count) for source in self._sources(split)]
        return sum(one for one, _ in most), sum(one for _, one in most)

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        """As the task scores, with what each prompt took."""
        found = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            self._server.take()
            (score,) = super().score([prompt], [seed], split)
            usage = self._server.take()
            details = {**score.details, "tokens_in": float(usage.tokens_in), "tokens_out": float(usage.tokens_out)}
            found.append(replace(score, details=details))
        return found

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        """As the task evaluates, with what it took."""
        self._server.take()
        evaluation = super().evaluate(prompt, split, seed)
        usage = self._server.take()
        taken = {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
        return replace(evaluation, tables={**evaluation.tables, "usage": taken, "notes": list(self.notes)})

    @property
    def _server(self) -> Any:
        return self.generator
