"""For how many drawings does the best prompt of a run have a word of the drawing's own name or keywords?

    python tools/emoji_clip/words_found.py runs/inversion /tmp/emoji-data

The second folder is that of tools/emoji_clip/pictures.py (its concepts.json has the names and keywords). Prints a line
for each method, and the words that were found. Words are compared without case and otherwise as they stand; function
words of a name ("statue of liberty") do not count.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

FUNCTION_WORDS = {
    "a",
    "an",
    "and",
    "at",
    "for",
    "from",
    "in",
    "of",
    "on",
    "or",
    "out",
    "over",
    "the",
    "to",
    "up",
    "with",
}


def main(sweep: Path, data: Path) -> None:
    """Read every finished run below `sweep`."""
    own = {}
    for concept in json.loads((data / "concepts.json").read_text("utf-8")):
        stem = re.sub(r"[^a-z0-9]+", "-", concept["name"].lower()).strip("-")
        own[stem] = set(" ".join([concept["name"], *concept["keywords"]]).lower().split()) - FUNCTION_WORDS
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for result in sorted(sweep.glob("*/result.json")):
        recipe = tomllib.loads((result.parent / "recipe.toml").read_text("utf-8"))
        prompt = json.loads(result.read_text("utf-8"))["prompt"]
        stem = Path(recipe["task"]["images"][0]).stem
        words = re.findall(r"[^\W\d_]+", prompt.lower())
        found[recipe["method"]][stem] = [word for word in dict.fromkeys(words) if word in own[stem]]
    for method, drawings in sorted(found.items()):
        print(f"{method}: {sum(map(bool, drawings.values()))} of {len(drawings)}")
        print("  " + "; ".join(f"{stem}: {', '.join(words)}" for stem, words in drawings.items() if words))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
