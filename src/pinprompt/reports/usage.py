"""Using a prompt outside pinprompt: the exact text for one input, code snippets, files for other tools.

Everything comes from `sent` in result.json. Its values may be untrusted, so they are put into code as literals only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pinprompt import wording
from pinprompt.errors import RunError, SettingError, did_you_mean
from pinprompt.folder.reading import RunRecord, inside, mapping, number, sequence
from pinprompt.maths.readout import unpack
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
        """The exact text that is sent for an input."""
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
    found = {"python": _python(sent, text)}
    known = sent.kind == "causal" or all(len(ids) == 1 for ids in sent.word_ids.values())
    tokens = all("token" in one for one in sequence(sent.readout.get("words")))
    if (
        sent.task == "classification"
        and sent.source not in ("remote", "callable")
        and sent.word_ids
        and known
        and tokens
    ):
        found["transformers"] = _labelling(sent, text)
    if sent.task == "answers" and sent.source not in ("remote", "callable"):
        found["transformers"] = _chatting(sent, text)
    if sent.kind == "causal":
        found["openai"] = _openai(sent, text)
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


def _constants(sent: Sent) -> list[str]:
    words = [f"WORDS = {dict(sent.words)!r}", *_readout_constants(sent)] if sent.readout else _word_constants(sent)
    return [f"BEFORE = {sent.before!r}", f"AFTER = {sent.after!r}", *words]


def _word_constants(sent: Sent) -> list[str]:
    """The label words with their offsets: all that a server's few likeliest words can be read by."""
    if not sent.words:
        return []
    offsets = {label: sent.offsets.get(label, 0.0) for label in sent.words}
    found = [
        f"WORDS = {dict(sent.words)!r}  # label: the word that the model says for it",
        f"OFFSETS = {offsets!r}  # taken from a label's log-probability",
    ]
    note = ["# Label words only: the learnt words of `pinprompt predict` are not used here."] if sent.readout else []
    return [*note, *found]


def _readout_constants(sent: Sent) -> list[str]:
    """The learnt words with their weights."""
    weights = {one["word"]: one["weights"] for one in sent.readout["words"]}
    return [
        f"BIAS = {dict(sent.readout['bias'])!r}",
        f"OWN = {dict(sent.readout['own'])!r}  # the weights of each label's word, by label",
        f"LEARNT = {weights!r}  # the weights of learnt words, by label",
    ]


_SCORES = """\
def scores(label_logs, word_logs):
    \"\"\"Scores of the labels, from log-probabilities among the label words and of the learnt words.\"\"\"
    return {label: BIAS[label] + sum(OWN[own][label] * label_logs[own] for own in OWN)
            + sum(LEARNT[word][label] * word_logs[word] for word in LEARNT) for label in BIAS}"""


def _python(sent: Sent, text: str) -> str:
    given = "text.strip().replace('\"', \"'\")" if sent.quoted else "text.strip()"
    if sent.messages:
        return _python_chat(sent, given, text)
    lines = [*_constants(sent), "", "", "def full_text(text):", f"    return BEFORE + {given} + AFTER", ""]
    if sent.readout:
        lines += ["", _SCORES, ""]
    elif sent.words:
        lines += [
            "",
            "def label(log_probs):",
            '    """The label, from the log-probability of each label\'s word."""',
            "    return max(WORDS, key=lambda label: log_probs[label] - OFFSETS[label])",
            "",
        ]
    lines += ["", f"print(full_text({text!r}))"]
    return "\n".join(lines)


def _python_chat(sent: Sent, given: str, text: str) -> str:
    """The messages for a text; `given` is the text's expression."""
    opened = [{**one, "content": sent.filled(one["content"], sent.open_text, TEXT)} for one in sent.messages]
    words = [f"WORDS = {dict(sent.words)!r}  # label: the word that the model says for it"] if sent.words else []
    lines = [f"MESSAGES = {opened!r}", *words, "", "", "def chat(text):"]
    lines += [
        f'    return [{{**one, "content": one["content"].replace({TEXT!r}, {given})}} for one in MESSAGES]',
        "",
        "",
        f"print(chat({text!r}))",
    ]
    return "\n".join(lines)


def _loading(sent: Sent, auto: str, own: str) -> list[str]:
    if sent.source in ("alias", "gguf"):
        return [f"from pinprompt.models.loading import {own}", "", f"model, tokenizer = {own}({sent.model!r}, 'cpu')"]
    revision = f", revision={sent.revision!r}" if sent.source == "hub" and sent.revision else ""
    return [
        f"from transformers import {auto}, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({sent.model!r}{revision})",
        f"model = {auto}.from_pretrained({sent.model!r}{revision}).eval()",
    ]


_CAUSAL_LOGS = """\
    start = tokenizer(BEFORE + text.strip() + AFTER)["input_ids"]
    logs = []
    for ids in WORD_IDS.values():
        said = torch.log_softmax(model(torch.tensor([start + ids])).logits[0].float(), dim=-1)
        logs.append(sum(said[len(start) - 1 + place, token] for place, token in enumerate(ids)))"""
