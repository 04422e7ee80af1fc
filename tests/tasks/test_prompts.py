from __future__ import annotations

import pytest

from pinprompt.data.examples import Example
from pinprompt.errors import SettingError
from pinprompt.tasks.prompts import parse, whole, with_examples, without_example

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


EXAMPLES = [Example("So good (really).", "1", 1), Example("So bad.", "0", 2)]
LABELS = {"0": "terrible", "1": "great"}


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("causal", "{text} {prompt}", "So good (really). It was great. So bad. It was terrible. {text} It was"),
        (
            "masked",
            "{mask} {prompt} {text}",
            "great It was So good (really). terrible It was So bad. {mask} It was {text}",
        ),
        (
            "masked",
            "{text} {prompt} {mask} .",
            "So good (really). It was great . So bad. It was terrible . {text} It was {mask} .",
        ),
    ],
)
def test_a_prompt_with_examples_and_without_one_of_them(kind: str, source: str, expected: str) -> None:
    template = parse(source, kind)
    whole_prompt = with_examples(EXAMPLES, LABELS, "It was", template)
    assert whole_prompt == expected
    for one, other in (EXAMPLES, EXAMPLES[::-1]):
        left = without_example(whole_prompt, one.text, LABELS[one.label], template)
        assert left == with_examples([other], LABELS, "It was", template)
    assert without_example(whole_prompt, "So bad.", "great", template) is None, "not an example with this label"
    assert without_example(whole_prompt, "Not there.", "great", template) is None
