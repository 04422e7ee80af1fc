"""Race: score many prompts on few rows, then fewer and fewer on more rows; all rows of train and dev decide.

1. The pool costs no calls. It has stock phrases ("All in all, it is") and prompts that the frozen LM writes, from
   scratch or after a common beginning ("It was", "Overall, it"). Prompts with words outside the dictionary, or with a
   high perplexity, are left out.
2. The hand-written prompts are scored on the first block of rows, together with those of the pool after which the LM
   is most likely to write a label word. A Gaussian process on the LM's states then picks from the rest, batch by batch.
3. After each block the best third advances to the next, together with the hand-written prompts. A prompt's score is
   computed from all rows that it was scored on, so its calibration improves with each block. No row is asked twice.
4. The best mean over all rows wins. A bootstrap over the rows gives the probability of each finalist to be the best.
5. Words are removed from the winner, one at a time, as long as its score on all rows improves.

If the texts are not in English, there are no stock phrases: the LM continues examples of the texts. For a task with
drafts (style transfer: common instructions), the pool has the drafts and the LM's variations of them and of the
hand-written prompts. Variations of the best prompts so far join it for the second half of the first block.

The method needs no checkpoint: pool and order depend only on the seed, and a resumed run finds its scores in the
journal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pinprompt.errors import BudgetSpent, SettingError
from pinprompt.maths.gaussian_process import kernel, posterior
from pinprompt.methods.protocol import Candidate, Finalist, Outcome, Search
from pinprompt.methods.selection import asked, chances_of_best
from pinprompt.methods.variations import allowed, as_prompt, variations, without
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import RaceSettings
from pinprompt.tasks.protocol import Task, blocks_of
from pinprompt.values import Event, Prompt, Score, derive

Floats = NDArray[np.float64]


@dataclass
class Runner:
    """A prompt in the race, with its scores on the blocks so far."""

    prompt: Prompt
    source: str
    scores: list[Score] = field(default_factory=list)
    values: Floats = field(default_factory=lambda: np.zeros(0))
    """The value of each row that it was scored on, computed from all of these rows together."""

    @property
    def mean(self) -> float:
        """The score so far."""
        return float(self.values.mean())


def race(search: Search, settings: RaceSettings) -> Outcome:
    """Fill a pool, race its prompts over growing blocks of rows, and choose by all rows."""
    task, made, blocks = search.task, search.writer(), blocks_of(search.task)
    hand = [Runner(Prompt(text), name) for name, text in task.baselines().items() if name != "in-context"]
    costs = [task.calls(block) for block in blocks]
    if task.language != "en":
        settings = settings.model_copy(update={"heads": (), "openers": (), "cores": (), **_uncapped(settings)})
    rounds, count = plan(costs, search.evaluator.budget.settings.calls, len(hand), settings)
    drafts, texts = task.drafts(), [runner.prompt.text for runner in hand]
    candidates = drafted(made, settings, drafts, texts, count, search.seed) if drafts else []
    if not candidates:  # no drafts, or none that meets the constraints
        candidates = [*stock(made, settings), *written(made, settings, max(settings.written, 3 * count), search.seed)]
    if not candidates:
        raise SettingError(
            "the writer can write no prompt that keeps all constraints, so there is nothing to race; loosen "
            "policy.constraints (dictionary is on for race), or choose another method"
        )
    pool = Pool(made, candidates, task.answers(), settings.max_perplexity, drafts)
    runners = list(hand)
    stopped, steps, extras = "finished", 0, dict[str, Any]()

    def tell(block: str) -> None:
        nonlocal steps
        if runners:  # otherwise `_alone` reports why there are none
            _tell(search, steps, block, runners)
            steps += 1

    try:
        vary = partial(variations, made, count=count, seed=search.seed, temperature=settings.temperature)
        _first_block(search, settings, blocks[0], runners, pool, count, tell, vary if drafts else None)
        for block in blocks[1:rounds]:
            runners = cut(runners, settings)
            _ask(search, runners, block)
            tell(block)
        best = max(runners, key=lambda runner: runner.mean, default=None)
        if best is not None and settings.prune and best.source == "pool":
            shorter = prune(search, made, settings.max_perplexity, blocks[:rounds], best)
            if shorter is not best:
                runners = [shorter, *runners]
                extras = {"pruned": {"from": best.prompt.text, "score": best.mean}}
        if problem := _alone(search, settings, pool, runners, steps):
            extras["problem"] = problem
    except BudgetSpent:
        stopped = "budget"
    return _outcome(search, made, settings, runners, stopped, steps, extras)


def _uncapped(settings: RaceSettings) -> dict[str, None]:
    """Remove the cap on perplexity if it is the default, which was chosen for English and rejects most other texts."""
    default = RaceSettings.model_fields["max_perplexity"].default
    return {"max_perplexity": None} if settings.max_perplexity == default else {}


def plan(costs: Sequence[int], calls: int | None, hand: int, settings: RaceSettings) -> tuple[int, int]:
    """The number of blocks, and the number of prompts that enter the race, such that it fits into the budget.

    Blocks are left out if the last `race.least` prompts would need more than half of the calls for all blocks: with
    many classes, the finalists would use up the calls that the first block needs.
    """
    if calls is None:
        return len(costs), max(settings.prompts, hand + 1)
    least = max(settings.least, hand + 1)
    blocks = len(costs)
    while blocks > 1 and (
        race_cost(costs[:blocks], least, hand, settings) > calls or 2 * settings.least * sum(costs[:blocks]) > calls
    ):
        blocks -= 1
    if race_cost(costs[:1], least, hand, settings) > calls:
        raise SettingError(
            f"a race needs {race_cost(costs[:1], least, hand, settings)} calls for {least} prompts on {costs[0]} rows, "
            f"but the budget is {calls}; raise --calls"
        )
    count, racing = least, calls - int(calls * settings.prune)
    while race_cost(costs[:blocks], count + 1, hand, settings) <= racing:
        count += 1
    return blocks, count


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


def stock(writer: Writer, settings: RaceSettings) -> list[Prompt]:
    """Stock phrases that meet the user's constraints, as ids of the writer: every opener with every core."""
    found: dict[str, Prompt] = {}
    for opener in ("", *settings.openers):
        for core in settings.cores:
            text = f"{opener} {core}".strip()
            prompt = writer.prompt(writer.vocabulary.tokens.encode(" " + text[:1].upper() + text[1:]))
            if len(prompt.ids) < writer.length and allowed(writer, prompt):
                found.setdefault(prompt.text, prompt)
    return list(found.values())


