"""Estimates of what a recipe will cost, and checks that its budget suffices for the search and its report."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pinprompt.errors import BudgetSpent, NotFetched, PinpromptError, SettingError
from pinprompt.methods.table import METHODS
from pinprompt.models.cache import fetching_nothing
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.task_sections import CustomSettings
from pinprompt.run import build
from pinprompt.scoring.budget import Budget, Reservation
from pinprompt.tasks.custom import CustomTask
from pinprompt.tasks.protocol import Task, blocks_of, complete
from pinprompt.values import Prompt, derive

PROBES = 16
"""Number of prompts scored to measure the time of a call: as many as in a step."""
RACED_WORDS = 6
"""Typical number of words of a prompt found by race."""
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life",
    "child", "world", "school", "state", "family", "student", "group", "country", "problem",
)  # fmt: skip

SIZES = {  # parameters in millions, for models whose name does not contain them; of image-text models the text side
    "smollm2": 135, "minilm": 22, "emoji-clip": 1.4, "gpt2": 124, "distilgpt2": 82, "gpt2-large": 774,
    "distilroberta-base": 82, "roberta-base": 125, "roberta-large": 355, "bert-base-uncased": 110,
    "clip-vit-h-14-laion2b-s32b-b79k": 354, "clip-vit-base-patch32": 63,
}  # fmt: skip
TOKENS_AROUND = {"classification": 4, "style-transfer": 40, "inversion": 2, "custom": 0}
"""Tokens of a call besides the prompt: the template's, an output's, start and end."""

ROW_TOKENS = {"classification": 64, "style-transfer": 20, "inversion": 0, "custom": 0}
"""Approximate number of tokens of an input: a film review, a short review."""
ANSWER_TOKENS = {"classification": 1, "style-transfer": 20}
"""Approximate number of tokens of a remote model's answer."""


def prompts_planned(recipe: Recipe) -> tuple[int, int]:
    """The maximum number of prompts that a recipe scores on train and on dev, without limits."""
    settings = recipe.method_settings
    if settings is None:
        return 1, 1  # no search
    train, dev = settings.planned(recipe.policy.length)
    return int(train), int(dev)


def calls_planned(recipe: Recipe, task: Task) -> int:
    """The calls of the search and of choosing on dev: as planned, or the budget if that is less."""
    if recipe.method == "race":
        from pinprompt.methods.race import plan, race_cost

        costs, hand = race_costs(task)
        blocks, count = plan(costs, recipe.budget.calls, hand, recipe.race)
        return race_cost(costs[:blocks], count, hand, recipe.race)
    train, dev = prompts_planned(recipe)
    calls = train * task.calls("train") + (dev * task.calls("dev") if "dev" in task.splits else 0)
    return calls if recipe.budget.calls is None else min(calls, recipe.budget.calls)


def estimate(
    recipe: Recipe,
    device: str | None = None,
    probe: bool = True,
    task: Task | None = None,
    report: bool = True,
    unread: Sequence[str] = (),
) -> dict[str, Any]:
    """Calls, tokens, money and minutes of a recipe; `task` replaces the recipe's own.

    `calls` are those of the search, which `budget.calls` limits; `report_calls` are extra (without `report`, those of
    the found prompt's evaluation on dev). Minutes are measured on this machine by writing and scoring a few prompts
    (`probe`), and include loading. Nothing is imported, contacted or downloaded: functions named in a recipe and remote
    models are not called, so their minutes are unknown; if a model or dataset is not on this machine yet, or a file is
    in `unread`, only the planned numbers are given. `tokens` and `money` are the expected cost of search and report,
    `most_tokens` is the maximum; money is None if the price is not known.
    """
    if unread:
        named = ", ".join(unread)
        return _of_the_plan(recipe, report, f"{named} was not read, since you did not agree to it yet (--trust does)")
    with fetching_nothing():
        try:
            return _estimate(recipe, device, probe, task, report)
        except NotFetched as missing:
            return _of_the_plan(recipe, report, f"{missing}; nothing is fetched for an estimate")


def _of_the_plan(recipe: Recipe, report: bool, note: str) -> dict[str, Any]:
    """What is known without the task: no more than the plan."""
    known = {"method": recipe.method, "calls": rough(recipe)["calls"], "report_calls": None, "minutes": None}
    return known | {"reported": report, "note": f"{note}; minutes are not known"}


