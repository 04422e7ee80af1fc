"""One run from recipe to result: build, search, choose on dev, evaluate, compare, write the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.answers.budget import Reservation
from pinprompt.errors import BudgetSpent, RunError, SettingError, UselessAnswers
from pinprompt.folder.folder import RunFolder
from pinprompt.folder.identity import changed_files
from pinprompt.folder.reading import WITH_TEXTS, changed_since, read_json, read_run, sequence
from pinprompt.methods.protocol import Candidate, Finalist, Outcome, Search
from pinprompt.methods.selection import announce, ask_blocks, ensemble, facts_of, row_means, select
from pinprompt.methods.table import METHODS, row_of
from pinprompt.methods.variations import NEUTRAL, without
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.task_sections import MANNERS
from pinprompt.run import build, consent
from pinprompt.run.estimating import PARTS, check_budget, cost_of, hold_for_report, parts_of, rivals, with_report_inside
from pinprompt.run.readability import readability
from pinprompt.run.verdict import judge_result
from pinprompt.tasks.protocol import (
    EMBEDDINGS,
    ENSEMBLE,
    IN_CONTEXT,
    WITH_EMBEDDINGS,
    Judged,
    Labelling,
    Shown,
    Task,
    Windowed,
    hand_written,
)
from pinprompt.tasks.protocol import splits as task_splits
from pinprompt.values import Evaluation, Event, Listener, Prompt
from pinprompt.wording import by_role

MAY_CHANGE = ("budget", "scoring", "private")
"""Sections that a resumed run may change: budget, where scores are computed, what is shown; never what is computed."""
DATA = tuple(name for name in consent.FILES if name != "images")
"""Settings of tasks that name a file or a folder with data."""

RESULT: dict[str, tuple[type, ...]] = {
    "prompt": (str,), "score": (int, float, type(None)), "dev": (dict, type(None)), "test": (dict, type(None)),
    "calls": (int,), "seconds": (int, float),
}  # fmt: skip
"""The required fields of result.json and their types."""


@dataclass(frozen=True)
class Result:
    """The result of a run: the content of result.json, with the common fields as attributes."""

    prompt: str
    score: float
    dev: dict[str, Any] | None
    test: dict[str, Any] | None
    calls: int
    seconds: float
    folder: Path
    data: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def report(self) -> Path:
        """The path of the report."""
        return self.folder / "report.html"

    def _repr_html_(self) -> str:
        """For notebooks: the prompt, its scores, and the path of the report."""
        rows = [("prompt", by_role(self.prompt))]
        for split, facts in (("dev", self.dev), ("test", self.test)):
            value = (facts or {}).get(str(self.data.get("primary")))
            if isinstance(value, float):
                rows.append((f"{self.data['primary']} on {split}", f"{value:.3f} ({(facts or {}).get('rows')} rows)"))
        rows.append(("calls", f"{self.calls:,}"))
        if self.data.get("reported", True):
            rows.append(("report", str(self.report)))
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table>"

    @property
    def top(self) -> list[dict[str, Any]]:
        """The finalists, best first, with their scores."""
        top = self.data.get("top")
        return [row for row in top if isinstance(row, dict)] if isinstance(top, list) else []


def recipe_of(folder: Path | str) -> Recipe:
    """The recipe that a run folder was made with."""
    path = Path(folder) / "recipe.toml"
    if not path.is_file():
        raise SettingError(f"{folder} is not a run folder: there is no recipe.toml in it")
    return recipes.load(path)


def with_found_files(recipe: Recipe, run: Path) -> Recipe:
    """The recipe with paths that are valid from here: files that are not found are looked for beside and above the run.

    Names of models are not changed, unless they can only be paths.
    """
    places = [run.resolve(), *run.resolve().parents]

    def found(given: str) -> str:
        if Path(given).is_absolute() or Path(given).exists():
            return given
        return next((str(place / given) for place in places if (place / given).exists()), given)

    tree = recipe.model_dump()
    task, policy = tree["task"], tree["policy"]
    for name in (name for name in DATA if isinstance(task.get(name), str)):
        task[name] = found(task[name])
    if "images" in task:
        task["images"] = [found(one) for one in task["images"]]
    for section in (task, policy):
        model = section.get("model") or ""
        if model.startswith((".", "~")) or model.endswith(".gguf"):
            section["model"] = found(model)
    if policy["constraints"]["banned_file"]:
        policy["constraints"]["banned_file"] = found(policy["constraints"]["banned_file"])
    return recipes.validate(tree)


def result_of(folder: Path) -> Result:
    """The result of a finished run."""
    changed = changed_since(folder, {"result.json"})
    if changed:
        raise RunError(f"{folder}: {changed[0]} Resume the run to write it again.")
    data = read_run(folder).result
    if not data and not (folder / "result.json").exists():
        raise RunError(f"{folder} has no answer yet: its run did not end; `pinprompt resume {folder}` continues it")
    for name, kinds in RESULT.items():
        if name not in data:
            raise RunError(f"{folder / 'result.json'} lacks '{name}'; run it again with --force")
        if not isinstance(data[name], kinds) or (isinstance(data[name], bool) and bool not in kinds):
            raise RunError(
                f"{folder / 'result.json'} has a {type(data[name]).__name__} as '{name}', which pinprompt does not "
                "write; remove the file and resume the run, or run it again with --force"
            )
    return Result(
        data["prompt"], data["score"], data["dev"], data["test"], data["calls"], data["seconds"], folder, data
    )


def run(
    recipe: Recipe,
    folder: Path | str,
    *,
    task: Task | None = None,
    method: Any = None,
    model: Callable[..., Any] | None = None,
    metric: Callable[..., Any] | None = None,
    device: str | None = None,
    threads: int | None = None,
    resume: bool = False,
    force: bool = False,
    report: bool = True,
    reporter: Callable[[Path], object] | None = None,
    listeners: Sequence[Listener] = (),
    notes: Callable[[str], None] = lambda note: None,
) -> Result:
    """Run a recipe in a run folder; a run that was killed and is continued with `resume` gives the same result.

    `task`, `method`, `model` and `metric` are objects of the caller, which replace those that the recipe names.

    Without `report` it ends when the prompt is found: no evaluation on test, no comparison with hand-written prompts,
    no report.html. Calling it again with `resume` and `report` adds them. `reporter` writes report.html.
    """
    threads = build.set_threads(threads)
    device = build.choose_device(device)
    with RunFolder(folder, resume=resume, force=force) as record:
        if resume and record.identity is None:
            notes(f"{record.path} contains no run to resume; starting a new run")
        if resume:
            recipe = _with_earlier_words(recipe, record.path)
        for note in record.notes:
            notes(note)
        if _finished(recipe, record, notes, report):
            notes(f"the run in {record.path} is already finished")
            return result_of(record.path)
        # A run that is resumed from another folder keeps its recipe; only its files are searched for.
        here = with_found_files(recipe, record.path) if resume else recipe
        task = task or build.build_task(here, device, model=model, metric=metric)
        recipe = build.with_label_words(recipe, task)
        for note in (*task.info.notes, *build.language_notes(recipe, task)):
            notes(note)
        if isinstance(task, Windowed):
            task.check_window(recipe.policy.length)
        searched_by = build.load_method(recipe) if method is None else method
        own = searched_by if recipe.method not in METHODS else None
        spending = with_report_inside(recipe, task, own)
        cost = cost_of(spending, task, own)
        if few := check_budget(spending, cost):
            notes(few)
        # The user gave the recipe or consented to it, so its run folder needs no consent.
        consent.vouch(recipe)
        # The run is only created now: if building failed, the folder can be used again.
        record.begin(recipes.to_toml(recipe), task.info.fingerprint)
        if isinstance(task, Shown) and not recipe.private and (rows := task.shown_rows()):
            record.save_json("rows.json", rows)
        # A style judge contains words of the data.
        if isinstance(task, Judged) and not recipe.private and (judges := task.kept_judges()):
            record.save_json("judges.json", judges)
        _keep_environment(record, build.environment(device, threads), notes)
        evaluator = build.build_evaluator(spending, task, record, device, threads, notes)

        def emit(event: Event) -> None:
            for listener in (record.record, *listeners):
                listener(event)

        writer = cache(lambda: build.build_writer(here, task, device))
        held: list[Reservation] = []

        def open_reserve() -> None:
            while held:
                evaluator.budget.release(held.pop())

        search = Search(
            task, evaluator, emit, record.checkpoint, recipe.seed, device, record.path, recipe.policy, writer,
            open_reserve, recipe.scoring,
        )  # fmt: skip
        if record.checkpoint.size("events") == 0:
            emit(Event("start", 0, {"method": recipe.method, "task": task.info.name, "seed": recipe.seed,
                                    "length": recipe.policy.length, "primary": task.info.primary,
                                    "score_is": task.info.score_is}))  # fmt: skip
        run_method = build.build_method(recipe, searched_by)
        for_report = hold_for_report(spending, task, evaluator.budget, cost)
        if (for_dev := build.hold_for_dev(spending, task, evaluator.budget)) is not None:
            held.append(for_dev)
        try:
            outcome = run_method(search)
        except UselessAnswers as error:
            record.record(Event("problem", 0, {"reason": str(error)}))
            if report and reporter is not None:
                reporter(record.path)
            raise
        if search.problem:
            outcome = replace(outcome, stopped="tied", extras={**outcome.extras, "problem": search.problem})
        open_reserve()
        searched = record.seconds()
        if outcome.finalists is None:
            finalists = select(search, outcome.candidates, outcome.steps)
        else:
            finalists = announce(search, outcome.finalists, outcome.steps)
        if for_report is not None:
            evaluator.budget.release(for_report)
        try:
            result = conclude(recipe, search, outcome, finalists, writer, report)
        except BudgetSpent as spent:
            found = f": {finalists[0].candidate.prompt.text!r}" if finalists else ""
            raise BudgetSpent(
                f"the search found a prompt{found}, but its report could not be paid: {spent}. Raise that limit with "
                f"`pinprompt resume {record.path} --calls N` (or --set), or get the prompt alone with --no-report"
            ) from None
        evaluator.close()
        result["seconds"] = round(searched, 3)
        record.save_prompts(evaluator.prompts_table())
        record.save_json("result.json", result)
        record.finish(reporter if report else None)
        return result_of(record.path)


def _keep_environment(record: RunFolder, here: dict[str, Any], notes: Callable[[str], None]) -> None:
    """Warn if a run is resumed on another machine or with other libraries; environment.json records them."""
    try:
        kept = read_json(record.path, "environment.json")
    except RunError as error:
        notes(f"{error} It is restored.")
        kept = {}
    if not kept:
        record.save_json("environment.json", here)
        return
    later = [one for one in sequence(kept.get("resumed_on")) if isinstance(one, dict)]
    last = dict(kept)
    for one in later:
        last |= one
    changed = {name: value for name, value in here.items() if last.get(name) != value}
    if changed:
        told = ", ".join(f"{name} {_said(last.get(name), value)}" for name, value in changed.items())
        notes(
            f"the environment has changed since this run started ({told}); numbers may differ in their last digits, so "
            "the resumed run may find other prompts than an uninterrupted one"
        )
        record.save_json("environment.json", {**kept, "resumed_on": [*later, changed]})


def _said(before: Any, now: Any) -> str:
    """How a fact of the environment changed; for versions only those that did."""
    if isinstance(before, dict) and isinstance(now, dict):
        return ", ".join(f"{name} {_said(before.get(name), value)}" for name, value in now.items()
                         if before.get(name) != value)  # fmt: skip
    return f"{'unknown' if before is None else str(before)[:80]} -> {now}"  # the file may be untrusted


def _with_earlier_words(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the label words that the folder's run chose, if it gives none itself."""
    path = folder / "recipe.toml"
    if not path.is_file() or not build.lacks_words(recipe):
        return recipe
    earlier: Any = recipes.validate(recipes.read_toml(path)).task
    return build.with_words(recipe, getattr(earlier, "words", {}))


