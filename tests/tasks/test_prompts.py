from __future__ import annotations

import pytest

from pinprompt.errors import SettingError
from pinprompt.tasks.prompts import parse, whole

MASKED = "{text} {prompt} {mask} ."


@pytest.mark.parametrize(
    ("source", "prompt", "expected"),
    [
        (MASKED, "It was", "TEXT It was WORD ."),
        (MASKED, " It was ", "TEXT It was WORD ."),
        (MASKED, "", "TEXT WORD ."),
        ("{mask} {prompt} {text}", "News:", "WORD News: TEXT"),
        ("{mask} {prompt} {text}", "", "WORD TEXT"),
        ("{prompt} {mask} : {text}", "", "WORD : TEXT"),
        (MASKED, "{text} {mask} {0}", "TEXT {text} {mask} {0} WORD ."),
    ],
)
def test_fill_masked(source: str, prompt: str, expected: str) -> None:
    assert parse(source, "masked").fill("TEXT", prompt, "WORD") == expected


@pytest.mark.parametrize(
    ("source", "prompt", "expected"),
    [
        ("{text} {prompt}", " It was", "TEXT It was WORD"),
        ("{text} {prompt}", "", "TEXT WORD"),
        ("{text} {prompt} {mask}", "It was", "TEXT It was WORD"),
        ("{prompt} {text} Answer:", "", "TEXT Answer: WORD"),
        ("{text}\n{prompt}\n", "so", "TEXT\nso\nWORD"),
    ],
)
def test_fill_causal(source: str, prompt: str, expected: str) -> None:
    assert parse(source, "causal").fill("TEXT", prompt, "WORD") == expected


@pytest.mark.parametrize(
    ("source", "kind", "match"),
    [
        ("{prompt} {mask}", "masked", r"\{text\} exactly once"),
        ("{text} {text} {prompt} {mask}", "masked", r"\{text\} exactly once; it has 2"),
        ("{text} {mask}", "masked", r"\{prompt\} exactly once"),
        ("{text} {prompt}", "masked", r"\{mask\} exactly once"),
        ("{mask} {prompt} {text}", "causal", "only says what comes next"),
        ("{text} {prompt} {mask} .", "causal", "only says what comes next"),
        ("{text} {promt} {mask}", "masked", "did you mean 'prompt'"),
    ],
)
def test_wrong_templates(source: str, kind: str, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        parse(source, kind)


def test_a_prompt_may_be_a_whole_template() -> None:
    found = whole("Say it: {text} {mask} !", "masked")
    assert found is not None
    assert found.fill("TEXT", "ignored", "WORD") == "Say it: TEXT WORD !"
    for plain in ("It was", "{text}", "{text} {text} {mask}", "{text} {prompt} {mask}"):
        assert whole(plain, "masked") is None
    braces = whole("f(x) = {x} {text}", "causal")
    assert braces is not None
    assert braces.fill("TEXT", "") == "f(x) = {x} TEXT"


def test_around_prompt() -> None:
    assert parse(MASKED, "masked").around_prompt("TEXT", "M") == ("TEXT", " M .")
    assert parse("{mask} {prompt} {text}", "masked").around_prompt("TEXT", "M") == ("M", " TEXT")
