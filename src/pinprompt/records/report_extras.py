"""The parts of a report that only some tasks have: examples and confusion, rewrites and judges, pictures, curves."""

from __future__ import annotations

from typing import Any

from pinprompt.errors import RunError
from pinprompt.records.charts import Point, Series, line_chart, scatter, stacked_bar
from pinprompt.records.figures import greedy_progress, progress
from pinprompt.records.reading import RunRecord, inside, mapping, number, sequence
from pinprompt.records.report_parts import PICTURES, Part, perplexity_of, picture
from pinprompt.records.usage import sent_of, snippets
from pinprompt.records.wording import JOINED, digits, duration, metric, plain, text, title, token

SHOWN = 12  # examples of a kind
SENT_SHOWN = 20_000  # characters of the text that is sent, and of code that sends it
SNIPPETS = {
    "python": "Plain Python",
    "transformers": "transformers",
    "openai": "An OpenAI-compatible client",
    "curl": "curl",
}
MINUS = "\N{MINUS SIGN}"
LABELS = 30  # classes of a confusion matrix that is still drawn
MARKS = ("relevance", "interpretability")
BEFORE, AFTER = ("source", "before", "text", "input"), ("rewrite", "after", "output", "best")


def tokens(record: RunRecord) -> list[Part] | None:
    """What each token is worth: its Q beside its runners-up, and what the prompt scores without it."""
    score = number(record.result.get("score"))
    found = []
    for place, raw in enumerate(sequence(record.result.get("tokens"))[:128]):
        if not isinstance(raw, dict):
            continue
        q, without = number(raw.get("q")), number(raw.get("score_without"))
        rivals = []
        for pair in sequence(raw.get("runners_up"))[:5]:
            if isinstance(pair, list) and len(pair) == 2:
                rivals.append((token(pair[0]), number(pair[1])))
        worth = None if score is None or without is None else score - without
        known = [value for value in [q, *(value for _, value in rivals)] if value is not None]
        bars = [(token(raw.get("token", "")), q, True), *((name, value, False) for name, value in rivals)]
        found.append(
            {
                "place": place + 1,
                "token": token(raw.get("token", "")),
                "odds": _odds(raw),
                "without": None if without is None else digits(without),
                "worth": None
                if worth is None
                else f"{'+' if worth > 0 else MINUS if worth < 0 else '±'}{digits(abs(worth))}",
                "kind": "" if worth is None else "good" if worth > 0 else "bad" if worth < 0 else "flat",
                "bars": [
                    {
                        "name": name,
                        "q": digits(value),
                        "width": _width(value, known),
                        "own": own,
                    }
                    for name, value, own in bars
                    if value is not None
                ],
            }
        )
    return found or None


def _odds(raw: dict[str, Any]) -> str:
    """How far the policy itself had come to prefer the token: an answer need not be its first choice."""
    rank, chance = number(raw.get("rank")), number(raw.get("probability"))
    said = [] if rank is None else [f"rank {plain(rank)} by Q"]
    return ", ".join(said + ([] if chance is None else [f"chance {100 * chance:.2g}{JOINED}%"]))


def _width(value: float | None, known: list[float]) -> float:
    """A bar between 6 and 100: Q has no natural zero, so the lowest shown gets the shortest bar."""
    if value is None or not known:
        return 0.0
    span = max(known) - min(known)
    return 100.0 if span == 0 else round(6 + 94 * (value - min(known)) / span, 1)


def examples(record: RunRecord) -> Part | None:
    """Examples wrong and right, the surest first: a sure mistake tells more than an unsure one."""
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
        kind: [shown for _, shown in sorted(given, key=lambda one: one[0])[:SHOWN]] for kind, given in groups.items()
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
    """What the task itself had to say of the evaluation, in sentences."""
    return [text(note, 400) for note in sequence(inside(record.result, "tables", "notes"))[:SHOWN]]


def judges(record: RunRecord) -> list[tuple[str, str]]:
    """Who judged what, by name."""
    return [
        (text(name, 60), text(value, 300)) for name, value in list(mapping(record.result.get("judges")).items())[:20]
    ]


def judgements(record: RunRecord) -> list[Part]:
    """Marks of the prompts as captions, by each vision model that was asked."""
    found = []
    for given in record.judgements[:SHOWN]:
        rows = [
            {
                "prompt": text(row.get("prompt", ""), 300).strip(" "),
                "picture": text(row.get("picture", ""), 80),
                "marks": ["\N{EN DASH}" if (mark := number(row.get(name))) is None else plain(mark) for name in MARKS],
                "failure": text(row.get("failure") or "", 300),
            }
            for row in sequence(given.get("opinions"))[: 10 * SHOWN]
            if isinstance(row, dict)
        ]
        if rows:
            several = len({row["picture"] for row in rows}) > 1
            found.append({"model": text(given.get("model", ""), 120), "rows": rows, "several": several})
    return found