def _finished(recipe: Recipe, record: RunFolder, notes: Callable[[str], None], report: bool) -> bool:
    """Whether the folder's run is complete; a recipe that computes something else is an error."""
    folder, known = record.path, record.identity
    if known is None or not (folder / "recipe.toml").is_file():
        return False
    earlier = recipes.validate(recipes.read_toml(folder / "recipe.toml"))
    ours, theirs = _computed(recipe), _computed(earlier)
    changed = [name for name in ours if ours[name] != theirs.get(name)]
    if changed:
        raise RunError(
            f"{folder} was made with other settings ({', '.join(changed)}); resume it with its own recipe, "
            "change only the budget, or start again with --force"
        )
    if recipe.budget != earlier.budget or (report and _unreported(folder)) or known.files is None:
        return False
    damage = changed_files(folder, known.files)
    if damage:
        notes(f"{folder} was finished, but {', '.join(damage)}; what is damaged is made again")
    return not damage


def _unreported(folder: Path) -> bool:
    try:
        return read_run(folder, events=False).result.get("reported") is False
    except RunError:
        return False  # damage is checked separately


def _computed(recipe: Recipe) -> dict[str, Any]:
    """The sections that determine what a run computes, without those of other methods."""
    moot = {*MAY_CHANGE, *recipe.other_methods}
    sections = {name: value for name, value in recipe.model_dump().items() if name not in moot}
    return sections | {"remote": {name: value for name, value in sections["remote"].items() if name not in MANNERS}}


