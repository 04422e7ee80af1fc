"""Unsupervised style transfer: a prompt is worth the content and style of the best rewrites that it produces.

A row is a source text. In a search, an answer has the best of each group of outputs, as [score, content, style], since
only these count. In a report, it is the best of all outputs with the judgements of the report's judges.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from pinprompt.answers.requests import Requests
from pinprompt.errors import DataError
from pinprompt.judges.frozen import LanguageModel
from pinprompt.models.generator import Generator, Request
from pinprompt.models.loading import load_causal_lm
from pinprompt.models.sources import resolve
from pinprompt.recipe.task_sections import RemoteSettings, StyleTransferSettings, is_remote
from pinprompt.tasks.prompts import shipped
from pinprompt.tasks.protocol import CHAT, Draft, Shown, TaskInfo, calls_of, hand_written
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
    mean_intervals,
    open_server,
    sentence_bleu,
    unchanged,
)
from pinprompt.tasks.style_data import StyleData, style_data
from pinprompt.values import Answers, Draw, Evaluation, Floats, Prompt, Row, derive

SCORE_IS = {
    "mean": "A score is the mean of content and style of the best rewrites, from 0 to 100.",
    "gain": "A score is content times the gain in style over the text, for the best rewrites, from 0 to 100.",
}
J_IS = "J is the mean of content times style times fluency by the report's judges."
MAX_REWRITES_SHOWN = 100
"""The most rewrites in an evaluation's table."""
CONTEXT_TEXTS = 2
"""Texts of each style in the context for the writer."""
CHUNK = 16
"""Number of prompts asked about together."""
POOL = "pool"
"""The split of training texts that are not part of train but may be drawn for a step."""
ROOM = 64
"""Tokens that a training or dev text must leave for the prompt and the template."""


