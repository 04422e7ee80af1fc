"""A key in all its spellings, taken out of texts and answers."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprompt.remote.http import NoAnswer, Response
from pinprompt.remote.secret import Secret

KEY = 'sk-a/b+"c\\d-0123456789'


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Secret:
    monkeypatch.setenv("A_KEY", f"  {KEY}\n")
    return Secret("A_KEY")


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        f"Bearer {KEY}{KEY}",
        json.dumps({"header": KEY}),
        json.dumps(KEY).replace("/", "\\/"),
        "sk-a%2Fb%2B%22c%5Cd-0123456789",
        base64.b64encode(KEY.encode()).decode(),
        base64.b64encode(f"Bearer {KEY}".encode()).decode(),
        "".join(f"\\u{ord(letter):04x}" for letter in KEY),
        "".join(f"\\u{ord(letter):04X}" for letter in KEY),
    ],
)
def test_every_spelling_is_hidden(secret: Secret, text: str) -> None:
    hidden = secret.redact(f"before {text} after")
    assert "***" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert "0123456789" not in hidden
    assert KEY not in repr(secret)


def test_the_key_is_removed_from_every_part_of_an_answer(secret: Secret) -> None:
    answer = {"a": [KEY, {KEY: 1, "b": f"x{KEY}"}], "n": 3, "deep": None}
    assert secret.clean(answer) == {"a": ["***", {"***": 1, "b": "x***"}], "n": 3, "deep": None}


def test_an_answer_too_deep_to_be_cleaned_is_no_answer(secret: Secret) -> None:
    body = b'{"more": ' * 50_000 + json.dumps(KEY).encode() + b"}" * 50_000
    with pytest.raises(NoAnswer, match="not JSON"):
        Response(200, body, None).json(secret)


@pytest.mark.parametrize("key", ["x", "EMPTY", "none"])
def test_a_key_that_is_a_common_word_does_not_change_answers(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("A_KEY", key)
    assert Secret("A_KEY").clean({"text": f"a {key} b"}) == {"text": f"a {key} b"}
    assert Secret("").redact("nothing to hide") == "nothing to hide"


@settings(max_examples=100, deadline=None)
@given(st.text('abc\\"/%+=u0-', min_size=8, max_size=12), st.text('abc\\"/%+=u0-', max_size=20))
def test_no_key_survives(key: str, around: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_KEY", key)
        assert key not in Secret("A_KEY").redact(around + key + around)
