"""What "Try it" answers is what the run itself and the other commands say, and nothing is asked twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprompt import api
from pinprompt.errors import SettingError
from pinprompt.studio.trying import TriedRun

TEXT = "a cat and blue 7"


@pytest.fixture(scope="module")
def tried(earlier: dict[int, Path]) -> TriedRun:
    return TriedRun(earlier[1])


def test_the_found_prompt_labels_a_text_as_predict_does(earlier: dict[int, Path], tried: TriedRun) -> None:
    found = api.found_prompt(earlier[1]).text
    said = tried.answer({"do": "predict", "prompts": [found], "text": TEXT})
    [told] = api.predict(earlier[1], [TEXT])
    [answer] = said["answers"]
    assert answer["label"] == told["label"]
    assert answer["probabilities"] == pytest.approx(told["probabilities"], abs=1e-6)
    assert said["calls"] == 1, "its label offsets are those of the run"


def test_another_prompt_is_measured_on_the_labelled_rows_once(tried: TriedRun) -> None:
    question = {"do": "predict", "prompts": ["stone moon"], "text": TEXT}
    labelled = len(tried.evaluator.rows("train")) + len(tried.evaluator.rows("dev"))
    first = tried.answer(question)
    again = tried.answer(question)
    assert (first["calls"], again["calls"]) == (1 + labelled, 1)
    assert first["answers"] == again["answers"]


def test_scores_are_those_of_evaluate_and_cost_nothing_a_second_time(earlier: dict[int, Path], tried: TriedRun) -> None:
    question = {"do": "score", "prompts": ["river song"], "split": "dev"}
    first, again = tried.answer(question), tried.answer(question)
    [evaluation] = api.evaluate(earlier[1], prompt="river song", split="dev").values()
    [answer] = first["answers"]
    assert answer["metrics"] == pytest.approx(dict(evaluation.metrics))
    assert answer["rows"] == evaluation.rows
    assert (first["calls"] >= evaluation.rows, again["calls"]) == (True, 0)


@pytest.mark.parametrize("kind", ["rewrite", "picture", "dance"])
def test_what_a_classification_run_cannot_answer_gives_a_clear_error(tried: TriedRun, kind: str) -> None:
    with pytest.raises(SettingError, match=r"only a|unknown question"):
        tried.answer({"do": kind, "prompts": ["x"], "text": "y", "file": "z.png"})
