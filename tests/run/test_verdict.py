"""One verdict for the terminal, the report and result.json, by a paired test on the same rows."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pinprompt.cli.shown import shown_result
from pinprompt.folder.reading import RunRecord
from pinprompt.reports.report import render
from pinprompt.run.running import Result
from pinprompt.run.verdict import judge_result


def result(ours_alone: int, theirs_alone: int, both: int, split: str = "test") -> dict[str, Any]:
    """A result whose prompts are right on the given numbers of rows."""
    ours = "1" * ours_alone + "0" * theirs_alone + "1" * both
    theirs = "0" * ours_alone + "1" * theirs_alone + "1" * both

    def measured(rows: str) -> dict[str, Any]:
        value = rows.count("1") / len(rows)
        ends = [max(0.0, value - 0.1), min(1.0, value + 0.1)]
        return {
            "accuracy": value, "rows": len(rows), "intervals": {"accuracy": ends}, "outcomes": {"accuracy": rows}
        }  # fmt: skip

    manual = {"manual": {"prompt": "It was", split: measured(theirs)}}
    return {"prompt": "found", "primary": "accuracy", split: measured(ours), "baselines": manual}


def printed(data: dict[str, Any]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=400, markup=False)
    for part in shown_result(Result("found", 1.0, None, None, 0, 0.0, Path("run"), data)):
        console.print(part)
    return " ".join(out.getvalue().split())


def test_a_paired_test_finds_what_overlapping_intervals_hide() -> None:
    data = result(12, 0, 88)  # 0.88 and 1.0: [0.9, 1.0] against [0.78, 0.98]
    verdict = judge_result(data)
    assert verdict is not None
    assert (verdict.kind, verdict.against, verdict.test) == (
        "better", "manual", "McNemar's exact test on the same 100 rows"
    )  # fmt: skip
    assert verdict.p == pytest.approx(2 / 2**12)
    assert verdict.sentence == "The found prompt beats the manual prompt on test (p < 0.001)."


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((9, 4, 37), "is not significantly better than the manual prompt on test (p = 0.27)."),
        ((0, 0, 50), "is not significantly better than the manual prompt on test (p = 1.00)."),
        ((1, 9, 40), "is worse than the manual prompt on test (p = 0.021)."),
        ((9, 1, 40), "beats the manual prompt on test (p = 0.021)."),
    ],
)
def test_everyone_says_the_same(counts: tuple[int, int, int], sentence: str) -> None:
    data = result(*counts)
    verdict = judge_result(data)
    assert verdict is not None
    assert verdict.sentence == "The found prompt " + sentence
    assert verdict.sentence in printed(data)
    assert verdict.sentence in " ".join(render(RunRecord(Path("run"), result=data)).split())


def test_other_metrics_are_judged_by_a_bootstrap_over_rows() -> None:
    theirs = [10.0 + place % 7 for place in range(30)]
    ours = [value + 1.0 + place % 2 for place, value in enumerate(theirs)]
    mean = sum(ours) / 30
    data = {
        "primary": "j",
        "test": {"j": mean, "outcomes": {"j": ours}},
        "baselines": {"manual": {"test": {"j": mean - 1.5, "outcomes": {"j": theirs}}}},
    }
    verdict = judge_result(data)
    assert verdict is not None
    assert (verdict.kind, verdict.test) == ("better", "paired bootstrap on the same 30 rows")
    data["baselines"]["manual"]["test"]["outcomes"] = {"j": ours}  # type: ignore[index]
    again = judge_result(data)
    assert again is not None
    assert (again.kind, again.p) == ("unclear", 1.0)


@pytest.mark.parametrize(
    "spoilt", ["", "11", "1x" * 25, [1, "a"] * 25, [None] * 50, {"0": 1}, 7, "1" * 200_001, [float("nan")] * 50]
)
def test_rows_that_do_not_fit_are_not_tested(spoilt: object) -> None:
    data = result(9, 1, 40)
    data["test"]["outcomes"]["accuracy"] = spoilt
    verdict = judge_result(data)
    assert verdict is not None
    assert (verdict.kind, verdict.p) == ("untested", None)
    assert "scores higher than the manual prompt on test; the difference was not tested" in verdict.sentence
    del data["test"]["outcomes"]
    assert judge_result(data) == verdict


def test_what_was_chosen_on_is_said_to_flatter() -> None:
    verdict = judge_result(result(9, 1, 40, split="dev"))
    assert verdict is not None
    assert "beats the manual prompt on dev" in verdict.sentence
    assert "chosen on dev, so this value is optimistic" in verdict.details


def test_without_a_manual_prompt_the_best_other_one_is_the_rival() -> None:
    data = result(9, 1, 40)
    alone = judge_result(data | {"baselines": {}})
    assert alone is not None
    assert alone.kind == "alone"
    assert "no hand-written prompt" in alone.sentence
    weak, strong = ({"test": {"accuracy": value}} for value in (0.3, 0.5))
    rivals = judge_result(data | {"baselines": {"weak": weak, "strong": strong}})
    assert rivals is not None
    assert rivals.against == "strong"
    default = judge_result(data | {"baselines": {"strong": strong, "default": weak}})
    assert default is not None
    assert default.against == "default"  # what the user would have without a search
    assert judge_result({"prompt": "x"}) is None


def test_another_hand_written_prompt_that_is_better_is_said_to_be() -> None:
    data = result(30, 12, 58)
    for wrong, advice in ((1, "Use the chat prompt “Label it.”"), (11, "")):
        theirs = {"accuracy": 1 - wrong / 100, "outcomes": {"accuracy": "0" * wrong + "1" * (100 - wrong)}}
        chat = {"prompt": "Label it.", "test": theirs}
        verdict = judge_result(data | {"baselines": {**data["baselines"], "chat": chat}})
        assert verdict is not None
        assert (verdict.kind, verdict.against, verdict.advice) == ("better", "manual", advice)
        assert "The chat prompt has" in verdict.details


def test_a_regression_on_embeddings_is_no_rival_but_is_mentioned_if_it_is_better() -> None:
    data = result(12, 4, 80)
    better = {"prompt": "", "test": {"accuracy": 0.99, "outcomes": {"accuracy": "1" * 95 + "0"}}}
    verdict = judge_result(data | {"baselines": {**data["baselines"], "embeddings": better}})
    assert verdict is not None
    assert verdict.against == "manual"
    assert "does as well without any prompt: 99.0" in verdict.details
    weak = result(4, 12, 20)
    surely = {"prompt": "", "test": {"accuracy": 0.99, "outcomes": {"accuracy": "1" * 36}}}
    verdict = judge_result(weak | {"baselines": {**weak["baselines"], "embeddings": surely}})
    assert verdict is not None
    assert "does better without any prompt: 99.0" in verdict.details
    alone = judge_result(data | {"baselines": {"embeddings": better}})
    assert alone is not None
    assert alone.kind == "alone"
    for other in ({"prompt": "", "test": {"accuracy": 0.5}}, {}):
        plain = judge_result(data | {"baselines": {**data["baselines"], "embeddings": other}})
        assert plain is not None
        assert "embeddings" not in plain.details
    missing = judge_result(data | {"baselines": {**data["baselines"], "embeddings": {"missing": "no index"}}})
    assert missing is not None
    assert "no row for a regression on embeddings: no index." in missing.details


def test_a_found_prompt_that_is_the_manual_one_is_not_tested_against_itself() -> None:
    data = result(0, 0, 50)
    data["prompt"] = "It was"
    verdict = judge_result(data)
    assert verdict is not None
    assert verdict.sentence == "The found prompt is the manual prompt: the search found no better one."


def test_a_run_without_a_report_does_not_say_that_there_is_no_other_prompt() -> None:
    data = {**result(9, 1, 40, "dev"), "baselines": {}, "reported": False}
    verdict = judge_result(data)
    assert verdict is not None
    assert "no report was asked for" in verdict.sentence
    assert "no hand-written prompt to compare with" in printed(data | {"reported": True, "verdict": None})


def test_a_result_without_the_value_is_not_judged() -> None:
    data = result(9, 4, 37)
    assert judge_result(data, "f1") is None
    assert judge_result({**data, "test": {"rows": 50}}) is None


def test_words_for_a_picture_fit_or_do_not() -> None:
    rival = {"manual": {"prompt": "a sun", "train": {"similarity": 0.3, "rows": 1}}}
    data = {"task": "inversion", "prompt": "the sun", "primary": "similarity", "baselines": rival}
    for value, said in ((0.4, "fit better than the manual ones"), (0.2, "do not fit better than the manual ones")):
        verdict = judge_result({**data, "train": {"similarity": value, "rows": 1}})
        assert verdict is not None
        assert said in verdict.sentence


@pytest.mark.parametrize(("counts", "kept"), [((9, 4, 37), True), ((1, 9, 40), True), ((9, 1, 40), False)])
def test_the_headline_recommends_the_found_prompt_only_if_the_test_does(
    counts: tuple[int, int, int], kept: bool
) -> None:
    data = result(*counts)
    page = " ".join(render(RunRecord(Path("run"), result=data)).split())
    assert ('<h1 class="advice">Keep your own prompt “It was”</h1>' in page) is kept
    assert ('<h1 class="prompt">found</h1>' in page) is not kept
    assert "The best prompt found: <q" in page or not kept
    assert ("Keep your own prompt “It was”." in printed(data)) is kept


def test_the_default_prompt_is_not_called_the_users_own() -> None:
    data = result(9, 4, 37)
    data["baselines"] = {"default": data["baselines"]["manual"]}
    verdict = judge_result(data)
    assert verdict is not None
    assert verdict.advice == "Keep the default prompt “It was”"
    assert "than the default prompt" in verdict.sentence


def test_every_accuracy_is_shown_beside_the_most_frequent_label() -> None:
    data = result(12, 0, 38)  # all right, 76 % by hand
    data["test"]["majority"] = 0.62
    verdict = judge_result(data)
    assert verdict is not None
    assert "Always giving the most frequent label: 62.0" in verdict.details
    assert verdict.advice == ""
    assert re.search(r"always the most frequent label\W+0.620", printed(data))
    assert "always the most frequent label: 62.0" in render(RunRecord(Path("run"), result=data))


def test_a_prompt_that_hardly_beats_the_most_frequent_label_is_not_recommended() -> None:
    data = result(12, 0, 30)
    data["test"]["majority"] = 0.95  # inside the interval of the found prompt, 0.9 to 1
    verdict = judge_result(data)
    assert verdict is not None
    assert verdict.kind == "better"
    assert "hardly better than always giving the most frequent label" in verdict.details
    assert verdict.advice.startswith("No prompt is clearly better")


def test_without_a_test_split_the_choice_is_made_on_the_other_rows() -> None:
    data = result(9, 1, 40, split="dev") | {"cross_validated": 0.9}
    verdict = judge_result(data)
    assert verdict is not None
    assert "Cross-validated, with the choice made on the other rows: 90.0" in verdict.details