MAX_FINALISTS_SHOWN = 20
"""Number of finalists in result.json."""


def conclude(
    recipe: Recipe,
    search: Search,
    outcome: Outcome,
    finalists: list[Finalist],
    writer: Callable[[], Any],
    report: bool = True,
) -> dict[str, Any]:
    """The content of result.json; without `report`, without test, hand-written prompts and single words."""
    evaluator, task = search.evaluator, search.task
    skipped = ("train",) if report else ("train", "test")
    splits: list[str] = [split for split in search.splits if split not in skipped] or ["train"]
    best = finalists[0] if finalists else None
    compared = {name: Prompt(text) for name, text in rivals(recipe, task).items()} if report else {}
    prompts = ({"found": best.candidate.prompt} if best else {}) | compared
    evaluations = _evaluate(search, prompts, splits, outcome.steps)
    found = evaluations.get("found", {})
    shown = found.get("test") or found.get("dev") or found.get("train")
    hidden = WITH_TEXTS if recipe.private else ()
    tables = {name: table for name, table in (shown.tables if shown else {}).items() if name not in hidden}
    result: dict[str, Any] = {
        "method": recipe.method,
        "prompt": best.candidate.prompt.text if best else "",
        "score": best.candidate.score if best else None,
        **{split: found[split].facts() if split in found else None for split in ("dev", "test", "train")},
        "primary": task.info.primary,
        "score_is": task.info.score_is,
        "task": task.info.name,
        "dataset": getattr(recipe.task, "dataset", None),
        "task_model": getattr(recipe.task, "model", None),
        "policy_model": recipe.policy.model,
        "split": getattr(recipe.task, "split", None),
        "seed": recipe.seed,
        "fingerprint": task.info.fingerprint,
        "recipe": recipe.hash,
        "stopped": outcome.stopped,
        "steps": outcome.steps,
        "top": [facts_of(finalist) for finalist in finalists[:MAX_FINALISTS_SHOWN]],
        **readout_in(shown),
        "baselines": {
            **{name: _compared(prompt, evaluations[name]) for name, prompt in compared.items()},
            **(
                {EMBEDDINGS: other}
                if report and isinstance(task, Labelling) and (other := task.without_prompt())
                else {}
            ),
        },
        "combined": _combined(recipe, search, finalists, splits, report),
        "tables": tables,
        "private": recipe.private,
        "judges": task.judges() if isinstance(task, Judged) else {},
        **(task.exhibits() if isinstance(task, Shown) and not recipe.private else {}),
        **outcome.extras,
    }
    if "test" not in search.splits and (again := cross_validated(search, finalists)) is not None:
        result["cross_validated"] = again
    if "updates" in result:
        result["enough_calls"] = cost_of(recipe, task).enough
    result["reported"] = report
    if best and best.candidate.prompt.text:
        result["sent"] = task.sent(best.candidate.prompt, shown) if isinstance(task, Shown) else {}
    if best and report:
        result["tokens"] = _tokens(recipe, search, best.candidate, outcome, writer)
        prompt, tokenizer = best.candidate.prompt, writer().backbone.tokenizer
        fluency = _fluency(list(dict.fromkeys([prompt.text, *(row["prompt"] for row in result["top"])])), writer)
        result["readability"] = readability(
            prompt.text, ids=prompt.ids, tokenizer=tokenizer, fluency=fluency[prompt.text]
        )
        for row in result["top"]:
            row |= {name: one if math.isfinite(one) else None for name, one in fluency[row["prompt"]].items()}
    spent = {"calls": evaluator.charged_calls, "prompts": evaluator.distinct}
    search.emit(
        Event("end", outcome.steps, {"stopped": outcome.stopped, **spent}, {"paid_calls": evaluator.paid_calls})
    )
    result |= {"calls": evaluator.charged_calls, "paid_calls": evaluator.paid_calls, "prompts": evaluator.distinct}
    result |= {"report_calls": evaluator.report_calls, "spent": evaluator.totals()}
    result["found_by"] = found_by(recipe, outcome, best, evaluator.distinct, hand_written(task))
    result["verdict"] = asdict(judged) if (judged := judge_result(result)) else None
    return result


