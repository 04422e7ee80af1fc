"""The parts of a run's report: plain values computed from a run's record, for the template.

Each part is a function of the record that returns what to show, or None if the run has no such part. The structure of
the record is not trusted, and every list is bounded, so that the page stays small.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from pinprompt.folder.reading import RunRecord, inside, mapping, number, sequence
from pinprompt.reports.charts import Point, Row, Series, interval_chart, line_chart, scatter, stacked_bar
from pinprompt.reports.figures import greedy_progress, learning_charts, progress
from pinprompt.run.verdict import SPLITS, brackets, judge_result, reported_split, value_of
from pinprompt.wording import JOINED, digits, duration, metric, plain, shown_prompt, spending, text, title, token, where

Part = dict[str, Any]

_PICTURE = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")
VERDICTS = {"better": "good", "worse": "bad", "unclear": "flat", "untested": "plain", "alone": "plain"}
"""The colour of each kind of verdict."""
PICTURES, PICTURE_BYTES = 40, 8_000_000


def primary_of(record: RunRecord) -> str:
    """The primary metric, from the result or the first event."""
    start = record.of("start")
    named = record.result.get("primary") or (start[0].get("primary") if start else None)
    return named if isinstance(named, str) and named else "score"


def header(record: RunRecord) -> Part:
    """The prompt found, and a line about the run."""
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
        "prompt": shown_prompt(prompt, 2000) if isinstance(prompt, str) and prompt else None,
        "tensor": text(result["tensor"], 120) if result.get("tensor") else None,
        "nearest": [token(one) for one in sequence(result.get("nearest_words"))[:64]],
        "about": about,
        "title": text(f"pinprompt: {task}, {method}", 120),
        "finished": bool(result),
    }


def verdict(record: RunRecord) -> Part | None:
    """The verdict on the prompt found, as in the terminal and result.json."""
    judged = judge_result(record.result, primary_of(record))
    if judged is not None:
        kind = VERDICTS["unclear" if judged.advice and judged.kind == "better" else judged.kind]
        return {"kind": kind, "text": judged.sentence, "numbers": judged.details, "advice": judged.advice}
    score = number(record.result.get("score"))
    said = f"Its training score is {plain(score or 0.0)}."
    return None if score is None else {"kind": "plain", "text": said, "numbers": "", "advice": ""}


def facts(record: RunRecord) -> list[tuple[str, str]]:
    """The cost of the search and why it stopped."""
    result = record.result
    found = spending(result)
    for key, name, said in (("steps", "steps", plain), ("seconds", "time of the search", duration)):
        value = number(result.get(key))
        if value is not None:
            found.append((name, said(value)))
    if (count := number(result.get("prompts"))) is not None:
        found.append(("prompts tried", plain(count)))
    longer = mapping(result.get("pruned")).get("from")
    if longer:
        found.append(("shortened from", text(longer, 200)))
    found += learning(result)
    if result.get("found_by"):
        found.append(("how it was found", text(result["found_by"], 200)))
    if result.get("stopped"):
        found.append(("stopped", text(result["stopped"], 40)))
    for name, given in mapping(result.get("readability")).items():
        amount = number(given)
        shown = (
            ("yes" if given else "no") if isinstance(given, bool) else None if amount is None else metric(name, amount)
        )
        if shown is not None and len(found) < 12:
            found.append((title(text(name, 40)), shown))
    return found


def learning(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How much a Q-learning run has learnt, and whether its calls were enough for that."""
    updates, share = number(result.get("updates")), number(result.get("share_after_update"))
    if updates is None or share is None:
        return []
    said = f"{plain(updates)}, {100 * share:.0f} % of the prompts written after the first"
    calls, enough = number(result.get("calls")), number(result.get("enough_calls"))
    if calls is not None and enough is not None and calls < enough:
        said += f"; too few to judge learning by: {plain(enough)} calls are enough"
    return [("updates", said)]


