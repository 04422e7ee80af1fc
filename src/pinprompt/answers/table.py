"""The table of answers: what the task model answered to each prompt on each row. It is the run.

            row 1   row 2   ...   row N
prompt 1    answer  answer        answer
prompt 2    answer  -             -            "-": not asked yet

A line of the file (`answers.jsonl`) holds the answers of one prompt on some rows, as they came. Scores, rewards,
metrics and choices are functions of the table and stored nowhere else. For a stochastic task a cell has several draws,
each under its own name.

An answer becomes part of a run when the search asks for it, whether the model gives it now, an earlier session of the
same run wrote it, or the memo has it. So after a kill the file holds answers that the resumed search has not asked for
yet: they are waiting, and nobody pays for them again. A checkpoint names the lines that were asked for by then.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pinprompt.answers.log import Log
from pinprompt.errors import RunError
from pinprompt.values import Answers, Prompt


def pack_rows(rows: Sequence[int]) -> list[list[int]]:
    """Row numbers as ranges [first, last + 1], in order."""
    ranges: list[list[int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row:
            ranges[-1][1] += 1
        else:
            ranges.append([row, row + 1])
    return ranges


def unpack_rows(ranges: Any, most: int = 10_000_000) -> tuple[int, ...]:
    """The inverse of `pack_rows`; ValueError if these are no ranges, or have more than `most` rows."""
    rows: list[int] = []
    for first, end in ranges:
        if not (isinstance(first, int) and isinstance(end, int) and 0 <= first < end <= first + most - len(rows)):
            raise ValueError(f"not a range of rows: {[first, end]}")
        rows += range(first, end)
    return tuple(rows)


def pack_contents(contents: Any) -> Any:
    """Contents as JSON values; an array is base64, little-endian."""
    if not isinstance(contents, np.ndarray):
        return list(contents)
    kind = "<f4" if contents.dtype == np.float32 else "<f8"
    data = base64.b64encode(np.ascontiguousarray(contents, dtype=kind).tobytes()).decode("ascii")
    return {"dtype": kind, "shape": list(contents.shape), "data": data}


def unpack_contents(packed: Any, rows: int) -> Any:
    """The inverse of `pack_contents`; ValueError if it does not hold one entry per row."""
    if isinstance(packed, Mapping):
        if packed["dtype"] not in ("<f4", "<f8"):
            raise ValueError(f"an unknown type of numbers: {str(packed['dtype'])[:20]}")
        shape = [int(size) for size in packed["shape"]]
        data = np.frombuffer(base64.b64decode(packed["data"], validate=True), dtype=packed["dtype"])
        contents: Any = data.reshape(shape).astype(data.dtype.newbyteorder("="))
    elif isinstance(packed, list):
        contents = packed
    else:
        raise ValueError("the contents are neither numbers nor a list")
    if len(contents) != rows:
        raise ValueError(f"{len(contents)} answers for {rows} rows")
    return contents


def pack_answers(answers: Answers) -> dict[str, Any]:
    """Answers as JSON values."""
    packed = {"rows": pack_rows(answers.rows), "contents": pack_contents(answers.contents)}
    if answers.failures:
        packed["failures"] = [[row, reason] for row, reason in answers.failures.items()]
    return packed | ({"tokens": list(answers.tokens)} if any(answers.tokens) else {})


def unpack_answers(line: Mapping[str, Any]) -> Answers:
    """The inverse of `pack_answers`; ValueError if the line holds no answers."""
    try:
        held = line["contents"]
        # An untrusted line must not claim more rows than it can hold.
        rows = unpack_rows(line["rows"], len(held["data"] if isinstance(held, Mapping) else held))
        failures = {int(row): str(reason) for row, reason in line.get("failures", ())}
        tokens_in, tokens_out = line.get("tokens", (0, 0))
        return Answers(rows, unpack_contents(held, len(rows)), failures, (int(tokens_in), int(tokens_out)))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a line of answers: {error!r}") from error


@dataclass
class Asked:
    """A prompt that the run has asked about: its ids, its first request, and its draws in order."""

    prompt: Prompt
    first: int
    draws: list[str] = field(default_factory=list)
    searched: bool = False
    """Whether the search asked about it, and not only the report."""


class Table:
    """The answers of one run, in memory and, with a log, on disk."""

    def __init__(self, log: Log | None = None, private: bool = False) -> None:
        self.log, self.private = log, private
        """In a private run no text of an answer is written."""
        self.prompts: dict[str, Asked] = {}
        """Every distinct prompt in order of appearance."""
        self.searched = 0
        """Number of distinct prompts that the search asked about."""
        self._answers: dict[tuple[str, str], Answers] = {}
        self._tokens: dict[tuple[str, str], list[tuple[tuple[int, ...], tuple[int, int]]]] = {}
        """The rows and tokens of answers that came together."""
        self._waiting: dict[tuple[str, str], dict[int, Answers]] = {}
        """By line, what an earlier session wrote and this one has not asked for yet."""
        self._lines: list[list[int]] = []
        """Ranges of the lines that are part of the run."""
        self._crc = ""

    def get(self, text: str, draw: str = "") -> Answers:
        """A prompt's answers so far; empty if it was not asked about."""
        return self._answers.get((draw, text), _NONE)

    def tokens(self, text: str, draw: str, rows: Sequence[int]) -> tuple[int, int]:
        """Tokens in and out of a prompt's answers on these rows."""
        wanted = set(rows)
        own = [tokens for asked, tokens in self._tokens.get((draw, text), ()) if wanted.issuperset(asked)]
        return sum(tokens_in for tokens_in, _ in own), sum(tokens_out for _, tokens_out in own)

    def waiting(self, text: str, draw: str, rows: Sequence[int]) -> Answers:
        """The answers on these rows that an earlier session paid for and this one has not asked for yet."""
        wanted, found = set(rows), _NONE
        for answers in self._waiting.get((draw, text), {}).values():
            shared = tuple(row for row in answers.rows if row in wanted and row not in found.rows)
            if shared:
                found = found.joined(answers.part(shared))
        return found

    def add(
        self, prompt: Prompt, answers: Answers, draw: str, request: int, report: bool, about: Mapping[str, Any]
    ) -> None:
        """Make answers part of the run; those that are not on disk yet are written, with further facts about them."""
        key = (draw, prompt.text)
        self._enter(prompt, answers, draw, request, report)
        left, (tokens_in, tokens_out) = set(answers.rows), answers.tokens
        for number, known in list(self._waiting.get(key, {}).items()):
            if set(known.rows) <= left:
                del self._waiting[key][number]
                self._count(number)
                left -= set(known.rows)
                # Its line has its tokens: only those of the others are written.
                tokens_in, tokens_out = tokens_in - known.tokens[0], tokens_out - known.tokens[1]
        if left and self.log is not None:
            rows = tuple(row for row in answers.rows if row in left)
            new = replace(answers.part(rows), tokens=(max(0, tokens_in), max(0, tokens_out)))
            line = {"request": request, "report": report, "draw": draw, "text": prompt.text, "ids": list(prompt.ids)}
            written = pack_answers(new)
            if self.private:
                written["contents"] = _without_texts(written["contents"])
            self._count(self.log.append({**line, **written, **about}))

    def restore(self, lines: Any) -> list[Mapping[str, Any]]:
        """Read the file: the lines of a checkpoint (see `position`) are part of the run, the others are waiting.

        Returns the further facts of every line.
        """
        if self.log is None:
            return []
        wanted = set(unpack_rows(lines))
        facts: list[Mapping[str, Any]] = []
        for number, line in enumerate(self.log.lines):
            if line is None:
                continue
            try:
                answers, draw = unpack_answers(line), str(line["draw"])
                prompt, request = Prompt(str(line["text"]), tuple(map(int, line["ids"]))), int(line["request"])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise RunError(
                    f"{self.log.path}:{number + 1} cannot be read ({error}); start the run again with --force"
                ) from error
            facts.append(line)
            if number in wanted:
                self._enter(prompt, answers, draw, request, bool(line["report"]))
            else:
                self._waiting.setdefault((draw, prompt.text), {})[number] = answers
        self._lines, self.log.lines = [list(pair) for pair in lines], []
        self._crc = self.log.sum_of(unpack_rows(lines))
        return facts

    def position(self) -> dict[str, Any]:
        """The lines that are part of the run, as ranges, and their checksum, for a checkpoint."""
        return {"lines": [list(pair) for pair in self._lines], "crc": self._crc}

    def _enter(self, prompt: Prompt, answers: Answers, draw: str, request: int, report: bool) -> None:
        asked = self.prompts.setdefault(prompt.text, Asked(prompt, request))
        if not asked.searched and not report:
            asked.searched, self.searched = True, self.searched + 1
        if draw not in asked.draws:
            asked.draws.append(draw)
        key = (draw, prompt.text)
        self._answers[key] = self.get(prompt.text, draw).joined(answers)
        if any(answers.tokens):
            self._tokens.setdefault(key, []).append((answers.rows, answers.tokens))

    def _count(self, line: int) -> None:
        assert self.log is not None
        self._crc = self.log.sum_of([line], self._crc)
        if self._lines and self._lines[-1][1] == line:
            self._lines[-1][1] += 1
        else:
            self._lines.append([line, line + 1])


_NONE = Answers()


def _without_texts(contents: Any) -> Any:
    """Contents without the texts of answers, which a private run does not store."""
    if not isinstance(contents, list):
        return contents
    return [
        {name: value for name, value in one.items() if name != "text"} if isinstance(one, dict) else one
        for one in contents
    ]