FOLDS = 5


def cross_validated(search: Search, finalists: Sequence[Finalist]) -> float | None:
    """Without a test split: the primary metric on dev if each fifth is read by the finalist that is best on the rest.

    No call is made. None if there is no choice, or if answers on dev are not known.
    """
    evaluator, info = search.evaluator, search.task.info
    prompts = [one.candidate.prompt for one in finalists if one.dev is not None]
    scores = [evaluator.known(prompt, "dev") for prompt in prompts]
    if len(prompts) < 2 or None in scores or info.stochastic:
        return None
    outcomes = [one.outcomes.get(info.primary, ()) for one in evaluator.evaluate(prompts, "dev")]
    values = np.array([row_means(score) for score in scores if score is not None])
    if any(len(own) != values.shape[1] for own in outcomes) or values.shape[1] < FOLDS:
        return None
    folds = np.arange(values.shape[1]) % FOLDS
    chosen = [int(values[:, folds != fold].mean(axis=1).argmax()) for fold in folds]
    return float(np.mean([outcomes[place][row] for row, place in enumerate(chosen)]))


def found_by(recipe: Recipe, outcome: Outcome, best: Finalist | None, prompts: int, by_hand: Collection[str]) -> str:
    """How the answer was found: given, by a policy that has learned, or by one that has not yet."""
    if best is None:
        return (
            f"trained by gradient ({recipe.method})" if row_of(recipe.method).output != "text" else "nothing was found"
        )
    source = best.candidate.source
    if row_of(recipe.method).kind == "handwritten":
        made = "made of labelled examples" if source == IN_CONTEXT else "a fixed prompt"
        return f"{made} ({source}); nothing was searched"
    if source in by_hand:
        others = f": none of {prompts - 1:,} others scored better" if prompts > 1 else "; no other was tried"
        return f"the {source} prompt{others}"
    if row_of(recipe.method).kind == "rl":
        updates = int(outcome.extras.get("updates", 0))
        way = "the greedy prompt" if source == "greedy" else "a prompt sampled"
        if not updates:
            never = "is never trained" if row_of(recipe.method).control_of else "had learned nothing yet"
            return f"{way} from a policy that {never}: the best of {prompts:,} prompts, no update was made"
        return f"{way} from a policy that made {updates:,} updates: the best of {prompts:,} prompts"
    by = outcome.extras.get("chosen_by") or (f"{best.rows:,} rows" if best.rows else "")
    return f"the best of {prompts:,} prompts{by and f' by {by}'} ({recipe.method})"