def written(writer: Writer, settings: RaceSettings, count: int, seed: int) -> list[Prompt]:
    """Up to `count` distinct prompts by the LM: a third from scratch, the rest after the heads and openers in turn."""
    longest = writer.length - 1  # the state after the last token is needed too
    encode = writer.vocabulary.tokens.encode
    heads = [tuple(encode(" " + head)) for head in (*settings.heads, *settings.openers)]
    heads = [ids for ids in heads if len(ids) < longest and _allowed_head(writer, ids)]
    random = torch.Generator().manual_seed(derive(seed, "race", "pool"))
    starts = [heads[number % len(heads)] if number % 3 and heads else () for number in range(count)]
    shares = torch.rand(count, generator=random, dtype=torch.float64).tolist()
    ends = [_end(writer, settings, len(start), share) for start, share in zip(starts, shares, strict=True)]
    prompts = writer.lm_continue(starts, ends, random, settings.temperature)
    return list({prompt.text: prompt for prompt in prompts if allowed(writer, prompt)}.values())


def drafted(
    writer: Writer, settings: RaceSettings, drafts: Sequence[str], hand: Sequence[str], count: int, seed: int
) -> list[Prompt]:
    """Drafts, and the LM's variations of them and of the hand-written prompts, which are in the race anyway."""
    own = [prompt for text in drafts if text not in hand and (prompt := as_prompt(writer, text)) is not None]
    wanted = max(settings.written, 3 * count)
    varied = variations(writer, [*hand, *drafts], wanted, seed, settings.temperature)
    return list({prompt.text: prompt for prompt in (*own, *varied)}.values())


