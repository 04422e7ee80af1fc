"""Free answers: a chat model reads an instruction and an input, and a metric values its answer.

A row has an input and a reference. An answer is the model's text with its value by the metric: a judge's rating and
the result of the user's own function cannot be computed again for nothing. Answers are greedy, so the same question
has the same answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from pinprompt.answers.requests import Requests
from pinprompt.errors import SettingError
from pinprompt.maths.bootstrap import interval_of_mean
from pinprompt.models.chat import ChatModel, Messages, Reply
from pinprompt.models.wheels import ALIASES
from pinprompt.recipe.task_sections import REMOTE, AnswerSettings, RemoteSettings, is_remote
from pinprompt.remote.client import open_client
from pinprompt.tasks.answer_data import AnswerData, Asked, answer_data, copied
from pinprompt.tasks.metrics import Metric, Value, metric_of, numbers
from pinprompt.tasks.prompts import shipped
from pinprompt.tasks.protocol import SPLITS, WITH_EXAMPLES, Draft, Shown, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Floats, Prompt, Row, derive

CHUNK = 8
"""Number of prompts asked about together: their rows share passes."""
TEXT = "{text}"
SHOWN_ANSWERS = 200
"""The most rows in an evaluation's table of answers."""
EXAMPLES = "\n\nExamples:"
"""What stands before examples in a prompt."""
CONTEXT_ROWS = 3
"""Rows in the context for the writer."""
WRONG_SHOWN = 3
"""Wrong answers that the proposer sees of a prompt."""
PROPOSAL_TOKENS = 128
"""Maximum number of tokens of a proposal by a second model."""
ROUND = 4
"""Instructions that are proposed at a time."""