def _estimate(recipe: Recipe, device: str | None, probe: bool, given: Task | None, reported: bool) -> dict[str, Any]:
    remote, named = build.is_remote(recipe), False
    if given is None and isinstance(recipe.task, CustomSettings):
        named, given = True, CustomTask(_not_called, calls_per_prompt=recipe.task.calls_per_prompt)
    started, device = time.perf_counter(), build.choose_device(device)
    task = complete(given or build.build_task(recipe, device, contact=not remote))
    loading = time.perf_counter() - started
    calls, report = calls_planned(recipe, task), _report(recipe, task, reported)
    report_calls = sum(asked.calls for asked in report)
    figures: dict[str, Any] = {
        "method": recipe.method,
        "calls": calls,
        "report_calls": report_calls,
        "total_calls": calls + report_calls,
        "enough_calls": enough_calls(recipe, task),
        "minutes": None,
        "reported": reported,
    }
    figures |= _tokens_and_money(recipe, task, calls, report)
    if remote:
        way = "as completions; chats use more" if recipe.remote.answers == "auto" else f"as {recipe.remote.answers}"
        figures["note"] = f"{recipe.remote.base_url} was not contacted: minutes are not known, tokens are counted {way}"
    elif named:
        figures["note"] = "the function was not imported; minutes are not known"
    elif probe:
        seconds = _seconds_per_call(recipe, task)
        figures["seconds_per_call"] = seconds
        minutes = (loading + _writing(recipe, task, device, calls) + seconds * calls) / 60
        limit = recipe.budget.minutes
        figures["minutes"] = minutes if limit is None else min(minutes, limit + loading / 60)
        figures["report_minutes"] = seconds * report_calls / 60
    return figures


def _not_called(prompt: str) -> float:
    raise AssertionError("an estimate does not call a function named in a recipe")


@dataclass(frozen=True)
class _Asked:
    """One expected question of a report."""

    calls: int
    tokens_in: float
    tokens_out: float


def _words(recipe: Recipe) -> int:
    """The expected number of words of the prompt found."""
    return min(RACED_WORDS, recipe.policy.length) if recipe.method == "race" else recipe.policy.length


def _report(recipe: Recipe, task: Task, reported: bool = True) -> list[_Asked]:
    """What the report will likely ask; where none is wanted, what the found prompt's evaluation will."""
    words = _words(recipe)
    found = Prompt(" ".join(WORDS[place % len(WORDS)] for place in range(words)))
    asked = []
    in_full = _in_full(recipe, task)
    planned = report_plan(recipe, task, found, min(PARTS, words))
    if recipe.method == "race" and in_full:
        planned.pop()
    if not reported:
        left = [(found, split, True) for split in task.splits if split not in ("train", "test")]
        planned = (left or [(found, "train", True)]) + ([] if in_full or not task.calibrates else planned[-1:])
    for prompt, split, evaluation in planned:
        scored = in_full and (prompt is found or recipe.method == "race")
        if scored and (
            prompt is not found if not evaluation else split == "dev" and recipe.task.kind == "classification"
        ):
            continue  # computed from these scores
        most = (task.calls(split), *task.tokens(prompt, split))
        calls, tokens_in, tokens_out = task.evaluation_cost(prompt, split) if evaluation else most
        if task.billed is None:  # unbilled calls are counted at their maximum
            asked.append(_Asked(calls, tokens_in, tokens_out))
            continue
        share = calls / max(1, task.calls(split))
        asked.append(_Asked(calls, *(likely * share for likely in task.likely_tokens(prompt, split))))
    return asked


def _in_full(recipe: Recipe, task: Task) -> bool:
    """Whether the search scores its best prompts on every row of train and dev; a race with few calls does not."""
    if recipe.method != "race":
        return True
    from pinprompt.methods.race import plan

    costs, hand = race_costs(task)
    return plan(costs, recipe.budget.calls, hand, recipe.race)[0] == len(costs)


def rough(recipe: Recipe, speed: float | None = None) -> dict[str, Any]:
    """The same for a dry run of a sweep: without loading models and without probing.

    Minutes are computed from the machine's speed (`multiplications`) and the sizes of the models, for writing and
    scoring only. A causal model reads every input once, a masked one in every call. They are a rough order of
    magnitude. A remote model has tokens instead of minutes, and money if its price is known.
    """
    train, dev = prompts_planned(recipe)
    figures: dict[str, Any] = {"prompts": train + dev, "calls": recipe.budget.calls, "minutes": recipe.budget.minutes}
    per_prompt = _calls_per_prompt(recipe)
    if per_prompt is not None:
        planned = train * per_prompt[0] + dev * per_prompt[1]
        figures["calls"] = planned if recipe.budget.calls is None else min(planned, recipe.budget.calls)
        if figures["calls"] < planned and recipe.method != "race" and not recipe.scoring.race:
            figures["prompts"] = figures["calls"] // per_prompt[0]  # the budget ends the search before its plan does
    if speed is not None and figures["calls"] and (work := _work(recipe, train, figures["calls"], per_prompt)):
        minutes = work / speed / 60
        figures["minutes"] = minutes if recipe.budget.minutes is None else min(minutes, recipe.budget.minutes)
    if figures["calls"] and build.is_remote(recipe):
        figures |= _rough_money(recipe, figures["calls"])
    return figures


