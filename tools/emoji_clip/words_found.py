"""The table of a sweep over drawings (own words found, similarity, readability), and a figure of the trade-off.

    python tools/emoji_clip/words_found.py runs/pictures-table /tmp/emoji-data --figure docs/figures/pictures/front.svg

The second folder is that of tools/emoji_clip/pictures.py (its concepts.json has the names and keywords). "Own words" is
the number of drawings whose best prompt has a word of the drawing's own name or keywords. Words are compared in lower
case, without stemming, and function words of a name ("statue of liberty") do not count.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinprompt.maths.bootstrap import compare_rows
from pinprompt.run import running

FUNCTION_WORDS = frozenset(
    ("a", "an", "and", "at", "for", "from", "in", "of", "on", "or", "out", "over", "the", "to", "up", "with")
)

Rows = dict[str, dict[str, dict[str, Any]]]


def read(sweep: Path, data: Path) -> Rows:
    """Every finished run in `sweep`, by method and drawing."""
    own = {}
    for concept in json.loads((data / "concepts.json").read_text("utf-8")):
        stem = re.sub(r"[^a-z0-9']+", "-", concept["name"].lower()).strip("-")
        own[stem] = set(" ".join([concept["name"], *concept["keywords"]]).lower().split()) - FUNCTION_WORDS
    found: Rows = defaultdict(dict)
    for path in sorted(sweep.glob("*/result.json")):
        recipe, result = running.recipe_of(path.parent), json.loads(path.read_text("utf-8"))
        images: Sequence[str] = getattr(recipe.task, "images", ())
        stem = Path(images[0]).stem
        words = re.findall(r"[^\W\d_]+", result["prompt"].lower())
        hits = [word for word in dict.fromkeys(words) if word in own[stem]]
        name = f"{recipe.method}, rewards per token" if recipe.q_learning.rewards == "prefix" else recipe.method
        found[name][stem] = {**result, "hits": hits}
    return dict(sorted(found.items(), key=lambda item: -float(np.mean(similarities(item[1])))))


def similarities(drawings: Mapping[str, dict[str, Any]]) -> list[float]:
    """The similarity of the prompt found for each drawing."""
    return [row["score"] for _, row in sorted(drawings.items())]


def show(found: Rows) -> None:
    """Print the table as Markdown, the paired differences, and the own words that were found."""
    print(
        "| method | drawings | own words | similarity | perplexity | geometric mean | SLOR | words | scored prompts |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, drawings in found.items():
        rows = [row for _, row in sorted(drawings.items())]
        scores = np.array(similarities(drawings))
        error = scores.std(ddof=1) / len(scores) ** 0.5 if len(scores) > 1 else 0.0
        perplexity = np.array([row["readability"]["perplexity"] for row in rows])
        slor = float(np.mean([row["readability"]["slor"] for row in rows]))
        words = 100 * float(np.mean([row["readability"]["dictionary_words"] for row in rows]))
        prompts = float(np.mean([row["calls"] for row in rows]))
        print(
            f"| {name} | {len(rows)} | {sum(bool(row['hits']) for row in rows)} | {scores.mean():.3f} ± {error:.3f} | "
            f"{perplexity.mean():,.0f} | {np.exp(np.log(perplexity).mean()):,.0f} | {slor:.2f} | {words:.0f} % | "
            f"{prompts:,.0f} |"
        )
    best, *others = found
    pairs = [(best, other) for other in others]
    if "pin" in found and "pin, rewards per token" in found:
        pairs.append(("pin, rewards per token", "pin"))
    print("\n| similarity of ... | less ... | drawings | difference, 95 % interval |\n|---|---|---:|---:|")
    for left, right in pairs:
        common = sorted(found[left].keys() & found[right].keys())
        ours, theirs = ([found[name][stem]["score"] for stem in common] for name in (left, right))
        if len(common) > 1:
            gap = compare_rows(ours, theirs)
            print(f"| {left} | {right} | {len(common)} | {gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] |")
    print()
    for name, drawings in found.items():
        told = (f"{stem}: {', '.join(row['hits'])}" for stem, row in drawings.items() if row["hits"])
        print(f"{name}: {'; '.join(told)}\n")


def draw(found: Rows, path: Path) -> None:
    """Plot similarity against likelihood, with a point per drawing and large points for the means."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = pyplot.figure(figsize=(6.5, 4.5), layout="constrained").add_subplot()
    for name, drawings in found.items():
        rows = [row for _, row in sorted(drawings.items())]
        x, y = [row["readability"]["perplexity"] for row in rows], similarities(drawings)
        dots = axes.plot(x, y, ".", alpha=0.35)[0]
        middle = np.exp(np.mean(np.log(x)))
        axes.plot([middle], [np.mean(y)], "o", markersize=10, color=dots.get_color(), label=name)
    axes.set(xscale="log", xlabel="perplexity of the words (lower reads better)", ylabel="similarity to the drawing")
    axes.invert_xaxis()
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    pyplot.savefig(path, metadata={"Date": None})


def main() -> None:
    """Read the sweep, print its table, draw its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    found = read(asked.sweep, asked.data)
    show(found)
    if asked.figure is not None:
        draw(found, asked.figure)


if __name__ == "__main__":
    main()