def readout_in(evaluation: Evaluation | None) -> dict[str, Any]:
    """How labels are read from a prompt's answers, as in result.json; empty if there is nothing to say."""
    known = None if evaluation is None else evaluation.tables.get("readout")
    return {} if known is None else {"readout": known}


def _combined(
    recipe: Recipe, search: Search, finalists: Sequence[Finalist], splits: Sequence[str], report: bool
) -> dict[str, Any]:
    """What the found prompt does together with others, as `combined` in result.json."""
    evaluator, task = search.evaluator, search.task
    found: dict[str, Any] = {}
    prompts = ensemble(search, finalists, recipe.scoring.ensemble)
    if len(prompts) > 1:
        members = []
        for prompt, evaluation in zip(prompts, evaluator.evaluate(prompts, splits[-1]), strict=True):
            sent: dict[str, Any] = task.sent(prompt, evaluation) if isinstance(task, Shown) else {}
            sides = {name: sent[name] for name in ("before", "after") if name in sent}
            members.append({"prompt": prompt.text} | sides | readout_in(evaluation))
        about = f"mean output of {len(prompts)} prompts, {len(prompts)} calls per text: "
        about += " | ".join(prompt.text for prompt in prompts)
        found[ENSEMBLE] = {"about": about, "members": members, **_together(search, prompts, splits)}
    if report and prompts and (both := _together(search, prompts[:1], splits, embeddings=True)):
        about = "the found prompt and the regression on embeddings, mean of both outputs"
        found[WITH_EMBEDDINGS] = {"about": about, **both}
    return found


def _together(
    search: Search, prompts: Sequence[Prompt], splits: Sequence[str], embeddings: bool = False
) -> dict[str, Any]:
    found = {split: search.evaluator.evaluate_together(prompts, split, embeddings=embeddings) for split in splits}
    return {split: one.facts() for split, one in found.items() if one is not None}


