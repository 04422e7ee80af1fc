"""Using a prompt outside pinprompt: the exact text for one input, code snippets, files for other tools.

Everything comes from `sent` in result.json. Its values may be untrusted, so they are put into code as literals only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pinprompt import wording
from pinprompt.errors import RunError, SettingError, did_you_mean
from pinprompt.folder.reading import RunRecord, inside, mapping, number, sequence
from pinprompt.maths.readout import unpack
from pinprompt.recipe.task_sections import REMOTE
from pinprompt.run.verdict import reported_split
from pinprompt.tasks.protocol import ENSEMBLE

TOOLS = ("promptfoo", "dspy", "langchain", "openai", "json")
TEXT = "{text}"
_SERVER = "http://localhost:8000/v1"
SENT_SHOWN = 20_000  # characters of the text that is sent, and of code that sends it
SNIPPETS = {"python": "Plain Python", "openai": "An OpenAI-compatible client"}  # the others are called by their names


@dataclass(frozen=True)
class Sent:
    """What is sent for a text: `before` + text + `after`, or the messages of a chat with {text} in the text's place."""

    task: str
    prompt: str
    before: str
    after: str
    model: str = ""
    revision: str = ""
    kind: str = "causal"
    source: str = "hub"
    words: Mapping[str, str] = field(default_factory=dict)
    word_ids: Mapping[str, list[int]] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)
    readout: Mapping[str, Any] = field(default_factory=dict)
    """How labels are read from label words and learnt words, if labels are learnt (`maths.readout.pack`)."""
    ensemble: list[dict[str, Any]] = field(default_factory=list)
    """The prompts whose mean output is used, if there are several, with the text around an input and the readout."""
    messages: list[dict[str, str]] = field(default_factory=list)
    metric: str = ""
    """How free answers are valued."""
    max_tokens: int = 0
    """Maximum tokens of a free answer."""
    check: str = ""
    """The pattern or the rubric of the metric, if it has one."""
    examples: list[dict[str, str]] = field(default_factory=list)
    """Rows with a reference, as `text` and `reference`."""

    @property
    def open_text(self) -> str:
        """The whole text with {text} in the text's place."""
        return self.before + TEXT + self.after

    @property
    def quoted(self) -> bool:
        """Whether the text is in double quotes, as for style transfer; double quotes inside it then become single."""
        return not self.words and self.before.endswith('"') and self.after.startswith('"')

    @property
    def options(self) -> dict[str, Any]:
        """Further request parameters: the maximum number of tokens, for the longest label word or a rewrite."""
        longest = max((len(ids) for ids in self.word_ids.values()), default=1)
        most = (16 if self.messages else longest) if self.words else self.max_tokens or 100
        stop = ['"'] if self.quoted else ["\n"] if self.metric and not self.messages else []
        return {"max_tokens": most, "temperature": 0, **({"stop": stop} if stop else {})}

    def text_for(self, text: str) -> str:
        given = text.strip()
        return self.before + (given.replace('"', "'") if self.quoted else given) + self.after

    def messages_for(self, text: str) -> list[dict[str, str]]:
        """The chat messages for an input; empty for a completion model."""
        return [
            {**one, "content": self.filled(one["content"], self.text_for(text), text.strip())} for one in self.messages
        ]

    def filled(self, content: str, whole: str, text: str) -> str:
        """A message with the input in its place; `whole` is the input with the prompt around it.

        The prompt may stand in another message: then only {text} does here.
        """
        if self.open_text in content:
            return whole.join(content.split(self.open_text, 1))
        return content.replace(TEXT, text)

    @property
    def own_text(self) -> str:
        """All that is sent in one text, with {text} in the text's place, for tools that have no messages."""
        return "\n\n".join(one["content"] for one in self.messages) or self.open_text


def sent_of(result: Mapping[str, Any], where: object = "result.json") -> Sent:
    """The `sent` entry of a result."""
    sent = mapping(result.get("sent"))
    if not isinstance(sent.get("before"), str) or not isinstance(sent.get("after"), str):
        raise RunError(
            f"{where} does not say what was sent to the model: the run found no text; run it again with --force"
        )
    messages = [
        {"role": str(one["role"]), "content": str(one["content"])}
        for one in map(mapping, sequence(sent.get("messages")))
        if {"role", "content"} <= set(one)
    ]
    offsets = {label: number(value) for label, value in mapping(sent.get("offsets")).items()}
    ids = {
        label: [one for one in sequence(found) if isinstance(one, int)]
        for label, found in mapping(sent.get("word_ids")).items()
    }
    readout = mapping(sent.get("readout"))
    if readout:
        try:
            unpack(readout)
        except ValueError as error:
            raise RunError(f"{where} cannot be used: {error}") from error
    named = {
        name: str(sent[name])
        for name in ("before", "after", "model", "revision", "kind", "source", "metric", "check")
        if name in sent
    }
    return Sent(
        **named,
        task=str(result.get("task", "")),
        prompt=str(result.get("prompt", "")),
        words={label: str(word) for label, word in mapping(sent.get("words")).items()},
        word_ids=ids,
        offsets={label: value for label, value in offsets.items() if value is not None},
        readout=readout,
        ensemble=[mapping(one) for one in sequence(inside(result, "combined", ENSEMBLE, "members"))],
        messages=messages,
        max_tokens=int(number(sent.get("max_tokens")) or 0),
        examples=[
            {"text": str(one["input"]), "reference": str(one["reference"])}
            for one in map(mapping, sequence(_answers_in(result))[:EXPORTED])
            if {"input", "reference"} <= set(one)
        ],
    )


