"""GrIPS: edits an instruction phrase by phrase (delete, swap, paraphrase, restore) as long as the score improves."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.maths.labels import balanced_accuracy, label_entropy
from pinprompt.methods.baselines.grips_phrases import phrases
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.methods.trials import Trials
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.words import CHARSETS, Phrases, Word, banned_phrases, in_charset
from pinprompt.recipe.sections import Constraints, GripsSettings
from pinprompt.tasks.protocol import Labelling, fit_rows
from pinprompt.values import Prompt, Score

# The user's constraints for prompts that are text, not tokens.


class TextRules:
    """Checks the constraints on a text.

    Constraints on tokens (whole_words, stable) do not apply to a text that was not written token by token; no_repeats
    applies to its words.
    """

    def __init__(self, constraints: Constraints) -> None:
        self.constraints = constraints
        self._phrases = Phrases(banned_phrases(constraints), ())
        self._required = [Word(word, (), ()) for word in constraints.required]

    def broken(self, text: str) -> str | None:
        """The violated constraint, as the end of a sentence; None if the text satisfies all."""
        rules = self.constraints
        if not text.strip():
            return "it is empty"
        if phrase := self._phrases.found(text):
            return f"it contains the banned {phrase!r}"
        for word in self._required:
            if not word.stands_in(text):
                return f"it lacks the required {word.text!r}"
        if rules.max_chars is not None and len(text) > rules.max_chars:
            return f"it has {len(text)} characters, where constraints.max_chars is {rules.max_chars}"
        if not in_charset(text, rules.charset):
            return f"it contains more than {CHARSETS[rules.charset]} (constraints.charset)"
        words = re.findall(r"\w+", text.lower())
        if rules.no_repeats == "tokens" and len(set(words)) < len(words):
            return "it repeats a word (constraints.no_repeats)"
        return None


# Paraphrases. A small LM continues a list better than it follows an instruction.
_CONTEXT = """Every line says the same thing twice, in different words.
"you are given a text" -> "here is a text"
"the task is to decide" -> "your job is to tell"
"if the opinion is favourable" -> "when someone likes it"
"in the following sentence" -> "in the sentence below"
"based on its topic" -> "according to what it is about"
"{phrase}" -> \""""


class ByWriter:
    """The policy LM completes a line that starts with the phrase, up to the closing quote."""

    def __init__(self, backbone: Backbone, temperature: float = 0.9, top: int = 40) -> None:
        self.backbone, self.temperature, self.top = backbone, temperature, top

    def __call__(self, phrase: str, count: int, random: torch.Generator) -> list[str]:
        """Distinct paraphrases among `count` samples."""
        spare = phrase.replace('"', "'").strip()
        texts = self._sample(_CONTEXT.replace("{phrase}", spare), count, 2 * len(spare.split()) + 12, random)
        whole = [text.split('"')[0].strip() for text in texts if '"' in text]
        usable = [text for text in whole if text and "\n" not in text and text.lower() != spare.lower()]
        return list(dict.fromkeys(usable))

    def _sample(self, context: str, count: int, most: int, random: torch.Generator) -> list[str]:
        """Continuations, all rows together with a fixed shape; all random numbers are drawn in advance."""
        backbone = self.backbone
        start = backbone.start(context)
        room = getattr(backbone.config, "max_position_embeddings", None)
        most = most if room is None else min(most, int(room) - len(start))
        if most < 1:
            return []
        numbers = torch.rand(most, count, 1, generator=random, dtype=torch.float64)
        ids = torch.tensor([start] * count, device=backbone.device)
        cache = backbone.growing_cache() if backbone.incremental else None
        states = backbone.read(ids[:1], cache).expand(count, -1)
        if cache is not None:
            cache.batch_repeat_interleave(count)
        texts = [""] * count
        for step in range(most):
            if step:
                states = backbone.read(ids[:, -1:] if cache is not None else ids, cache)
            logprobs = backbone.logprobs(states).cpu().double() / self.temperature
            best = torch.topk(logprobs, min(self.top, logprobs.shape[-1]), dim=-1)
            cumulated = torch.softmax(best.values, dim=-1).cumsum(dim=-1)
            places = torch.searchsorted(cumulated, numbers[step] * cumulated[:, -1:], right=True)
            tokens = best.indices.gather(1, places.clamp(max=best.indices.shape[1] - 1)).to(backbone.device)
            ids = torch.cat([ids, tokens], dim=1)
            new = ids[:, len(start) :].tolist()
            texts = [backbone.tokenizer.decode(row, skip_special_tokens=False) for row in new]
            if all('"' in text or "\n" in text for text in texts):
                break
        return texts


OPERATIONS = ("delete", "swap", "substitute", "add")
PARAPHRASES = 10
"""Paraphrases of a phrase, of which one is chosen at random."""
_LEAST = -1e9
_TRIES = 20  # attempts per candidate before a step continues with fewer


@dataclass(frozen=True)
class Draft:
    """The edited part of a prompt, as pieces; `tail` is the rest, from the first placeholder on."""

    pieces: tuple[str, ...]
    tail: str = ""
    deleted: tuple[str, ...] = field(default=(), compare=False)
    """Deleted pieces, which `add` may restore."""

    @property
    def head(self) -> str:
        return " ".join(self.pieces)

    @property
    def text(self) -> str:
        return self.head + self.tail


def grips(search: Search, settings: GripsSettings) -> Outcome:
    """Edit, score and keep improvements, until the steps, the patience or the budget end."""
    run = _Edits(search, settings)
    trials = run.trials
    try:
        for step in range(run.begin(), settings.steps):
            if run.failures >= settings.patience:
                return trials.finish("patience")
            drafts = run.candidates()
            scores = trials.score([Prompt(draft.text) for draft in drafts]) if drafts else []
            merits = [run.merit(draft) for draft in drafts]
            run.accept(drafts, merits)
            trials.tell(step + 1, [score.value for score in scores], merit=round(run.base_merit, 6))
            run.remember(step + 1)
            trials.save_if_due()
    except BudgetSpent:
        return trials.finish("budget")
    return trials.finish("finished")


def merit_of(table: NDArray[np.int64]) -> float:
    """GrIPS's objective, from counts [true, predicted]: 100 x balanced accuracy + 10 x entropy of the predictions."""
    return round(100 * balanced_accuracy(table), 2) + 10 * label_entropy(table)