def _rough_money(recipe: Recipe, calls: int) -> dict[str, Any]:
    kind, name = recipe.task.kind, str(getattr(recipe.task, "model", "")).removeprefix("remote:")
    sent = calls * (ROW_TOKENS[kind] + recipe.policy.length + TOKENS_AROUND[kind])
    received = calls * ANSWER_TOKENS.get(kind, 0)
    price = recipe.budget.prices.get(name)
    money = None if price is None else (sent * price.input + received * price.output) / 1e6
    return {"tokens": sent + received, "money": money}


def _calls_per_prompt(recipe: Recipe) -> tuple[int, int] | None:
    """Calls for one prompt on train and on dev; None if only the task itself knows."""
    settings: Any = recipe.task
    if settings.kind == "classification":
        # Examples per class times the number of classes, taken from the label words.
        from pinprompt.data.datasets import lookup

        try:
            rows = (len(settings.words) or len(lookup(settings.dataset).words)) * settings.shots
        except (PinpromptError, TypeError):
            return None
        return rows, rows
    if settings.kind == "style-transfer":
        one = (
            settings.draw == "step" and METHODS[recipe.method].kind == "rl"
        )  # each prompt is scored on one source of its step
        on_train = (1 if one else settings.sources) * settings.samples * settings.bootstraps
        return on_train, settings.dev_sources * settings.samples * (settings.dev_bootstraps or settings.bootstraps)
    return (1, 0) if settings.kind == "inversion" else None


