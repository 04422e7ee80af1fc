"""Label probabilities from a remote model.

Servers support different ways. In order of preference: log-probabilities of the next token of a completion (the same
question that a local causal model gets); those of a chat answer; an answer that the server constrains to the label
words; a free-text answer, searched for a label word. A probe at the start finds the first way that works, and `notes`
report it.

In a chat, a prompt that ends with an empty line before the text is the system message (the default there), any other
stands where its template says; then the chat is asked for one of the labels (`remote.instruction`).

If the server only returns its most likely tokens, a label word that is not among them gets the probability of the
least likely of them, which is an upper bound. Other words among them may be learnt from (`task.labels = "learnt"`). A
text answer counts as CERTAINTY for its label.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinprompt.errors import ModelError, SettingError
from pinprompt.maths.readout import as_content
from pinprompt.models.label_text import Frame
from pinprompt.remote.client import BadAnswer, RemoteClient, dig, size_of, texts_of

Asked = str | list[dict[str, Any]]
CERTAINTY = 0.99
WORDS_OUT = 16
"""Maximum tokens of a text answer."""
SHORT_ANSWER = 3
"""Typical number of tokens of a text answer."""
CHAT_TEMPLATE = "{prompt}\n\n{text}"
"""The default template of a chat: the prompt is its system message."""
CHAT_TOKENS = 8
"""Typical number of tokens that a chat's format adds."""
TOP = (200, 20, 5)
"""How many of the most likely tokens to request, tried in turn: the maxima of llama.cpp, vLLM and OpenAI."""
TOKEN_BYTES = 3
"""Bytes per token for estimating token counts; real tokens are longer, so this is conservative."""
LEAST_LOG = -100.0
"""The least log-probability that is believed."""
WAYS = {
    "completions": "log-probabilities of the label words in completions",
    "chat": "log-probabilities of the label words in chat answers",
    "constrained": "answers constrained to the label words; no probabilities",
    "parsed": "free-text answers, searched for a label word; no probabilities",
}


def likely_tokens(text: str) -> int:
    """The approximate number of tokens of a text: one per word of up to nine letters and per sign."""
    parts = re.findall(r"[^\W\d_]+|\d|[^\w\s]", text)
    return sum(max(1, round(len(part.encode()) / 6.5 + 0.1)) for part in parts)


class Guess:
    """Replaces a local model's tokenizer: tokens are estimated from the length of the text."""

    def __init__(self, window: int) -> None:
        self.window = window

    def pieces(self, strings: Sequence[str]) -> list[list[int]]:
        """One placeholder id per estimated token."""
        return [list(text.encode(errors="replace")[::TOKEN_BYTES]) for text in strings]

    def ids(self, strings: Sequence[str]) -> list[list[int]]:
        return [ids or [0] for ids in self.pieces(strings)]


@dataclass
class RemoteInputs:
    """Texts that prompts are scored on."""

    texts: list[str]
    cut: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RemoteWords:
    """Label to word; the ids are placeholders."""

    words: Mapping[str, str]
    ids: tuple[tuple[int, ...], ...]


class TextClassifier:
    """What classifiers have in common that get texts instead of tokens: models behind an API, and callables."""

    kind = "causal"
    mask_token = ""

    def __init__(self, words: Mapping[str, str], window: int) -> None:
        self.encoder = Guess(window)
        self.words = RemoteWords(dict(words), tuple((number,) for number in range(len(words))))
        self.even = [-math.log(len(words))] * len(words)
        """The log-probabilities of labels about which nothing is known."""

    def words_for(self, frame: Frame) -> RemoteWords:
        """The label words for another template: the same, since only the model tokenises them."""
        return self.words

    def prepare(self, texts: Sequence[str], keep: bool = False) -> RemoteInputs:
        """Texts unchanged; a server truncates or rejects long ones."""
        return RemoteInputs(list(texts))

    def shaped(self, rows: Sequence[Any], words: bool) -> Any:
        """Log-probabilities of every text as an array [N, C]; with `words` as they are."""
        import numpy as np

        return rows if words else np.array(rows, dtype=np.float64).reshape(len(rows), len(self.even))


