"""Answers that cost nothing now: what a killed session of this run paid for, and what earlier runs left in the memo."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pinprompt.scoring import encoding
from pinprompt.scoring.journal import Row
from pinprompt.scoring.memo import Memo, memo_key
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Prompt, Score


class Known:
    """Looks answers up by question; `fixed` tasks have one answer per prompt and split, others one per request too."""

    def __init__(self, task: Task, fixed: bool, memo: Memo | None) -> None:
        self.task, self.fixed = task, fixed
        self.memo = memo if fixed else None
        self.hits = 0
        """Answers of the memo that were used."""
        self._scores: dict[tuple[Any, ...], Score] = {}
        self._evaluations: dict[tuple[str, str], Evaluation] = {}
        self._stored: set[str] = set()
        """Keys of the last question that the memo answered."""

    def take(self, spare: Iterable[Row]) -> None:
        """Take in journal rows from after the last checkpoint; what failed, or failed in part, is asked for again."""
        for row in spare:
            if row["kind"] == "evaluation":
                self._evaluations[row["split"], row["text"]] = encoding.unpack_evaluation(row["evaluation"])
                continue
            score = encoding.unpack_score(row)
            if not math.isnan(score.value) and not score.failures:
                self._scores[self._question(row["n"], row["place"], row["split"], row["text"])] = score

    def scores(self, asked: Sequence[tuple[int, Prompt]], split: str, number: int) -> dict[int, Score]:
        """The known scores among the asked (place, prompt) pairs of request `number`, by place."""
        found: dict[int, Score] = {}
        for place, prompt in asked:
            paid = self._scores.get(self._question(number, place, split, prompt.text))
            if paid is not None:
                found[place] = paid
        if self.memo is None:
            return found
        keys = {place: self.score_key(split, prompt) for place, prompt in asked if place not in found}
        stored = self.memo.look_up(list(keys.values()))
        for place, key in keys.items():
            with contextlib.suppress(KeyError, ValueError):
                found[place] = encoding.unpack_score(stored[key])
        self._stored = {key for place, key in keys.items() if place in found}
        return found

    def used(self, split: str, prompt: Prompt) -> None:
        """A known score was used: if it is the memo's, that is a hit."""
        key = self.score_key(split, prompt)
        if self.memo is not None and key in self._stored:
            self.hits += 1
            self.memo.count(key)

    def evaluation(self, prompt: Prompt, split: str) -> Evaluation | None:
        """The known evaluation of a prompt on a split."""
        paid = self._evaluations.get((split, prompt.text))
        if paid is not None or self.memo is None:
            return paid
        key = self.evaluation_key(split, prompt)
        try:
            known = encoding.unpack_evaluation(self.memo.look_up([key])[key])
        except (KeyError, ValueError):
            return None
        self.hits += 1
        self.memo.count(key)
        return known

    def keep(self, answers: Mapping[str, dict[str, Any]], money: float = 0.0) -> None:
        """Give answers that were just paid for to the memo; `money` is what each cost."""
        if self.memo is not None:
            self.memo.keep(answers, money)

    def _fingerprint(self, split: str) -> str:
        """What an answer on a split depends on: less than the whole task, where the task says so."""
        return str(getattr(self.task, "fingerprints", {}).get(split, self.task.fingerprint))

    def score_key(self, split: str, prompt: Prompt) -> str:
        """The memo's key of a score."""
        return memo_key(self._fingerprint(split), "score", split, prompt.text)

    def evaluation_key(self, split: str, prompt: Prompt) -> str:
        """The memo's key of an evaluation."""
        return memo_key(self._fingerprint(split), "evaluation", split, prompt.text)

    def _question(self, number: int, place: int, split: str, text: str) -> tuple[Any, ...]:
        return (split, text) if self.fixed else (split, text, number, place)