def scores(record: RunRecord) -> Part | None:
    """Every metric of the prompt found and of the hand-written ones, on every split, with intervals."""
    prompts = [("found", record.result.get("prompt"), record.result)]
    for label, baseline in list(
        (mapping(record.result.get("baselines")) | mapping(record.result.get("combined"))).items()
    )[:12]:
        about = inside(baseline, "prompt") or inside(baseline, "about")
        prompts.append((text(label, 40), about, mapping(baseline)))
    splits = [split for split in SPLITS if any(mapping(one.get(split)) for _, _, one in prompts)]
    tables = []
    for split in splits:
        measured = [(label, prompt, mapping(one.get(split))) for label, prompt, one in prompts]
        names = list(
            dict.fromkeys(
                name
                for _, _, metrics in measured
                for name, value in metrics.items()
                if name not in ("rows", "calls", "majority")
                and number(value) is not None
                # Of simpler readings of the labels, one figure is enough here; result.json has the others.
                and not (name.startswith(READINGS) and not name.endswith(f"_{primary_of(record)}"))
            )
        )[:12]
        rows = []
        for label, prompt, metrics in measured:
            if metrics:
                cells = []
                for name in names:
                    value, interval = value_of(metrics, name)
                    cells.append((metric(name, value), brackets(name, interval).strip()))
                rows.append({"name": label, "prompt": shown_prompt(prompt or "", 300), "cells": cells})
        count = next((number(metrics.get("rows")) for _, _, metrics in measured if metrics.get("rows")), None)
        if names and rows:
            task = record.result.get("task")  # neither pictures nor what a function looks at are rows
            about = [] if count is None or task in ("inversion", "custom") else [f"{plain(count)} rows"]
            if any(interval for row in rows for _, interval in row["cells"]):
                about.append("95 % interval in brackets")
            if (guess := number(measured[0][2].get("majority"))) is not None:
                about.append(f"always the most frequent label: {metric('accuracy', guess)}")
            titles = [title(text(name, 40)) for name in names]
            said = where(split, task, count if task == "inversion" else None)
            tables.append({"where": said.capitalize(), "names": titles, "rows": rows, "about": "; ".join(about)})
    if not tables:
        return None
    return {"tables": tables, "chart": _score_chart(record, prompts), "reading": _reading(record)}


WORDS_SHOWN = 10  # learnt words per label
READINGS = ("raw_", "calibrated_")  # metrics by simpler readings of the labels


def _reading(record: RunRecord) -> dict[str, Any]:
    """How labels are read from the answers to the prompt found: a sentence, and the learnt words of each label."""
    known = mapping(record.result.get("readout"))
    learnt = [one for one in map(mapping, sequence(known.get("words"))) if isinstance(one.get("word"), str)]
    own_words = mapping(inside(record.result, "sent", "words"))
    words: dict[str, list[str]] = {}
    for one in learnt:
        label = str(one.get("for", ""))
        named = str(own_words.get(label, label)) if label.isdigit() else label
        spelled = words.setdefault(text(named, 40), [])
        if one["word"].casefold() not in map(str.casefold, spelled):
            spelled.append(text(one["word"], 40))
    return {
        "said": reading_said(known, len(learnt)),
        "words": [(label, ", ".join(own[:WORDS_SHOWN])) for label, own in words.items()],
    }


def reading_said(known: Mapping[str, Any], learnt: int) -> str:
    """How labels are read from the answers, and why, in a sentence or two; '' if they are read as they are said."""
    offsets = [(label, number(value)) for label, value in mapping(known.get("offsets")).items()]
    if not offsets:
        return ""
    rows = f"the {plain(number(known.get('rows')) or 0)} labelled rows"
    names = "Figures by the label words alone are called raw, and calibrated if the prompt's bias is removed."
    chosen = f": of learnt, calibrated and raw label words, the most likely on {rows}"
    chosen = chosen if known.get("kind") == "learnt" else ""
    if learnt:
        return f"Labels are read from the label words and {learnt} other words of the same answers{chosen}. {names}"
    if not any(value for _, value in offsets):
        return f"Labels are read by the label words as they are{chosen}. {names}"
    shown = ", ".join(f"{text(label, 40)} {value:+.3f}" for label, value in offsets[:20] if value is not None)
    taken = f"their mean log-probabilities are taken away ({shown})"
    return f"Labels are read by calibrated label words, {taken}{chosen}. Figures without this are called raw."