EXPORTED = 20
"""The most rows that an export takes as its tests: those with the worst answers."""


def _answers_in(result: Mapping[str, Any]) -> Any:
    """The table of answers of the reported split."""
    return inside(result, "tables", "answers")


def snippets(sent: Sent, text: str) -> dict[str, str]:
    """Code that sends the prompt without pinprompt, by the name of the tool."""
    found = {"python": _snippet("chat" if sent.messages else "python", sent, text)}
    known = sent.kind == "causal" or all(len(ids) == 1 for ids in sent.word_ids.values())
    tokens = all("token" in one for one in sequence(sent.readout.get("words")))
    local = sent.source not in ("remote", "callable")
    if sent.task == "classification" and local and sent.word_ids and known and tokens:
        found["transformers"] = _snippet("labelling", sent, text)
    if sent.task == "answers" and local:
        found["transformers"] = _snippet("chatting", sent, text)
    if sent.kind == "causal":
        found["openai"] = _snippet("openai", sent, text)
        found["curl"] = _curl(sent, text)
    return found


def shown(record: RunRecord) -> dict[str, Any] | None:
    """The exact text for an input, the label words and their offsets; None if the result has none."""
    try:
        found = sent_of(record.result)
    except RunError:
        return None
    chat = "\n".join(f"[{one['role']}] {one['content']}" for one in found.messages)
    return {
        "text": wording.text(chat or found.open_text, SENT_SHOWN),
        "words": [(wording.text(label, 60), wording.text(word, 60)) for label, word in found.words.items()],
        "learnt": len(sequence(found.readout.get("words"))),
        "offsets": [(wording.text(label, 60), f"{value:.3f}") for label, value in found.offsets.items()],
        "snippets": [
            (SNIPPETS.get(name, name), wording.text(code, SENT_SHOWN))
            for name, code in snippets(found, "some text").items()
        ],
    }


def export(sent: Sent, tool: str) -> tuple[str, str]:
    """The name and the content of a file for another tool."""
    if tool not in TOOLS:
        raise SettingError(f"there is no export to '{tool}': {did_you_mean(tool, TOOLS)}")
    if sent.kind != "causal" and tool in ("promptfoo", "openai"):
        raise SettingError(
            f"{sent.model} fills a mask, which servers of OpenAI's protocol do not do: there is no export to {tool}; "
            "export to json, and `pinprompt use` prints code for transformers"
        )
    makers = {"promptfoo": _promptfoo, "dspy": _dspy, "langchain": _langchain, "openai": _request, "json": _plain}
    made = makers[tool](sent)
    name = {"promptfoo": "promptfooconfig.json", "openai": "request.json"}.get(tool, f"{tool}.json")
    return name, json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def left_out(result: Mapping[str, Any], sent: Sent, tool: str) -> list[str]:
    """What a file for another tool cannot hold of a run's answer, one sentence each."""
    found = []
    if sent.ensemble and tool != "json":
        found.append(f"{tool} holds one prompt: the found one, not the ensemble of {len(sent.ensemble)}")
    if sent.readout and tool not in ("json", "langchain"):
        split = reported_split(result, "accuracy") or "test"
        raw, ours = (number(inside(result, split, name)) for name in ("raw_accuracy", "accuracy"))
        known = "" if raw is None or ours is None else f": accuracy on {split} {raw:.1%} instead of {ours:.1%}"
        found.append(
            f"{tool} holds no weights of learnt words, so labels are read by the label words as they are{known}"
        )
    return found


