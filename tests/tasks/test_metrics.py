"""Metrics of free answers, by hand-worked values."""

from __future__ import annotations

from typing import Any

import pytest

from pinprompt.errors import SettingError
from pinprompt.recipe.task_sections import AnswerSettings
from pinprompt.tasks.metrics import check_targets, json_of, metric_of, normalised, numbers


def value(answer: str, target: str = "", row: dict[str, Any] | None = None, **settings: Any) -> tuple[float, str]:
    found = metric_of(AnswerSettings(**settings))(answer, row or {}, target)
    return found.value, found.failure or found.why


@pytest.mark.parametrize(
    ("answer", "target", "worth"),
    [
        ("B123", "b123", 1.0),
        (' "B123". ', "B123", 1.0),
        ("**B123**", "B123", 1.0),
        ("the  new\nhouse", "The new house", 1.0),
        ("B123 is it", "B123", 0.0),
        ("", "B123", 0.0),
    ],
)
def test_exact_ignores_case_spaces_and_marks_around_the_answer(answer: str, target: str, worth: float) -> None:
    assert value(answer, target, metric="exact")[0] == worth


def test_normalised_keeps_what_is_inside() -> None:
    assert normalised("'It's 3.5.'") == "it's 3.5"


@pytest.mark.parametrize(
    ("answer", "worth"), [("It is blue.", 1.0), ("BLUE", 1.0), ("bluebird", 0.0), ("red", 0.0), ("sky-blue", 1.0)]
)
def test_contains_looks_for_whole_words(answer: str, worth: float) -> None:
    assert value(answer, "Blue", metric="contains")[0] == worth


def test_number_takes_the_last_number_within_the_tolerance() -> None:
    assert numbers("From -3 to 1,250.5 and 2e3") == [-3.0, 1250.5, 2000.0]
    assert value("3 + 4 = 7.", "7", metric="number")[0] == 1.0
    assert value("about 7.4", "7", metric="number") == (0.0, "7.4 is not 7")
    assert value("about 7.4", "7", metric="number", tolerance=0.5)[0] == 1.0
    assert value("seven", "7", metric="number") == (0.0, "there is no number in it")


def test_regex_matches_somewhere_or_its_group_is_the_reference() -> None:
    assert value("Date: 2024-05-01", metric="regex", pattern=r"\d{4}-\d\d-\d\d")[0] == 1.0
    assert value("1 May", metric="regex", pattern=r"\d{4}-\d\d-\d\d")[0] == 0.0
    assert value("id=A7;", "a7", metric="regex", pattern=r"id=(\w+)")[0] == 1.0
    assert value("id=A8;", "a7", metric="regex", pattern=r"id=(\w+)") == (0.0, "the pattern finds 'A8', not 'a7'")


def test_a_pattern_that_would_never_end_is_a_failure() -> None:
    worth, why = value("a" * 5000 + "!", metric="regex", pattern="(a|aa)+$")
    assert worth == 0.0
    assert "takes more than" in why


def test_json_is_the_share_of_equal_fields() -> None:
    target = '{"name": "Ann", "age": 3}'
    assert value('{"age": 3, "name": "ann"}', target, metric="json")[0] == 1.0
    assert value('{"age": "3", "name": "Bob"}', target, metric="json") == (0.5, 'name is "Bob"')
    assert value('{"name": "Ann", "age": 3, "more": 1}', target, metric="json")[0] == pytest.approx(2 / 3)
    assert value("Ann, 3", target, metric="json") == (0.0, "it is not a JSON object")
    assert value('{"name": "x", "age": 3}', target, metric="json", fields=("age",))[0] == 1.0
    assert json_of('Sure:\n```json\n{"a": 1}\n```') == {"a": 1}


def test_a_function_may_give_a_reason_and_may_fail() -> None:
    def rate(answer: str, row: dict[str, Any]) -> tuple[float, str]:
        return len(answer) / row["length"], "too short"

    def broken(answer: str, row: dict[str, Any]) -> float:
        raise KeyError("gone")

    settings = AnswerSettings()
    assert metric_of(settings, rate)("abc", {"length": 6}, "")[:2] == (0.5, "too short")
    assert "KeyError" in metric_of(settings, broken)("abc", {}, "").failure
    assert "not finite" in metric_of(settings, lambda answer, row: float("nan"))("abc", {}, "").failure


def test_references_that_no_answer_can_reach_are_refused() -> None:
    with pytest.raises(SettingError, match=r"line 3: the reference 'seven' has no number"):
        check_targets(AnswerSettings(metric="number"), [("line 2", "7"), ("line 3", "seven")])
    with pytest.raises(SettingError, match="line 2: the reference is not a JSON object"):
        check_targets(AnswerSettings(metric="json"), [("line 2", "[1]")])
    with pytest.raises(SettingError, match="has no field 'age'"):
        check_targets(AnswerSettings(metric="json", fields=("age",)), [("line 2", '{"name": 1}')])
    with pytest.raises(SettingError, match="needs a pattern"):
        metric_of(AnswerSettings(metric="regex"))
    with pytest.raises(SettingError, match="is not a regular expression"):
        metric_of(AnswerSettings(metric="regex", pattern="("))