def _score_chart(record: RunRecord, prompts: list[tuple[str, Any, dict[str, Any]]]) -> str:
    name = primary_of(record)
    split = reported_split(record.result, name) or ""
    rows = []
    for label, _, one in prompts if split else []:
        readings = (label, name), ("... calibrated", f"calibrated_{name}"), ("... raw", f"raw_{name}")
        for shown, measured in readings:
            value, interval = value_of(mapping(one.get(split)), measured)
            if value is not None:
                rows.append(Row(shown, value, *(interval or (None, None))))
    guess = number(inside(record.result, split, "majority"))
    if guess is not None and name == "accuracy" and rows:
        rows.append(Row("most frequent label", guess, None, None))
    heading = f"{title(name)} {where(split, record.result.get('task'))}"
    heading += ", with 95 % intervals" if any(row.low is not None for row in rows) else ""
    return interval_chart(rows, title=heading, label=lambda value: metric(name, value)) if len(rows) > 1 else ""


def top(record: RunRecord) -> Part | None:
    """The best prompts, with all that is known of each."""
    rows = [row for row in sequence(record.result.get("top")) if isinstance(row, dict)][:20]
    if not rows:
        return None
    # Not the perplexity by itself: that of short prompts is mostly that of their first token.
    known = ("score", "dev", "in_text")
    names = [name for name in known if any(number(row.get(name)) is not None for row in rows)]
    shown = [
        {
            "prompt": shown_prompt(row.get("prompt", "")),
            "source": text(row.get("source") or "", 40),
            "cells": [metric(name, number(row.get(name))) for name in names],
        }
        for row in rows
    ]
    titles = {"score": "score", "dev": "dev score"}
    return {
        "names": [titles.get(name, title(name)) for name in names],
        "rows": shown,
        "score_is": text(record.result.get("score_is") or "", 400),
        "sources": any(row["source"] for row in shown),
    }


def command(record: RunRecord) -> str:
    """The command that repeats the run; never one taken from the folder, which may be malicious."""
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


MAX_EXAMPLES = 12  # examples of a kind
MINUS = "\N{MINUS SIGN}"
LABELS = 30  # classes of a confusion matrix that is still drawn
MARKS = ("relevance", "interpretability")


def tokens(record: RunRecord) -> list[Part] | None:
    """The contribution of each token: its Q next to its runners-up, and the prompt's score without it."""
    found = []
    for place, raw in enumerate(sequence(record.result.get("tokens"))[:128]):
        if not isinstance(raw, dict):
            continue
        q, without = number(raw.get("q")), number(raw.get("score_without"))
        rivals = []
        for pair in sequence(raw.get("runners_up"))[:5]:
            if isinstance(pair, list) and len(pair) == 2:
                rivals.append((token(pair[0]), number(pair[1])))
        score = number(raw.get("score_with"))
        worth = None if score is None or without is None else score - without
        sign, kind = ("±", "flat") if not worth else ("+", "good") if worth > 0 else (MINUS, "bad")
        known = [value for value in [q, *(value for _, value in rivals)] if value is not None]
        bars = [(token(raw.get("token", "")), q, True), *((name, value, False) for name, value in rivals)]
        found.append(
            {
                "place": place + 1,
                "token": token(raw.get("token", "")),
                "odds": _odds(raw),
                "without": None if without is None else digits(without),
                "worth": None if worth is None else f"{sign}{digits(abs(worth))}",
                "kind": "" if worth is None else kind,
                "stays": text(raw.get("stays") or "", 200),
                "bars": [
                    {"name": name, "q": digits(value), "width": _width(value, known), "own": own}
                    for name, value, own in bars
                    if value is not None
                ],
            }
        )
    return found if any(one["worth"] or one["bars"] for one in found) else None


def _odds(raw: dict[str, Any]) -> str:
    """The rank and probability of the token under the final policy."""
    rank, chance = number(raw.get("rank")), number(raw.get("probability"))
    said = [] if rank is None else [f"rank {plain(rank)} by Q"]
    return ", ".join(said + ([] if chance is None else [f"chance {100 * chance:.2g}{JOINED}%"]))


def _width(value: float, known: list[float]) -> float:
    """A bar width between 6 and 100: Q has no natural zero, so the lowest value gets the shortest bar."""
    span = max(known) - min(known)
    return 100.0 if span == 0 else round(6 + 94 * (value - min(known)) / span, 1)


