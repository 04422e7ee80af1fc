"""Estimates of what a recipe will cost, and checks that its budget suffices for the search and its report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pinprompt.answers.budget import Amounts, Budget, Reservation
from pinprompt.answers.executors import on_the_clock
from pinprompt.errors import BudgetSpent, NotFetched, SettingError
from pinprompt.methods.protocol import Cost
from pinprompt.methods.table import row_of
from pinprompt.models.cache import fetching_nothing
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.task_sections import CustomSettings
from pinprompt.run import build
from pinprompt.tasks.function import FunctionTask
from pinprompt.tasks.protocol import (
    CHAT,
    Billed,
    Labelling,
    Task,
    billed,
    calls,
    draft_named,
    fit_rows,
    hand_written,
    split_rows,
    splits,
)
from pinprompt.values import Draw, Prompt, derive

PROBE_SECONDS = 8.0
"""Maximum seconds for measuring: texts can be of any length."""
PROBES, PROBED_ROWS, WRITTEN = 8, 8, 32
"""Number of prompts and rows that are scored to measure the time of a call, and of prompts written for theirs. A pass
over few takes as long as one over many."""
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life",
    "child", "world", "school", "state", "family", "student", "group", "country", "problem",
)  # fmt: skip


def prompts_planned(recipe: Recipe) -> tuple[int, int]:
    """The maximum number of prompts that a recipe scores on train and on dev, without limits."""
    settings = recipe.method_settings
    if settings is None:
        return 1, 1  # no search
    train, dev = settings.planned(recipe.policy.length, recipe.scoring.finalists)
    return int(train), int(dev)


def cost_of(recipe: Recipe, task: Task, method: Any = None) -> Cost:
    """What the recipe's method is expected to cost: as it says itself, or by the plan of its settings."""
    row, given = row_of(recipe.method), recipe.budget.calls
    asked = (task, recipe.method_settings, given, recipe.policy.length)
    if method is not None and hasattr(method, "cost"):
        theirs: Cost = method.cost(*asked)
        return theirs
    if row.cost:
        ours: Cost = build.imported(row.cost)(*asked, recipe.scoring.finalists)
        return ours
    train, dev = on(task, "train"), on(task, "dev")
    settings = recipe.method_settings
    prompts = (1, 1) if settings is None or row.section == "own" else prompts_planned(recipe)
    finalists = recipe.scoring.finalists if row.finalists else 1
    planned = prompts[0] * train + prompts[1] * dev
    enough, few = train + dev, f"they pay for about {(given or 0) // max(1, train)} prompts"
    if row.kind == "rl" and not row.control_of:
        first = int(settings.batch if settings.replay else settings.prompts)  # prompts scored before the first update
        each = recipe.policy.length if settings.rewards == "prefix" else 1
        enough = 2 * first * each * train + (finalists + 1) * dev + train
        few = f"{recipe.method} learns nothing before it has scored {first} prompts, and {few}"
    elif row.kind != "handwritten" and settings is not None:
        enough = (finalists + 1) * train + finalists * dev
    search = row.kind in ("rl", "search")
    spent = planned if given is None else min(planned, given)
    if row.section == "own" and given is not None:
        spent = given
    return Cost(spent, enough, few, written=spent / max(1, train) if search else 0.0, words=recipe.policy.length)


def on(task: Task, split: str) -> int:
    """The most calls of one prompt on a split; 0 if there is none."""
    return calls(task, split_rows(task, split)) if split in splits(task) else 0


