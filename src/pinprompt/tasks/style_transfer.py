"""Unsupervised style transfer: a prompt's score is the content and style of the best rewrites that it produces."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from pinprompt.errors import DataError, SettingError, did_you_mean
from pinprompt.judges.frozen import LanguageModel
from pinprompt.models.generator import Generator, Request
from pinprompt.models.loading import load_causal_lm
from pinprompt.models.sources import resolve
from pinprompt.recipe.task_sections import RemoteSettings, StyleTransferSettings
from pinprompt.remote.client import is_remote
from pinprompt.tasks.protocol import Task, spans
from pinprompt.tasks.rewriting import (
    Rewrite,
    Rewriter,
    StyleJudges,
    best_of_blocks,
    build_judges,
    corpus,
    corpus_intervals,
    gain,
    joint,
    keep_judges,
    local_generator,
    mean_intervals,
    open_server,
    sentence_bleu,
    unchanged,
)
from pinprompt.tasks.style_data import StyleData, style_data
from pinprompt.values import Evaluation, Meter, Prompt, Score, derive

SHOWN = 100
"""The most rewrites in an evaluation's table."""
DRAFTS = (
    "Rewrite the sentence so that it is {target}:",
    "Here is a {source} sentence and its {target} version:",
    "Turn the {source} sentence into a {target} one:",
    "Make this sentence {target} instead of {source}:",
    "Replace the {source} words with {target} words:",
    "The same sentence, first {source}, then {target}:",
    "Change only what makes the sentence {source}, so that it becomes {target}:",
    "Rewrite the {source} text as a {target} text about the same thing:",
    "From {source} to {target}:",
    "Say the same in a {target} way:",
    "One said it in a {source} way, the other in a {target} way:",
    "The {source} version, and the {target} version:",
    "Keep the words, but change the style from {source} to {target}:",
    "Write the opposite of the {source} sentence, so that it is {target}:",
    "Original ({source}): {text} Rewritten ({target}):",
    "Instead of the {source} {text} say the {target}",
    "A {source} person says {text} but a {target} person says",
    "The {source} sentence is {text} The same sentence made {target} is",
    "Rewrite the sentence {text} to be {target}:",
    "{Source}: {text} {Target}:",
    "Text: {text} The {target} version of the text:",
    "Make it {target}. Input: {text} Output:",
    "If {text} is {source}, then the {target} opposite is",
    "I did not mean {text} What I meant was {target}:",
)
"""Common instructions for a change of style, with the names of both styles; before the text, or around it."""
ROOM = 64
"""Tokens that a training or dev text must leave for the prompt and the template."""