class StyleTransferTask(Shown):
    """The task of `tasks.protocol`, on a generator and judges."""

    def __init__(
        self,
        settings: StyleTransferSettings,
        data: StyleData,
        generator: Generator,
        judges: StyleJudges,
        revision: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        self.settings, self.data, self.generator, self._judges = settings, data, generator, judges
        self._revision = revision
        self.billed = generator.billed
        self._server: Any = generator if generator.billed is not None else None
        """The generator, if it is behind an API: it counts tokens."""
        self.rows = self._rows(_fitting(data, generator))
        facts = {
            "settings": settings.model_dump(mode="json", exclude={"data", "source", "target", "test", "references"}),
            "model": revision,
            "data": data.fingerprint,
            "judges": [judges.content.name, judges.style.name, judges.test_style.name, judges.lm.name],
            "copies": "the same words",  # the rule by which an output counts as unchanged, see rewriting.py
        }
        self.info = TaskInfo(
            name="style-transfer",
            fingerprint=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16],
            primary="j",
            score_is=f"{SCORE_IS[settings.reward]} {J_IS}",
            stochastic=True,
            # Together, since one prompt alone leaves most rows of a pass empty. With a server one at a time, so that
            # each prompt has its own bill; its requests are still sent in parallel.
            chunk=CHUNK if self._server is None else 1,
            notes=tuple(notes),
        )

    @classmethod
    def build(
        cls,
        settings: StyleTransferSettings,
        device: str = "cpu",
        *,
        remote: RemoteSettings | None = None,
        writer: str | None = None,
        contact: bool = True,
        precision: Literal["float32", "bf16"] = "float32",
    ) -> StyleTransferTask:
        """Read the texts, open the task model, load or train the judges.

        The run's seed is not used: texts and judges depend on `settings.split`, so that runs with different seeds are
        measured on the same texts by the same judges. `remote` says how to reach a model behind an API; without
        `contact`, no request is sent to its server. Such a model gives no perplexity, so the `writer`'s is reported,
        unless `settings.fluency` names another model.
        """
        data = style_data(settings)
        if is_remote(settings.model):
            judges = build_judges(settings, data, device, None, writer)
            server: Any = open_server(settings, data.lower, remote or RemoteSettings(), contact)
            notes = [*data.notes, *server.notes, f"perplexity and fluency by {judges.lm.name}"]
            return cls(settings, data, server, judges, server.revision, notes)
        model, tokenizer = load_causal_lm(settings.model, device, precision=precision)
        revision = resolve(settings.model).revision + ("" if precision == "float32" else f" {precision}")
        generator = Generator(model, tokenizer, template=settings.template, lower=data.lower)
        lm = LanguageModel(model, tokenizer, name=f"{settings.model}@{revision[:8]}")
        return cls(settings, data, generator, build_judges(settings, data, device, lm), revision, data.notes)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        """Outputs of each prompt for each source, judged; with a server one prompt at a time, for its bill."""
        if self._server is None:
            return self._ask_model(prompts, rows, draws)
        found = []
        for prompt, draw in zip(prompts, draws, strict=True):
            self._server.take()
            [answers] = self._ask_model([prompt], rows, [draw])
            usage = self._server.take()
            found.append(replace(answers, tokens=(usage.tokens_in, usage.tokens_out)))
        return found

    def _ask_model(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        report = bool(draws) and draws[0].report
        judged = self._judged(
            [
                Request(prompt.text, self.rows[row].input, calls_of(self.rows[row], report), self._seed(draw, row))
                for prompt, draw in zip(prompts, draws, strict=True)
                for row in rows
            ]
        )
        found = []
        for place in range(len(prompts)):
            mine = judged[place * len(rows) : (place + 1) * len(rows)]
            failures = {
                row: f"{self._split(row)} text {self.rows[row].index}: {failure}"
                for row, (_, failure) in zip(rows, mine, strict=True)
                if failure
            }
            rewrites = [one for one, _ in mine]
            contents = self._reported(rewrites, rows) if report else self._searched(rewrites, rows)
            found.append(Answers(tuple(rows), contents, failures))
        return found

    def _searched(self, rewrites: Sequence[Sequence[Rewrite]], rows: Sequence[int]) -> list[list[list[float]]]:
        """The best output of each group, as [score, content, style], by row."""
        found = []
        for row, outputs in zip(rows, rewrites, strict=True):
            _, best = best_of_blocks([one.score for one in outputs], self._groups(self._split(row)))
            found.append([[outputs[at].score, outputs[at].content, outputs[at].style] for at in best])
        return found

    def _reported(self, rewrites: Sequence[Sequence[Rewrite]], rows: Sequence[int]) -> list[dict[str, Any]]:
        """The best output by the search's judges, with the values of the report's judges, by row."""
        judges = self._judges
        chosen = [_best(self.rows[row].input, outputs) for row, outputs in zip(rows, rewrites, strict=True)]
        texts = [one.text for one in chosen]
        found: list[dict[str, Any]] = [
            {
                "text": one.text,
                "score": one.score,
                "content": one.content,
                "style": likely,
                "fluency": fluent,
                "copy": unchanged(self.rows[row].input, one.text),
                "nll": list(nll),
            }
            for one, row, likely, fluent, nll in zip(
                chosen, rows, judges.test_style(texts), judges.fluency(texts), judges.lm.nll(texts), strict=True
            )
        ]
        references = [self.rows[row].target for row in rows]
        if references and all(reference is not None for reference in references):
            bleu = sentence_bleu(texts, references)
            for at, value in enumerate(judges.reference(references, texts)):
                found[at] |= {"bertscore": 100 * value, **({} if bleu is None else {"bleu": bleu[at]})}
        return found

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """The score of the best output of each group, [N, D], 0 to 100; its mean if rows have different groups."""
        found = [[score for score, _, _ in groups] for groups in answers.on(rows)]
        if len({len(groups) for groups in found}) > 1:
            return np.array([sum(groups) / len(groups) for groups in found], dtype=np.float64)
        return np.array(found, dtype=np.float64)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        """Content, style, fluency, J and GM of the best output of each source, by the report's judges."""
        split, found = self._split(rows[0]), answers.on(rows)
        content = [one["content"] / 100 for one in found]
        style = [float(one["style"] > 0.5) for one in found]
        fluent = [one["fluency"] for one in found]
        per_row = {name: [one[name] for one in found] for name in ("score", "bleu", "bertscore") if name in found[0]}
        metrics = corpus(content, style, fluent)
        metrics |= {name: sum(values) / len(values) for name, values in per_row.items()}
        metrics["copies"] = 100 * sum(one["copy"] for one in found) / len(found)
        nll, tokens = (sum(column) for column in zip(*(one["nll"] for one in found), strict=True))
        if tokens:  # if all outputs are empty, there is no perplexity
            metrics["perplexity"] = math.exp(min(nll / tokens, 700.0))
        rewrites = [
            {
                "source": self.rows[row].input, "rewrite": one.get("text", ""), "content": one["content"],
                "style": 100 * one["style"], "fluency": 100 * one["fluency"],
            }
            for row, one in zip(rows, found, strict=True)
        ]  # fmt: skip
        failures = [answers.failures[row] for row in rows if row in answers.failures]
        tables: dict[str, Any] = {
            "rewrites": rewrites[:MAX_REWRITES_SHOWN],
            "failures": failures[:MAX_REWRITES_SHOWN],
            "judges": self.judges(),
        }  # fmt: skip
        if self._server is not None:
            usage = {"tokens_in": answers.tokens[0], "tokens_out": answers.tokens[1]}
            tables |= {"usage": usage, "notes": list(self.info.notes)}
        return Evaluation(
            split=split,
            metrics=metrics,
            rows=len(rows),
            intervals=corpus_intervals(content, style, fluent, seed) | mean_intervals(per_row, seed),
            tables=tables,
            outcomes={"j": tuple(100 * c * s * f for c, s, f in zip(content, style, fluent, strict=True))},
        )

    def rows_of_step(self, step: int, place: int) -> tuple[int, ...]:
        """One of the sources drawn for a step, for each prompt; () if every prompt has the same sources."""
        if self.settings.draw == "fixed":
            return ()
        count = sum(row.split == "train" for row in self.rows)
        pool = [number for number, row in enumerate(self.rows) if row.split in ("train", POOL)]
        random = np.random.Generator(np.random.Philox(derive(self.settings.split, "sources of a step", step)))
        return (pool[int(random.choice(len(pool), count, replace=False)[place % count])],)

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

    def most_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        """The most input and output tokens of these answers; a request's text is read once for all its samples."""
        sources = [(self.rows[row].input, calls_of(self.rows[row], report)) for row in rows]
        if self._server is not None:
            most = [self._server.most_tokens(prompt.text, source, count) for source, count in sources]
            return sum(one for one, _ in most), sum(one for _, one in most)
        read = sum(self.generator.length(prompt.text, source) for source, _ in sources)
        return read, sum(count * self.generator.limit(source) for source, count in sources)

    def likely_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        if self._server is None:
            return self.most_tokens(prompt, rows, report)
        counts = [
            self._server.likely_tokens(prompt.text, self.rows[row].input, calls_of(self.rows[row], report))
            for row in rows
        ]
        return sum(one for one, _ in counts), sum(one for _, one in counts)

    def attach(self, meter: Requests) -> bool:
        if self._server is None:
            return False
        self._server.client.attach(meter)
        return True

    def context(self) -> str:
        """Texts of both styles and the hand-written prompts, as a list of instructions for the writer to continue."""
        quoted = [" and ".join(f'"{text}"' for text in texts[:CONTEXT_TEXTS]) for texts in self.data.halves[0]]
        if not all(quoted):
            return ""
        by_hand = list(hand_written(self).values())
        listed = "\n".join(f"{place}. {text}" for place, text in enumerate(by_hand, 1))
        head = f"Instructions for rewriting sentences such as {quoted[0]} as sentences such as {quoted[1]}:"
        return f"{head}\n{listed}\n{len(by_hand) + 1}."

    def drafts(self) -> list[Draft]:
        """A hand-written prompt and an instruction by direction, and common instructions for a change of style."""
        source, target = self.data.styles
        names = {"source": source, "target": target, "Source": _capital(source), "Target": _capital(target)}
        ours = shipped("style-transfer")
        common = [Draft(frame.format(text="{text}", **names)) for frame in ours["drafts"]]
        name = "manual" if self.settings.manual or self.settings.dataset else "default"
        chats = [] if self._server is not None else self.generator.chats(ours["asked"].format(**names))
        by_hand = [Draft(self.data.manual, name), Draft(self.data.instruction, "instructions")]
        return [*by_hand, *common, *(Draft(text, CHAT) for text in chats)]

    def sent(self, prompt: Prompt, evaluation: Evaluation | None) -> dict[str, Any]:
        """The exact text around an input, and the model; also the messages if its server has only a chat API."""
        before, _, after = self.generator.fill(prompt.text, "\0").partition("\0")
        sent = {"before": before, "after": after, "model": self.settings.model, "kind": "causal"}
        if self._server is None:
            return {**sent, "revision": self._revision}
        chats = self._server.completes is False
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

    def _rows(self, sources: Mapping[str, Sequence[str]]) -> tuple[Row, ...]:
        """The sources by split; those of train that only a step may draw come last."""
        settings, references = self.settings, self.data.references
        train = list(sources["train"])
        by_split: dict[str, Sequence[str]] = {**sources, "train": train[: settings.sources]}
        found = [
            Row(
                split, index, text,
                references[index] if split == "test" and references else None,
                calls=self._calls(split), report_calls=settings.test_samples,
            )
            for split, texts in by_split.items()
            for index, text in enumerate(texts)
        ]  # fmt: skip
        found += [
            Row(POOL, index, text, calls=self._calls("train"), report_calls=settings.test_samples)
            for index, text in enumerate(train[settings.sources :])
        ]
        return tuple(found)

    def _split(self, row: int) -> str:
        split = self.rows[row].split
        return "train" if split == POOL else split

    def _seed(self, draw: Draw, row: int) -> int:
        place = self.rows[row].index + (self.settings.sources if self.rows[row].split == POOL else 0)
        return derive(draw.seed, self._split(row), place)

    def _groups(self, split: str) -> int:
        return self.settings.bootstraps if split in ("train", "dev") else 1

    def _calls(self, split: str) -> int:
        samples = self.settings.test_samples if split == "test" else self.settings.samples
        return samples * self._groups(split)


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