def _evaluate(
    search: Search, prompts: Mapping[str, Prompt], splits: list[str], step: int
) -> dict[str, dict[str, Evaluation]]:
    """Every prompt on every split, by name and split; all prompts of a split together, so that it is read once."""
    found: dict[str, dict[str, Evaluation]] = {name: {} for name in prompts}
    for split in splits if prompts else []:
        search.emit(Event("evaluating", step, {"name": ", ".join(prompts), "split": split}))
        evaluations = search.evaluator.evaluate(list(prompts.values()), split)
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
    facts = {split: one.facts() for split, one in evaluations.items()}
    return {"prompt": prompt.text, **facts, **readout_in(next(iter(evaluations.values())))}


def _tokens(
    recipe: Recipe, search: Search, found: Candidate, outcome: Outcome, writer: Callable[[], Any]
) -> list[dict[str, Any]]:
    """What each part of the prompt is worth: the score on train with and without it, and its Q where it was written."""
    prompt, evaluator = found.prompt, search.evaluator
    if row_of(recipe.method).kind == "rl" and 1 <= len(prompt.ids) <= PARTS:
        parts = writer().explain(prompt, recipe.q_learning.entropy)
        rest = [writer().prompt(prompt.ids[:place] + prompt.ids[place + 1 :]).text for place in range(len(prompt.ids))]
    else:
        words = [] if "\n" in prompt.text.strip() else prompt.text.split()  # lines of a chat's format have to stay
        parts = [{"token": word} for word in words[:PARTS]]
        rest = ["" if part["token"] == "{text}" else without(words, place) for place, part in enumerate(parts)]
    if not parts_of(recipe, search.task, len(parts)):
        return [part for part in parts if "q" in part]
    other_rows = bool(outcome.blocks) or recipe.scoring.choose == "rows"  # not chosen by train alone
    asked = [prompt] * other_rows + [Prompt(text) for text in rest if text]
    new = [one for one in asked if evaluator.known(one, "train") is None]
    train = set(search.rows())
    blocks = [block for block in outcome.blocks if set(block.rows) <= train]
    if new and blocks:
        ask_blocks(evaluator, new, blocks, report=True)  # the search has asked some of these rows
    elif new:
        evaluator.score(new, report=True)
    worth = {one.text: score.value for one in asked if (score := evaluator.known(one, "train"))}
    scores = {"score_with": worth[prompt.text] if other_rows else found.score}
    made, by = [], outcome.extras.get("chosen_by")
    for part, text in zip(parts, rest, strict=True):
        why = _why_it_stays(search, prompt, Prompt(text)) if text else ""
        stays = {"stays": f"kept: the words were chosen by {by}" if by else why} if why else {}
        made.append({**part, **scores, "score_without": worth.get(text), **stays})
    return made


def _why_it_stays(search: Search, prompt: Prompt, shorter: Prompt) -> str:
    """Why a word whose removal raises the score on train is not removed; '' if it does not raise it."""
    gains = []
    for split in [split for split in task_splits(search.task) if split != "test"]:
        ours, theirs = (search.evaluator.known(one, split) for one in (prompt, shorter))
        if ours is not None and theirs is not None:
            gains.append(row_means(theirs) - row_means(ours))
    if not gains or gains[0].mean() <= 0:
        return ""
    gain, chosen = np.concatenate(gains), len(gains) > 1
    count = len(gain)
    if count == 1:
        return "kept: the search did not try the prompt without it"
    error = gain.std(ddof=1) / math.sqrt(count)
    where = f"the {count:,} rows that choose" if chosen else f"{count:,} training rows"
    if gain.mean() <= error:
        return f"kept: on {where} its removal gains {gain.mean():.1f}, less than the standard error ({error:.1f})"
    if chosen:
        return f"kept although its removal gains {gain.mean():.1f} on {where}: with it the prompt reads better"
    return "kept: the search did not try the prompt without it on the rows of dev, which also choose"


def _fluency(texts: Sequence[str], writer: Callable[[], Any]) -> dict[str, dict[str, float]]:
    """The perplexity of each text under the writer's LM, by itself and after a sentence, where prompts stand."""
    alone, inside = (writer().backbone.perplexities(texts, after) for after in ("", NEUTRAL))
    known = zip(texts, alone, inside, strict=True)
    return {text: {"perplexity": own, "in_text": after} for text, own, after in known}
