"""Custom tasks: any function from a prompt to a number, or from a list of prompts to a list of numbers."""

from __future__ import annotations

import collections.abc
import hashlib
import importlib
import inspect
import math
import os
import sys
import typing
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pinprompt.errors import BudgetSpent, PinpromptError, SettingError, TaskError, did_you_mean
from pinprompt.recipe.task_sections import CustomSettings
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Prompt, Score

_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


class CustomTask(Task):
    """A function as a task.

    A function whose first parameter is annotated as a list (or any sequence but `str`) gets all prompts of a call at
    once; any other gets one text at a time. `batch=True` or `batch=False` overrides the annotation.
    A score that is not a finite number, or an exception on a single prompt, is recorded as a failure of that prompt:
    its score is NaN, which the evaluator counts as the worst so far (and rejects if nothing could be scored yet). A
    batch that raises an exception or returns the wrong number of scores is a TaskError.
    """

    name = "custom"
    splits: tuple[str, ...] = ("train",)
    primary = "score"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batch: bool | None = None,
        stochastic: bool = False,
        calls_per_prompt: int = 1,
        context: str = "",
        baselines: dict[str, str] | None = None,
    ) -> None:
        if not callable(function):
            raise SettingError(f"a task's function must be callable; given: {type(function).__name__}")
        self.function, self.stochastic = function, stochastic
        self.batch = takes_a_list(function) if batch is None else batch
        self._calls, self._context, self._baselines = calls_per_prompt, context, dict(baselines or {})
        self._told = _told(function)
        self.fingerprint = _fingerprint(function, self.batch)

    @classmethod
    def build(cls, settings: CustomSettings) -> CustomTask:
        """The task of a recipe, with its function imported from 'module:name'."""
        return cls(
            import_function(settings.function),
            stochastic=settings.stochastic,
            calls_per_prompt=settings.calls_per_prompt,
            context=settings.context,
        )

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        """One score per prompt; see the class for failures."""
        self._check(split)
        if not prompts:
            return []
        texts = [prompt.text for prompt in prompts]
        return self._batch(texts) if self.batch else [self._one(text) for text in texts]

    def evaluate(self, prompt: Prompt, split: str = "train", seed: int = 0) -> Evaluation:
        """The function's score as the only metric."""
        score = self.score([prompt], [seed], split)[0]
        if score.failures:
            raise TaskError(f"the function {self._told} could not score the prompt: {score.failures[0]}")
        return Evaluation(split, {"score": score.value}, rows=1, calls=score.calls)

    def calls(self, split: str = "train") -> int:
        """The number of calls of one prompt, from the settings."""
        self._check(split)
        return self._calls

    def context(self) -> str:
        """The context from the settings."""
        return self._context

    def baselines(self) -> dict[str, str]:
        """The hand-written prompts that were given."""
        return dict(self._baselines)

    def _check(self, split: str) -> None:
        if split not in self.splits:
            raise SettingError(f"a function has no split '{split}': it is scored on 'train' only.")

    def _one(self, text: str) -> Score:
        try:
            answer = self.function(text)
        except (BudgetSpent, PinpromptError):
            raise
        except Exception as error:  # a user's function may raise anything
            return self._failed(f"it raised {type(error).__name__}: {error}", text)
        return self._read(answer, text)

    def _batch(self, texts: list[str]) -> list[Score]:
        try:
            answer = self.function(list(texts))
        except (BudgetSpent, PinpromptError):
            raise
        except Exception as error:  # a user's function may raise anything
            raise TaskError(
                f"the function {self._told} raised {type(error).__name__}: {error} for {len(texts)} prompts, of which "
                f"the first is {texts[0]!r}. A batch fails as a whole; handle errors of single prompts inside the "
                "function."
            ) from error
        try:
            values = list(answer)
        except TypeError:
            raise TaskError(
                f"the function {self._told} was given a list of {len(texts)} prompts and answered {answer!r:.60}; it "
                "must answer a list of numbers. If it scores one text at a time, annotate its parameter as str."
            ) from None
        if len(values) != len(texts):
            raise TaskError(
                f"the function {self._told} answered {len(values)} scores for {len(texts)} prompts; it must return "
                "one per prompt, in order."
            )
        return [self._read(value, text) for value, text in zip(values, texts, strict=True)]

    def _read(self, answer: Any, text: str) -> Score:
        try:
            if isinstance(answer, str | bytes | bytearray):
                raise TypeError
            value = float(answer)
        except (TypeError, ValueError, RuntimeError):
            return self._failed(f"it returned {answer!r:.60}, which is not a number", text)
        if not math.isfinite(value):
            return self._failed(f"it returned {value}, which is not finite", text)
        return Score(value, calls=self._calls)

    def _failed(self, what: str, text: str) -> Score:
        return Score(math.nan, calls=self._calls, failures=(f"{what} (prompt {text!r})",))


def takes_a_list(function: Callable[..., Any]) -> bool:
    """Whether the first parameter's annotation is a list or another sequence of texts."""
    target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(target)
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError, NameError, AttributeError):
        return False
    hint = hints.get(names[0]) if names else None
    return (typing.get_origin(hint) or hint) in _LISTS


def import_function(place: str) -> Callable[..., Any]:
    """The function at 'module:name'; modules in the working folder are found too."""
    module_name, colon, name = place.partition(":")
    if not colon or not module_name or not name:
        raise SettingError(
            f"task.function must be 'module:name', such as 'my_task:score' for the function score in my_task.py; "
            f"'{place}' was given."
        )
    module = _module(module_name, place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [known for known in vars(module) if not known.startswith("_") and callable(getattr(module, known))]
            raise SettingError(
                f"the module '{module_name}' has no '{name}'; {did_you_mean(part, known or ['nothing'])}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise SettingError(f"'{place}' is a {type(found).__name__}, not a function.")
    return typing.cast(Callable[..., Any], found)


def _module(name: str, place: str) -> ModuleType:
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise SettingError(
                f"there is no module '{error.name}' for task.function = '{place}'; searched {here} and the "
                "installed packages. Run from the folder that holds it, or install it."
            ) from None
        raise SettingError(f"the module '{name}' cannot be imported: {error}.") from error
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise SettingError(f"the module '{name}' cannot be imported: {type(error).__name__}: {error}.") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def _told(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"


def _fingerprint(function: Callable[..., Any], batch: bool) -> str:
    """The function's name and source: an edited function is another task. Functions that it calls are not included."""
    try:
        source = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(f"{_told(function)}\n{batch}\n{source}".encode()).hexdigest()
