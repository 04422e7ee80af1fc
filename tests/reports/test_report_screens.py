"""The report on a screen and on a phone: nothing is wider than the page, no column is cut off, copying works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import run_samples as sample

from pinprompt.reports.report import write_report

PATIENCE = 900_000
CUT = """Array.from(document.querySelectorAll(".scroll"))
    .filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.innerText.trim().slice(0, 80)).filter((text) => text)
    .concat(Array.from(document.querySelectorAll("svg text")).filter((one) => {
      const [ours, frame] = [one, one.closest("svg")].map((part) => part.getBoundingClientRect());
      return ours.width && (ours.left < frame.left - 1 || ours.right > frame.right + 1);
    }).map((one) => one.textContent))"""
SENT = {"before": "", "after": " It was", "model": "m", "words": {"neg": "bad", "pos": "good"}}


@pytest.mark.parametrize("width", [1200, 1100, 390])
@pytest.mark.parametrize("kind", ["classification", "style", "inversion"])
def test_nothing_is_cut_off(browser: Any, tmp_path: Path, kind: str, width: int) -> None:
    page = write_report(getattr(sample, kind)(tmp_path / "run"))
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    tab.goto(page.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CUT) == []
    # The numbers of a list stand to its left.
    lists = "Array.from(document.querySelectorAll('ol')).filter((one) => getComputedStyle(one).listStyleType != 'none')"
    assert tab.evaluate(f"{lists}.every((one) => parseFloat(getComputedStyle(one).paddingLeft) > 20)")
    context.close()


def test_the_copy_button_takes_the_text(browser: Any, tmp_path: Path) -> None:
    folder = sample.classification(tmp_path / "run")
    sample.write(folder, {"result.json": {"task": "classification", "prompt": "It was", "score": 1.0, "sent": SENT}})
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    tab.goto(write_report(folder).as_uri())
    button = tab.locator("button.copy").first
    button.click()
    while button.inner_text() == "copy":
        tab.wait_for_timeout(100)  # playwright's own way of waiting for a condition is against the page's policy
    assert button.inner_text() in ("copied", "selected")
    assert tab.locator("pre.sent").inner_text() == "{text} It was"
    assert tab.locator("details summary", has_text="curl").count() == 1
    context.close()


def real(folder: Path) -> Path:
    """As wide as the runs of the gallery: a long hand-written prompt, eight columns with intervals, three classes."""
    names = ("content", "style", "fluency", "j", "gm", "score")
    split = {
        **dict.fromkeys(names, 100.0), "copies": 0.0, "perplexity": 134.1, "rows": 12,
        "intervals": {name: [58.3, 100.0] for name in names},
    }  # fmt: skip
    long = "You are given a sentence that is casual. Write it anew to be formal, and keep what it says."
    labels = ["billing", "delivery", "account"]
    result = {
        "task": "style-transfer", "method": "race", "primary": "j", "prompt": long, "score": 1.0, "test": split,
        "baselines": {"manual": {"prompt": long, "test": split}, "instructions": {"prompt": long, "test": split},
                      "with-embeddings": {"prompt": "no prompt", "test": split}},
        "top": [
            {"prompt": "Star", "source": "guided", "score": 0.3, "perplexity": 19457198.0 * place, "in_text": -5.23}
            for place in (1, 2, 3)
        ],
        "tables": {"confusion": {"labels": labels, "counts": [[16, 2, 13], [2, 16, 2], [3, 4, 15]]}},
    }  # fmt: skip
    return sample.write(folder, {"recipe.toml": 'method = "race"\n', "result.json": result})


@pytest.mark.parametrize("width", [1200, 1100, 390])
def test_a_real_run_is_not_cut_off(browser: Any, tmp_path: Path, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    tab.goto(write_report(real(tmp_path / "run")).as_uri())
    assert tab.locator("text=instructions").count()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CUT) == []
    context.close()
