"""Compares the prompt found with the hand-written one; the same verdict for terminal, report and result.json.

Both prompts were evaluated on the same rows, so they are compared row by row: by McNemar's exact test if a row is
either correct or wrong, by a paired bootstrap over rows for other metrics. This is more powerful than comparing
intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinprompt.folder.reading import inside, mapping, number, sequence
from pinprompt.maths.bootstrap import FEWEST, compare_rows, mcnemar
from pinprompt.tasks.protocol import EMBEDDINGS
from pinprompt.wording import metric, shown_prompt, text, title, where

LEVEL = 0.05
"""Significance level."""
MAX_ROWS = 200_000
"""Maximum number of rows tested; no task has as many, but an untrusted file may."""
SPLITS = ("test", "dev", "train")
OWN = ("manual", "default")
"""The prompts that the user would have without a search, the first one that there is."""
CAUTION = {
    "test": "",
    "dev": " The prompt was chosen on dev, so this value is optimistic.",
    "train": " The search optimised this value; nothing was held out.",
}


@dataclass(frozen=True)
class Verdict:
    """The comparison of the prompt found with a hand-written one on the reported split."""

    kind: str
    """'better', 'worse' or 'unclear' by the test; 'untested' without values per row; 'alone' without a rival."""
    split: str
    metric: str
    found: float
    against: str | None
    """The hand-written prompt's name: manual or the default if there is one, else the best."""
    rival: float | None
    p: float | None
    test: str | None
    sentence: str
    details: str
    advice: str = ""
    """What to use instead, if the test does not speak for the prompt found; the headline of a report then."""


def judge_result(result: Mapping[str, Any], primary: str | None = None) -> Verdict | None:
    """The verdict on a run from its result.json; None if nothing was evaluated."""
    named = primary or result.get("primary")
    name = named if isinstance(named, str) and named else "score"
    split = reported_split(result, name)
    if split is None:
        return None
    ours = mapping(result.get(split))
    found, interval = value_of(ours, name)
    if found is None:
        return None
    task = result.get("task")
    place = where(split, task, number(ours.get("rows")) if task == "inversion" else None)
    head = f"{title(text(name, 40))} {place}"
    head = f"{head[0].upper()}{head[1:]}: {metric(name, found)}{brackets(name, interval)}"
    beyond = _without_prompt(result, ours, split, name)
    guess = number(ours.get("majority")) if name == "accuracy" else None
    chance = guess is not None and guess >= (interval[0] if interval else found)
    if guess is not None:
        hardly = "The found prompt is hardly better than always" if chance else "Always"
        beyond = f" {hardly} giving the most frequent label: {metric(name, guess)}.{beyond}"
    advice = "No prompt is clearly better than always giving the most frequent label" if chance else ""
    if split == "dev" and (again := number(result.get("cross_validated"))) is not None:
        beyond = f" Cross-validated, with the choice made on the other rows: {metric(name, again)}.{beyond}"
    if result.get("recognised") is False:
        near = [text(inside(row, "word"), 40) for row in sequence(result.get("known_words"))[:5]]
        advice = f"I do not recognise this picture. Nearest words: {', '.join(near)}"
    against = _rival(result, split, name)
    if against is None:
        said = "There is no hand-written prompt to compare with."
        if result.get("reported") is False:
            said = "It was not compared with a hand-written prompt, as no report was asked for."
        details = f"{head}.{CAUTION[split]}{beyond}"
        return Verdict("alone", split, name, found, None, None, None, None, said, details, advice)
    label, theirs = against
    rival, rival_interval = value_of(theirs, name)
    p, test = _tested(outcomes_of(ours, name), outcomes_of(theirs, name))
    kind, said = _judged(found, rival or 0.0, p, label, place)
    ahead, better = _ahead(result, ours, split, name, label)
    advice, beyond = advice or better, ahead + beyond
    if result.get("prompt") and result.get("prompt") == inside(result, "baselines", label, "prompt"):
        said = f"The found prompt is the {label} prompt: the search found no better one."
    if kind in ("unclear", "worse") or (kind == "untested" and found <= (rival or 0.0)):
        owner = "your own" if label == "manual" and not result.get("dataset") else f"the {label}"
        advice = advice or f"Keep {owner} prompt{_quoted(inside(result, 'baselines', label, 'prompt'))}"
    if task == "inversion":
        said = f"The found words {'fit' if found > (rival or 0.0) else 'do not fit'} better than the {label} ones."
    details = f"{head} against {metric(name, rival)}{brackets(name, rival_interval)}"
    details += f" ({test})." if test else "."
    return Verdict(kind, split, name, found, label, rival, p, test, said, details + CAUTION[split] + beyond, advice)


