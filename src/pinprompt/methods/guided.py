"""Guided decoding: at every position the LM's likelihood and the task's score choose the next token together.

After Visually Guided Decoding (arXiv 2505.08622): a beam search without training and without gradients.

1. Every beam is extended with its most likely tokens, and each extension is scored as a whole prompt. If the task has
   scores of single words (hints), they choose half of these tokens among the kept ones. Each word counts as a call;
   hints are left out if the budget is too small for them.
2. The best extensions by merit become the next beams: score + weight x mean log-probability of the tokens.
3. A beam is also a candidate answer that ends there; the log-probability of an end then counts as a token, so that
   "a boat on the" loses against "a boat on the sea".
4. Rounds repeat this with twice as many beams each. Known scores are not paid for again.
5. The best answer is then revised: at every position, other likely tokens and no token are tried; a revision with a
   higher merit is the new answer, until there is none.
6. If the task has scores of single words, these and the likelihood choose the answer, not its own score: a search can
   find words that fit only together, by chance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pinprompt.english import words
from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.protocol import Candidate, Cost, Finalist, Outcome, Search
from pinprompt.methods.trials import Trials
from pinprompt.policy.reader import Prefix
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import GuidedSettings
from pinprompt.tasks.protocol import Hinting, Task, calls, split_rows, splits
from pinprompt.values import Prompt

ENDS = ("\n", ".", "!", "?")
"""Texts that end a phrase: the end of a line or sentence."""
EVIDENCE = 0.7
"""Share of the best single word's score that each word of an answer needs."""
PLAUSIBLE = 0.045
"""Weight of the mean log-probability of an answer's tokens relative to the mean score of its words."""
SMALL_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "by", "for", "from", "in", "into", "is", "it", "its", "of", "on", "or", "over",
    "that", "the", "there", "this", "to", "two", "under", "was", "with",
))  # fmt: skip
"""Words that need no evidence, and cannot end an answer."""
MISFIT = re.compile(r"\ban [^aeiouh]|\ba [aeio]")
"""An article before the wrong sound; "h" and "u" have both."""


@dataclass(frozen=True)
class Beam:
    """A prefix of a prompt: its ids, the sum of their log-probabilities, its prompt, and its score."""

    ids: Prefix
    logprob: float
    prompt: Prompt
    score: float = 0.0

    def merit(self, weight: float) -> float:
        return self.score + weight * self.logprob / max(1, len(self.ids))


ROOT = Beam((), 0.0, Prompt(""))
"""The first beam of every round."""


@dataclass(frozen=True)
class Answer:
    """A beam as a whole prompt, with the mean log-probability of its tokens and its end."""

    prompt: Prompt
    score: float
    likelihood: float

    def merit(self, weight: float) -> float:
        return self.score + weight * self.likelihood


def guided(search: Search, settings: GuidedSettings) -> Outcome:
    """Decode with the task's scores, with more beams each round, until the rounds or the budget end."""
    run = _Decoding(search, settings)
    stopped = "finished"
    try:
        while run.round < settings.rounds:
            run.decode()
        while run.revisions < settings.revisions:
            run.revise()
    except BudgetSpent:
        stopped = "budget"
    return run.finish(stopped)


def cost(task: Task, settings: GuidedSettings, given: int | None, length: int, finalists: int) -> Cost:
    """The cost of the rounds, or of the budget; a prefix is read once for all of its continuations."""
    train, dev = (calls(task, split_rows(task, split)) if split in splits(task) else 0 for split in ("train", "dev"))
    planned = settings.planned(length, finalists)[0] * train + finalists * dev
    spent = planned if given is None else min(planned, given)
    return Cost(
        calls=spent,
        enough=(finalists + 1) * train + finalists * dev,
        few=f"they pay for about {spent // max(1, train)} prompts",
        written=spent / max(1, train) / settings.tokens,
        words=length,
    )