def _end(writer: Writer, settings: RaceSettings, start: int, share: float) -> int:
    """The length of a prompt in tokens; the longest if words are required, so that there is room for them."""
    longest = writer.length - 1
    if writer.vocabulary.constraints.required:
        return longest
    low, high = (1, settings.words) if start else (2, settings.words + 2)
    return min(longest, start + low + int(share * (high - low + 1)))


def _allowed_head(writer: Writer, ids: tuple[int, ...]) -> bool:
    """A head may be continued if it breaks no rule by itself; required words can still follow."""
    rules = writer.vocabulary.constraints
    text = writer.vocabulary.text(ids)
    short = rules.max_chars is None or len(text) < rules.max_chars
    return short and (rules.charset != "letters" or text.replace(" ", "").isalpha())


class Pool:
    """Prompts that have not been scored yet, ordered by the LM's expectations and by a Gaussian process."""

    def __init__(
        self,
        writer: Writer,
        prompts: Sequence[Prompt],
        answers: Sequence[str],
        max_perplexity: float | None,
        drafts: Sequence[str] = (),
    ) -> None:
        """`drafts` were written by people, so the limit on perplexity does not apply to them."""
        self.prompts, self._writer, self._limit, self._drafts = list(prompts), writer, max_perplexity, set(drafts)
        states = writer.states([prompt.ids for prompt in self.prompts])
        features = states.double().cpu().numpy()
        self.similarity = kernel(features)
        first = [ids[0] for word in answers if (ids := writer.vocabulary.tokens.encode(" " + word))]
        order = list(range(len(self.prompts)))
        if first:
            parts = [states[at : at + 64] for at in range(0, len(states), 64)]
            mass = torch.cat([writer.backbone.logprobs(part)[:, first].logsumexp(-1) for part in parts]).tolist()
            order.sort(key=lambda place: -mass[place])
        self._waiting = dict.fromkeys(order)

    def likeliest(self, count: int) -> list[int]:
        """Take the next prompts from the pool, in the order of the LM's probability of a label word after them."""
        return self._take(list(self._waiting), count)

    def promising(self, count: int, scored: Sequence[int], values: Floats, noise: float, explore: float) -> list[int]:
        """Take the next prompts from the pool, by posterior mean + explore x standard deviation."""
        waiting = list(self._waiting)
        mean, variance = posterior(self.similarity, scored, values, noise)
        bound = mean + explore * np.sqrt(variance)
        return self._take(sorted(waiting, key=lambda place: -bound[place]), count)

    def add(self, prompts: Sequence[Prompt]) -> None:
        """Add prompts that are not in the pool yet."""
        known = {prompt.text for prompt in self.prompts}
        new = [prompt for prompt in prompts if prompt.text not in known]
        if new:
            self._waiting |= dict.fromkeys(range(len(self.prompts), len(self.prompts) + len(new)))
            self.prompts += new
            states = self._writer.states([prompt.ids for prompt in self.prompts])
            self.similarity = kernel(states.double().cpu().numpy())

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
        written = [place for place in places if self.prompts[place].text not in self._drafts]
        found = self._writer.backbone.perplexities([self.prompts[place].text for place in written])
        worse = {place for place, one in zip(written, found, strict=True) if one > self._limit}
        return [place for place in places if place not in worse]