def _without_prompt(result: Mapping[str, Any], ours: dict[str, Any], split: str, name: str) -> str:
    """A sentence if a regression on embeddings scores higher than the found prompt or was not computed; else ''."""
    other = mapping(inside(result, "baselines", EMBEDDINGS))
    if isinstance(why := other.get("missing"), str):
        return f" There is no row for a regression on embeddings: {text(why, 300)}."
    theirs = mapping(other.get(split))
    value, interval = value_of(theirs, name)
    if value is None or value <= (number(ours.get(name)) or 0.0):
        return ""
    p, _ = _tested(outcomes_of(ours, name), outcomes_of(theirs, name))
    does = "does better" if p is None or p < LEVEL else "does as well"
    return (
        f" A regression on embeddings of the texts {does} without any prompt: {metric(name, value)}"
        f"{brackets(name, interval)}{'' if p is None else f' ({shown_p(p)})'}. If labels are all you need, use that. A "
        "prompt is still good where rows are few, where labels change, and where a person has to see which words "
        "decide."
    )


def reported_split(result: Mapping[str, Any], name: str) -> str | None:
    """The reported split: test if there is one, else dev, else train."""
    return next((split for split in SPLITS if number(inside(result, split, name)) is not None), None)


def value_of(metrics: dict[str, Any], name: str) -> tuple[float | None, tuple[float, float] | None]:
    """A metric's value and its interval, if there are any."""
    pair = sequence(inside(metrics, "intervals", name))
    low, high = (number(pair[0]), number(pair[1])) if len(pair) == 2 else (None, None)
    return number(metrics.get(name)), None if low is None or high is None else (low, high)


def brackets(name: str, interval: tuple[float, float] | None) -> str:
    """An interval as it follows its value."""
    return "" if interval is None else f" [{metric(name, interval[0])}, {metric(name, interval[1])}]"


def _judged(found: float, rival: float, p: float | None, label: str, place: str) -> tuple[str, str]:
    if p is None:
        way = "scores higher than" if found > rival else "does not score higher than"
        return "untested", (
            f"The found prompt {way} the {label} prompt {place}; the difference was not tested, "
            "because the run has no values per row."
        )
    if p >= LEVEL:
        return (
            "unclear",
            f"The found prompt is not significantly better than the {label} prompt {place} ({shown_p(p)}).",
        )
    kind, way = ("better", "beats") if found > rival else ("worse", "is worse than")
    return kind, f"The found prompt {way} the {label} prompt {place} ({shown_p(p)})."


def shown_p(p: float) -> str:
    """A p-value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def _tested(ours: list[float], theirs: list[float]) -> tuple[float | None, str | None]:
    """The p-value of the difference and the test's name; None if rows are missing or too few."""
    if len(ours) != len(theirs) or len(ours) < FEWEST:
        return None, None
    rows = f"on the same {len(ours):,} rows"
    if set(ours) | set(theirs) <= {0.0, 1.0}:
        return mcnemar(ours, theirs), f"McNemar's exact test {rows}"
    return compare_rows(ours, theirs).p, f"paired bootstrap {rows}"


def outcomes_of(metrics: dict[str, Any], name: str) -> list[float]:
    """A metric's values per row, from digits or a list; empty if they cannot be read."""
    values = inside(metrics, "outcomes", name)
    if isinstance(values, str):
        return [float(digit) for digit in values] if len(values) <= MAX_ROWS and set(values) <= {"0", "1"} else []
    found = [number(value) for value in sequence(values)[:MAX_ROWS]]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else []


def _rival(result: Mapping[str, Any], split: str, name: str) -> tuple[str, dict[str, Any]] | None:
    """The manual prompt if there is one, else the default one, else the best one, with its metrics on a split."""
    known = [
        ((OWN.index(label) if label in OWN else len(OWN), -value), text(label, 40), mapping(inside(baseline, split)))
        for label, baseline in mapping(result.get("baselines")).items()
        if label != EMBEDDINGS and (value := number(inside(baseline, split, name))) is not None
    ]
    if not known:
        return None
    _, label, metrics = min(known, key=lambda one: one[0])
    return label, metrics


def _ahead(result: Mapping[str, Any], ours: dict[str, Any], split: str, name: str, rival: str) -> tuple[str, str]:
    """A sentence on each other hand-written prompt that scores higher than the found one, and advice to use it.

    There is advice only if the difference is significant.
    """
    said, advice = "", ""
    for label, baseline in mapping(result.get("baselines")).items():
        theirs = mapping(inside(baseline, split))
        value, interval = value_of(theirs, name)
        if label in (EMBEDDINGS, rival) or value is None or value <= (number(ours.get(name)) or 0.0):
            continue
        p, _ = _tested(outcomes_of(ours, name), outcomes_of(theirs, name))
        said += f" The {text(label, 40)} prompt has {metric(name, value)}{brackets(name, interval)}"
        said += "." if p is None else f" ({shown_p(p)})."
        if p is not None and p < LEVEL:
            advice = f"Use the {text(label, 40)} prompt{_quoted(inside(baseline, 'prompt'))}"
    return said, advice


def _quoted(prompt: object) -> str:
    return f" “{shown_prompt(prompt, 300)}”" if isinstance(prompt, str) else ""