class StyleTransferTask(Task):
    """The task of `tasks.protocol`, on a generator and judges."""

    name = "style-transfer"
    stochastic = True
    primary = "j"
    chunk = 16
    """How many prompts to score together: one prompt alone leaves most rows of a pass empty."""

    def __init__(
        self,
        settings: StyleTransferSettings,
        data: StyleData,
        generator: Generator,
        judges: StyleJudges,
        revision: str = "",
    ) -> None:
        self.settings, self.data, self.generator, self._judges = settings, data, generator, judges
        self._revision = revision
        self.billed = generator.billed
        self._server: Any = generator if generator.billed is not None else None
        """The generator, if it is behind an API: it counts tokens."""
        if self._server is not None:
            self.chunk = 1  # so that each prompt has its own bill; its requests are still sent in parallel
        fitting = _fitting(data, generator)
        self.pool = fitting["train"]
        """Training texts from which the sources of a step are drawn; the first ones are the split `train`."""
        self.sources = {**fitting, "train": self.pool[: settings.sources]}
        self.splits = tuple(self.sources)
        self._rows = self._block_rows()
        self.blocks = tuple(self._rows)
        facts = {
            "settings": settings.model_dump(mode="json", exclude={"data", "source", "target", "test", "references"}),
            "model": revision,
            "data": data.fingerprint,
            "judges": [judges.content.name, judges.style.name, judges.test_style.name, judges.lm.name],
            "copies": "the same words",  # the rule by which an output counts as unchanged, see rewriting.py
        }
        self.fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def build(
        cls,
        settings: StyleTransferSettings,
        device: str = "cpu",
        *,
        remote: RemoteSettings | None = None,
        writer: str | None = None,
        contact: bool = True,
        precision: Literal["float32", "bf16", "int8"] = "float32",
    ) -> StyleTransferTask:
        """Read the texts, open the task model, load or train the judges.

        The run's seed is not used: texts and judges depend on `settings.split`, so that runs with different seeds are
        measured on the same texts by the same judges. `remote` says how to reach a model behind an API; without
        `contact`, no request is sent to its server. Such a model gives no perplexity, so that of
        `settings.fluency_model` is reported, or the `writer`'s if that is not set.
        """
        data = style_data(settings)
        if is_remote(settings.model):
            judged = settings.model_copy(update={"fluency_model": settings.fluency_model or writer})
            judges = build_judges(judged, data, device, None)
            server: Any = open_server(settings, data.lower, remote or RemoteSettings(), contact)
            task = cls(settings, data, server, judges, server.revision)
            task.notes = [*server.notes, f"perplexity and fluency by {judges.lm.name}"]
            return task
        model, tokenizer = load_causal_lm(settings.model, device, precision=precision)
        revision = resolve(settings.model).revision + ("" if precision == "float32" else f" {precision}")
        generator = local_generator(settings, model, tokenizer, data.lower)
        lm = LanguageModel(model, tokenizer, name=f"{settings.model}@{revision[:8]}")
        return cls(settings, data, generator, build_judges(settings, data, device, lm), revision)

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        """The score, 0 to 100: the best output of each block, averaged over blocks and then over the sources.

        `details` has the best score of each block by source (`input/<source>/<block>`), for a z-score per source, and
        the mean content and style of these best outputs. With a server, prompts are scored one by one, so that each has
        its own bill.
        """
        if self._server is None:
            return self._scores(prompts, seeds, split)
        found = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            self._server.take()
            (score,) = self._scores([prompt], [seed], split)
            usage = self._server.take()
            details = {**score.details, "tokens_in": float(usage.tokens_in), "tokens_out": float(usage.tokens_out)}
            found.append(replace(score, details=details))
        return found

    def _scores(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str) -> list[Score]:
        blocks = self._blocks(split)
        count = self._samples(split) * blocks
        drawn = [self._drawn(prompt, split) for prompt in prompts]
        judged = iter(
            self._judged(
                [
                    Request(prompt.text, source, count, derive(seed, self._base(split), place))
                    for prompt, seed, sources in zip(prompts, seeds, drawn, strict=True)
                    for place, source in sources.items()
                ]
            )
        )
        scores = []
        for sources in drawn:
            details: dict[str, float] = {}
            failures: list[str] = []
            counted: list[Rewrite] = []
            for place in sources:
                rewrites, failure = next(judged)
                _, best_ones = best_of_blocks([rewrite.score for rewrite in rewrites], blocks)
                for block, one in enumerate(best_ones):
                    details[f"input/{place}/{block}"] = rewrites[one].score
                    counted.append(rewrites[one])
                failures += [f"{self._base(split)} text {place}: {failure}"] if failure else []
            details["content"] = sum(rewrite.content for rewrite in counted) / len(counted)
            details["style"] = sum(rewrite.style for rewrite in counted) / len(counted)
            mean = sum(rewrite.score for rewrite in counted) / len(counted)
            group = f"{self._base(split)} {', '.join(map(str, sources))}"
            scores.append(Score(mean, count * len(sources), group, details, tuple(failures)))
        return scores

    def _drawn(self, prompt: Prompt, split: str) -> dict[int, str]:
        """The sources that a prompt is scored on, by index: all of the split, or one of those drawn for its step."""
        own = self._sources(split)
        if split != "train" or self.settings.draw == "fixed" or prompt.draw is None:
            return dict(enumerate(own, self._rows[split][1] if split in self._rows else 0))
        step, place = prompt.draw
        random = np.random.Generator(np.random.Philox(derive(self.settings.split, "sources of a step", step)))
        chosen = int(random.choice(len(self.pool), len(own), replace=False)[place % len(own)])
        return {chosen: self.pool[chosen]}

    def row_values(self, score: Score, split: str) -> list[float]:
        """The value of each source in a score, in order: the mean over blocks of the best output."""
        blocks: dict[int, list[float]] = {}
        for name, value in score.details.items():
            kind, _, rest = name.partition("/")
            if kind == "input":
                blocks.setdefault(int(rest.partition("/")[0]), []).append(value)
        return [sum(values) / len(values) for _, values in sorted(blocks.items())]

    def pooled(self, scores: Sequence[Score]) -> list[float]:
        """The value of each source in the first blocks."""
        return [
            value for score, name in zip(scores, self.blocks, strict=False) for value in self.row_values(score, name)
        ]

    def whole_splits(self, scores: Sequence[Score]) -> dict[str, Score]:
        """The scores on train and on dev, if all of the split's sources are in the first blocks."""
        found: dict[str, Score] = {}
        for split in ("train", "dev"):
            parts = [score for score, name in zip(scores, self.blocks, strict=False) if self._base(name) == split]
            rows = [value for score in parts for value in self.row_values(score, split)]
            if len(rows) != len(self.sources.get(split, ())):
                break
            details = {name: value for score in parts for name, value in score.details.items() if "/" in name}
            for name in ("content", "style"):
                weighted = (score.details[name] * len(self.row_values(score, split)) for score in parts)
                details[name] = sum(weighted) / len(rows)
            failures = tuple(failure for score in parts for failure in score.failures)
            found[split] = Score(sum(rows) / len(rows), 0, split, details, failures)
        return found

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        """The search's judges choose the best of `test_samples` outputs per source; the report's judges measure it."""
        if self._server is None:
            return self._evaluated(prompt, split, seed)
        self._server.take()
        evaluation = self._evaluated(prompt, split, seed)
        usage = self._server.take()
        taken = {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
        return replace(evaluation, tables={**evaluation.tables, "usage": taken, "notes": list(self.notes)})

    def _evaluated(self, prompt: Prompt, split: str, seed: int) -> Evaluation:
        sources, count, judges = self._sources(split), self.settings.test_samples, self._judges
        asked = [
            Request(prompt.text, source, count, derive(seed, split, place)) for place, source in enumerate(sources)
        ]
        judged = self._judged(asked)
        chosen = [_best(source, rewrites) for source, (rewrites, _) in zip(sources, judged, strict=True)]
        texts = [rewrite.text for rewrite in chosen]
        content = [rewrite.content / 100 for rewrite in chosen]
        likely = judges.test_style(texts)
        style = [float(value > 0.5) for value in likely]
        fluent = judges.fluency(texts)
        metrics = corpus(content, style, fluent)
        intervals = corpus_intervals(content, style, fluent, seed)
        per_row: dict[str, list[float]] = {"score": [rewrite.score for rewrite in chosen]}
        references = self.data.references if split == "test" else ()
        if references:
            bleu = sentence_bleu(texts, references)
            per_row |= {"bleu": bleu} if bleu is not None else {}
            per_row["bertscore"] = [100 * value for value in judges.reference(references, texts)]
        metrics |= {name: sum(values) / len(values) for name, values in per_row.items()}
        copies = [unchanged(source, text) for source, text in zip(sources, texts, strict=True)]
        metrics["copies"] = 100 * sum(copies) / len(copies)
        perplexity = judges.lm.corpus_perplexity(texts)
        # If all outputs are empty, there is no perplexity, and the metrics must be finite numbers.
        metrics |= {"perplexity": perplexity} if math.isfinite(perplexity) else {}
        rewrites = [
            {"source": source, "rewrite": one.text, "content": one.content, "style": 100 * p, "fluency": 100 * f}
            for source, one, p, f in zip(sources, chosen, likely, fluent, strict=True)
        ]
        failures = [f"{split} text {place}: {failure}" for place, (_, failure) in enumerate(judged) if failure]
        return Evaluation(
            split=split,
            metrics=metrics,
            rows=len(sources),
            calls=count * len(sources),
            intervals=intervals | mean_intervals(per_row, seed),
            tables={"rewrites": rewrites[:SHOWN], "failures": failures[:SHOWN], "judges": self.judges()},
            outcomes={"j": tuple(100 * c * s * f for c, s, f in zip(content, style, fluent, strict=True))},
        )

    def rewrite(self, prompt: str, text: str, n: int = 1, seed: int = 0) -> list[Rewrite]:
        """The n best distinct rewrites of a text according to the report's judges; an unchanged text comes last."""
        return self.rewriter.rewrite(prompt, text, n, seed)

    @property
    def rewriter(self) -> Rewriter:
        """The model and judges for rewriting single texts; the judges can be restored from `kept_judges`."""
        judges, settings = self._judges, self.settings
        return Rewriter(self.generator, judges.content, judges.test_style, settings.test_samples, settings.reward)

    def kept_judges(self) -> dict[str, Any]:
        """The contents of judges.json: the report's judges as numbers, so that `rewrite` needs no text of the run."""
        return {"lower": self.data.lower, **keep_judges(self._judges)}

    def calls(self, split: str = "train") -> int:
        """The number of outputs needed to score a prompt on a split."""
        return len(self._sources(split)) * self._samples(split) * self._blocks(split)

    def tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The most input and output tokens that a score can need; a request's text is read once for all its samples."""
        sources = list(self._drawn(prompt, split).values())
        return self._most_tokens(prompt, sources, self._samples(split) * self._blocks(split))

    def likely_tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        """The expected number of input and output tokens of a score."""
        if self._server is None:
            return self.tokens(prompt, split)
        sources, count = self._drawn(prompt, split).values(), self._samples(split) * self._blocks(split)
        counts = [self._server.likely_tokens(prompt.text, source, count) for source in sources]
        return sum(one for one, _ in counts), sum(one for _, one in counts)

    def evaluation_cost(self, prompt: Prompt, split: str) -> tuple[int, int, int]:
        """The outputs of an evaluation, and the most input and output tokens that they can need."""
        count, sources = self.settings.test_samples, self._sources(split)
        return count * len(sources), *self._most_tokens(prompt, sources, count)

    def _most_tokens(self, prompt: Prompt, sources: Sequence[str], count: int) -> tuple[int, int]:
        """The most input and output tokens for `count` outputs of each source."""
        if self._server is not None:
            most = [self._server.most_tokens(prompt.text, source, count) for source in sources]
            return sum(one for one, _ in most), sum(one for _, one in most)
        read = sum(self.generator.length(prompt.text, source) for source in sources)
        return read, sum(count * self.generator.limit(source) for source in sources)

    def attach(self, meter: Meter) -> bool:
        """Report every request to the server to a meter."""
        if self._server is None:
            return False
        self._server.client.attach(meter)
        return True

    def context(self) -> str:
        """Texts of both styles and the hand-written prompts, as a list of instructions for the writer to continue."""
        count = self.settings.context_examples
        if not count:
            return ""
        quoted = [" and ".join(f'"{text}"' for text in texts[:count]) for texts in self.data.halves[0]]
        if not all(quoted):
            return ""
        listed = "\n".join(f"{place}. {text}" for place, text in enumerate(self.baselines().values(), 1))
        head = f"Instructions for rewriting sentences such as {quoted[0]} as sentences such as {quoted[1]}:"
        return f"{head}\n{listed}\n{len(self.baselines()) + 1}."

    def baselines(self) -> dict[str, str]:
        """A hand-written prompt and an instruction, by direction."""
        return {"manual": self.data.manual, "instructions": self.data.instruction}

    def drafts(self) -> tuple[str, ...]:
        """Common instructions for a change of style."""
        source, target = self.data.styles
        names = {"source": source, "target": target, "Source": _capital(source), "Target": _capital(target)}
        return tuple(frame.format(text="{text}", **names) for frame in DRAFTS)

    def sent(self, prompt: Prompt) -> dict[str, Any]:
        """The exact text around an input, and the model; also the messages if its server has only a chat API."""
        before, _, after = self.generator.fill(prompt.text, "\0").partition("\0")
        sent = {"before": before, "after": after, "model": self.settings.model, "kind": "causal"}
        if self._server is None:
            return {**sent, "revision": self._revision}
        chats = self._server.client.completes is False
        messages = [{"role": "user", "content": f"{before}{{text}}{after}"}] if chats else []
        return {**sent, "source": "remote", "messages": messages}

    def judges(self) -> dict[str, str]:
        """The judge of each metric, for result.json: numbers from different judges are never put in one column."""
        return self._judges.names()

    def _judged(self, requests: Sequence[Request]) -> list[tuple[list[Rewrite], str | None]]:
        """All outputs with the scores of the search's judges, and failures. An empty output scores 0."""
        made = self.generator.sample(requests)
        pairs = [(request.text, text) for request, one in zip(requests, made, strict=True) for text in one.texts]
        contents = iter(self._judges.content([source for source, _ in pairs], [text for _, text in pairs]))
        styles = iter(self._judges.style([text for _, text in pairs]))
        gains = self.settings.reward == "gain"
        befores = self._judges.style([request.text for request in requests]) if gains else [0.0] * len(requests)
        judged: list[tuple[list[Rewrite], str | None]] = []
        for request, one, before in zip(requests, made, befores, strict=True):
            rewrites = []
            for text in one.texts:
                content, style = next(contents), next(styles)
                worth = joint(content, style)
                if gains:
                    worth = 0.0 if unchanged(request.text, text) else gain(content, style, before)
                rewrites.append(Rewrite(text, 100 * content, 100 * style, worth) if text else Rewrite("", 0, 0, 0))
            failure = one.failure or (None if any(one.texts) else "every output is empty")
            judged.append((rewrites, failure))
        return judged

    def _block_rows(self) -> dict[str, tuple[str, int, int]]:
        """Blocks of the sources of train, then of dev: split, start and end. Empty if each step draws its sources."""
        found: dict[str, tuple[str, int, int]] = {}
        size = self.settings.first_block
        for split in ("train", "dev") if self.settings.draw == "fixed" else ():
            count = len(self.sources.get(split, ()))
            found |= {f"{split}-{begin + 1}-{end}": (split, begin, end) for begin, end in spans(count, size)}
            size = max(size, count)
        return found

    def _base(self, split: str) -> str:
        """The split that a block belongs to; a split's own name otherwise."""
        return self._rows[split][0] if split in self._rows else split

    def _sources(self, split: str) -> tuple[str, ...]:
        if split in self._rows:
            base, begin, end = self._rows[split]
            return self.sources[base][begin:end]
        if split not in self.sources:
            raise SettingError(f"this task has no split '{split}'; {did_you_mean(split, self.sources)}")
        return self.sources[split]

    def _samples(self, split: str) -> int:
        return self.settings.test_samples if split == "test" else self.settings.samples

    def _blocks(self, split: str) -> int:
        dev = self.settings.dev_bootstraps
        return {"train": self.settings.bootstraps, "dev": dev or self.settings.bootstraps}.get(self._base(split), 1)


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _best(source: str, rewrites: Sequence[Rewrite]) -> Rewrite:
    """The output with the highest score; ties go to changed texts first, then to more content and style."""
    filled = [one for one in rewrites if one.text]
    if not filled:
        return rewrites[0]
    return max(filled, key=lambda one: (one.score, not unchanged(source, one.text), one.content + one.style))


def _fitting(data: StyleData, generator: Generator) -> dict[str, tuple[str, ...]]:
    """The texts to rewrite, by split. Train and dev texts that do not fit the model's window are left out.

    All test texts are kept: one that does not fit is recorded as a failure and scores 0.
    """
    kept: dict[str, tuple[str, ...]] = {}
    for split, texts in data.sources.items():
        fitting = tuple(text for text in texts if split == "test" or generator.fits(text, ROOM))
        if not fitting:
            raise DataError(
                f"none of the {len(texts)} {split} texts fits the task model's window of {generator.window} tokens "
                "with a prompt and room for the output; give shorter texts"
            )
        kept[split] = fitting
    return kept