def rewrites(record: RunRecord) -> Part | None:
    """Texts before and after a rewrite, with the numbers that the judges gave each."""
    rows = [row for row in sequence(inside(record.result, "tables", "rewrites")) if isinstance(row, dict)][: 2 * SHOWN]
    before = next((name for name in BEFORE if any(name in row for row in rows)), None)
    after = next((name for name in AFTER if any(name in row for row in rows)), None)
    if before is None or after is None:
        return None
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if number(value) is not None and name not in (before, after)))[:6]  # fmt: skip  # noqa: E501
    return {
        "names": [title(text(name, 30)) for name in names],
        "rows": [
            {
                "before": text(row.get(before, ""), 500),
                "after": text(row.get(after, ""), 500),
                "cells": [metric(name, number(row.get(name))) for name in names],
            }
            for row in rows
        ],
    }


def pictures(record: RunRecord) -> Part | None:
    """The target pictures, and drawings made from the prompt with their similarity."""
    found: Part = {name: _pictures(record.result.get(name)) for name in ("images", "drawings")}
    if not found["images"] and not found["drawings"]:
        return None
    return found | {"known": _known_words(record), "improved": improvements(record)}


def _known_words(record: RunRecord) -> list[tuple[str, str]]:
    """The single words nearest to the pictures of all that the model knows, with their similarity."""
    rows = [row for row in sequence(record.result.get("known_words"))[:SHOWN] if isinstance(row, dict)]
    pairs = [(text(row.get("word", ""), 40), number(row.get("similarity"))) for row in rows]
    return [(word, f"{near:.3f}") for word, near in pairs if near is not None]


def improvements(record: RunRecord) -> list[tuple[str, str]]:
    """The best words of the search each time that they changed, with their score; at most the last of them."""
    found: list[tuple[str, str]] = []
    for event in record.of("step"):
        words, score = text(event.get("best_prompt") or "", 300).strip(" "), number(event.get("score_best"))
        if words and score is not None and (not found or found[-1][0] != words):
            found.append((words, f"{score:.3f}"))
    return found[-SHOWN:]


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
    """The front of score against readability, where prompts have both a score and a perplexity."""
    rows = [row for row in [*sequence(record.result.get("top")), *record.prompts] if isinstance(row, dict)]
    points = set()
    for row in rows:
        score, perplexity = number(row.get("score", row.get("train"))), perplexity_of(row)
        if score is not None and perplexity is not None and perplexity > 0:
            points.add((perplexity, score))
    best = pareto(sorted(points))
    kept = best + sorted(points - set(best), key=lambda point: -point[1])[:600]
    return scatter(
        kept, best, title="Score against perplexity", x="perplexity (lower reads better)", y="score", log_x=True
    )


def pareto(points: list[Point]) -> list[Point]:
    """The points that no other beats in both: lower x and higher y."""
    found: list[Point] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or y > found[-1][1]:
            found.append((x, y))
    return found


def curves(record: RunRecord) -> list[Part]:
    """The search over its calls and over time, the greedy prompt on dev, the support per position, the phases."""
    steps = record.of("step")
    best, clock = progress(record, "calls"), progress(record, "time")
    mean = [
        (calls, score)
        for event in steps
        if (calls := number(event.get("calls"))) is not None and (score := number(event.get("score_mean"))) is not None
    ]
    found = [
        ("Score against calls", "Score of each step's prompts on the training examples.",
         line_chart([Series("best so far", best), Series("mean of the step", mean)], title="Score against calls", x="calls", y="score")),  # noqa: E501
        ("Score against time", "The best score so far, by the clock.",
         line_chart([Series("best so far", clock)], title="Score against time", x="minutes", y="score")),
        ("The greedy prompt", "What the policy would answer if it stopped there, scored on dev.",
         line_chart([Series("greedy prompt", greedy_progress(record), dots=True)], title="Greedy prompt on dev", x="calls", y="dev score")),  # noqa: E501
        ("Support per position", "How many tokens still have a chance; one means the search has settled.",
         line_chart(_support(steps), title="Support size per position", x="step", y="tokens", log_y=True)),
        ("Where the time went", "", _phases(record)),
    ]  # fmt: skip
    return [{"title": name, "note": note, "svg": svg} for name, note, svg in found if svg]


def _support(steps: list[dict[str, Any]]) -> list[Series]:
    rows = [(number(event.get("step")), sequence(event.get("support"))) for event in steps]
    length = min(max((len(sizes) for _, sizes in rows), default=0), 512)
    shown = sorted({round(place * (length - 1) / 5) for place in range(6)}) if length > 6 else range(length)
    found = []
    for place in shown:
        points = [
            (at, size)
            for at, sizes in rows
            if at is not None and place < len(sizes) and (size := number(sizes[place])) is not None and size > 0
        ]
        found.append(Series(f"position {place + 1}", points))
    return found


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


def sent(record: RunRecord) -> dict[str, Any] | None:
    """The exact text that is sent for an input, the label words and their offsets; None where the result has none."""
    try:
        found = sent_of(record.result)
    except RunError:
        return None
    chat = "\n".join(f"[{one['role']}] {one['content']}" for one in found.messages)
    return {
        "text": text(chat or found.open_text, SENT_SHOWN),
        "words": [(text(label, 60), text(word, 60)) for label, word in found.words.items()],
        "offsets": [(text(label, 60), f"{value:.3f}") for label, value in found.offsets.items()],
        "snippets": [(SNIPPETS[name], text(code, SENT_SHOWN)) for name, code in snippets(found, "some text").items()],
    }
