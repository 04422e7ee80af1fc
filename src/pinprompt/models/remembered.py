"""Judges are asked the same again and again as prompts become alike: their answers are kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Remembered(Generic[K]):
    """A judge of many questions at once that is asked each question once, as long as memory is not full."""

    def __init__(self, judge: Callable[[list[K]], Sequence[float]], most: int = 500_000) -> None:
        self._judge, self._most = judge, most
        self._known: dict[K, float] = {}

    def __call__(self, questions: Sequence[K]) -> list[float]:
        """The answers in order. An answer depends on its question alone, so forgetting changes nothing but the cost."""
        new = [question for question in dict.fromkeys(questions) if question not in self._known]
        if len(self._known) + len(new) > self._most:
            self._known.clear()
            new = list(dict.fromkeys(questions))
        if new:
            self._known.update(zip(new, map(float, self._judge(new)), strict=True))
        return [self._known[question] for question in questions]