def objective(search: Search, prompt: Prompt, score: Score) -> float:
    """The value by which prompts are ranked: GrIPS's own for a task with labels, otherwise the task's score."""
    task, rows = search.task, search.rows()
    if not isinstance(task, Labelling):
        return score.value
    answers = search.evaluator.table.get(prompt.text)
    if set(rows) <= set(answers.failures):
        return _LEAST  # nothing could be answered, so there are no labels
    return merit_of(task.confusion(answers, rows, fit_rows(task)))


class _Edits:
    """What changes while GrIPS runs."""

    def __init__(self, search: Search, settings: GripsSettings) -> None:
        self.search, self.settings = search, settings
        self.trials = Trials(search, "grips", merit=partial(objective, search))
        self.rules = TextRules(search.policy.constraints)
        self.failures = 0
        self.base = self._start()
        self.base_merit = 0.0

    def begin(self) -> int:
        """Resume from the last checkpoint, or score the starting prompt; returns the first step to do."""
        resumed = self.trials.resume()
        if resumed is not None:
            state, _ = resumed
            self.base = Draft(tuple(state["pieces"]), state["tail"], tuple(state["deleted"]))
            self.base_merit, self.failures = state["merit"], state["failures"]
            return self.trials.step
        [score] = self.trials.score([Prompt(self.base.text)])
        self.base_merit = self.merit(self.base)
        self.trials.tell(0, [score.value], merit=round(self.base_merit, 6))
        self.remember(0)
        return 0

    def candidates(self) -> list[Draft]:
        """Up to `candidates` different prompts, each one edit away."""
        found: dict[str, Draft] = {}
        for _ in range(_TRIES * self.settings.candidates):
            if len(found) == self.settings.candidates:
                break
            draft = self.edited(self.base)
            if draft.head != self.base.head and self.rules.broken(draft.head) is None:
                found.setdefault(draft.text, draft)
        return list(found.values())

    def edited(self, draft: Draft) -> Draft:
        """One random edit; the draft itself if the edit does not apply."""
        possible = [name for name in OPERATIONS if name != "add" or draft.deleted]
        operation, pieces = possible[self._below(len(possible))], draft.pieces
        place = self._below(len(pieces))
        if operation == "delete" and len(pieces) > 1:
            left = pieces[:place] + pieces[place + 1 :]
            return replace(draft, pieces=left, deleted=(*draft.deleted, pieces[place]))
        if operation == "swap" and len(pieces) > 1:
            other = (place + 1 + self._below(len(pieces) - 1)) % len(pieces)
            swapped = list(pieces)
            swapped[place], swapped[other] = pieces[other], pieces[place]
            return replace(draft, pieces=tuple(swapped))
        if operation == "substitute":
            return replace(draft, pieces=(*pieces[:place], self._other_words(pieces[place]), *pieces[place + 1 :]))
        if operation == "add":
            again, gap = self._below(len(draft.deleted)), self._below(len(pieces) + 1)
            rest = draft.deleted[:again] + draft.deleted[again + 1 :]
            return replace(draft, pieces=(*pieces[:gap], draft.deleted[again], *pieces[gap:]), deleted=rest)
        return draft

    def merit(self, draft: Draft) -> float:
        return self.trials.merit_of(Prompt(draft.text))

    def accept(self, drafts: list[Draft], merits: list[float]) -> None:
        """Continue from the best candidate if it is better."""
        best = max(range(len(drafts)), key=lambda place: (merits[place], -place), default=None)
        if best is None or merits[best] <= self.base_merit:
            self.failures += 1
        else:
            self.failures, self.base, self.base_merit = 0, drafts[best], merits[best]

    def remember(self, step: int) -> None:
        """The state that the next step depends on."""
        state = {
            "pieces": list(self.base.pieces),
            "tail": self.base.tail,
            "deleted": list(self.base.deleted),
            "merit": self.base_merit,
            "failures": self.failures,
        }
        self.trials.remember(step, state)

    def _start(self) -> Draft:
        """The hand-written prompt to edit, up to the first placeholder; the rest is kept."""
        known = {draft.name: draft.text for draft in self.search.task.drafts()}
        name = next((name for name in ("instructions", "manual", "default") if name in known), "manual")
        if name not in known:
            raise SettingError(
                f"grips edits a hand-written prompt, but the task '{self.search.task.info.name}' has none; give it one "
                "(task.instruction or task.manual)"
            )
        text = known[name].strip()
        field_at = re.search(r"\s*\{\w+\}", text)
        head, tail = (text, "") if field_at is None else (text[: field_at.start()], text[field_at.start() :])
        pieces = tuple(piece for piece in phrases(head) if piece.strip())
        if not pieces:
            raise SettingError(f"grips found no phrase to edit in {text!r}; give another instruction")
        if why := self.rules.broken(" ".join(pieces)):
            raise SettingError(
                f"the prompt that grips starts from violates a constraint: {why}. Loosen it, or give another "
                f"instruction (it is {text[:80]!r})"
            )
        return Draft(pieces, tail)

    def _other_words(self, phrase: str) -> str:
        """A random paraphrase of a phrase, with the phrase's own final punctuation."""
        marks = re.search(r"[\s,.;:!?]*$", phrase)
        end = marks.group() if marks else ""
        bare = phrase[: len(phrase) - len(end)]
        if not re.search(r"\w", bare):
            return phrase
        written = self.paraphrases(bare)
        usable = [text.strip().rstrip(".,;:!? ") for text in written]
        usable = [text for text in usable if text and not re.search(r"[{}\n]", text)]
        return usable[self._below(len(usable))] + end if usable else phrase

    def paraphrases(self, phrase: str) -> list[str]:
        """At most `PARAPHRASES` paraphrases, by the policy LM."""
        return ByWriter(self.search.writer().backbone)(phrase, PARAPHRASES, self.trials.random)

    def _below(self, limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=self.trials.random))
