"""The end of a run: the answer evaluated, compared with hand-written prompts, explained, as result.json has it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from pinprompt.methods.protocol import Finalist, Outcome, Search
from pinprompt.methods.selection import facts_of
from pinprompt.methods.table import METHODS
from pinprompt.recipe.recipe import Recipe
from pinprompt.records.readability import perplexity, readability, slor
from pinprompt.records.verdict import judge_result
from pinprompt.run.estimating import PARTS, hand_written
from pinprompt.run.folder import RunFolder
from pinprompt.values import Evaluation, Event, Prompt

SHOWN = 20
"""Finalists that result.json lists."""


def conclude(
    recipe: Recipe,
    search: Search,
    outcome: Outcome,
    finalists: list[Finalist],
    writer: Callable[[], Any],
    record: RunFolder,
    report: bool = True,
) -> dict[str, Any]:
    """Everything that result.json says; without `report`, nothing of test, hand-written prompts and single words."""
    evaluator, task = search.evaluator, search.task
    skipped = ("train",) if report else ("train", "test")
    splits: list[str] = [split for split in task.splits if split not in skipped] or ["train"]
    best = finalists[0] if finalists else None
    compared = {name: Prompt(text) for name, text in hand_written(recipe, task).items()} if report else {}
    prompts = ({"found": best.candidate.prompt} if best else {}) | compared
    evaluations = _evaluate(search, prompts, splits, outcome.steps)
    found = evaluations.get("found", {})
    shown = found.get("test") or found.get("dev") or found.get("train")
    result: dict[str, Any] = {
        "method": recipe.method,
        "prompt": best.candidate.prompt.text if best else "",
        "score": best.candidate.score if best else None,
        "dev": found["dev"].facts() if "dev" in found else None,
        "test": found["test"].facts() if "test" in found else None,
        "train": found["train"].facts() if "train" in found else None,
        "primary": task.primary,
        "task": task.name,
        "dataset": getattr(recipe.task, "dataset", None),
        "task_model": getattr(recipe.task, "model", None),
        "policy_model": recipe.policy.model,
        "split": getattr(recipe.task, "split", None),
        "seed": recipe.seed,
        "fingerprint": task.fingerprint,
        "recipe": recipe.hash,
        "stopped": outcome.stopped,
        "steps": outcome.steps,
        "top": [facts_of(finalist) for finalist in finalists[:SHOWN]],
        **calibration_of(shown),
        "baselines": {name: _compared(prompt, evaluations[name]) for name, prompt in compared.items()},
        "tables": dict(shown.tables) if shown else {},
        "private": recipe.private,
        "judges": task.judges(),
        **({} if recipe.private else task.exhibits()),
        **outcome.extras,
    }
    result["reported"] = report
    if best and best.candidate.prompt.text:
        known = tuple(result.get("calibration", {}).get("offsets", {}).values())
        result["sent"] = task.sent(replace(best.candidate.prompt, offsets=known))
    if best and report:
        result["tokens"] = _tokens(recipe, search, best.candidate.prompt, writer)
        result["readability"] = _readability(best.candidate.prompt, writer)
        for row in result["top"]:
            row |= {name: _finite(value) for name, value in _fluency(row["prompt"], writer).items()}
    spent = {"calls": evaluator.charged_calls, "prompts": evaluator.distinct}
    search.emit(
        Event("end", outcome.steps, {"stopped": outcome.stopped, **spent}, {"paid_calls": evaluator.paid_calls})
    )
    result |= {"calls": evaluator.charged_calls, "paid_calls": evaluator.paid_calls, "prompts": evaluator.distinct}
    result |= {"report_calls": evaluator.report_calls, "spent": evaluator.totals()}
    result["found_by"] = found_by(recipe, outcome, best, evaluator.distinct)
    result["verdict"] = asdict(judged) if (judged := judge_result(result)) else None
    result["seconds"] = round(record.seconds(), 3)
    return result


def found_by(recipe: Recipe, outcome: Outcome, best: Finalist | None, prompts: int) -> str:
    """How the answer was found: written by hand, by a policy that learned, or by one that did not yet."""
    if best is None:
        return (
            f"trained by gradient ({recipe.method})" if METHODS[recipe.method].output != "text" else "nothing was found"
        )
    source = best.candidate.source
    if METHODS[recipe.method].kind == "handwritten":
        return f"written by hand ({source}); nothing was searched"
    if source in ("manual", "instructions"):
        return f"written by hand ({source}): none of {prompts:,} prompts scored better"
    if METHODS[recipe.method].kind == "rl":
        updates = int(outcome.extras.get("updates", 0))
        way = "the greedy prompt" if source == "greedy" else "a prompt sampled"
        if not updates:
            return (
                f"{way} from a policy that had learned nothing yet: the best of {prompts:,} prompts, no update was made"
            )
        return f"{way} from a policy that made {updates:,} updates: the best of {prompts:,} prompts"
    rows = f" by {best.rows:,} rows" if best.rows else ""
    return f"the best of {prompts:,} prompts{rows} ({recipe.method})"


def calibration_of(evaluation: Evaluation | None) -> dict[str, Any]:
    """How the labels of a prompt were calibrated, as result.json has it; nothing where they were not."""
    known = None if evaluation is None else evaluation.tables.get("calibration")
    return {} if known is None else {"calibration": known}


def _evaluate(
    search: Search, prompts: Mapping[str, Prompt], splits: list[str], step: int
) -> dict[str, dict[str, Evaluation]]:
    """Every prompt on every split, by name and split; the prompts of a split together, so that it is read once."""
    found: dict[str, dict[str, Evaluation]] = {name: {} for name in prompts}
    for split in splits if prompts else []:
        search.emit(Event("evaluating", step, {"name": ", ".join(prompts), "split": split}))
        evaluations = search.evaluator.evaluate_all(list(prompts.values()), split)
        for (name, prompt), evaluation in zip(prompts.items(), evaluations, strict=True):
            found[name][split] = evaluation
            facts: Mapping[str, Any] = {
                "name": name,
                "prompt": prompt.text,
                "split": split,
                "metrics": dict(evaluation.metrics),
                "intervals": {key: list(ends) for key, ends in evaluation.intervals.items()},
                "rows": evaluation.rows,
            }
            search.emit(Event("evaluation", step, facts))
    return found


def _compared(prompt: Prompt, evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """A hand-written prompt as result.json has it."""
    facts = {split: one.facts() for split, one in evaluations.items()}
    return {"prompt": prompt.text, **facts, **calibration_of(next(iter(evaluations.values())))}


def _tokens(recipe: Recipe, search: Search, prompt: Prompt, writer: Callable[[], Any]) -> list[dict[str, Any]]:
    """What each part of the prompt is worth: the score without it and, where it was written, its Q."""
    if METHODS[recipe.method].kind == "rl" and len(prompt.ids) <= PARTS:
        parts = writer().explain(prompt, recipe.q_learning.entropy)
        rest = [writer().prompt(prompt.ids[:place] + prompt.ids[place + 1 :]).text for place in range(len(prompt.ids))]
    else:
        words = re.findall(r"\S+", prompt.text)[:PARTS]
        parts = [{"token": word} for word in words]
        rest = [" ".join(words[:place] + words[place + 1 :]) for place in range(len(words))]
    shortened = [Prompt(text) for text in rest if text]
    scores = iter(search.evaluator.score(shortened, report=True) if shortened else [])
    return [
        {**part, "score_without": next(scores).value if text else None} for part, text in zip(parts, rest, strict=True)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _fluency(text: str, writer: Callable[[], Any]) -> dict[str, float]:
    """What the writer's LM finds of a text."""
    logprobs, unigrams = writer().likelihoods(text)
    return {"perplexity": perplexity(logprobs), "slor": slor(logprobs, unigrams)}


def _readability(prompt: Prompt, writer: Callable[[], Any]) -> dict[str, Any]:
    made = writer()
    fluency = _fluency(prompt.text, writer)
    return readability(prompt.text, ids=prompt.ids, tokenizer=made.backbone.tokenizer, fluency=fluency)
