"""Rewrites of single texts by a found prompt, with the judges of the report; works without the texts of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pinprompt.errors import DataError, SettingError
from pinprompt.judges.content import ContentJudge
from pinprompt.judges.style import StyleJudge
from pinprompt.models.generator import Generator, Request
from pinprompt.models.loading import load_causal_lm
from pinprompt.recipe.task_sections import RemoteSettings, StyleTransferSettings
from pinprompt.remote.client import is_remote, open_client
from pinprompt.remote.generator import RemoteGenerator
from pinprompt.seeds import derive
from pinprompt.tasks.style_judges import kept_content, kept_style
from pinprompt.tasks.style_metrics import gain, joint


class Rewrite(NamedTuple):
    """An output with what judges say of it, in percent; `score` is what it is worth by `task.reward`."""

    text: str
    content: float
    style: float
    score: float


@dataclass
class Rewriter:
    """A model that writes, and the judges that order what it wrote."""

    generator: Generator
    content: ContentJudge
    style: StyleJudge
    samples: int
    reward: Literal["mean", "gain"] = "mean"
    notes: tuple[str, ...] = ()

    def rewrite(self, prompt: str, text: str, n: int = 1, seed: int = 0) -> list[Rewrite]:
        """The n best distinct rewrites of a text, out of `samples` (or n) outputs; fewer where there are fewer.

        An output that repeats the text comes after all that change it.
        """
        if not text.strip():
            raise SettingError("there is nothing to rewrite: the text is empty")
        (made,) = self.generator.sample([Request(prompt, text, max(n, self.samples), derive(seed, "rewrite"))])
        distinct = [one for one in dict.fromkeys(made.texts) if one]
        if not distinct:
            raise DataError(f"no rewrite: {made.failure or 'every output is empty'}")
        contents, styles = self.content([text] * len(distinct), distinct), self.style(distinct)
        before = self.style([text])[0] if self.reward == "gain" else None
        rewrites = [
            Rewrite(one, 100 * c, 100 * s, joint(c, s) if before is None else gain(c, s, before))
            for one, c, s in zip(distinct, contents, styles, strict=True)
        ]
        return sorted(rewrites, key=lambda one: (unchanged(text, one.text), -one.score))[:n]


def unchanged(text: str, rewrite: str) -> bool:
    """True where a rewrite differs from the text in case, spaces or quotes at the most."""
    return _bare(text) == _bare(rewrite)


def _bare(text: str) -> str:
    return " ".join(text.lower().replace('"', " ").split())


def local_generator(settings: StyleTransferSettings, model: Any, tokenizer: Any, lower: bool) -> Generator:
    """The task model of this machine as a writer of rewrites."""
    return Generator(
        model,
        tokenizer,
        template=settings.template,
        top_k=settings.top_k,
        temperature=settings.temperature,
        lower=lower,
        max_new_tokens=settings.max_new_tokens,
        rows=settings.rows,
    )


def open_server(settings: StyleTransferSettings, lower: bool, remote: RemoteSettings, contact: bool) -> RemoteGenerator:
    """A model behind an API with the interface of `Generator`; it is asked how it writes unless without `contact`."""
    server = RemoteGenerator(
        open_client(settings.model, remote),
        template=settings.template,
        top_k=settings.top_k,
        temperature=settings.temperature,
        lower=lower,
        max_new_tokens=settings.max_new_tokens,
    )
    if contact:
        server.probe(max(settings.samples * settings.bootstraps, settings.test_samples))
    return server


def kept_rewriter(
    settings: StyleTransferSettings, kept: Mapping[str, Any], device: str, remote: RemoteSettings
) -> Rewriter:
    """The rewriter of a finished run, from its settings and its judges.json: no text of the run is read."""
    content, style = kept_content(settings, kept, device), kept_style(settings, kept, device)
    lower = bool(kept.get("lower"))
    if is_remote(settings.model):
        server: Any = open_server(settings, lower, remote, contact=True)
        return Rewriter(server, content, style, settings.test_samples, settings.reward, tuple(server.notes))
    model, tokenizer = load_causal_lm(settings.model, device)
    generator = local_generator(settings, model, tokenizer, lower)
    return Rewriter(generator, content, style, settings.test_samples, settings.reward)
