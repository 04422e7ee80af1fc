"""What a run's report says, part by part: plain values made from a run's record, ready for the template.

Each part is a function from the record to what is shown, or to None where the run has nothing of the kind. Nothing
here trusts the shape of what it reads, and every list is bounded, so that the page stays small.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from pinprompt.records.charts import Row, interval_chart
from pinprompt.records.reading import RunRecord, inside, mapping, number, sequence
from pinprompt.records.verdict import SPLITS, brackets, judge_result, reported_split, value_of
from pinprompt.records.wording import duration, metric, plain, spending, text, title, token, where

Part = dict[str, Any]

_PICTURE = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")
VERDICTS = {"better": "good", "worse": "bad", "unclear": "flat", "untested": "plain", "alone": "plain"}
"""How the page colours each kind of verdict."""
PICTURES, PICTURE_BYTES = 40, 8_000_000


def primary_of(record: RunRecord) -> str:
    """The metric that decides, as the result or the first event names it."""
    start = record.of("start")
    named = record.result.get("primary") or (start[0].get("primary") if start else None)
    return named if isinstance(named, str) and named else "score"


def split_of(record: RunRecord) -> str | None:
    """The split that the answer is reported on: test where there is one, else dev, else what was searched on."""
    return reported_split(record.result, primary_of(record))


def header(record: RunRecord) -> Part:
    """The found prompt, and what was run in one line."""
    result = record.result
    start = next(iter(record.of("start")), {})
    prompt = result.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        chosen = record.of("selected")
        prompt = chosen[-1].get("prompt") if chosen and not result.get("tensor") else None
    method = text(result.get("method") or record.setting("method") or start.get("method") or "a method", 60)
    task = text(result.get("task") or record.setting("task", "kind") or start.get("task") or "a task", 60)
    about = [task.replace("_", " "), method]
    data = record.setting("task", "dataset")
    if not data:
        given = record.setting("task", "train") or record.setting("task", "source")
        data = re.split(r"[/\\]", given)[-1] if isinstance(given, str) else None
    if data:
        about.insert(1, text(data, 60))
    seed = result.get("seed", record.setting("seed"))
    if seed is not None:
        about.append(f"seed {text(seed, 24)}")
    return {
        "prompt": text(prompt.strip(" "), 2000) if isinstance(prompt, str) and prompt else None,
        "tensor": text(result["tensor"], 120) if result.get("tensor") else None,
        "nearest": [token(one) for one in sequence(result.get("nearest_words"))[:64]],
        "about": about,
        "title": text(f"pinprompt: {task}, {method}", 120),
        "finished": bool(result),
    }


def verdict(record: RunRecord) -> Part | None:
    """Whether the found prompt beats the hand-written one, as the terminal and result.json say it."""
    judged = judge_result(record.result, primary_of(record))
    if judged is not None:
        return {"kind": VERDICTS[judged.kind], "text": judged.sentence, "numbers": judged.details}
    score = number(record.result.get("score"))
    return None if score is None else {"kind": "plain", "text": f"Its training score is {plain(score)}.", "numbers": ""}


def facts(record: RunRecord) -> list[tuple[str, str]]:
    """What the search cost and why it stopped."""
    result, found = record.result, []
    found += spending(result)
    # Runs of earlier versions have only these.
    names = (
        [("steps", "steps")] if found else [("calls", "calls"), ("paid_calls", "calls paid for"), ("steps", "steps")]
    )
    for name, label in names:
        value = number(result.get(name))
        if value is not None and not (name == "paid_calls" and value == number(result.get("calls"))):
            found.append((label, plain(value)))
    seconds = number(result.get("seconds"))
    if seconds is not None:
        found.append(("time", duration(seconds)))
    if record.prompts:
        found.append(("distinct prompts", plain(len(record.prompts))))
    longer = mapping(result.get("pruned")).get("from")
    if longer:
        found.append(("shortened from", text(longer, 200)))
    if result.get("found_by"):
        found.append(("how it was found", text(result["found_by"], 200)))
    if result.get("stopped"):
        found.append(("stopped", text(result["stopped"], 40)))
    for name, value in mapping(result.get("readability")).items():
        amount = float(value) if isinstance(value, bool) else number(value)
        if amount is not None and len(found) < 12:
            shown = ("yes" if value else "no") if isinstance(value, bool) else metric(name, amount)
            found.append((title(text(name, 40)), shown))
    return found


def scores(record: RunRecord) -> Part | None:
    """Every metric of the found prompt and of the hand-written ones, on every split, with intervals."""
    prompts = [("found", record.result.get("prompt"), record.result)]
    for label, baseline in list(mapping(record.result.get("baselines")).items())[:12]:
        prompts.append((text(label, 40), inside(baseline, "prompt"), mapping(baseline)))
    splits = [split for split in SPLITS if any(mapping(one.get(split)) for _, _, one in prompts)]
    tables = []
    for split in splits:
        measured = [(label, prompt, mapping(one.get(split))) for label, prompt, one in prompts]
        names = list(
            dict.fromkeys(
                name
                for _, _, metrics in measured
                for name, value in metrics.items()
                if name not in ("rows", "calls") and number(value) is not None
            )
        )[:12]
        rows = []
        for label, prompt, metrics in measured:
            if metrics:
                cells = []
                for name in names:
                    value, interval = value_of(metrics, name)
                    cells.append((metric(name, value), brackets(name, interval).strip()))
                rows.append({"name": label, "prompt": text(prompt or "", 300).strip(" "), "cells": cells})
        count = next((number(metrics.get("rows")) for _, _, metrics in measured if metrics.get("rows")), None)
        if names and rows:
            inverted = record.result.get("task") == "inversion"
            about = [] if count is None or inverted else [f"{plain(count)} row{'s' if count != 1 else ''}"]
            if any(interval for row in rows for _, interval in row["cells"]):
                about.append("in brackets the 95 % interval")
            titles = [title(text(name, 40)) for name in names]
            said = where(split, record.result.get("task"), count if inverted else None)
            tables.append({"where": said.capitalize(), "names": titles, "rows": rows, "about": "; ".join(about)})
    if not tables:
        return None
    return {"tables": tables, "chart": _score_chart(record, prompts), "calibration": _calibration(record)}


def _calibration(record: RunRecord) -> str:
    """How label probabilities were calibrated, with the offsets of the found prompt."""
    known = mapping(record.result.get("calibration"))
    offsets = [(label, number(value)) for label, value in mapping(known.get("offsets")).items()]
    shown = ", ".join(f"{text(label, 40)} {value:+.3f}" for label, value in offsets[:20] if value is not None)
    if not shown:
        return ""
    rows = number(known.get("rows"))
    on = "texts without content" if known.get("kind") == "content-free" else "unlabelled training rows"
    return (
        f"Labels are calibrated: from a prompt's label log-probabilities their mean over {plain(rows or 0)} {on} is "
        f"taken away ({shown} for the found prompt). Figures without it are called raw."
    )


def _score_chart(record: RunRecord, prompts: list[tuple[str, Any, dict[str, Any]]]) -> str:
    name, split = primary_of(record), split_of(record)
    rows = []
    for label, _, one in prompts if split is not None else []:
        value, interval = value_of(mapping(one.get(split or "")), name)
        if value is not None:
            rows.append(Row(label, value, *(interval or (None, None))))
        value, interval = value_of(mapping(one.get(split or "")), f"raw_{name}")
        if value is not None:
            rows.append(Row(f"{label}, raw", value, *(interval or (None, None))))
    heading = f"{title(name)} {where(split or '', record.result.get('task'))}"
    heading += ", with 95 % intervals" if any(row.low is not None for row in rows) else ""
    return interval_chart(rows, title=heading, label=lambda value: metric(name, value)) if len(rows) > 1 else ""


def top(record: RunRecord) -> Part | None:
    """The best prompts, with whatever is known of each."""
    rows = [row for row in sequence(record.result.get("top")) if isinstance(row, dict)][:20]
    if not rows:
        return None
    for_each = [dict(row, perplexity=perplexity_of(row)) for row in rows]
    known = ("score", "dev", "perplexity", "slor")
    names = [name for name in known if any(number(row.get(name)) is not None for row in for_each)]
    shown = [
        {
            "prompt": text(row.get("prompt", ""), 600).strip(" "),
            "source": text(row.get("source") or "", 40),
            "cells": [metric(name, number(row.get(name))) for name in names],
        }
        for row in for_each
    ]
    titles = {"score": "score", "dev": "dev score"}
    return {
        "names": [titles.get(name, title(name)) for name in names],
        "rows": shown,
        "sources": any(row["source"] for row in shown),
    }


def perplexity_of(row: dict[str, Any]) -> float | None:
    """A row's perplexity, beside its score or under `readability`."""
    found = number(row.get("perplexity"))
    return number(inside(row, "readability", "perplexity")) if found is None else found


def command(record: RunRecord) -> str:
    """The command that makes the run again; never one that the folder brings along, which somebody might paste."""
    recipe, again = str(record.folder / "recipe.toml"), f"{record.folder}-again"
    return text(f"pinprompt tune {shlex.quote(recipe)} --out {shlex.quote(again)}", 2000)


def environment(record: RunRecord) -> list[tuple[str, str]]:
    """environment.json as rows, nested names joined by dots."""
    found: list[tuple[str, str]] = []

    def walk(name: str, value: Any, depth: int) -> None:
        if isinstance(value, dict) and depth < 4:
            for key, below in list(value.items())[:200]:
                walk(f"{name}.{key}" if name else str(key), below, depth + 1)
        elif len(found) < 200:
            found.append((text(name, 120), text(value, 400)))

    walk("", record.environment, 0)
    return found


def picture(value: object) -> str | None:
    """A data URI of a raster picture, or None: an SVG could carry links and scripts."""
    if isinstance(value, str) and len(value) <= PICTURE_BYTES and _PICTURE.fullmatch(value):
        return value
    return None