def examples(record: RunRecord) -> Part | None:
    """Wrong and correct examples, the most confident first."""
    rows = [row for row in sequence(inside(record.result, "tables", "examples")) if isinstance(row, dict)]
    groups: dict[str, list[tuple[float, Part]]] = {"wrong": [], "right": []}
    for row in rows[:5000]:
        chance = number(row.get("probability"))
        shown = {
            "text": text(row.get("text", ""), 500),
            "label": text(row.get("label", ""), 60),
            "predicted": text(row.get("predicted", ""), 60),
            "probability": None if chance is None else f"{100 * chance:.0f} %",
        }
        kind = "right" if row.get("label") == row.get("predicted") else "wrong"
        groups[kind].append((-(chance or 0.0), shown))
    found = {
        kind: [shown for _, shown in sorted(given, key=lambda one: one[0])[:MAX_EXAMPLES]]
        for kind, given in groups.items()
    }
    return found if found["wrong"] or found["right"] else None


def confusion(record: RunRecord) -> Part | None:
    """The confusion matrix, with a shade from 0 to 9 per cell by its share of the row."""
    table = mapping(inside(record.result, "tables", "confusion"))
    labels = [text(label, 40) for label in sequence(table.get("labels"))[:LABELS]]
    rows = []
    for label, counts in zip(labels, sequence(table.get("counts")), strict=False):
        values = [number(count) or 0.0 for count in sequence(counts)[: len(labels)]]
        total = sum(values)
        cells = [(plain(value), min(9, int(10 * value / total)) if total > 0 and value > 0 else 0) for value in values]
        rows.append({"label": label, "cells": cells, "total": plain(total)})
    return {"labels": labels, "rows": rows} if labels and rows else None


def remarks(record: RunRecord) -> list[str]:
    """The task's remarks on the evaluation, and what was expected of the search after its first calls."""
    expected = inside(record.result, "headroom", "sentence")
    notes = [f"After the first calls: {expected}."] if isinstance(expected, str) else []
    return [text(note, 400) for note in (*notes, *sequence(inside(record.result, "tables", "notes")))[:MAX_EXAMPLES]]


def judges(record: RunRecord) -> list[tuple[str, str]]:
    return [
        (text(name, 60), text(value, 300)) for name, value in list(mapping(record.result.get("judges")).items())[:20]
    ]


def judgements(record: RunRecord) -> list[Part]:
    found = []
    for given in record.judgements[:MAX_EXAMPLES]:
        rows = [
            {
                "prompt": text(row.get("prompt", ""), 300).strip(" "),
                "picture": text(row.get("picture", ""), 80),
                "marks": ["\N{EN DASH}" if (mark := number(row.get(name))) is None else plain(mark) for name in MARKS],
                "failure": text(row.get("failure") or "", 300),
            }
            for row in sequence(given.get("opinions"))[: 10 * MAX_EXAMPLES]
            if isinstance(row, dict)
        ]
        if rows:
            several = len({row["picture"] for row in rows}) > 1
            found.append({"model": text(given.get("model", ""), 120), "rows": rows, "several": several})
    return found


def rewrites(record: RunRecord) -> Part | None:
    given = sequence(inside(record.result, "tables", "rewrites"))[: 2 * MAX_EXAMPLES]
    rows = [row for row in given if isinstance(row, dict)]
    if not rows:
        return None
    known = (name for row in rows for name, value in row.items() if number(value) is not None)
    names = [name for name in dict.fromkeys(known) if name not in ("source", "rewrite")][:6]
    return {
        "names": [title(text(name, 30)) for name in names],
        "rows": [
            {
                "before": text(row.get("source", ""), 500),
                "after": text(row.get("rewrite", ""), 500),
                "cells": [metric(name, number(row.get(name))) for name in names],
            }
            for row in rows
        ],
    }


def answers(record: RunRecord) -> list[Part] | None:
    rows = [row for row in sequence(inside(record.result, "tables", "answers")) if isinstance(row, dict)]
    return [
        {
            **{name: text(row.get(name, ""), 500) for name in ("input", "reference", "answer", "why")},
            "value": digits(number(row.get("value")) or 0.0),
            "right": (number(row.get("value")) or 0.0) >= 1,
        }
        for row in rows[: 4 * MAX_EXAMPLES]
    ] or None