_MASKED_LOGS = """\
    ids = tokenizer(BEFORE + text.strip() + AFTER, return_tensors="pt")["input_ids"]
    place = (ids[0] == tokenizer.mask_token_id).nonzero()[-1 if tokenizer.mask_token in AFTER else 0, 0]
    logits = model(ids).logits[0, place].float()
    logs = [logits[ids[0]] for ids in WORD_IDS.values()]"""


def _labelling(sent: Sent, text: str) -> str:
    """Code for the label probabilities of a text."""
    if sent.kind == "causal":
        loading, logs = _loading(sent, "AutoModelForCausalLM", "load_causal_lm"), _CAUSAL_LOGS
    else:
        loading, logs = _loading(sent, "AutoModelForMaskedLM", "load_masked_lm"), _MASKED_LOGS
    lines = ["import torch", *loading, *_constants(sent), f"WORD_IDS = {dict(sent.word_ids)!r}"]
    if sent.readout:
        tokens = {one["word"]: one["token"] for one in sent.readout["words"]}
        lines += [f"TOKENS = {tokens!r}", "", "", _SCORES]
        logs += f"\n    next_word = {'said[len(start) - 1]' if sent.kind == 'causal' else 'logits'}"
        moved = [
            "    label_logs = dict(zip(WORD_IDS, torch.log_softmax(torch.stack(logs), dim=0).tolist()))",
            "    word_logs = {word: float(next_word[token]) for word, token in TOKENS.items()}",
            "    moved = torch.tensor(list(scores(label_logs, word_logs).values()))",
        ]
    else:
        moved = ["    moved = torch.stack(logs) - torch.tensor([OFFSETS[label] for label in WORD_IDS])"]
    lines += ["", "", "@torch.inference_mode()", "def probabilities(text):", logs, *moved]
    lines += ["    return dict(zip(WORD_IDS, torch.softmax(moved, dim=0).tolist()))"]
    return "\n".join([*lines, "", "", f"print(probabilities({text!r}))"])


def _model(sent: Sent) -> str:
    """The name that a server knows the model by; a callable has none."""
    return "your-model" if sent.source == "callable" else sent.model.removeprefix("remote:")


def _openai(sent: Sent, text: str) -> str:
    head = ["from openai import OpenAI", "", f"client = OpenAI(base_url={_SERVER!r})  # your server"]
    options = ", ".join(f"{name}={value!r}" for name, value in sent.options.items())
    if sent.messages:
        call = ["answer = client.chat.completions.create(", f"    model={_model(sent)!r},"]
        call += [f"    messages={sent.messages_for(text)!r},", f"    {options},", ")"]
        return "\n".join([*head, *call, "print(answer.choices[0].message.content)"])
    call = ["answer = client.completions.create("]
    logs = ", logprobs=5" if sent.words else ""
    call += [f"    model={_model(sent)!r}, prompt={sent.text_for(text)!r}, {options}{logs}", ")"]
    said = [f"print(answer.choices[0].text{', answer.choices[0].logprobs' if sent.words else ''})"]
    if sent.words and all(len(ids) == 1 for ids in sent.word_ids.values()):
        said = [
            "tops = answer.choices[0].logprobs.top_logprobs[0]",
            "likely = {token.strip(): value for token, value in tops.items()}",
            "least = min(likely.values())  # for a word that is not among the likeliest",
            "print(max(WORDS, key=lambda label: likely.get(WORDS[label], least) - OFFSETS[label]))",
        ]
    return "\n".join([*head, *call, *_word_constants(sent), *said])


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
    """Everything, for your own tools."""
    names = ("before", "after", "messages", "words", "offsets", "readout", "ensemble", "model", "revision", "kind")
    parts = {name: getattr(sent, name) for name in names}
    return {"task": sent.task, "prompt": sent.prompt, "text": sent.open_text, **parts}


def _chatting(sent: Sent, text: str) -> str:
    """Code for the answer of a local chat model."""
    lines = [*_loading(sent, "AutoModelForCausalLM", "load_causal_lm"), "", ""]
    reading = [
        f"    messages = {sent.messages!r}",
        f'    messages = [{{**one, "content": one["content"].replace({TEXT!r}, text)}} for one in messages]',
        "    ids = tokenizer.apply_chat_template(",
        '        messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
        "    )",
    ]
    if not sent.messages:
        reading = [f'    ids = tokenizer({sent.before!r} + text.strip() + {sent.after!r}, return_tensors="pt")']
    kept = "" if sent.messages else '.split("\\n")[0].strip()'
    lines += [
        "def answer(text):",
        *reading,
        f"    said = model.generate(**ids, max_new_tokens={sent.options['max_tokens']}, do_sample=False)[0]",
        f'    return tokenizer.decode(said[ids["input_ids"].shape[1] :], skip_special_tokens=True).strip(){kept}',
        "",
        "",
        f"print(answer({text!r}))",
    ]
    return "\n".join(lines)


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
