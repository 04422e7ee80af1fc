"""The user's own model as a Python callable: for labels with the interface of `RemoteClassifier`, or for chats.

For labels, the callable gets a list of texts (each with the prompt in it) and returns one answer per text:

- a mapping from labels or words to probabilities or log-probabilities,
- a list of probabilities in the order of the labels,
- or a text, in which the first label or label word counts.

It may be asynchronous. An answer that is an exception, or that names no label, is a recorded failure of its text.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pinprompt.errors import BudgetSpent, ModelError, SettingError
from pinprompt.maths.readout import as_content
from pinprompt.models.chat import Messages, Reply
from pinprompt.models.label_text import Frame
from pinprompt.remote.labels import RemoteInputs, TextClassifier, certain, normalised, place_of

WINDOW = 1 << 20
"""Nothing is known about the callable's window, so nothing is cut."""
LEAST = math.log(1e-12)
"""The log-probability of a label that an answer does not mention, unless others are even less likely."""


class CallableLabels(TextClassifier):
    """Label probabilities by a Python callable."""

    billed = None

    def __init__(self, function: Callable[..., Any], words: Mapping[str, str]) -> None:
        if not callable(function):
            raise SettingError(f"model must be a name or a callable; given: {type(function).__name__}")
        super().__init__(words, WINDOW)
        self.function = function
        self._names = [{label.strip().lower(), word.strip().lower()} for label, word in words.items()]
        self.notes: tuple[str, ...] = ()
        first = next(iter(words.values()))
        [answer] = call(function, [f"The opposite of {first} is"])
        self.graded = not isinstance(answer, str | Exception)
        """Whether answers have probabilities; one question finds out."""

    @property
    def revision(self) -> str:
        """The callable's name and source: an edited one is another model."""
        return source_of(self.function)

    def answers(
        self, frame: Frame, inputs: RemoteInputs, words: bool = False
    ) -> tuple[Any, dict[int, str], tuple[int, int]]:
        """Log-probabilities among the labels [N, C] for every text, failures by text, and no tokens.

        With `words`, those of the labels and of all words that an answer names (`maths.readout.as_content`).
        """
        rows: list[Any] = []
        failures: dict[int, str] = {}
        for place, answer in enumerate(call(self.function, [frame.around(text)[0] for text in inputs.texts])):
            row, said = self._row(answer), self._words(answer) if words else {}
            if isinstance(row, str):
                if not said:
                    failures[place] = row
                row = self.even
            rows.append(as_content(row, said) if words else row)
        return self.shaped(rows, words), failures, (0, 0)

    def _words(self, answer: Any) -> dict[str, float]:
        """The log-probabilities of all words that an answer names."""
        if not isinstance(answer, Mapping):
            return {}
        try:
            numbers = {str(key).strip(): float(value) for key, value in answer.items()}
        except (TypeError, ValueError):
            return {}
        logs = all(value <= 0 for value in numbers.values())
        return {
            word: max(value, LEAST) if logs else math.log(max(value, math.exp(LEAST)))
            for word, value in numbers.items()
            if math.isfinite(value) and (logs or value >= 0)
        }

    def _row(self, answer: Any) -> list[float] | str:
        """Log-probabilities of the labels from an answer, or why there are none."""
        if isinstance(answer, Exception):
            return f"the model raised {type(answer).__name__}: {answer}"
        if isinstance(answer, str):
            return self._said(answer)
        try:
            if isinstance(answer, Mapping):
                return self._normalised(self._from_mapping(answer))
            values = [float(value) for value in answer]
        except (TypeError, ValueError):
            return f"the model answered {answer!r:.80}, which is neither text nor probabilities"
        if len(values) != len(self._names):
            return f"the model gave {len(values)} probabilities for {len(self._names)} labels"
        return self._normalised([math.log(value) if value > 0 else None for value in values])

    def _said(self, text: str) -> list[float] | str:
        places = [min((at for name in names if (at := place_of(name, text.lower())) is not None), default=None)
                  for names in self._names]  # fmt: skip
        known = [place for place in places if place is not None]
        if not known:
            return f"no label in the answer {text[:80]!r}"
        return certain(places.index(min(known)), len(places))

    def _from_mapping(self, answer: Mapping[Any, Any]) -> list[float | None]:
        numbers = {str(key).strip().lower(): float(value) for key, value in answer.items()}
        logs = all(value <= 0 for value in numbers.values())
        mass = [sum(math.exp(value) if logs else value for key, value in numbers.items() if key in names)
                for names in self._names]  # fmt: skip
        return [math.log(value) if value > 0 else None for value in mass]

    def _normalised(self, logs: Sequence[float | None]) -> list[float] | str:
        known = [value for value in logs if value is not None and math.isfinite(value)]
        if not known:
            return "the model gave no probability for any label"
        return normalised([min(LEAST, *known) if value is None else value for value in logs])


class CallableChat:
    """Answers to chats by a Python callable, with the interface of `models.chat.ChatModel`.

    A callable whose first parameter is called `messages` or `chats` gets the chats as lists of messages, any other one
    their texts; it returns one text per chat.
    """

    billed = None
    notes = ()

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise SettingError(f"model must be a name or a callable; given: {type(function).__name__}")
        self.function = function
        try:
            first = next(iter(inspect.signature(function).parameters), "")
        except (TypeError, ValueError):
            first = ""
        self._by_messages = first in ("messages", "chats")

    @property
    def revision(self) -> str:
        """The callable's name and source: an edited one is another model."""
        return source_of(self.function)

    def answers(self, chats: Sequence[Messages]) -> list[Reply]:
        given = [[dict(one) for one in chat] if self._by_messages else "\n\n".join(one["content"] for one in chat)
                 for chat in chats]  # fmt: skip
        return [self._reply(answer) for answer in call(self.function, given)] if given else []

    def drawn(self, chats: Sequence[Messages], seeds: Sequence[int]) -> list[Reply]:
        """The same: whether a callable samples is its own affair."""
        return self.answers(chats)

    def _reply(self, answer: Any) -> Reply:
        if isinstance(answer, Exception):
            return Reply("", f"the model raised {type(answer).__name__}: {answer}")
        if not isinstance(answer, str):
            return Reply("", f"the model answered {answer!r:.80}, which is not a text")
        return Reply(answer.strip())


def call(function: Callable[..., Any], given: list[Any]) -> list[Any]:
    """A callable's answers, one for each thing given; an exception for one that fails alone."""
    try:
        answers = function(list(given))
        if inspect.isawaitable(answers):
            answers = _finished(answers)
    except BudgetSpent:
        raise  # the clock
    except Exception as error:  # the user's code may raise anything
        if len(given) == 1:
            return [error]
        return [call(function, [one])[0] for one in given]
    try:
        found = list(answers.values()) if isinstance(answers, Mapping) else list(answers)
    except TypeError:
        found = []
    if isinstance(answers, str | Mapping) or len(found) != len(given):
        raise ModelError(
            f"the model was given {len(given)} texts and answered {answers!r:.80}; it must return a list with one "
            "answer per text"
        )
    return found


def source_of(function: Callable[..., Any]) -> str:
    """The name and the source of a callable, for fingerprints."""
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        source = ""
    return f"callable {getattr(function, '__qualname__', type(function).__qualname__)}\n{source}"


def _finished(answers: Any) -> Any:
    """The result of an awaitable. Where a loop runs, as in a notebook, none can be started: then a thread has one."""

    async def awaited() -> Any:
        return await answers

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(awaited())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, awaited()).result()