def _first_block(
    search: Search,
    settings: RaceSettings,
    block: str,
    runners: list[Runner],
    pool: Pool,
    count: int,
    tell: Callable[[str], None],
    vary: Callable[[Sequence[str]], list[Prompt]] | None,
) -> None:
    """Score `count` prompts on the first block: hand-written ones, likely ones, then promising ones.

    `vary` gives variations of the best prompts so far. They join the pool before the first promising ones are picked.
    """
    if runners:
        _ask(search, runners, block)
    places: list[int] = []
    likely = count // 2 if settings.screen else count
    while len(runners) < count:
        wanted = min(settings.batch, count - len(runners))
        if len(places) < likely:
            new = pool.likeliest(min(wanted, likely - len(places)))
        else:
            if vary is not None:
                ahead = sorted(runners, key=lambda runner: -runner.mean)[: settings.least]
                pool.add(vary([runner.prompt.text for runner in ahead]))
                vary = None
            field_ = [runner for runner in runners if runner.source == "pool"]
            values = np.array([runner.mean for runner in field_])
            new = pool.promising(wanted, places, values, _noise(field_), settings.explore)
        if not new:
            break  # the pool is empty: it was small, or most of its prompts exceed the limit on perplexity
        fresh = [Runner(pool.prompts[place], "pool") for place in new]
        try:
            _ask(search, fresh, block)
        finally:
            runners += [runner for runner in fresh if runner.scores]
        places += new
        tell(block)


def _alone(search: Search, settings: RaceSettings, pool: Pool, runners: Sequence[Runner], step: int) -> str:
    """Report if no prompt of the pool was in the race; raise an error if there is no other prompt either."""
    if any(runner.source in ("pool", "pruned") for runner in runners) or not pool.prompts:
        return ""
    sentence = (
        f"the writer finds each of the {len(pool.prompts)} prompts of the pool less likely than race.max_perplexity "
        f"({settings.max_perplexity:g}) allows, so only hand-written prompts raced; raise it, or set it to none"
    )
    if not runners:
        raise SettingError(sentence)
    search.emit(Event("problem", step, {"reason": sentence}))
    return sentence


def prune(search: Search, writer: Writer, limit: float | None, blocks: Sequence[str], best: Runner) -> Runner:
    """Remove words from the best prompt, one at a time, while that improves it and calls are left.

    A shorter prompt is dropped once it is not ahead on all rows so far. It replaces the longer one if it ends ahead by
    more than the standard error of their difference; otherwise chance alone would shorten every prompt.
    """
    try:
        while True:
            shorter = [Runner(prompt, "pruned") for prompt in without_a_word(writer, best.prompt, limit)]
            for number, block in enumerate(blocks, 1):
                if not shorter:
                    return best
                _ask(search, shorter, block)
                mark = float(np.mean(search.task.pooled(best.scores[:number])))
                shorter = [runner for runner in shorter if runner.mean > mark]
            ahead = [runner for runner in shorter if _surely_ahead(runner.values - best.values)]
            if not ahead:
                return best
            best = max(ahead, key=lambda runner: runner.mean)
    except BudgetSpent:
        return best


def without_a_word(writer: Writer, prompt: Prompt, limit: float | None) -> list[Prompt]:
    """The prompts with one word left out, except those that break a constraint or exceed the limit on perplexity."""
    words = prompt.text.split()
    found: dict[str, Prompt] = {}
    for place in range(len(words) if len(words) > 1 else 0):
        made = writer.prompt(writer.vocabulary.tokens.encode(" " + without(words, place)))
        readable = limit is None or writer.backbone.perplexity(made.text) <= limit
        if len(made.ids) < writer.length and allowed(writer, made) and readable:
            found.setdefault(made.text, made)
    return list(found.values())


def _surely_ahead(gains: Floats) -> bool:
    return len(gains) > 1 and bool(gains.mean() > gains.std(ddof=1) / math.sqrt(len(gains)))


def _noise(runners: Sequence[Runner]) -> float:
    """The variance of a first score due to its few rows: the residual after subtracting row and prompt means."""
    table = np.stack([runner.values for runner in runners])
    if table.shape[0] < 2 or table.shape[1] < 2:
        return 0.0
    rest = table - table.mean(axis=0)
    return float((rest - rest.mean(axis=1, keepdims=True)).var(axis=1, ddof=1).mean() / table.shape[1])