class RemoteClassifier(TextClassifier):
    """Label probabilities of a remote model, with the interface of `models.labels.CausalLabels`."""

    def __init__(
        self,
        client: RemoteClient,
        words: Mapping[str, str],
        contact: bool = True,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """The server is probed, and `notes` report how labels are read; `names` are what a chat is asked for.

        Without `contact` nothing is sent, and costs are those of the most expensive way.
        """
        self.client, self.billed = client, client.model
        self._use(words)
        self._top = TOP[0]
        self.notes: list[str] = []
        self._asked = contact
        self.way = self._probe() if contact else self._dearest()
        if self.way != "completions" and names is not None:
            self._use(names)
        self.graded = not contact or self.way in ("completions", "chat")
        """Whether answers have probabilities (or the server was not probed yet)."""

    def _use(self, words: Mapping[str, str]) -> None:
        self._lowered = [word.strip().lower() for word in words.values()]
        if len(set(self._lowered)) < len(words) or not all(self._lowered):
            raise SettingError(f"label words must differ in more than case and spaces: {', '.join(words.values())}")
        super().__init__(words, self.client.settings.window)

    @property
    def template(self) -> str | None:
        """The default template of a chat; None for completions, which have that of a local model."""
        return None if self.way == "completions" else CHAT_TEMPLATE

    @property
    def revision(self) -> str:
        """What a score depends on besides the data: server, model and type of request."""
        settings = self.client.settings
        return json.dumps(["remote", settings.base_url, self.client.model, self.way, self._top, settings.instruction])

    def answers(
        self, frame: Frame, inputs: RemoteInputs, words: bool = False
    ) -> tuple[Any, dict[int, str], tuple[int, int]]:
        """Log-probabilities among the labels [N, C] for every text, failures by text, and tokens in and out.

        With `words`, those of the labels and the most likely words for every text (`maths.readout.as_content`). A text
        without a usable answer gets equal probabilities.
        """
        self.client.take()
        failures: dict[int, str] = {}

        def one(place: int) -> Any:
            text = frame.around(inputs.texts[place])[0]
            try:
                return self._row(self.question(frame, inputs.texts[place]), words)
            except BadAnswer as failure:
                failures[place] = self.client.redact(f"{str(failure)[:300]} (text: {text[:60]!r})")
                return as_content(self.even, {}) if words else self.even

        rows = self.client.each(one, range(len(inputs.texts)))
        usage = self.client.take()
        return self.shaped(rows, words), dict(sorted(failures.items())), (usage.tokens_in, usage.tokens_out)

    def most_tokens(self, frame: Frame, inputs: RemoteInputs) -> tuple[int, int]:
        """The maximum tokens in and out of one frame on these texts."""
        over_in, over_out = self.client.overhead
        extra = len(self._instruction()) + 400 + over_in  # with the schema of a constrained answer
        most_in = sum(size_of(frame.around(text)[0]) + extra for text in inputs.texts)
        most_out = len(inputs.texts) * ((1 if self.way in ("completions", "chat") else WORDS_OUT) + over_out)
        return most_in * self.client.tries, most_out * self.client.tries

    def likely_tokens(self, frame: Frame, inputs: RemoteInputs) -> tuple[int, int]:
        """The expected tokens in and out of one frame; a server that was not probed is assumed to have completions."""
        way = self.way if self._asked or self.client.settings.answers != "auto" else "completions"
        extra = 0 if way == "completions" else likely_tokens(self._instruction()) + CHAT_TOKENS
        tokens = sum(likely_tokens(frame.around(text)[0]) + extra for text in inputs.texts)
        return tokens, len(inputs.texts) * (1 if way in ("completions", "chat") else SHORT_ANSWER)

    def _row(self, asked: Asked, words: bool) -> Any:
        """Log-probabilities of the labels, with `words` also of likely words; BadAnswer without any."""
        if words:
            return self.client.once([self.revision, asked, "words"], lambda: self._with_words(asked), self._has_words)
        return self.client.once([self.revision, asked], lambda: getattr(self, f"_by_{self.way}")(asked), self._is_row)

    def _is_row(self, value: Any) -> bool:
        """Whether these are log-probabilities of the labels."""
        return isinstance(value, list) and all(map(_is_log, value)) and len(value) == len(self._lowered)

    def _has_words(self, value: Any) -> bool:
        """Whether this is an answer as returned by `_with_words`."""
        if not isinstance(value, dict) or not isinstance(value.get("words"), dict):
            return False
        return self._is_row(value.get("labels")) and all(map(_is_log, value["words"].values()))

    def _with_words(self, asked: Asked) -> dict[str, Any]:
        """Log-probabilities of the labels and of the words that the server finds most likely.

        An answer without a label word can be used, since other words are learnt from: then all labels are equal.
        """
        tops = self._tops_of_completion(asked) if self.way == "completions" else self._tops_of_chat(asked)
        try:
            labels = self._from_tops(tops)
        except BadAnswer:
            labels = self.even
        mass: dict[str, float] = {}
        for token, log in known_tops(tops):
            if len(word := token.strip()) > 1 and word.isalpha():
                mass[word] = mass.get(word, 0.0) + math.exp(log)
        if not mass:
            raise BadAnswer("no word is among the most likely tokens")
        return as_content(labels, {word: math.log(share) for word, share in mass.items()})

    def _probe(self) -> str:
        """The first way that this server supports."""
        wanted = self.client.settings.answers
        ways: list[str] = list(WAYS) if wanted == "auto" else [wanted]
        tried = []
        for way in ways:
            for top in TOP if way in ("completions", "chat") else TOP[:1]:
                self._top = top
                try:
                    text = f"The opposite of {self._lowered[0]} is"
                    getattr(self, f"_by_{way}")(text if way == "completions" else self.messages(Frame("", ""), text))
                except BadAnswer as failure:
                    tried.append(f"{way}: {failure}")
                    if way == "parsed" and isinstance(failure, _NoLabel):
                        break  # the server answers, but without a label: that can happen to an example
                    continue
                break
            else:
                continue
            where = f"{self.client.settings.base_url}, model '{self.client.model}'"
            self.notes.append(f"{where}: labels by {WAYS[way]}")
            return way
        raise ModelError(
            f"{self.client.settings.base_url} gave no usable answer for '{self.client.model}': {'; '.join(tried)[:600]}"
        )

    def _dearest(self) -> str:
        """The way that uses most tokens, for a server that must not be contacted."""
        wanted = self.client.settings.answers
        if wanted != "auto":
            return wanted
        self.notes.append(f"{self.client.settings.base_url} was not probed: assuming free-text answers")
        return "parsed"

    def _by_completions(self, asked: Asked) -> list[float]:
        return self._from_tops(self._tops_of_completion(asked))

    def _tops_of_completion(self, asked: Any) -> list[tuple[Any, Any]]:
        answer = self.client.complete(asked.rstrip(" "), 1, logprobs=self._top, temperature=0, seed=0)
        tops = dig(answer, "choices", 0, "logprobs", "top_logprobs", 0)
        if not isinstance(tops, dict):
            raise BadAnswer("the server gives no log-probabilities for completions")
        return list(tops.items())

    def _by_chat(self, asked: Asked) -> list[float]:
        return self._from_tops(self._tops_of_chat(asked))

    def _tops_of_chat(self, asked: Any) -> list[tuple[Any, Any]]:
        answer = self.client.chat(asked, 1, logprobs=True, top_logprobs=self._top, temperature=0, seed=0)
        tops = dig(answer, "choices", 0, "logprobs", "content", 0, "top_logprobs")
        if not isinstance(tops, list):
            raise BadAnswer("the server gives no log-probabilities for chats")
        return [(entry.get("token"), entry.get("logprob")) for entry in tops if isinstance(entry, dict)]

    def _by_constrained(self, asked: Asked) -> list[float]:
        schema = {
            "type": "object",
            "properties": {"label": {"type": "string", "enum": list(self.words.words.values())}},
            "required": ["label"],
            "additionalProperties": False,
        }
        shape = {"type": "json_schema", "json_schema": {"name": "label", "strict": True, "schema": schema}}
        said = self._said(asked, response_format=shape)
        try:
            label = json.loads(said)["label"].strip().lower()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise BadAnswer(f"the server does not keep to the label words: it said {said[:80]!r}") from None
        if label not in self._lowered:
            raise BadAnswer(f"the server does not keep to the label words: it said {label[:80]!r}")
        return certain(self._lowered.index(label), len(self._lowered))

    def _by_parsed(self, asked: Asked) -> list[float]:
        said = self._said(asked)
        places = [place_of(word, said.lower()) for word in self._lowered]
        known = [place for place in places if place is not None]
        if not known:
            raise _NoLabel(f"no label word in the answer {said[:80]!r}")
        return certain(places.index(min(known)), len(places))

    def _said(self, asked: Any, **more: Any) -> str:
        answer = self.client.chat(asked, WORDS_OUT, temperature=0, seed=0, **more)
        return texts_of(answer, "message", "content")[0]

    def question(self, frame: Frame, text: str) -> Asked:
        """What is sent for a text: a string to complete, or a chat."""
        return frame.around(text)[0] if self.way == "completions" else self.messages(frame, text)

    def messages(self, frame: Frame, text: str) -> list[dict[str, Any]]:
        """The chat that asks for the label of a text."""
        system, _, before = frame.before.rpartition("\n\n")
        user = {"role": "user", "content": f"{before}{text}{frame.after}\n\n{self._instruction()}"}
        return [{"role": "system", "content": system.strip()}, user] if system.strip() else [user]

    def _instruction(self) -> str:
        return self.client.settings.instruction.replace("{words}", " or ".join(self.words.words.values()))

    def _from_tops(self, tops: Sequence[tuple[Any, Any]]) -> list[float]:
        """Log-probabilities among the labels from the most likely tokens that start exactly one label word."""
        mass = [0.0] * len(self._lowered)
        least = math.inf
        for token, log in known_tops(tops):
            least = min(least, log)
            start = token.strip().lower()
            begun = [number for number, word in enumerate(self._lowered) if start and word.startswith(start)]
            if len(begun) == 1:
                mass[begun[0]] += math.exp(log)
        if not any(mass):
            raise BadAnswer("no label word starts with any of the most likely tokens")
        return normalised([math.log(weight) if weight > 0 else least for weight in mass])


def normalised(logs: Sequence[float]) -> list[float]:
    """Log-probabilities that add up to 1."""
    largest = max(logs)
    total = largest + math.log(sum(math.exp(value - largest) for value in logs))
    return [value - total for value in logs]


def certain(label: int, labels: int) -> list[float]:
    """The log-probabilities of all labels if a text names one of them."""
    others = max(1, labels - 1)
    return [math.log(CERTAINTY if number == label else (1 - CERTAINTY) / others) for number in range(labels)]


def known_tops(tops: Sequence[tuple[Any, Any]]) -> Iterator[tuple[str, float]]:
    """The tokens of a server's answer with their log-probabilities, between -100 and 0; what is neither is left out."""
    for token, log in tops:
        if isinstance(token, str) and isinstance(log, int | float) and not math.isnan(log):
            yield token, min(0.0, max(float(log), LEAST_LOG))


def _is_log(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


class _NoLabel(BadAnswer):
    """A text answer without a label word."""


def place_of(word: str, said: str) -> int | None:
    """Where a word first stands in a text as a whole word; None if it does not."""
    found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said)
    return None if found is None else found.start()
