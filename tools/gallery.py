"""Writes the gallery of the site from run folders: `python tools/gallery.py FOLDER`, where FOLDER contains runs/NAME.

Each run was made in FOLDER with the command shown on the page (`--commands` prints them all). The report is written
again and copied to docs/gallery/NAME.html, and Chromium takes a screenshot of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt import api
from pinprompt.wording import metric, shown_prompt, title, where

DOCS = Path(__file__).parents[1] / "docs"
MACHINE = "2 shared cores of an AMD EPYC, 24 GiB, no GPU"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Entry:
    """A run of the gallery: its folder's name, a heading, what to look at, and the command."""

    name: str
    heading: str
    text: str
    command: str


LABELS = "--word billing=billing --word delivery=delivery --word account=account"
ENTRIES = (
    Entry(
        "products",
        "Product reviews",
        "Sentences from product reviews, 16 labelled examples per class.",
        "pinprompt classify vader-products --split 13 --calls 1000 --test-rows 500 --out runs/products",
    ),
    Entry(
        "tickets",
        "Support tickets",
        "Three queues, with eight labelled training tickets each. [How to do it](howto/tickets.md).",
        "pinprompt classify --train tickets.csv --text-column body --label-column queue \\\n"
        f"    {LABELS} \\\n    --calls 400 --out runs/tickets",
    ),
    Entry(
        "sun",
        "Words for a drawing",
        "`sun.png` from `examples/data`, with the small image-text model that is part of the package. "
        "[How to do it](howto/picture.md).",
        "pinprompt invert sun.png --calls 800 --out runs/sun",
    ),
    Entry(
        "formal",
        "Casual to formal",
        "Sixty lines of each style. A model of 135 million parameters rewrites poorly, and the report shows it. "
        "[How to do it](howto/style.md).",
        "pinprompt restyle --source casual.txt --target formal.txt --source-style casual --target-style formal \\\n"
        "    --calls 200 --test-rows 6 --out runs/formal",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="the folder in which the commands were run")
    parser.add_argument("--commands", action="store_true", help="print the commands, and stop")
    given = parser.parse_args()
    if given.commands or given.folder is None:
        sys.stdout.write("".join(f"{entry.command}\n" for entry in ENTRIES))
        return 0
    os.chdir(given.folder)  # so that reports have the paths of the commands
    made = [entry for entry in ENTRIES if (Path("runs") / entry.name / "result.json").is_file()]
    (DOCS / "gallery").mkdir(exist_ok=True)
    for entry in made:
        shutil.copy(api.report(Path("runs") / entry.name), DOCS / "gallery" / f"{entry.name}.html")
    photograph([DOCS / "gallery" / f"{entry.name}.html" for entry in made])
    (DOCS / "gallery.md").write_text(page(made), "utf-8")
    sys.stdout.write(f"docs/gallery.md: {', '.join(entry.name for entry in made)}\n")
    return 0


def page(entries: list[Entry]) -> str:
    """The page: each run with its answer, its picture and its command."""
    lines = [
        "# Gallery",
        "",
        "Real runs with the commands that produced them. The data are in `examples/data` or come from the package",
        f"index, as do all models. Machine: {MACHINE}.",
        "Another machine may find other prompts.",
        "`python tools/gallery.py` writes this page.",
    ]
    for entry in entries:
        result = json.loads((Path("runs") / entry.name / "result.json").read_text("utf-8"))
        lines += ["", f"## {entry.heading}", "", entry.text, "", "```sh", entry.command, "```", ""]
        lines += [f"Found: **{' '.join(shown_prompt(result['prompt']).split())}**", "", *facts(result), ""]
        lines.append(f"[![The report of this run](gallery/{entry.name}.png)](gallery/{entry.name}.html)")
    return "\n".join(lines) + "\n"


def facts(result: dict[str, Any]) -> list[str]:
    """The figures of a run, and the result of the comparison with the manual prompt."""
    name = result["primary"]
    split = next(split for split in ("test", "dev", "train") if result.get(split))
    measured = result[split]
    said = f"{title(name)} {where(split, result['task'], measured.get('rows'))}: {metric(name, measured[name])}"
    ends = measured.get("intervals", {}).get(name)
    said += f" (95 % interval {metric(name, ends[0])} to {metric(name, ends[1])})" if ends else ""
    verdict = result.get("verdict") or {}
    return [f"{said[0].upper()}{said[1:]}; {result['calls']:,} calls. {verdict.get('sentence', '')}".strip()]


def photograph(pages: list[Path]) -> None:
    """Save a screenshot of the top of each page, 1200 pixels wide."""
    from playwright.sync_api import sync_playwright

    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    with sync_playwright() as player:
        found = player.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        tab = found.new_page(viewport={"width": 1200, "height": 900})
        tab.set_default_timeout(600_000)
        for path in pages:
            tab.goto(path.as_uri())
            tab.screenshot(path=path.with_suffix(".png"))
        found.close()


if __name__ == "__main__":
    sys.exit(main())