def _work(recipe: Recipe, prompts: int, calls: int, per_prompt: tuple[int, int] | None) -> float | None:
    """Multiplications of a search: each token once per parameter; None for models of unknown size."""
    kind, length = recipe.task.kind, recipe.policy.length
    task, writer = parameters(getattr(recipe.task, "model", "") or ""), parameters(recipe.policy.model)
    if task is None or writer is None or per_prompt is None:
        return None
    read = length + TOKENS_AROUND[kind] + (ROW_TOKENS[kind] if _masked(recipe) else 0)
    written = min(prompts, calls // per_prompt[0]) * length if METHODS[recipe.method].kind != "handwritten" else 0
    return calls * read * task + written * writer


def _masked(recipe: Recipe) -> bool:
    """Whether the task model is a masked LM, by its settings or name."""
    kind, name = getattr(recipe.task, "model_kind", "causal"), str(getattr(recipe.task, "model", ""))
    return kind == "masked" or (kind == "auto" and "bert" in name.lower())


def parameters(model: str) -> float | None:
    """The number of parameters of a model, if it is known or part of the name ("opt-1.3b")."""
    name = model.removeprefix("remote:").rsplit("/", 1)[-1].lower()
    if name in SIZES:
        return SIZES[name] * 1e6
    said = re.search(r"(\d+(?:\.\d+)?)([mb])(?![a-z])", name)
    return None if said is None else float(said[1]) * {"m": 1e6, "b": 1e9}[said[2]]


def multiplications(device: str | None = None) -> float:
    """Multiplications per second on this machine, measured with a few rows through a layer of a small LM."""
    import torch

    place = build.choose_device(device)
    rows, weights = torch.randn(32, 1024, device=place), torch.randn(1024, 4096, device=place)
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < 0.2:
        float((rows @ weights).sum())  # the sum waits for a GPU
        done += rows.shape[0] * weights.numel()
    return done / spent


def _seconds_per_call(recipe: Recipe, task: Task) -> float:
    """Measured by scoring a few prompts; the first one fills caches and is not counted."""
    length = recipe.policy.length
    texts = [[WORDS[(number + 5 * place) % len(WORDS)] for place in range(length)] for number in range(PROBES + 1)]
    prompts = [Prompt(" ".join(words)) for words in texts]
    seeds = [derive(recipe.seed, "estimate", number) for number in range(len(prompts))]
    task.score(prompts[:1], seeds[:1])
    started = time.perf_counter()
    task.score(prompts[1:], seeds[1:])
    return (time.perf_counter() - started) / (PROBES * task.calls("train"))


def _writing(recipe: Recipe, task: Task, device: str, calls: int) -> float:
    """Seconds to load the writer and to write as many prompts as the search scores, extrapolated from a few."""
    if METHODS[recipe.method].kind not in ("rl", "search"):
        return 0.0
    import torch

    started = time.perf_counter()
    writer = build.build_writer(recipe, task, device)
    loading = time.perf_counter() - started
    random, length = torch.Generator().manual_seed(recipe.seed), writer.length
    counts = [PROBES, 2 * PROBES]
    taken = []
    for count in counts:  # the first one reads the context and fills caches
        started = time.perf_counter()
        writer.lm_continue([()] * count, [min(_words(recipe) + 1, length)] * count, random)
        taken.append(time.perf_counter() - started)
    prompts = calls / max(1, task.calls("train"))
    if recipe.method == "guided":
        prompts /= recipe.guided.tokens  # a prefix is read once for all of its continuations
    if recipe.method == "race":
        from pinprompt.methods.race import plan

        costs, hand = race_costs(task)
        prompts = max(recipe.race.written, 3 * plan(costs, recipe.budget.calls, hand, recipe.race)[1])
    return loading + taken[0] + prompts * taken[1] / counts[1]


def _tokens_and_money(recipe: Recipe, task: Task, calls: int, report: Sequence[_Asked]) -> dict[str, Any]:
    """For tasks that count tokens: the expected and the maximum cost of search and report."""
    words = _words(recipe)
    typical = Prompt(" ".join(WORDS[place % len(WORDS)] for place in range(words)))
    prompts = calls / max(1, task.calls("train"))
    most = sum(task.tokens(typical, "train")) * prompts + sum(report_cost(recipe, task)[1:])
    if not most:
        return {}
    tokens_in, tokens_out = (amount * prompts for amount in task.likely_tokens(typical, "train"))
    tokens_in += sum(asked.tokens_in for asked in report)
    tokens_out += sum(asked.tokens_out for asked in report)
    likely = round(tokens_in + tokens_out)
    figures: dict[str, Any] = {"tokens": likely, "most_tokens": max(likely, round(most))}
    if task.billed is not None:
        price = recipe.budget.prices.get(task.billed)
        money = None if price is None else (tokens_in * price.input + tokens_out * price.output) / 1e6
        figures |= {"money": money, "currency": recipe.budget.currency}
    return figures


# What a budget of calls must cover: enough for the method to learn from, and the report after the search.


PARTS = 16
"""Maximum number of words that the report leaves out one by one."""
WORD = 12
"""Assumed bytes per word of a prompt that is not known yet."""
SPARE = 100
"""Minimum allowance for lost calls to a server before a run stops."""


def hand_written(recipe: Recipe, task: Task) -> dict[str, str]:
    """The hand-written prompts that a report compares with, by name."""
    return {name: text for name, text in task.baselines().items() if name not in (recipe.method, "in-context")}


def report_plan(recipe: Recipe, task: Task, found: Prompt, parts: int) -> list[tuple[Prompt, str, bool]]:
    """The questions of the report: prompts with the split, and whether each is an evaluation or a score.

    The prompt found and the hand-written ones are evaluated on every split but train, hand-written ones are calibrated
    on train if the task calibrates, and the prompt found is scored on train without each of its words.
    """
    hand = [Prompt(text) for text in hand_written(recipe, task).values()]
    splits = [split for split in task.splits if split != "train"] or ["train"]
    asked = [(prompt, split, True) for prompt in (found, *hand) for split in splits]
    shorter = [found] * parts + (hand if task.calibrates else [])
    whole = [found] if recipe.method == "race" else []  # it may have been chosen by a part of the rows
    return asked + [(prompt, "train", False) for prompt in shorter + whole]


def report_cost(recipe: Recipe, task: Task) -> tuple[int, int, int]:
    """Maximum calls, tokens in and tokens out of the report."""
    found = Prompt("x" * WORD * recipe.policy.length)
    plan = report_plan(recipe, task, found, min(PARTS, recipe.policy.length))
    costs = [
        task.evaluation_cost(prompt, split) if evaluation else (task.calls(split), *task.tokens(prompt, split))
        for prompt, split, evaluation in plan
    ]
    calls, tokens_in, tokens_out = (sum(column) for column in zip(*costs, strict=True))
    return calls, tokens_in, tokens_out


def hold_for_report(recipe: Recipe, task: Task, budget: Budget) -> Reservation | None:
    """Reserve the cost of the report, so that the search cannot spend it; a SettingError if too little is left.

    The maximum tokens of a report are several times what it uses, so at most half of a limit on tokens or money is
    reserved. The amounts depend on the recipe alone, so that a resumed run reserves the same.
    """
    calls, tokens_in, tokens_out = report_cost(recipe, task)
    limits = recipe.budget
    if task.billed is not None and limits.calls is not None and limits.total_calls is None:
        planned = limits.calls + calls
        budget.total_calls = planned + max(SPARE, planned // 10)
    share = 1.0
    if limits.tokens is not None and tokens_in + tokens_out:
        share = min(share, limits.tokens / 2 / (tokens_in + tokens_out))
    money = budget.price(task.billed, tokens_in, tokens_out)
    if limits.money is not None and money:
        share = min(share, limits.money / 2 / float(money))
    try:
        return budget.reserve(calls, int(tokens_in * share), int(tokens_out * share), task.billed, report=True)
    except BudgetSpent as refusal:
        if budget.spent.calls or budget.sent.calls:
            return None  # resumed: the reserve is in use, or the limit was lowered
        least = calls + (limits.calls or task.calls("train"))
        raise SettingError(
            f"{refusal} for the report alone; raise budget.total_calls to {least:,} or more, or test on fewer rows"
        ) from None


def check_race(recipe: Recipe, task: Task) -> None:
    """A SettingError if `scoring.race` is set but the method or the task does not support it."""
    row = METHODS[recipe.method]
    if not recipe.scoring.race:
        return
    if row.whole_scores or row.gradients or row.kind == "handwritten":
        raise SettingError(
            f"{recipe.method} compares prompts on all rows, so they cannot be raced; set scoring.race to 0, or choose "
            "random, beam or one of the Q-learning methods"
        )
    if not task.blocks or task.stochastic:
        raise SettingError(
            f"scoring.race needs a task whose rows can be scored in parts; '{task.name}' cannot: set it to 0"
        )


def enough_calls(recipe: Recipe, task: Task) -> int:
    """The number of calls that a method needs to work well.

    Q-learning: as many prompts after the first update as before it, and choosing on dev. Race: its last `race.least`
    prompts on every row of train and dev with half of the calls. Others: more prompts than finalists.
    """
    settings, train = recipe.method_settings, task.calls("train")
    dev = task.calls("dev") if "dev" in task.splits else 0
    if METHODS[recipe.method].kind == "handwritten" or settings is None:
        return train + dev
    if recipe.method == "race":
        from pinprompt.methods.race import race_cost

        costs, hand = race_costs(task)
        least = max(settings.least, hand + 1)
        return int(max(race_cost(costs, least, hand, settings), 2 * settings.least * sum(costs)))
    finalists = getattr(settings, "finalists", 1)
    if METHODS[recipe.method].kind == "rl":
        return int(2 * _before_learning(settings) * train + (finalists + 1) * dev + train)
    return int((finalists + 1) * train + finalists * dev)


def check_budget(recipe: Recipe, task: Task) -> str:
    """A warning if the calls are too few to learn from, else ''; a SettingError if the method cannot start."""
    calls = recipe.budget.calls
    if calls is None:
        return ""
    enough = enough_calls(recipe, task)
    if recipe.method == "race":
        from pinprompt.methods.race import plan

        costs, hand = race_costs(task)
        blocks, count = plan(costs, calls, hand, recipe.race)
        share = sum(costs[:blocks]) / sum(costs)
        what = f"race starts with {count} prompts and chooses on {100 * share:.0f} % of the rows: less certain"
    elif METHODS[recipe.method].kind == "rl":
        needed = _before_learning(recipe.q_learning)
        what = f"{recipe.method} learns nothing before it has scored {needed} prompts, and they pay for about "
        what += f"{calls // max(1, task.calls('train'))}"
    else:
        what = f"they pay for about {calls // max(1, task.calls('train'))} prompts"
    return f"{calls:,} calls are few ({what}); {enough:,} are enough" if calls < enough else ""


def _before_learning(settings: Any) -> int:
    """Number of prompts scored before the first update."""
    return int((settings.warmup or settings.batch) if settings.replay else settings.prompts)


def race_costs(task: Task) -> tuple[list[int], int]:
    """The cost of a prompt on each block, and the number of hand-written prompts."""
    return [task.calls(block) for block in blocks_of(task)], len(set(task.baselines()) - {"in-context"})