def pictures(record: RunRecord) -> Part | None:
    """The target pictures, and drawings made from the prompt with their similarity."""
    found: Part = {name: _pictures(record.result.get(name)) for name in ("images", "drawings")}
    if not found["images"] and not found["drawings"]:
        return None
    return found | {"known": _known_words(record), "improved": improvements(record)}


def _known_words(record: RunRecord) -> list[tuple[str, str]]:
    """The model's single words that are most similar to the pictures, with their similarity."""
    rows = [row for row in sequence(record.result.get("known_words"))[:MAX_EXAMPLES] if isinstance(row, dict)]
    pairs = [(text(row.get("word", ""), 40), number(row.get("similarity"))) for row in rows]
    return [(word, f"{near:.3f}") for word, near in pairs if near is not None]


def improvements(record: RunRecord) -> list[tuple[str, str]]:
    """The best prompt of the search each time that its score rose; only the last ones."""
    found: list[tuple[str, float]] = []
    for event in record.of("step"):
        words, score = text(event.get("best_prompt") or "", 300).strip(" "), number(event.get("score_best"))
        if words and score is not None and (not found or found[-1][1] < score):
            found.append((words, score))
    return [(words, f"{score:.3f}") for words, score in found[-MAX_EXAMPLES:]]


def _pictures(rows: Any) -> list[Part]:
    found = []
    for row in sequence(rows)[:PICTURES]:
        uri = picture(row.get("data_uri")) if isinstance(row, dict) else None
        if uri is not None:
            near = number(row.get("similarity"))
            found.append(
                {
                    "uri": uri,
                    "name": text(row.get("name") or "", 80),
                    "prompt": text(row.get("prompt") or "", 300),
                    "similarity": None if near is None else f"{near:.3f}",
                }
            )
    return found


def front(record: RunRecord) -> str:
    """The Pareto front of score and readability of the finalists."""
    points = set()
    for row in map(mapping, sequence(record.result.get("top"))):
        score, perplexity = number(row.get("score")), number(row.get("in_text"))
        if score is not None and perplexity is not None and perplexity > 0:
            points.add((perplexity, score))
    name = "perplexity in a text"
    best, x = pareto(sorted(points)), f"{name} (lower reads better)"
    return scatter(sorted(points), best, title=f"Score against {name}", x=x, y="score", log_x=True)


def pareto(points: list[Point]) -> list[Point]:
    """The Pareto front: points that no other beats in both lower x and higher y."""
    found: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or y > found[-1][1]:
            found.append((x, y))
    return found


def curves(record: RunRecord) -> list[Part]:
    """The search over its calls and over time, the greedy prompt on dev, what was learnt, the phases."""
    steps = record.of("step")
    best, clock = progress(record, "calls"), progress(record, "time")
    mean = [
        (calls, score)
        for event in steps
        if (calls := number(event.get("calls"))) is not None and (score := number(event.get("score_mean"))) is not None
    ]
    found = [
        ("Score against calls", "Score of the prompts of each step, as the search saw it.",
         line_chart([Series("best so far", best), Series("mean of the step", mean)], title="Score against calls", x="calls", y="score")),  # noqa: E501
        ("Score against time", "The best score so far over time.",
         line_chart([Series("best so far", clock)], title="Score against time", x="minutes", y="score")),
        ("The greedy prompt", "The policy's answer at that step, scored on dev.",
         line_chart([Series("greedy prompt", greedy_progress(record), dots=True)], title="Greedy prompt on dev", x="calls", y="dev score")),  # noqa: E501
        *learning_charts(record).values(),
        ("Where the time went", "", _phases(record)),
    ]  # fmt: skip
    return [{"title": name, "note": note, "svg": svg} for name, note, svg in found if svg]


def _phases(record: RunRecord) -> str:
    names = {"write": "writing prompts", "score": "scoring them", "learn": "learning"}
    spent = {name: sum(max(number(row.get(name)) or 0.0, 0.0) for row in record.costs) for name in names}
    if not any(spent.values()):
        return ""
    whole = number(record.result.get("seconds")) or 0.0
    parts = [(label, spent[name]) for name, label in names.items()]
    if whole > sum(spent.values()):
        parts.append(("everything else", whole - sum(spent.values())))
    return stacked_bar(parts, title="Time per phase", label=duration)
