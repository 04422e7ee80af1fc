"""Race: score many prompts on few rows, then fewer and fewer on more rows; all rows of train and dev decide.

1. The pool costs no calls. It has phrases that state the task ("Is it terrible or great? It is") and prompts that the
   frozen LM writes, from scratch or after a common beginning ("It was", "Overall, it"). Prompts with words outside the
   dictionary, or with a high perplexity, are left out.
2. The hand-written prompts are scored on the first block of rows, together with those of the pool after which the LM
   is most likely to write a label word.
3. After each block the best third advances to the next, together with the hand-written prompts. A prompt's score is
   computed from all rows that it was scored on, so its calibration improves with each block. No row is asked twice.
4. The best mean over all rows wins. A bootstrap over the rows gives the probability of each finalist to be the best.
5. Words are removed from the winner, one at a time, as long as its score on all rows improves.

A model with a chat template is also asked in its chat format, with a plain instruction. If the texts are not in
English, the LM continues examples of the texts. For a task with drafts (style transfer:
common instructions), the pool has the drafts and the LM's variations of them and of the hand-written prompts.
For the second half of the first block, variations of the best prompts so far join it and what the task itself proposes
(labels: a sentence or examples before the text; free answers: examples, or prompts by a model that sees wrong answers).

The method needs no checkpoint: pool and order depend only on the seed, and a resumed run finds its answers in the
table.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pinprompt.answers.executors import on_the_clock
from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.methods.headroom import Headroom, expected_gain
from pinprompt.methods.protocol import Block, Candidate, Cost, Finalist, Outcome, Search
from pinprompt.methods.selection import chances_of_best, row_means
from pinprompt.methods.variations import NEUTRAL, allowed, as_prompt, variations, without
from pinprompt.policy.words import in_charset
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import RaceSettings
from pinprompt.tasks.protocol import (
    CHAT,
    WITH_EXAMPLES,
    DrawsRows,
    Labelling,
    Proposing,
    Task,
    calls,
    fit_rows,
    hand_written,
    report_fit_rows,
    split_rows,
    splits,
)
from pinprompt.values import Event, Floats, Prompt, derive

TYPICAL_WORDS = 6
"""Typical number of words of a prompt that wins a race."""
WRITTEN = 200
"""Prompts that the LM writes for the pool; at least three times as many as race."""
FINAL_SHARE = 0.8
"""Most of the calls that finalists and hand-written prompts may take on all rows, if the task learns from rows."""
ENTERING = 16
"""If fewer prompts could enter a race of a task that learns from rows, a smaller share advances."""
LEAST_TIED = 8
"""With fewer prompts, a race in which all are equal goes on."""
LONGEST = 5
"""Maximum number of tokens that the LM writes after a head; two more for prompts without a head."""
HEADS, STATED = tomllib.loads((Path(__file__).parent / "race.toml").read_text("utf-8")).values()
"""Beginnings that the LM continues, and phrases that state the task."""


@dataclass
class Runner:
    """A prompt in the race, with its values on the rows so far."""

    prompt: Prompt
    source: str
    states_task: bool = False
    """Whether it states the task, so that a person understands it."""
    blocks: int = 0
    """On how many blocks it was asked."""
    values: Floats = field(default_factory=lambda: np.zeros(0))
    """The value of each row that it was asked on, computed from all of these rows together."""

    @property
    def mean(self) -> float:
        return float(self.values.mean())


def race(search: Search, settings: RaceSettings) -> Outcome:
    """Fill a pool, race its prompts over growing blocks of rows, and choose by all rows."""
    task, made = search.task, search.writer()
    blocks = blocks_of(task, settings.first_block)
    runners = [Runner(Prompt(text), name) for name, text in hand_written(task).items()]
    costs = [calls(task, block.rows) for block in blocks]
    # The default limit on perplexity was chosen for English; it rejects most other texts.
    if task.info.language != "en" and settings.max_perplexity == RaceSettings().max_perplexity:
        settings = settings.model_copy(update={"max_perplexity": None})
    given = _left(task, search.evaluator.budget.settings.calls)
    rounds, count, settings = plan(costs, given, len(runners), settings, task.info.learns)
    stopped, steps, extras = "finished", 0, dict[str, Any]()

    def tell(block: Block) -> None:
        nonlocal steps
        if runners:  # otherwise `_alone` reports why there are none
            _tell(search, steps, block, runners)
            steps += 1
        if task.info.learns and "headroom" not in extras and len(runners) >= LEAST_TIED:
            extras["headroom"] = _headroom(search, runners, blocks, count).facts()
            search.emit(Event("headroom", steps, extras["headroom"]))

    try:
        # If values are learnt from rows, hand-written prompts are asked on all of them first: what is left to gain?
        for number in range(1, (rounds if task.info.learns else 1) + 1 if runners else 1):
            _ask(search, runners, blocks[:number])
        if not task.info.learns:
            tell(blocks[0])  # such calls take seconds: the first step is told at once
        if _perfect(search, runners) and settings.early_stop:
            extras["headroom"] = _headroom(search, runners, blocks, count).facts()
            return _outcome(search, made, settings, runners, blocks, "nothing to gain", steps, extras)
        if runners and task.info.learns:
            _ask(search, runners, blocks[:1])  # answers are known: values on the first block only, as for all others
        with on_the_clock(search.evaluator.stop):
            pool = _filled(search, made, settings, [runner.prompt.text for runner in runners], count)
        vary = partial(variations, made, count=count, seed=search.seed)
        varied = any(not draft.name for draft in task.drafts())
        _first_block(search, settings, blocks, runners, pool, count, tell, vary if varied else None)
        if problem := _alone(search, settings, pool, runners, steps):
            extras["problem"] = problem
        if tied := _tied(search, runners, blocks[0], steps):
            stopped, rounds, extras["problem"] = "tied", 1, tied
        for number in range(1, rounds):
            runners = cut(runners, settings)
            _ask(search, runners, blocks[: number + 1])
            tell(blocks[number])
        best = _finalists(search, made, settings, runners)[0] if runners else None
        if best is not None and settings.prune and best.source == "pool" and best.prompt.ids and not tied:
            shorter = prune(search, made, settings.max_perplexity, blocks[:rounds], best)
            if shorter is not best:
                runners = [shorter, *runners]
                extras["pruned"] = {"from": best.prompt.text, "score": best.mean}
    except BudgetSpent:
        stopped = "budget"
    return _outcome(search, made, settings, runners, blocks, stopped, steps, extras)


def _filled(search: Search, writer: Writer, settings: RaceSettings, hand: Sequence[str], count: int) -> Pool:
    """The pool: drafts and their variations, or else what the LM writes and phrases that state the task."""
    task = search.task
    most = 3 * count if task.info.costly else max(WRITTEN, 3 * count)  # long prompts take long to write
    drafts = [draft.text for draft in task.drafts() if not draft.name]
    candidates = drafted(writer, drafts, hand, most, search.seed) if drafts else []
    english = task.info.language == "en"
    candidates = _own_words(task, candidates)
    if not candidates:  # no drafts, or none that meets the constraints
        candidates = written(writer, HEADS if english else (), most, search.seed)
    if not candidates:
        raise SettingError(
            "the writer can write no prompt that keeps all constraints, so there is nothing to race; loosen "
            "policy.constraints (dictionary is on for race), or choose another method"
        )
    words = task.label_words() if isinstance(task, Labelling) else ()
    pool = Pool(writer, candidates, words, settings.max_perplexity, drafts)
    if not drafts and english:
        stated = stating(writer, words) if words else []
        pool.add(stated, drafts=True)
        pool.stated = {prompt.text for prompt in stated}
    pool.add(_accepted(writer, [Prompt(text) for text in _fixed(task)]), drafts=True)
    return pool


def _fixed(task: Task) -> list[str]:
    """Drafts that race and are not varied: a chat's format would break, and examples would become false."""
    return [draft.text for draft in task.drafts() if draft.name in (CHAT, WITH_EXAMPLES)]