@cache
def _code() -> Any:
    """The templates of code (templates/snippets): every value becomes a Python literal."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(  # nosec B701  # code, not HTML
        loader=PackageLoader("pinprompt.reports", "templates/snippets"), undefined=StrictUndefined, finalize=repr,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip


def _snippet(name: str, sent: Sent, text: str) -> str:
    """Code that sends a text; the templates see the values of `sent` and what follows from them."""
    words = sequence(sent.readout.get("words"))
    code: str = _code().get_template(f"{name}.py.j2").render(
        sent=sent, text=text, model=_model(sent), address=_SERVER, options=sent.options, server=False, masked=False,
        offsets={label: sent.offsets.get(label, 0.0) for label in sent.words},
        learnt={one["word"]: one["weights"] for one in words},
        opened=[{**one, "content": sent.filled(one["content"], sent.open_text, TEXT)} for one in sent.messages],
        tokens={one["word"]: one.get("token") for one in words},
        single=all(len(ids) == 1 for ids in sent.word_ids.values()),
    )  # fmt: skip
    return code.rstrip("\n")


def _model(sent: Sent) -> str:
    """The name that a server knows the model by; a callable has none."""
    return "your-model" if sent.source == "callable" else sent.model.removeprefix(REMOTE)


def _curl(sent: Sent, text: str) -> str:
    path = "chat/completions" if sent.messages else "completions"
    data = shlex.quote(json.dumps(_request(sent, text), ensure_ascii=False))
    headers = '-H "Content-Type: application/json" -H "Authorization: Bearer $OPENAI_API_KEY"'
    return f"curl {_SERVER}/{path} {headers} -d {data}"


def _request(sent: Sent, text: str | None = None) -> dict[str, Any]:
    """The body of a request to an OpenAI-compatible server; without a text, with {text} in its place."""
    body: dict[str, Any] = {"model": _model(sent), **sent.options}
    if sent.messages:
        return {**body, "messages": sent.messages if text is None else sent.messages_for(text)}
    logs = {"logprobs": 5} if sent.words else {}
    return {**body, "prompt": sent.open_text if text is None else sent.text_for(text), **logs}


def _plain(sent: Sent) -> dict[str, Any]:
    names = ("before", "after", "messages", "words", "offsets", "readout", "ensemble", "model", "revision", "kind")
    parts = {name: getattr(sent, name) for name in names}
    return {"task": sent.task, "prompt": sent.prompt, "text": sent.open_text, **parts}


ASSERTS = {"exact": "equals", "contains": "icontains", "number": "icontains", "json": "is-json", "regex": "regex",
           "judge": "llm-rubric"}  # fmt: skip
"""Assertions of promptfoo for metrics of free answers; your own function has none."""


def _asserts(sent: Sent) -> list[dict[str, Any]]:
    """What promptfoo checks in an answer."""
    if sent.words:
        return [{"type": "icontains-any", "value": list(sent.words.values())}]
    if sent.metric not in ASSERTS:
        return []
    value = {"json": "", "regex": sent.check, "judge": sent.check}.get(sent.metric, "{{reference}}")
    return [{"type": ASSERTS[sent.metric]} | ({"value": value} if value else {})]


def _promptfoo(sent: Sent) -> dict[str, Any]:
    """A configuration for `promptfoo eval -c` (JSON is valid YAML); tests are rows of the report, or one to fill in.

    The server is on this machine: without an address, promptfoo would send the texts to OpenAI.
    """

    def raw(part: str) -> str:
        risky = any(mark in part for mark in ("{{", "{%", "{#"))
        return f"{{% raw %}}{part}{{% endraw %}}" if risky else part

    def opened(content: str) -> str:
        place, around = sent.open_text, raw(sent.before) + "{{text}}" + raw(sent.after)
        if place not in content:  # the prompt stands in another message
            place, around = TEXT, "{{text}}"
        return around.join(raw(part) for part in content.split(place))

    way, text = "completion", opened(sent.open_text)
    if sent.messages:
        way = "chat"
        text = json.dumps([{**one, "content": opened(one["content"])} for one in sent.messages], ensure_ascii=False)
    to_fill_in = {"text": "put your own text here"}
    to_fill_in |= {"reference": "put the expected answer here"} if sent.metric in ASSERTS else {}
    return {
        "description": f"the prompt that pinprompt found: {sent.prompt}",
        "prompts": [text],
        "providers": [{"id": f"openai:{way}:{_model(sent)}", "config": {"apiBaseUrl": _SERVER, **sent.options}}],
        "tests": [{"vars": one, "assert": _asserts(sent)} for one in sent.examples or [to_fill_in]],
    }


def _langchain(sent: Sent) -> dict[str, Any]:
    """A PromptTemplate as `langchain_core.prompts.loading.load_prompt` reads it."""
    parts = [part.replace("{", "{{").replace("}", "}}") for part in sent.own_text.split(TEXT)]
    return {
        "_type": "prompt",
        "input_variables": ["text"],
        "template": TEXT.join(parts),
        "template_format": "f-string",
        "metadata": {
            "words": dict(sent.words),
            "offsets": dict(sent.offsets),
            "readout": dict(sent.readout),
            "model": sent.model,
        },
    }


def _dspy(sent: Sent) -> dict[str, Any]:
    """The state of `dspy.Predict("text -> label")`: its `load` reads this file."""
    answer = "label" if sent.words else "answer"
    choices = f" Answer with one of: {', '.join(sent.words.values())}." if sent.words else ""
    fields = [
        {"prefix": "Text:", "description": "${text}"},
        {"prefix": f"{answer.capitalize()}:", "description": f"${{{answer}}}"},
    ]
    first = sent.messages[0] if sent.messages else {"role": "user"}
    verb = "Answer this" if sent.messages else "Continue this"
    instructions = f"{verb}, where {TEXT} stands for the text: {sent.own_text}{choices}"
    if first["role"] == "system" and TEXT not in first["content"]:
        instructions = f"{first['content']}{choices}"
    # dspy warns if the versions of dependencies differ from its own; they are not known here.
    return {
        "traces": [], "train": [], "demos": [], "signature": {"instructions": instructions, "fields": fields},
        "lm": None, "metadata": {"dependency_versions": {}},
    }  # fmt: skip