def _ask(search: Search, runners: Sequence[Runner], block: str) -> None:
    """Score prompts on one more block of rows; scores that were paid for before the budget ran out are kept."""
    refusal: str | None = None
    try:
        scores = search.evaluator.score([asked(runner.prompt, runner.scores) for runner in runners], block)
    except BudgetSpent as spent:
        scores, refusal = spent.scores, str(spent)
    for runner, score in zip(runners, scores, strict=False):
        runner.scores.append(score)
        runner.values = np.asarray(search.task.pooled(runner.scores), dtype=np.float64)
    if refusal is not None:
        raise BudgetSpent(refusal)


def _tell(search: Search, step: int, block: str, runners: Sequence[Runner]) -> None:
    best = max(runners, key=lambda runner: runner.mean)
    data = {
        "block": block,
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
    stopped: str,
    steps: int,
    extras: dict[str, Any],
) -> Outcome:
    """The runners of the last block, best first, each with its probability to be the best."""
    last = max((len(runner.scores) for runner in runners), default=0)
    if not last:
        raise SettingError("the budget ended before a single prompt was scored; raise --calls or --minutes")
    finalists = sorted((runner for runner in runners if len(runner.scores) == last), key=lambda runner: -runner.mean)
    values = np.stack([runner.values for runner in finalists])
    chances = chances_of_best(values, derive(search.seed, "race", "chances"))
    chosen = _chosen(search.task, writer, settings.choose, finalists, values)
    finalists.insert(0, finalists.pop(chosen))
    chances.insert(0, chances.pop(chosen))
    found = []
    for runner, chance in zip(finalists, chances, strict=True):
        search.evaluator.derive(runner.prompt, runner.scores)
        dev = search.task.whole_splits(runner.scores).get("dev")
        candidate = Candidate(runner.prompt, runner.source, runner.mean)
        found.append(Finalist(candidate, None if dev is None else dev.value, chance, len(runner.values)))
    return Outcome([one.candidate for one in found], stopped, steps, extras, finalists=found)


def _chosen(task: Task, writer: Writer, choose: str, finalists: Sequence[Runner], values: Floats) -> int:
    """The index of the answer among the finalists, which are ordered by score."""
    if choose == "paired":
        return _paired(task, finalists)
    if choose == "readable":
        close = _within_error(values)
        reads = writer.backbone.perplexities([finalists[place].prompt.text for place in close])
        return close[int(np.argmin(reads))]
    return 0


def _paired(task: Task, finalists: Sequence[Runner]) -> int:
    """The index of the best finalist (0) if it is clearly ahead of the best hand-written one, otherwise of the latter.

    "Clearly" means by more than one standard error of the paired difference on the rows of dev, if all were scored.
    """
    hand = [place for place, runner in enumerate(finalists) if runner.source not in ("pool", "pruned")]
    if not hand:
        return 0
    rows = [_dev_rows(task, runner) for runner in finalists]
    rival = max(hand, key=lambda place: rows[place].mean())
    return 0 if _surely_ahead(rows[0] - rows[rival]) else rival


def _dev_rows(task: Task, runner: Runner) -> Floats:
    """The values of a prompt on the rows of dev, or on all rows that it was scored on if dev is not among them."""
    dev = task.whole_splits(runner.scores).get("dev")
    values = [] if dev is None else task.row_values(dev, "dev")
    return np.asarray(values or runner.values, dtype=np.float64)


def _within_error(values: Floats) -> list[int]:
    """The indices whose mean is within one standard error of the paired difference to the first."""
    close = [0]
    for place in range(1, len(values)):
        gap = values[0] - values[place]
        if gap.mean() <= gap.std(ddof=1) / math.sqrt(len(gap)):
            close.append(place)
    return close
