"""Answers as people read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from pinprompt.cli.shown import shown_result
from pinprompt.reports.report import write_report
from pinprompt.run.running import Result
from pinprompt.studio.runs import RunList


def printed(data: dict[str, Any]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, markup=False)
    result = Result(data.get("prompt", "found words"), 1.0, None, None, 0, 0.0, Path("run"), data)
    for part in shown_result(result):
        console.print(part)
    return out.getvalue()


def test_a_style_run_shows_ten_texts_before_and_after_and_who_judged() -> None:
    rewrites = [
        {"source": f"bad thing {place}", "rewrite": f"[b]good[/b] thing {place}", "content": 71.4, "style": 100.0}
        for place in range(12)
    ]
    shown = printed({"tables": {"rewrites": rewrites}, "judges": {"style": "trained, held-out accuracy 0.912"}})
    assert sum("bad thing" in line for line in shown.splitlines()) == 10
    assert "[b]good[/b] thing 9" in shown  # a model's words are never taken for markup
    assert "held-out accuracy 0.912" in shown


def test_a_verdict_is_as_clear_if_nothing_was_gained() -> None:
    worse = {"accuracy": 0.5, "outcomes": {"accuracy": "1" * 10 + "0" * 10}}
    manual = {"accuracy": 0.55, "outcomes": {"accuracy": "1" * 11 + "0" * 9}}
    shown = printed(
        {"primary": "accuracy", "test": worse, "baselines": {"manual": {"prompt": "It was", "test": manual}}}
    )
    assert "The found prompt is not significantly better than the manual prompt on test (p = 1.00)." in shown
    assert "before" not in shown


def test_calibrated_runs_show_both_figures() -> None:
    found = {"accuracy": 0.84, "raw_accuracy": 0.61, "rows": 50, "intervals": {}}
    manual = {"accuracy": 0.79, "raw_accuracy": 0.52, "rows": 50, "intervals": {}}
    shown = printed(
        {"primary": "accuracy", "test": found, "baselines": {"manual": {"prompt": "It was", "test": manual}}}
    )
    assert "raw accuracy on test" in shown
    for number in ("0.840", "0.610", "0.790", "0.520"):
        assert number in shown


def test_the_score_of_a_function_is_of_no_examples() -> None:
    shown = printed({"primary": "score", "task": "custom", "train": {"score": -10.0, "rows": 1}, "prompt": "x"})
    assert "score by the function" in shown
    assert "Score by the function: -10.0" in shown
    assert "training examples" not in shown
    assert "row" not in shown


CHAT = "<|im_start|>system\nIs it good?<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
LLAMA = "<|start_header_id|>user<|end_header_id|>\n\nIs it good?\n\n{text}<|eot_id|>"


def test_a_prompt_in_a_chat_format_is_shown_by_role(tmp_path: Path) -> None:
    """In the terminal, the report, a studio's card and page; the data and the text to send keep the template's own."""
    record = {"name": "run", "prompt": CHAT, "test": {"accuracy": 0.5}, "primary": "accuracy"}
    record |= {"baselines": {"instructions": {"prompt": LLAMA, "test": {"accuracy": 0.7}}}, "top": [{"prompt": CHAT}]}
    record |= {"sent": {"before": CHAT.partition("{text}")[0], "after": CHAT.partition("{text}")[2]}}
    terminal = printed(record)
    (tmp_path / "result.json").write_text(json.dumps(record), "utf-8")
    page = write_report(tmp_path).read_text("utf-8")
    sent = page[page.index('class="sent"') :].partition("</pre>")[0]
    assert "&lt;|im_start|&gt;system" in sent
    card = RunList(tmp_path).card(RunList(tmp_path).places()[0]).prompt
    for shown in (terminal, page.replace(sent, ""), card):
        assert "[system] Is it good?" in shown
        assert "im_start" not in shown.split("Run it again")[0].split("Plain Python")[0]
        assert "im_end" not in shown.split("Run it again")[0].split("Plain Python")[0]
    assert "[user] Is it good?" in terminal
    assert "header_id" not in terminal