class _Decoding:
    """The state of guided decoding: the beams of this round, and the answers of all rounds."""

    def __init__(self, search: Search, settings: GuidedSettings) -> None:
        self.search, self.settings = search, settings
        self.trials, self.writer = Trials(search, "guided"), search.writer()
        # The state after the last token gives the probability of an end; the tree has none after the last position.
        self.longest = max(1, self.writer.length - 1)
        self.ends = _ends(self.writer)
        self.worth: torch.Tensor | None = None
        """The score of each token by itself, [V]; -inf if not known. None without hints."""
        self.round, self.revisions, self.beams = 0, 0, [ROOT]
        self.answers: dict[str, Answer] = {}
        self.refusal = ""
        """Why the last scoring ended early."""
        resumed = self.trials.resume()
        hints = dict(search.task.hints()) if isinstance(search.task, Hinting) else {}
        if resumed is not None:
            self._restore(resumed[0])
            self.hinted = bool(resumed[0]["hinted"])
        else:
            left = search.evaluator.budget.calls_left()
            self.hinted = bool(hints) and (left is None or len(hints) <= left / 2)
            if self.hinted:
                search.evaluator.charge(len(hints))
            self.trials.remember(0, self._state())  # a budget may end the search before its first step
        if self.hinted:
            pieces = self.writer.vocabulary.tokens.pieces
            known = [hints.get(piece.strip().lower(), float("-inf")) for piece in pieces]
            self.worth = torch.tensor(known, dtype=torch.float64)

    def decode(self) -> None:
        """Extend all beams by one token."""
        with self.trials.phase("write"):
            grown = self._grown()
        if not grown and not self.answers:
            raise SettingError("every beam ended where the constraints allow nothing; loosen them, or raise policy.k")
        scored = self._scored(grown)
        self.beams = self._promising(scored, self.settings.beams << self.round)
        self._answer(self.beams)
        self._tell(scored, grown)
        if not self.beams or len(self.beams[0].ids) == self.longest:
            self.round, self.beams = self.round + 1, [ROOT]
        self._remember()

    def revise(self) -> None:
        """Replace or remove one token of the best answer, until nothing improves."""
        before = self._best(1)[0]
        with self.trials.phase("write"):
            variants = self._variants(before.prompt.ids)
        scored = self._scored(variants)
        promising = self._promising(scored, self.settings.beams)
        # So far the log-probabilities of the tokens after a replaced one were only estimated.
        self._answer([beam for beam in self._read(promising) if beam.logprob > float("-inf")])
        self.revisions += 1
        self._tell(scored, variants)
        if self._best(1)[0] == before:
            self.revisions = self.settings.revisions
        self._remember()

    def finish(self, stopped: str) -> Outcome:
        """The answers, best first; by dev score if the task has a dev split."""
        self.trials.save()
        count = self.search.scoring.finalists
        best = self._best(len(self.answers))
        if hints := dict(self.search.task.hints()) if isinstance(self.search.task, Hinting) else {}:
            bar = EVIDENCE * max(hints.values())
            best.sort(key=lambda answer: -(_evidence(answer.prompt.text, hints, bar) + PLAUSIBLE * answer.likelihood))
        best = best[:count]
        candidates = [Candidate(answer.prompt, "guided", answer.score) for answer in best]
        finalists = None if "dev" in self.search.splits else [Finalist(one, None) for one in candidates]
        chosen = {"chosen_by": "each word by itself, and by how likely the text is"} if hints else {}
        return Outcome(candidates, stopped, self.trials.step, {"rounds": self.round, **chosen}, finalists)

    def _grown(self) -> list[Beam]:
        """Every beam with each of its most likely tokens, the most likely first.

        Extensions that cannot satisfy all constraints are left out.
        """
        logprobs = self.writer.lm_logprobs([beam.ids for beam in self.beams]).cpu().double()
        grown = []
        for beam, row in zip(self.beams, logprobs, strict=True):
            for token, logprob in self._tokens(row, len(beam.ids)):
                ids = (*beam.ids, token)
                if self.writer.vocabulary.obeys(full := self.writer.completed(ids)):
                    grown.append(Beam(ids, beam.logprob + logprob, self.writer.prompt(full)))
        return sorted(grown, key=lambda beam: -beam.logprob)

    def _tokens(self, logprobs: torch.Tensor, place: int) -> list[tuple[int, float]]:
        """The tokens to try at a position, with their log-probabilities of [V]: the most likely, and by hints."""
        count = min(self.settings.tokens, len(logprobs))
        if self.worth is None:
            chosen = torch.topk(logprobs, count).indices.tolist()
        else:
            merits = self.worth + self.settings.weight * logprobs / (place + 1)
            merits = merits.masked_fill(logprobs.isneginf(), float("-inf"))  # 0 x -inf is no number
            halves = torch.topk(logprobs, -(-count // 2)).indices, torch.topk(merits, count // 2).indices
            chosen = list(dict.fromkeys([*halves[0].tolist(), *halves[1].tolist()]))
        values = logprobs[chosen].tolist()
        return [(token, value) for token, value in zip(chosen, values, strict=True) if value > float("-inf")]

    def _variants(self, ids: Prefix) -> list[Beam]:
        """The ids with one token replaced by a likely one, or removed; the most likely first.

        The log-probabilities of the tokens after it are assumed to be unchanged.
        """
        logprobs = self.writer.lm_logprobs([ids[:place] for place in range(len(ids))]).cpu().double()
        own = [float(logprobs[place, token]) for place, token in enumerate(ids)]
        found = []
        for place, row in enumerate(logprobs):
            rest = sum(own) - own[place]
            found.append(((*ids[:place], *ids[place + 1 :]), rest))
            found += [
                ((*ids[:place], token, *ids[place + 1 :]), rest + logprob)
                for token, logprob in self._tokens(row, place)
                if token != ids[place]
            ]
        allowed = [(new, logprob) for new, logprob in found if new and self.writer.vocabulary.obeys(new)]
        return sorted(
            (Beam(new, logprob, self.writer.prompt(new)) for new, logprob in allowed),
            key=lambda beam: -beam.logprob / len(beam.ids),
        )

    def _read(self, beams: Sequence[Beam]) -> list[Beam]:
        """The beams with the log-probability of their ids under the LM; -inf if a mask forbids one."""
        sums = [0.0] * len(beams)
        for place in range(max((len(beam.ids) for beam in beams), default=0)):
            rows = [row for row, beam in enumerate(beams) if place < len(beam.ids)]
            logprobs = self.writer.lm_logprobs([beams[row].ids[:place] for row in rows]).cpu().double()
            for row, values in zip(rows, logprobs, strict=True):
                sums[row] += float(values[beams[row].ids[place]])
        return [replace(beam, logprob=total) for beam, total in zip(beams, sums, strict=True)]

    def _scored(self, beams: Sequence[Beam]) -> list[Beam]:
        """The beams with their scores; with a spent budget the last ones are left out, and the search ends."""
        with self.trials.phase("score"):
            try:
                scores = self.trials.score([beam.prompt for beam in beams])
            except BudgetSpent as spent:
                scores, self.refusal = spent.scores, str(spent)
        return [replace(beam, score=score.value) for beam, score in zip(beams, scores, strict=False)]

    def _promising(self, scored: Sequence[Beam], count: int) -> list[Beam]:
        return sorted(scored, key=lambda beam: -beam.merit(self.settings.weight))[:count]

    def _answer(self, beams: Sequence[Beam]) -> None:
        weight = self.settings.weight
        for beam, end in zip(beams, self._end_logprobs(beams), strict=True):
            answer = Answer(beam.prompt, beam.score, (beam.logprob + end) / (len(beam.ids) + 1))
            known = self.answers.get(beam.prompt.text)
            if known is None or known.merit(weight) < answer.merit(weight):
                self.answers[beam.prompt.text] = answer

    def _end_logprobs(self, beams: Sequence[Beam]) -> list[float]:
        """The log-probability of an end after each beam; 0 after the last position, where it is not known."""
        short = [beam for beam in beams if len(beam.ids) < self.writer.length]
        if not self.ends or not short:
            return [0.0] * len(beams)
        logprobs, _ = self.writer.lm_next([beam.ids for beam in short])
        known = dict(
            zip([beam.ids for beam in short], logprobs[:, self.ends].double().logsumexp(-1).tolist(), strict=True)
        )
        return [known.get(beam.ids, 0.0) for beam in beams]

    def _best(self, count: int) -> list[Answer]:
        return sorted(self.answers.values(), key=lambda answer: -answer.merit(self.settings.weight))[:count]

    def _tell(self, scored: Sequence[Beam], asked: Sequence[Beam]) -> None:
        """Emit the step's event, with the current answer as the best so far; or end the search if it was cut short."""
        if len(scored) < len(asked):
            raise BudgetSpent(self.refusal)
        [best] = self._best(1)
        self.trials.tell(
            self.trials.step,
            [beam.score for beam in scored],
            likelihood=round(best.likelihood, 6),
            round=self.round,
            beams=len(self.beams),
        )

    def _remember(self) -> None:
        self.trials.remember(self.trials.step + 1, self._state())
        self.trials.save_if_due()

    def _state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "round": self.round,
            "revisions": self.revisions,
            "hinted": self.hinted,
            "beams": [[beam.ids, beam.logprob, beam.score] for beam in self.beams if beam.ids],
            "answers": [[one.prompt.text, one.prompt.ids, one.score, one.likelihood] for one in self.answers.values()],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.round, self.revisions = int(state["round"]), int(state["revisions"])
        self.beams = [
            Beam(tuple(ids), logprob, self.writer.prompt(self.writer.completed(tuple(ids))), score)
            for ids, logprob, score in state["beams"]
        ] or [ROOT]
        answers = [Answer(Prompt(text, tuple(ids)), score, mean) for text, ids, score, mean in state["answers"]]
        self.answers = {answer.prompt.text: answer for answer in answers}


def _evidence(text: str, hints: Mapping[str, float], bar: float) -> float:
    """The mean score of a text's words by themselves; -inf if one is below the bar or the text is not well formed."""
    said = words(text.lower())
    found = [hints.get(word, float("-inf")) for word in said if word not in SMALL_WORDS]
    whole = bool(found) and said[-1] not in SMALL_WORDS and not MISFIT.search(" ".join(said))
    return sum(found) / len(found) if whole and min(found) >= bar else float("-inf")


def _ends(writer: Writer) -> list[int]:
    """The tokens that end a phrase, and those that end a text."""
    tokens = writer.vocabulary.tokens
    marks = [token for token, piece in enumerate(tokens.pieces) if piece and piece.strip(" ")[:1] in ENDS]
    specials = [int(token) for token in writer.backbone.tokenizer.all_special_ids]
    return sorted({*marks, *(token for token in specials if token < writer.backbone.vocabulary_size)})