def estimate(
    recipe: Recipe,
    device: str | None = None,
    probe: bool = True,
    task: Task | None = None,
    report: bool = True,
    unread: Sequence[str] = (),
    method: Any = None,
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
            return _estimate(recipe, device, probe, task, report, method)
        except NotFetched as missing:
            return _of_the_plan(recipe, report, f"{missing}; nothing is fetched for an estimate")


def _of_the_plan(recipe: Recipe, report: bool, note: str) -> dict[str, Any]:
    """What is known without the task: no more than the plan."""
    known = {"method": recipe.method, "calls": recipe.budget.calls, "report_calls": None, "minutes": None}
    return known | {"reported": report, "note": f"{note}; minutes are not known"}


def _estimate(
    recipe: Recipe, device: str | None, probe: bool, given: Task | None, reported: bool, method: Any
) -> dict[str, Any]:
    named = False
    if given is None and isinstance(recipe.task, CustomSettings):
        named, given = True, FunctionTask(_not_called)
    started, device = time.perf_counter(), build.choose_device(device)
    task = given or build.build_task(recipe, device, contact=False)
    loading = time.perf_counter() - started
    recipe = with_report_inside(recipe, task, method)
    cost, report = cost_of(recipe, task, method), _report(recipe, task, reported, method)
    planned = cost.calls
    report_calls = sum(asked.calls for asked in report)
    figures: dict[str, Any] = {
        "method": recipe.method,
        "calls": planned,
        "report_calls": report_calls,
        "total_calls": planned + report_calls,
        "enough_calls": cost.enough,
        "minutes": None,
        "reported": reported,
        "passes_per_call": getattr(task, "passes", 1),
    }
    figures |= _tokens_and_money(recipe, task, cost, report)
    notes = [
        f"tokens and money do not include the proposals of {name}"
        for name in recipe.remote_models
        if name != recipe.served
    ]
    if recipe.served is not None:
        way = "as completions; chats use more" if recipe.remote.answers == "auto" else f"as {recipe.remote.answers}"
        notes.append(f"{recipe.remote.base_url} was not contacted: minutes are not known, tokens are counted {way}")
    elif named:
        notes.append("the function was not imported; minutes are not known")
    elif probe:
        until = time.perf_counter() + PROBE_SECONDS
        seconds, writing = None, 0.0
        try:
            with on_the_clock(lambda: time.perf_counter() > until):
                seconds = _seconds_per_call(recipe, task)
                writing = _writing(recipe, task, device, cost)
        except BudgetSpent:
            slow = f"a few prompts take more than {PROBE_SECONDS:.0f} seconds here"
            notes.append(f"{slow}; minutes are {'not known' if seconds is None else 'without writing prompts'}")
        if seconds is not None:
            figures["seconds_per_call"] = seconds
            minutes = (loading + writing + seconds * planned) / 60
            limit = recipe.budget.minutes
            figures["minutes"] = minutes if limit is None else min(minutes, limit + loading / 60)
            figures["report_minutes"] = seconds * report_calls / 60
    return figures | ({"note": "; ".join(notes)} if notes else {})


def _not_called(prompt: str) -> float:
    raise AssertionError("an estimate does not call a function named in a recipe")


def _typical(words: int) -> Prompt:
    """A prompt of common words."""
    return Prompt(" ".join(WORDS[place % len(WORDS)] for place in range(words)))


def _report(recipe: Recipe, task: Task, reported: bool, method: Any) -> list[Amounts]:
    """What each question of the report will likely cost; where none is wanted, those about the found prompt."""
    cost = cost_of(recipe, task, method)
    words, asked = cost.words, []
    found = _typical(words)
    raced = not cost.asked_on_train
    # The rows that the search asks its best prompts on.
    seen = {row for split in splits(task) if split != "test" for row in split_rows(task, split)}
    seen = seen if cost.rows is None else set(cost.rows)
    planned = report_plan(recipe, task, found, parts_of(recipe, task, words), cost)
    if not reported:
        left = [(found, split, True) for split in splits(task) if split not in ("train", "test")]
        planned = (left or [(found, "train", True)]) + (planned[-1:] if raced and fit_rows(task) else [])
    for place, (prompt, split, evaluation) in enumerate(planned):
        rows = split_rows(task, split)
        # A score of `found` stands for the prompt without a word, except for the last one of a race.
        without_a_word = prompt is found and not evaluation and not (raced and place == len(planned) - 1)
        known = not without_a_word and (prompt is found or raced) and not (evaluation and task.info.stochastic)
        if known:
            rows = tuple(row for row in rows if row not in seen)
        if not rows:
            continue  # computed from the answers of the search
        count = calls(task, rows, evaluation)
        tokens: tuple[int, int] = (0, 0)
        if isinstance(task, Billed):
            counted = task.most_tokens if task.billed is None else task.likely_tokens  # unbilled: the maximum
            tokens = counted(prompt, rows, evaluation)
        asked.append(Amounts(count, *tokens))
    return asked


def _seconds_per_call(recipe: Recipe, task: Task) -> float:
    """Measured by scoring a few prompts: where outputs are sampled, which takes longer, a single one."""
    length, count = min(PARTS, recipe.policy.length), 1 if task.info.stochastic else PROBES
    texts = [[WORDS[(number + 5 * place) % len(WORDS)] for place in range(length)] for number in range(count)]
    prompts = [Prompt(" ".join(words)) for words in texts]
    draws = [Draw(derive(recipe.seed, "estimate", number)) for number in range(count)]
    rows = split_rows(task, "train")[:PROBED_ROWS]
    started = time.perf_counter()
    task.ask(prompts, rows, draws)
    return (time.perf_counter() - started) / (count * calls(task, rows))


def _writing(recipe: Recipe, task: Task, device: str, cost: Cost) -> float:
    """Seconds to load the writer and to write as many prompts as the search needs, extrapolated from a few."""
    if not cost.written:
        return 0.0
    import torch

    started = time.perf_counter()
    writer = build.build_writer(recipe, task, device)
    loading = time.perf_counter() - started
    started, random = time.perf_counter(), torch.Generator().manual_seed(recipe.seed)
    writer.lm_continue([()] * WRITTEN, [min(cost.words + 1, writer.length)] * WRITTEN, random)
    return loading + cost.written * (time.perf_counter() - started) / WRITTEN


def _tokens_and_money(recipe: Recipe, task: Task, cost: Cost, report: Sequence[Amounts]) -> dict[str, Any]:
    """For tasks that count tokens: the expected and the maximum cost of search and report."""
    if not isinstance(task, Billed):
        return {}
    typical = _typical(cost.words)
    rows = split_rows(task, "train")
    prompts = cost.calls / max(1, calls(task, rows))
    most = sum(task.most_tokens(typical, rows)) * prompts + report_cost(recipe, task, cost).tokens
    if not most:
        return {}
    tokens_in, tokens_out = (amount * prompts for amount in task.likely_tokens(typical, rows))
    tokens_in += sum(asked.tokens_in for asked in report)
    tokens_out += sum(asked.tokens_out for asked in report)
    likely = round(tokens_in + tokens_out)
    figures: dict[str, Any] = {"tokens": likely, "most_tokens": max(likely, round(most))}
    if task.billed is not None:
        price = recipe.budget.prices.get(task.billed)
        money = None if price is None else (tokens_in * price.input + tokens_out * price.output) / 1e6
        figures["money"] = money
    return figures


# What a budget of calls must cover: enough for the method to learn from, and the report after the search.


PARTS = 16
"""Maximum number of words that the report leaves out one by one."""
WORD = 12
"""Assumed bytes per word of a prompt that is not known yet."""
SPARE = 4
"""Calls besides a twentieth of all that are kept for lost requests to a server and for its probe."""


def parts_of(recipe: Recipe, task: Task, words: int) -> int:
    """How many words of a prompt the report leaves out one by one."""
    wanted = recipe.scoring.word_values
    timed = task.info.stochastic and recipe.budget.minutes is not None  # the minutes are for the report, too
    measured = wanted == "on" or (wanted == "auto" and billed(task) is None and not task.info.costly and not timed)
    return min(PARTS, words) if measured else 0


def rivals(recipe: Recipe, task: Task) -> dict[str, str]:
    """The prompts that a report compares with, by name.

    For a local model with a chat template these include a plain instruction in its chat format, which the paper lacks.
    """
    own, named = draft_named(task, recipe.method), hand_written(task)
    if recipe.profile != "paper" and isinstance(task, Labelling) and billed(task) is None:
        named |= {draft.name: draft.text for draft in task.drafts() if draft.name == CHAT}
    return {name: text for name, text in named.items() if text != own}


def report_plan(recipe: Recipe, task: Task, found: Prompt, parts: int, cost: Cost) -> list[tuple[Prompt, str, bool]]:
    """The questions of the report: prompts with the split, and whether each is for an evaluation or for a score.

    The prompt found and the hand-written ones are evaluated on every split but train, hand-written ones are calibrated
    on train if the task calibrates, and the prompt found is scored on train without each of its words.
    """
    hand = [Prompt(text) for text in rivals(recipe, task).values()]
    held_out = [split for split in splits(task) if split != "train"] or ["train"]
    members = [found] * (recipe.scoring.ensemble if isinstance(task, Labelling) else 1)
    asked = [(prompt, split, True) for prompt in (*members, *hand) for split in held_out]
    shorter = [found] * parts + (hand if fit_rows(task) else [])
    # It may have been chosen by a part of the rows.
    whole = [found] if (parts or fit_rows(task)) and not cost.asked_on_train else []
    return asked + [(prompt, "train", False) for prompt in shorter + whole]


def report_cost(recipe: Recipe, task: Task, cost: Cost) -> Amounts:
    """Maximum calls and tokens of the report."""
    found = Prompt("x" * WORD * recipe.policy.length)
    plan = report_plan(recipe, task, found, parts_of(recipe, task, recipe.policy.length), cost)
    most = Amounts()
    for prompt, split, evaluation in plan:
        rows = split_rows(task, split)
        tokens = task.most_tokens(prompt, rows, evaluation) if isinstance(task, Billed) else (0, 0)
        most.add(Amounts(calls(task, rows, evaluation), *tokens))
    return most


SEARCHING = 0.4
"""The search's largest share of `budget.minutes`, where these include the report."""


def with_report_inside(recipe: Recipe, task: Task, method: Any = None) -> Recipe:
    """For a model behind an API, `budget.calls` is all that is sent: the search gets what the report leaves.

    Where outputs are sampled, the report takes at least as long as the search: there `budget.minutes` are for both, by
    their calls. Also if no report is wanted yet, so that the same search is continued when it is.
    """
    limits = recipe.budget
    if task.info.stochastic and billed(task) is None and limits.minutes is not None:
        cost = cost_of(recipe, task, method)
        report = sum(asked.calls for asked in _report(recipe, task, True, method))
        share = min(SEARCHING, (cost.calls or 1) / max(1, (cost.calls or 1) + report))
        shorter = limits.model_copy(update={"minutes": limits.minutes * share})
        return recipe.model_copy(update={"budget": shorter})
    if billed(task) is None or limits.calls is None or limits.total_calls is not None:
        return recipe
    left, total = limits.calls, limits.calls
    while True:
        inner = recipe.model_copy(
            update={"budget": limits.model_copy(update={"calls": left, "total_calls": total})}
        )  # fmt: skip
        # The fewer rows a search can ask, the more are left to the report.
        needed = sum(asked.calls for asked in _report(inner, task, True, method)) + SPARE + total // 20
        if total - needed >= left:
            return inner
        left = total - needed
        if left < 1:
            raise SettingError(
                f"{total:,} calls do not suffice for the report, which takes about {needed:,}; raise --calls or lower "
                "--test-rows"
            )


def hold_for_report(recipe: Recipe, task: Task, budget: Budget, cost: Cost) -> Reservation | None:
    """Reserve the cost of the report, so that the search cannot spend it; a SettingError if too little is left.

    The maximum tokens of a report are several times what it uses, so at most half of a limit on tokens or money is
    reserved. The amounts depend on the recipe alone, so that a resumed run reserves the same.
    """
    most = report_cost(recipe, task, cost)
    count, limits, model = most.calls, recipe.budget, billed(task)
    if model is not None and limits.calls is not None and limits.total_calls is not None:
        count = min(count, max(0, limits.total_calls - limits.calls))
    share = 1.0
    if limits.tokens is not None and most.tokens:
        share = min(share, limits.tokens / 2 / most.tokens)
    money = budget.price(model, most.tokens_in, most.tokens_out)
    if limits.money is not None and money:
        share = min(share, limits.money / 2 / float(money))
    try:
        tokens = int(most.tokens_in * share), int(most.tokens_out * share)
        return budget.reserve(count, *tokens, model, report=True)
    except BudgetSpent as refusal:
        if budget.spent.calls or budget.sent.calls:
            return None  # resumed: the reserve is in use, or the limit was lowered
        least = count + (limits.calls or on(task, "train"))
        raise SettingError(
            f"{refusal} for the report alone; raise budget.total_calls to {least:,} or more, or test on fewer rows"
        ) from None


def check_budget(recipe: Recipe, cost: Cost) -> str:
    """A warning if the calls are too few for the method, else ''."""
    given = recipe.budget.calls
    if given is None or given >= cost.enough:
        return ""
    return f"{given:,} calls are few ({cost.few}); {cost.enough:,} are enough"