def _own_words(task: Task, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts without those that copy from the task's rows, which the writer may have read."""
    return [one for one in prompts if not (isinstance(task, Proposing) and task.copies(one.text))]


def _accepted(writer: Writer, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those prompts that keep the user's bans and limits, though they are not made of the LM's tokens."""
    anything = writer.vocabulary.constraints.charset == "any"
    return [prompt for prompt in prompts if anything and writer.vocabulary.accepts(prompt.text)]


def blocks_of(task: Task, first: int) -> list[Block]:
    """The rows of train, then of dev, in blocks: first about `first` rows, then blocks that double the total.

    Rows alternate between classes, and the first block has the same number of each. A task that draws new rows at each
    step is asked on whole splits.
    """
    found: list[Block] = []
    size, draws = first, isinstance(task, DrawsRows) and bool(task.rows_of_step(0, 0))
    for split in ("train", "dev"):
        if split not in splits(task):
            continue
        rows = split_rows(task, split)
        if draws:
            found.append(Block("", rows))
            continue
        rows, classes = _alternating(task, rows)
        size = -(-size // classes) * classes
        begin = 0
        while begin < len(rows):
            end = min(begin + max(size, begin), len(rows))
            found.append(Block(f"{split}-{begin + 1}-{end}", rows[begin:end]))
            begin = end
        size = max(size, len(rows))
    return found


def _alternating(task: Task, rows: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Rows in turns of their classes, and the number of classes; unchanged if their targets are no classes."""
    targets = [task.rows[row].target for row in rows]
    if not all(isinstance(target, int | str) for target in targets) or 2 * len(set(targets)) > len(rows):
        return rows, 1
    seen: Counter[Any] = Counter()
    turns = []
    for row, target in zip(rows, targets, strict=True):
        turns.append((seen[target], target, row))
        seen[target] += 1
    return tuple(row for _, _, row in sorted(turns)), len(seen)


class Plan(NamedTuple):
    """The number of blocks, the number of prompts that enter the race, and the settings that decide who advances."""

    blocks: int
    prompts: int
    settings: RaceSettings


def plan(costs: Sequence[int], calls: int | None, hand: int, settings: RaceSettings, learns: bool = False) -> Plan:
    """A race that fits into the budget; `costs` is the most that one prompt costs on each block.

    Blocks are left out if the last `race.least` prompts would need more than half of the calls for all blocks: with
    many classes, the finalists would use up the calls that the first block needs. If the task learns from rows, they
    are worth more than prompts: then fewer prompts advance, so that the last ones are asked on every row.
    """
    if calls is None:
        return Plan(len(costs), max(settings.prompts, hand + 1), settings)
    blocks, final = len(costs), FINAL_SHARE * calls
    if learns:
        least = next((one for one in range(settings.least, 0, -1) if (one + hand) * sum(costs) <= final), 0)
        learns, least = bool(least), least or settings.least
        settings = settings.model_copy(update={"least": least})
    entering = max(settings.least, hand + 1)
    while blocks > 1 and (
        race_cost(costs[:blocks], entering, hand, settings) > calls
        or (not learns and 2 * settings.least * sum(costs[:blocks]) > calls)
    ):
        blocks -= 1
    if race_cost(costs[:1], entering, hand, settings) > calls:
        raise SettingError(
            f"a race needs {race_cost(costs[:1], entering, hand, settings)} calls for {entering} prompts on "
            f"{costs[0]} rows, but {calls} of the budget are left for it; raise --calls"
        )
    racing = calls - int(calls * settings.prune)
    for keep in (settings.keep, settings.keep / 3, settings.keep / 9) if learns else (settings.keep,):
        settings, count = settings.model_copy(update={"keep": keep}), entering
        while race_cost(costs[:blocks], count + 1, hand, settings) <= racing:
            count += 1
        if count >= ENTERING:
            break
    return Plan(blocks, count, settings)


def _left(task: Task, calls: int | None) -> int | None:
    """The calls that are left for the race once the task is open."""
    if calls is None:
        return None
    return max(0, calls - task.info.opening_calls - (task.most_proposals if isinstance(task, Proposing) else 0))


def cost(task: Task, settings: RaceSettings, given: int | None, length: int, finalists: int) -> Cost:
    """The cost of a race within a budget of calls.

    Enough are calls of which half suffice for the last `race.least` prompts on every row of train and dev.
    """
    every = blocks_of(task, settings.first_block)
    costs, hand = [calls(task, block.rows) for block in every], len(hand_written(task))
    blocks, count, settings = plan(costs, _left(task, given), hand, settings, task.info.learns)
    least = max(settings.least, hand + 1)
    share = 100 * sum(costs[:blocks]) / sum(costs)
    return Cost(
        calls=task.info.opening_calls + race_cost(costs[:blocks], count, hand, settings),
        enough=task.info.opening_calls
        + int(max(race_cost(costs, least, hand, settings), 2 * settings.least * sum(costs))),
        few=f"the race starts with {count} prompts and chooses on {share:.0f} % of the rows: less certain",
        written=max(WRITTEN, 3 * count),
        words=min(TYPICAL_WORDS, length),
        rows=tuple(row for block in every[:blocks] for row in block.rows),
        asked_on_train=False,
    )


def race_cost(costs: Sequence[int], count: int, hand: int, settings: RaceSettings) -> int:
    """Calls of a race with `count` prompts; `costs` is the most that one prompt costs on each block."""
    total = 0
    for cost in costs:
        total += count * cost
        count = min(count, _stay(count, settings) + hand)
    return total


def _stay(count: int, settings: RaceSettings) -> int:
    return min(count, max(settings.least, math.ceil(count * settings.keep)))


def cut(runners: Sequence[Runner], settings: RaceSettings) -> list[Runner]:
    """The runners that advance, best first: the best ones and every hand-written one; the earlier one wins a tie."""
    order = sorted(runners, key=lambda runner: -runner.mean)
    stay = _stay(len(runners), settings)
    return order[:stay] + [runner for runner in order[stay:] if runner.source != "pool"]


def stating(writer: Writer, words: Sequence[str]) -> list[Prompt]:
    """Phrases that state the task, without those that are too long or break a constraint."""
    listed = " or ".join([", ".join(words[:-1]), words[-1]])
    found: dict[str, Prompt] = {}
    for phrase in STATED:
        prompt = writer.prompt(writer.vocabulary.tokens.encode(" " + phrase.format(words=listed)))
        if len(prompt.ids) < writer.length and allowed(writer, prompt):
            found.setdefault(prompt.text, prompt)
    return list(found.values())


def written(writer: Writer, heads: Sequence[str], count: int, seed: int) -> list[Prompt]:
    """Up to `count` distinct prompts by the LM: a third from scratch, the rest after the heads in turn."""
    longest = writer.length - 1  # the state after the last token is needed too
    encode = writer.vocabulary.tokens.encode
    spelled = [tuple(encode(" " + head)) for head in heads]
    spelled = [ids for ids in spelled if len(ids) < longest and _allowed_head(writer, ids)]
    random = torch.Generator().manual_seed(derive(seed, "race", "pool"))
    starts = [spelled[number % len(spelled)] if number % 3 and spelled else () for number in range(count)]
    shares = torch.rand(count, generator=random, dtype=torch.float64).tolist()
    ends = [_end(writer, len(start), share) for start, share in zip(starts, shares, strict=True)]
    prompts = writer.lm_continue(starts, ends, random, 1.0)
    return list({prompt.text: prompt for prompt in prompts if allowed(writer, prompt)}.values())


def drafted(writer: Writer, drafts: Sequence[str], hand: Sequence[str], count: int, seed: int) -> list[Prompt]:
    """Drafts, and the LM's variations of them and of the hand-written prompts, which are in the race anyway."""
    own = [prompt for text in drafts if text not in hand and (prompt := as_prompt(writer, text)) is not None]
    varied = variations(writer, [*hand, *drafts], count, seed)
    return list({prompt.text: prompt for prompt in (*own, *varied)}.values())


def _end(writer: Writer, start: int, share: float) -> int:
    """The length of a prompt in tokens; the longest if words are required, so that there is room for them."""
    longest = writer.length - 1
    if writer.vocabulary.constraints.required:
        return longest
    low, high = (1, LONGEST) if start else (2, LONGEST + 2)
    return min(longest, start + low + int(share * (high - low + 1)))


def _allowed_head(writer: Writer, ids: tuple[int, ...]) -> bool:
    """A head may be continued if it breaks no rule by itself; required words can still follow."""
    rules = writer.vocabulary.constraints
    text = writer.vocabulary.text(ids)
    short = rules.max_chars is None or len(text) < rules.max_chars
    return short and in_charset(text, rules.charset)


class Pool:
    """Prompts that have not been asked about yet, in the order of the LM's probability of a label word after them."""

    def __init__(
        self,
        writer: Writer,
        prompts: Sequence[Prompt],
        words: Sequence[str],
        max_perplexity: float | None,
        drafts: Sequence[str] = (),
    ) -> None:
        """`drafts` were written by people, so the limit on perplexity does not apply to them."""
        self.prompts, self._writer, self._limit, self.drafts = list(prompts), writer, max_perplexity, set(drafts)
        self.stated: set[str] = set()
        """Phrases that state the task."""
        self.refused = 0
        """Prompts that exceeded the limit on perplexity."""
        first = [ids[0] for word in words if (ids := writer.vocabulary.tokens.encode(" " + word))]
        order = list(range(len(self.prompts)))
        if first:
            states = writer.states([prompt.ids for prompt in self.prompts])
            parts = [states[at : at + 64] for at in range(0, len(states), 64)]
            mass = torch.cat([writer.backbone.logprobs(part)[:, first].logsumexp(-1) for part in parts]).tolist()
            order.sort(key=lambda place: -mass[place])
        self._waiting = dict.fromkeys(order)

    @property
    def written(self) -> int:
        """The number of prompts that the writer wrote."""
        return sum(prompt.text not in self.drafts for prompt in self.prompts)

    def take(self, count: int) -> list[Prompt]:
        return [self.prompts[place] for place in self._take(list(self._waiting), count)]

    def add(self, prompts: Sequence[Prompt], drafts: bool = False) -> None:
        """Add prompts that are not in the pool yet, before all others; no limit on perplexity applies to drafts."""
        known = {prompt.text for prompt in self.prompts}
        new = [prompt for prompt in prompts if prompt.text not in known]
        self.drafts |= {prompt.text for prompt in new if drafts}
        self._waiting = dict.fromkeys(range(len(self.prompts), len(self.prompts) + len(new))) | self._waiting
        self.prompts += new

    def _take(self, order: Sequence[int], count: int) -> list[int]:
        taken: list[int] = []
        while order and len(taken) < count:
            some = order[: count - len(taken)]
            order = order[len(some) :]
            for place in some:
                del self._waiting[place]
            taken += self._readable(some)
        return taken

    def _readable(self, places: Sequence[int]) -> list[int]:
        """The prompts within the limit on perplexity."""
        if self._limit is None:
            return list(places)
        written = [place for place in places if self.prompts[place].text not in self.drafts]
        found = self._writer.backbone.perplexities([self.prompts[place].text for place in written])
        worse = {place for place, one in zip(written, found, strict=True) if one > self._limit}
        self.refused += len(worse)
        return [place for place in places if place not in worse]


def _first_block(
    search: Search,
    settings: RaceSettings,
    blocks: Sequence[Block],
    runners: list[Runner],
    pool: Pool,
    count: int,
    tell: Callable[[Block], None],
    vary: Callable[[Sequence[str]], list[Prompt]] | None,
) -> None:
    """Ask about prompts of the pool on the first block, until `count` were asked, hand-written ones included.

    In the second half, or once the pool is empty, variations of the best prompts so far (`vary`) join the pool, and
    what the task makes of these.
    """
    second = shown = False
    while len(runners) < count:
        wanted = min(settings.batch, count - len(runners))
        second = second or 2 * len(runners) >= count
        if second:
            ahead = sorted(runners, key=lambda runner: -runner.mean)[: settings.least]
            if vary is not None:
                fixed = _fixed(search.task)
                varied = vary([runner.prompt.text for runner in ahead if runner.prompt.text not in fixed])
                pool.add(_own_words(search.task, varied))
                vary = None
            if isinstance(search.task, Labelling) and not shown:
                made, shown = search.task.before_text([runner.prompt for runner in ahead], search.seed), True
                pool.add(_accepted(search.writer(), made), drafts=True)
            _propose(search, pool, ahead)
        fresh = [Runner(prompt, "pool", prompt.text in pool.stated) for prompt in pool.take(wanted)]
        if not fresh and (second or not runners):
            break  # the pool is empty: it was small, or most of its prompts exceed the limit on perplexity
        if not fresh:
            second = True
            continue
        try:
            _ask(search, fresh, blocks[:1])
        finally:
            runners += [runner for runner in fresh if runner.blocks]
        tell(blocks[0])


def _perfect(search: Search, runners: Sequence[Runner]) -> bool:
    """Whether a hand-written prompt is right on every row of train and dev; only if values are learnt from these."""
    rows = report_fit_rows(search.task)
    known = [runner for runner in runners if not search.evaluator.table.get(runner.prompt.text).missing(rows)]
    return search.task.info.learns and any(_outcomes(search, runner, rows).mean() >= 1.0 for runner in known)


def _headroom(search: Search, runners: Sequence[Runner], blocks: Sequence[Block], count: int) -> Headroom:
    """What the search is expected to add to the best hand-written prompt, by the prompts asked so far."""
    task, first = search.task, blocks[0].rows
    hand = [runner for runner in runners if runner.source not in ("pool", "pruned")] or runners[:1]
    asked = [row for row in report_fit_rows(task) if not search.evaluator.table.get(hand[0].prompt.text).missing([row])]
    best = max(hand, key=lambda runner: _outcomes(search, runner, asked).mean())
    answers = search.evaluator.table.get(best.prompt.text)
    values = np.stack([_outcomes(search, runner, first) for runner in runners])
    gain = expected_gain(values, float(_outcomes(search, best, first).mean()), count, len(asked))
    half = task.with_half(answers, asked) if isinstance(task, Labelling) else None
    manual = float(_outcomes(search, best, asked).mean())
    return Headroom(manual, len(asked), half, min(gain, max(0.0, 1.0 - manual)))


def _outcomes(search: Search, runner: Runner, rows: Sequence[int]) -> Floats:
    """The primary metric of a prompt, row by row."""
    task = search.task
    found = task.metrics(search.evaluator.table.get(runner.prompt.text), rows, rows if fit_rows(task) else ())
    return np.asarray(found.outcomes[task.info.primary], dtype=np.float64)


def _tied(search: Search, runners: Sequence[Runner], block: Block, step: int) -> str:
    """Report if all prompts have the same value on every row of the first block: the other rows would cost as much."""
    if len(runners) < LEAST_TIED or any(not np.array_equal(one.values, runners[0].values) for one in runners):
        return ""
    sentence = (
        f"all {len(runners)} prompts have the same value on each of the first {len(runners[0].values)} rows "
        f"({runners[0].mean:g} on average), so the search stops: look at the model's answers, and check that "
        "the labels or references can be answered"
    )
    answers, fit = search.evaluator.table.get(runners[0].prompt.text), block.rows if fit_rows(search.task) else ()
    warnings = search.task.metrics(answers, block.rows, fit).tables.get("warnings", ())
    sentence = "; ".join((sentence, *warnings))
    search.emit(Event("problem", step, {"reason": sentence}))
    return sentence


def _propose(search: Search, pool: Pool, ahead: Sequence[Runner]) -> None:
    """Add what the task proposes after the best prompts so far, if it meets the constraints."""
    if not isinstance(search.task, Proposing):
        return
    best = [(runner.prompt, search.evaluator.table.get(runner.prompt.text)) for runner in ahead]
    search.evaluator.charge(search.task.proposal_calls, *search.task.proposal_tokens(best), search.task.proposer_billed)
    made = [as_prompt(search.writer(), text) for text in search.task.proposals(best, search.seed)]
    pool.add([prompt for prompt in made if prompt is not None], drafts=True)


def _alone(search: Search, settings: RaceSettings, pool: Pool, runners: Sequence[Runner], step: int) -> str:
    """Report if the writer's own prompts were all refused; raise an error if there is no other prompt either."""
    if not 0 < pool.written == pool.refused:
        return ""
    sentence = (
        f"the writer finds each of its {pool.written} prompts less likely than race.max_perplexity "
        f"({settings.max_perplexity:g}) allows, so only hand-written prompts raced; raise it, or set it to none"
    )
    if not runners:
        raise SettingError(sentence)
    search.emit(Event("problem", step, {"reason": sentence}))
    return sentence


def prune(search: Search, writer: Writer, limit: float | None, blocks: Sequence[Block], best: Runner) -> Runner:
    """Remove words from the best prompt, one at a time, while that improves it and calls are left.

    A shorter prompt is dropped once it is not ahead on all rows so far. It replaces the longer one if it ends ahead by
    more than the standard error of their difference; otherwise chance alone would shorten every prompt.
    """
    try:
        while True:
            shorter = [Runner(prompt, "pruned") for prompt in without_a_word(writer, best.prompt, limit)]
            for number in range(1, len(blocks) + 1):
                if not shorter:
                    return best
                _ask(search, shorter, blocks[:number])
                mark = float(_values(search, [best.prompt], blocks[:number])[0].mean())
                shorter = [runner for runner in shorter if runner.mean > mark]
            ahead = [runner for runner in shorter if _surely_ahead(runner.values - best.values)]
            if not ahead:
                return best
            best = max(ahead, key=lambda runner: runner.mean)
    except BudgetSpent:
        return best


def without_a_word(writer: Writer, prompt: Prompt, limit: float | None) -> list[Prompt]:
    """The prompts with one word left out, except those that break a constraint or that within a text exceed the limit.

    By itself a short prompt has a high perplexity, mostly that of its first token.
    """
    words = prompt.text.split()
    found: dict[str, Prompt] = {}
    for place in range(len(words) if len(words) > 1 else 0):
        made = writer.prompt(writer.vocabulary.tokens.encode(" " + without(words, place)))
        readable = limit is None or writer.backbone.perplexities([made.text], NEUTRAL)[0] <= limit
        if len(made.ids) < writer.length and allowed(writer, made) and readable:
            found.setdefault(made.text, made)
    return list(found.values())


def _surely_ahead(gains: Floats) -> bool:
    return len(gains) > 1 and bool(gains.mean() > gains.std(ddof=1) / math.sqrt(len(gains)))


def _ask(search: Search, runners: Sequence[Runner], blocks: Sequence[Block]) -> None:
    """Ask prompts on one more block of rows; answers that were paid for before the budget ran out are kept."""
    refusal: str | None = None
    try:
        values = _values(search, [runner.prompt for runner in runners], blocks)
    except BudgetSpent as spent:
        values, refusal = [row_means(score) for score in spent.scores], str(spent)
    for runner, own in zip(runners, values, strict=False):
        runner.values, runner.blocks = own, len(blocks)
    if refusal is not None:
        raise BudgetSpent(refusal)


def _values(search: Search, prompts: Sequence[Prompt], blocks: Sequence[Block]) -> list[Floats]:
    """The value of every row of the blocks for each prompt; only the rows of the last block may be new."""
    rows = tuple(row for block in blocks for row in block.rows)
    fit = rows if fit_rows(search.task) else ()
    scores = search.evaluator.score(prompts, rows, fit=fit, name=blocks[-1].name)
    return [row_means(score) for score in scores]


def _tell(search: Search, step: int, block: Block, runners: Sequence[Runner]) -> None:
    best = max(runners, key=lambda runner: runner.mean)
    data = {
        "block": block.name or search.task.rows[block.rows[0]].split,
        "rows": len(best.values),
        "runners": len(runners),
        "score_mean": round(float(np.mean([runner.mean for runner in runners])), 6),
        "score_best": round(best.mean, 6),
        "best_prompt": best.prompt.text,
        "distinct": search.evaluator.distinct,
        "calls": search.evaluator.charged_calls,
    }
    evaluator = search.evaluator
    search.emit(Event("step", step, data, {"paid_calls": evaluator.paid_calls, "memo_hits": evaluator.memo_hits}))


def _outcome(
    search: Search,
    writer: Writer,
    settings: RaceSettings,
    runners: Sequence[Runner],
    blocks: Sequence[Block],
    stopped: str,
    steps: int,
    extras: dict[str, Any],
) -> Outcome:
    """The runners of the last block, best first, each with its probability to be the best."""
    if not any(runner.blocks for runner in runners):
        raise SettingError("the budget ended before a single prompt was scored; raise --calls or --minutes")
    finalists = _finalists(search, writer, settings, runners)
    values = np.stack([runner.values for runner in finalists])
    chances = chances_of_best(values, derive(search.seed, "race", "chances"))
    found = []
    for runner, chance in zip(finalists, chances, strict=True):
        dev = search.evaluator.known(runner.prompt, "dev") if "dev" in search.splits else None
        candidate = Candidate(runner.prompt, runner.source, runner.mean)
        found.append(Finalist(candidate, None if dev is None else dev.value, chance, len(runner.values)))
    if found[0].candidate.source != "pruned":
        extras.pop("pruned", None)
    return Outcome([one.candidate for one in found], stopped, steps, extras, found, blocks)


def _finalists(search: Search, writer: Writer, settings: RaceSettings, runners: Sequence[Runner]) -> list[Runner]:
    """The runners that were asked on most rows: the answer, then the others by their score, and by their length."""
    last = max(runner.blocks for runner in runners)
    finalists = [runner for runner in runners if runner.blocks == last]
    finalists.sort(key=lambda runner: (-runner.mean, len(runner.prompt.text)))  # of equal ones the shorter costs less
    values = np.stack([runner.values for runner in finalists])
    finalists.insert(0, finalists.pop(_chosen(search, writer, settings.choose, finalists, values)))
    return finalists


def _chosen(search: Search, writer: Writer, choose: str, finalists: Sequence[Runner], values: Floats) -> int:
    """The index of the answer among the finalists, which are ordered by score."""
    if choose == "paired":
        return _paired(search, finalists)
    if choose == "readable" and finalists[0].source in ("pool", "pruned"):
        close = [place for place in _within_error(values) if finalists[place].source in ("pool", "pruned")]
        reads = writer.backbone.perplexities([finalists[place].prompt.text for place in close], NEUTRAL)
        ranked = zip([not finalists[place].states_task for place in close], reads, close, strict=True)
        return min(ranked)[-1]
    return 0


def _paired(search: Search, finalists: Sequence[Runner]) -> int:
    """The index of the best finalist (0) if it is clearly ahead of the best hand-written one, otherwise of the latter.

    "Clearly" means by more than one standard error of the paired difference on the rows of dev, if all were scored.
    """
    hand = [place for place, runner in enumerate(finalists) if runner.source not in ("pool", "pruned")]
    if not hand:
        return 0
    rows = [_dev_rows(search, runner) for runner in finalists]
    rival = max(hand, key=lambda place: rows[place].mean())
    return 0 if _surely_ahead(rows[0] - rows[rival]) else rival


def _dev_rows(search: Search, runner: Runner) -> Floats:
    """The values of a prompt on the rows of dev, or on all rows that it was asked on if dev is not among them."""
    dev = search.evaluator.known(runner.prompt, "dev") if "dev" in search.splits else None
    return runner.values if dev is None else row_means(dev)


def _within_error(values: Floats) -> list[int]:
    """The indices whose mean is within one standard error of the paired difference to the first."""
    close = [0]
    for place in range(1, len(values)):
        gap = values[0] - values[place]
        if gap.mean() <= gap.std(ddof=1) / math.sqrt(len(gap)):
            close.append(place)
    return close