class AnswerTask(Shown):
    """The task of `tasks.protocol`, on a chat model and a metric."""

    def __init__(
        self,
        settings: AnswerSettings,
        data: AnswerData,
        model: ChatModel,
        revision: str,
        metric: Metric | None,
        judge: ChatModel | None = None,
        proposer: ChatModel | None = None,
    ) -> None:
        """Without a metric, the judge values answers."""
        self.settings, self.data, self.model, self._metric, self._judge = settings, data, model, metric, judge
        self._proposer: Any = proposer or model
        self._proposed = 0
        completer = getattr(model, "completer", None)
        self._completer: ChatModel | None = None if completer is None else completer()
        """The same model, which completes messages as plain text; only a local one can."""
        self.billed = model.billed
        self._server: Any = model if model.billed is not None else None
        calls = 1 if metric is not None else 2
        self._asked = [row for split in SPLITS for row in data.splits.get(split, ())]
        self.rows = tuple(
            Row(split, index, row.input, row.target, _key(row), calls=calls)
            for split in SPLITS
            for index, row in enumerate(data.splits.get(split, ()))
        )
        files = {"train", "dev", "test", "split", "test_rows", "examples", "proposals", "proposer", "prompts"}
        facts = [revision, settings.model_dump(mode="json", exclude=files)]
        rows = [[row.split, row.key] for row in self.rows]
        self.info = TaskInfo(
            name="answers",
            fingerprint=_hash([*facts, rows]),
            answered_by=_hash(facts),
            primary="score" if settings.metric in ("function", "judge") else "correct",
            chunk=CHUNK if self._server is None else 1,
            costly=True,
            notes=(*data.notes, *model.notes, *self._too_long()),
        )

    @classmethod
    def build(
        cls,
        settings: AnswerSettings,
        device: str = "cpu",
        *,
        data: AnswerData | None = None,
        remote: RemoteSettings | None = None,
        precision: Literal["float32", "bf16"] = "float32",
        model: Callable[..., Any] | None = None,
        metric: Callable[..., Any] | None = None,
    ) -> AnswerTask:
        """Read the rows and open the models; `model` and `metric` are the user's own callables."""
        data = answer_data(settings) if data is None else data
        judged = settings.metric == "judge" and metric is None
        chosen = None if judged else metric_of(settings, metric)

        def local(name: str, tokens: int) -> tuple[ChatModel, str]:
            from pinprompt.models.chat import Chat
            from pinprompt.models.loading import load_causal_lm
            from pinprompt.models.sources import resolve

            loaded = load_causal_lm(name, device, precision=precision)
            return Chat(*loaded, max_new_tokens=tokens), resolve(name).revision + f" {precision}"

        opened: ChatModel
        if model is not None:
            from pinprompt.remote.callables import CallableChat

            own = CallableChat(model)
            opened, revision = own, own.revision
        elif is_remote(settings.model):
            from pinprompt.remote.chat import RemoteChat

            server = RemoteChat(open_client(settings.model, remote or RemoteSettings()), settings.max_new_tokens)
            opened, revision = server, server.revision
        else:
            opened, revision = local(settings.model, settings.max_new_tokens)
        others: dict[str, ChatModel] = {}
        for role, tokens in (("judge", 8), ("proposer", PROPOSAL_TOKENS)):
            name = getattr(settings, role) or settings.model
            if name == settings.model and (model is not None or is_remote(name)):
                others[role] = opened
            elif not is_remote(name):
                others[role] = local(name, tokens)[0]
            elif role == "judge":
                raise SettingError(
                    f"task.judge = '{name}': the budget would not cover a judge behind an API besides the task model; "
                    "name a local model, or leave it out to use the task model"
                )
            else:
                from pinprompt.remote.chat import RemoteChat

                others[role] = RemoteChat(open_client(name, remote or RemoteSettings()), tokens)
        return cls(settings, data, opened, revision, chosen, others["judge"], others["proposer"])

    def _too_long(self) -> list[str]:
        """A note on inputs that a local model cannot read in one piece."""
        fails = getattr(self.model, "too_long", None)
        if fails is None:
            return []
        local: Any = self.model
        chats = ([{"role": "user", "content": row.input}] for row in self._asked)
        most = self.settings.max_new_tokens
        places = [row.place for row, chat in zip(self._asked, chats, strict=True) if fails(local.ids(chat), most)]
        if not places:
            return []
        shown = "; ".join(places[:5]) + ("; ..." if len(places) > 5 else "")
        return [f"inputs longer than the model's window are worth nothing: {len(places)} ({shown})"]

    # What costs calls.

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw] = ()) -> list[Answers]:
        """The model's answer to each prompt on each row, with its value; with a server one prompt at a time."""
        if self._server is None:
            return self._answered(prompts, rows)
        found = []
        for prompt in prompts:
            self._server.take()
            [answers] = self._answered([prompt], rows)
            usage = self._server.take()
            found.append(replace(answers, tokens=(usage.tokens_in, usage.tokens_out)))
        return found

    def _answered(self, prompts: Sequence[Prompt], rows: Sequence[int]) -> list[Answers]:
        chats = [self.messages(prompt.text, self.rows[row].input) for prompt in prompts for row in rows]
        completed = [self._completes(prompt.text) for prompt in prompts for _ in rows]
        replies = self._replies(chats, completed)
        values = self._valued(replies, [row for _ in prompts for row in rows])
        found = []
        for place in range(len(prompts)):
            part = slice(place * len(rows), (place + 1) * len(rows))
            contents, failures = [], {}
            for row, reply, value in zip(rows, replies[part], values[part], strict=True):
                content = {"text": reply.text, "value": value.value}
                contents.append(
                    content | ({"why": value.why} if value.why else {}) | ({"cut": True} if reply.cut else {})
                )
                if failure := reply.failure or value.failure:
                    failures[row] = f"{self.rows[row].split} row {self.rows[row].index + 1}: {failure}"
            found.append(Answers(tuple(rows), contents, failures))
        return found

    def _valued(self, replies: Sequence[Reply], rows: Sequence[int]) -> list[Value]:
        """The value of each answer; an answer that there is none of is worth nothing."""
        if self._metric is not None:
            asked = [self._asked[row] for row in rows]
            return [
                Value(0.0, reply.failure) if reply.failure else self._metric(reply.text, one.columns, one.target)
                for reply, one in zip(replies, asked, strict=True)
            ]
        assert self._judge is not None
        places = [place for place, reply in enumerate(replies) if not reply.failure]
        questions = [_question(self.settings.rubric, self._asked[rows[at]], replies[at].text) for at in places]
        ratings = dict(zip(places, self._judge.answers(questions), strict=True))
        return [rated(ratings[at]) if at in ratings else Value(0.0, reply.failure) for at, reply in enumerate(replies)]

    def _completes(self, prompt: str) -> bool:
        """Whether a prompt is completed as plain text: by a local model, if it ends with a colon after the input."""
        return self._completer is not None and TEXT in prompt and prompt.rstrip().endswith(":")

    def _replies(self, chats: Sequence[Messages], completed: Sequence[bool]) -> list[Reply]:
        found: dict[int, Reply] = {}
        for model, plain in ((self.model, False), (self._completer, True)):
            places = [place for place, one in enumerate(completed) if one == plain]
            if model is not None and places:
                found |= zip(places, model.answers([chats[place] for place in places]), strict=True)
        return [found[place] for place in range(len(chats))]

    def messages(self, prompt: str, text: str) -> Messages:
        prompt = prompt.strip()
        if TEXT in prompt:
            return [{"role": "user", "content": prompt.replace(TEXT, text)}]
        if self.settings.place == "system":
            return [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
        parts = (prompt, text) if self.settings.place == "before" else (text, prompt)
        return [{"role": "user", "content": "\n\n".join(part for part in parts if part)}]

    # Arithmetic on answers.

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        """The value of each answer; NaN if there is not a single one."""
        if all(row in answers.failures for row in rows):
            return np.full(len(rows), np.nan)
        return np.array([one["value"] for one in answers.on(rows)], dtype=np.float64)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        """The mean value with its interval, and every answer beside its reference, the worst first."""
        found, name = answers.on(rows), self.info.primary
        values = [float(one["value"]) for one in found]
        table = [
            {"input": self.rows[row].input, "reference": self.rows[row].target, "answer": one.get("text", ""),
             "value": one["value"], "why": answers.failures.get(row, one.get("why", ""))}
            for row, one in zip(rows, found, strict=True)
        ]  # fmt: skip
        cut = sum(bool(one.get("cut")) for one in found)
        failed, warnings = answers.failed(rows), []
        if cut:
            limit = self.settings.max_new_tokens
            warnings.append(f"{cut} of {len(found)} answers were cut after {limit} tokens; raise task.max_new_tokens")
        if failed:
            warnings.append(f"{len(failed)} of {len(found)} rows could not be answered or valued; the report says why")
        tables = {
            "answers": sorted(table, key=lambda row: float(row["value"]))[:SHOWN_ANSWERS],
            "failures": list(failed)[:20],
            "notes": [*self.info.notes, *warnings],
            "warnings": warnings,
        }
        interval = interval_of_mean(values, derive(seed, "bootstrap"), shares=name == "correct")
        return Evaluation(
            self.rows[rows[0]].split, {name: sum(values) / len(values)}, len(rows), {name: interval}, tables,
            {name: tuple(values)},
        )  # fmt: skip

    # What it tells the writer and the report.

    def context(self) -> str:
        """Some rows, then the words after which an instruction is likely."""
        shown = (self.data.examples or self.data.splits["train"])[:CONTEXT_ROWS]
        lines = [f"Text: {row.input[:300]}\nAnswer: {row.target[:100]}\n" for row in shown]
        return "\n".join(lines) + "\nThe instruction for these answers was:"

    def drafts(self) -> list[Draft]:
        """The user's own instructions, or one made of the column's name; and common ones."""
        target = re.sub(r"[\s_\-]+", " ", self.settings.target_column).strip() or "answer"
        names = {"{target}": target, "{Target}": target[:1].upper() + target[1:]}
        common = [_filled(one, names) for one in shipped("answers")["drafts"]]
        own = self.settings.prompts or (f"What is the {target}?",)
        name = "manual" if self.settings.prompts else "default"
        named = [Draft(text, f"{name} {place}" if place > 1 else name) for place, text in enumerate(own, 1)]
        shown = [self._with_examples(text) for text in (own[0], common[0], common[-1])] if self.data.examples else []
        with_examples = [Draft(text, WITH_EXAMPLES) for text in dict.fromkeys(shown) if text is not None]
        return [*named, *with_examples, *(Draft(text) for text in common if text not in own)]

    @property
    def most_proposals(self) -> int:
        return self.settings.proposals

    @property
    def proposal_calls(self) -> int:
        return min(ROUND, self.settings.proposals - self._proposed)

    @property
    def proposer_billed(self) -> str | None:
        return self._proposer.billed  # type: ignore[no-any-return]

    def proposal_tokens(self, best: Sequence[tuple[Prompt, Answers]]) -> tuple[int, int]:
        if self.proposer_billed is None:
            return 0, 0
        most = [self._proposer.most_tokens(chat) for chat in self._questions(best)]
        return sum(one for one, _ in most), sum(one for _, one in most)

    def proposals(self, best: Sequence[tuple[Prompt, Answers]], seed: int) -> list[str]:
        """New prompts from the best so far: with examples, and as a model proposes that sees their wrong answers."""
        shown = [self._with_examples(prompt.text) for prompt, _ in best] if self.data.examples else []
        found = [text for text in shown if text is not None]
        count = self.proposal_calls
        if not count:
            return found
        chats = self._questions(best)
        seeds = [derive(seed, "proposal", self._proposed + place) for place in range(count)]
        self._proposed += count
        for reply in self._proposer.drawn(chats, seeds):
            text = instruction_in(reply.text)
            if text and not reply.cut and not self.copies(text):
                found.append(text)
        return found

    def copies(self, text: str) -> bool:
        """Whether a prompt copies something from the rows of train and dev, or from the examples."""
        rows = [row for split, rows in self.data.splits.items() if split != "test" for row in rows]
        return copied(text, [*rows, *self.data.examples]) is not None

    def _with_examples(self, prompt: str) -> str | None:
        """A prompt with examples; None if it has some."""
        if any(row.input in prompt for row in self.data.examples):
            return None
        if self._completes(prompt):
            filled = [f"{prompt.strip().replace(TEXT, row.input)} {row.target}" for row in self.data.examples]
            return "\n\n".join([*filled, prompt.strip()])
        examples = EXAMPLES + "".join(f"\nInput: {row.input}\nOutput: {row.target}" for row in self.data.examples)
        return prompt + examples if TEXT not in prompt else f"{examples.strip()}\n\n{prompt}"

    def _questions(self, best: Sequence[tuple[Prompt, Answers]]) -> list[Messages]:
        return [self._proposal(*best[place % len(best)]) for place in range(self.proposal_calls)]

    def _proposal(self, prompt: Prompt, answers: Answers) -> Messages:
        wrong = [
            f"Input: {self.rows[row].input[:400]}\nExpected answer: {self.rows[row].target[:200]}\n"
            f"Its answer: {str(one.get('text', ''))[:200]}"
            for row, one in zip(answers.rows, answers.contents, strict=True)
            if one["value"] < 1
        ][:WRONG_SHOWN]
        said = "These answers were wrong:\n\n" + "\n\n".join(wrong) if wrong else "All of its answers were right."
        shown = prompt.text.partition(EXAMPLES)[0].replace(TEXT, "[input]")
        return [{"role": "user", "content": shipped("answers")["propose"].format(prompt=shown, wrong=said)}]

    def sent(self, prompt: Prompt, evaluation: Evaluation | None) -> dict[str, Any]:
        """The chat with {text} in the place of the input, and the model."""
        name, (before, after) = self.settings.model, ("", "")
        messages = [dict(one) for one in self.messages(prompt.text, TEXT)]
        if self._completes(prompt.text):
            messages, (before, _, after) = [], prompt.text.strip().partition(TEXT)
        source = "remote" if self.billed is not None else "alias" if name in ALIASES else "hub"
        source = "callable" if name.startswith("callable:") else source
        check = {"regex": self.settings.pattern, "judge": self.settings.rubric}.get(self.settings.metric)
        return {
            "before": before, "after": after, "messages": messages, "model": name.removeprefix(REMOTE),
            "kind": "causal", "source": source, "metric": self.settings.metric,
            "max_tokens": self.settings.max_new_tokens, **({"check": check} if check else {}),
        }  # fmt: skip

    def shown_rows(self) -> dict[str, Any]:
        """The rows of train and dev for the studio's matrix, whose cells are the values."""
        rows = [row for row in self.rows if row.split != "test"]
        shown = [{"text": f"{row.input} → {row.target}", "label": 1, "split": row.split} for row in rows]
        return {"labels": ["wrong", "right"], "reading": "words", "reward": ["accuracy", 1, 1], "rows": shown}

    # Costs.

    def most_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        return self._counted("most_tokens", prompt, rows, self.settings.max_new_tokens)

    def likely_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        return self._counted("likely_tokens", prompt, rows, 8)

    def _counted(self, how: str, prompt: Prompt, rows: Sequence[int], answer: int) -> tuple[int, int]:
        if self._server is None:
            return 0, 0
        chats = [self.messages(prompt.text, self.rows[row].input) for row in rows]
        if self._metric is None:
            said = "x" * 4 * answer
            chats += [_question(self.settings.rubric, self._asked[row], said) for row in rows]
        counted = [getattr(self._server, how)(chat) for chat in chats]
        return sum(one for one, _ in counted), sum(one for _, one in counted)

    def attach(self, meter: Requests) -> bool:
        for server in (self._server, self._proposer):
            if server is not None and server.billed is not None:
                server.client.attach(meter)
        return self._server is not None

    # New inputs.

    def answer(self, prompt: Prompt, texts: Sequence[str]) -> list[Reply]:
        return self._replies(
            [self.messages(prompt.text, text) for text in texts], [self._completes(prompt.text)] * len(texts)
        )


def rated(reply: Reply) -> Value:
    """A judge's rating from 1 to 5 as a value from 0 to 1."""
    found = numbers(reply.text)
    if reply.failure or not found or not 1 <= found[0] <= 5:
        said = reply.failure or f"it answered '{reply.text[:80]}', which is no rating from 1 to 5"
        return Value(0.0, failure=f"the judge gave no rating: {said}")
    return Value((found[0] - 1) / 4, "" if found[0] == 5 else f"rated {found[0]:g} of 5")


def instruction_in(text: str) -> str:
    """The instruction that a model proposed, without what it says before it and quotes around it."""
    first = text.strip().split("\n\n", 1)[0].strip()
    first = re.sub(r"^(?:here is .*?:|(?:better |new )?instruction:)\s*", "", first, flags=re.IGNORECASE | re.DOTALL)
    return " ".join(first.split()).strip("\"'“”")


def _question(rubric: str, row: Asked, answer: str) -> Messages:
    parts = {"{rubric}": rubric, "{input}": row.input, "{target}": row.target or "none", "{answer}": answer}
    return [{"role": "user", "content": _filled(shipped("answers")["rate"], parts)}]


def _filled(frame: str, parts: Mapping[str, str]) -> str:
    """A frame with its fields in braces replaced by texts, which may have braces of their own."""
    return "".join(parts.get(part, part) for part in re.split(r"(\{\w+\})", frame))


def _key(row: Asked) -> str:
    return json.dumps([row.input, row.target, dict(row.columns)], sort_keys=True, ensure_ascii=True, default=str)


def _hash(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
