"""TOML from anybody: what a recipe may hold is read, what would exhaust the reader or its users is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprompt.errors import SettingError
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.toml import MOST_PARTS, parse

DEEP = ".".join(["a"] * (MOST_PARTS + 1))


@pytest.mark.parametrize(
    "text",
    [
        f"{DEEP} = 1",
        f"[{DEEP}]",
        f"[[{DEEP}]]",
        f"x = {{{DEEP} = 1}}",
        " . ".join(["a"] * (MOST_PARTS + 1)) + " = 1",
        ".".join(['"a.b"', "'c'"] * MOST_PARTS) + " = 1",
        '"""\n"""\n' + DEEP + " = 1",
        "x = 'it''s'\n" + DEEP + " = 1",
        "# it's\n" + DEEP + " = 1",
        'x = "\\""\n' + DEEP + " = 1",
        "x = 1" + "0" * 40,
        "x = -1" + "0" * 40,
        "x = [[0x" + "f" * 400 + "]]",
        "x = 1" + "0" * 5000,
        "x = " + "[" * 100_000,
    ],
)
def test_what_no_recipe_has_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse(text)
    path = tmp_path / "recipe.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingError, match="is not valid TOML"):
        recipes.load(path)


def test_a_long_key_is_refused_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("it was read"))
    with pytest.raises(ValueError, match="more than"):
        parse(".".join(["a"] * 400_000) + " = 1")


@pytest.mark.parametrize(
    "text",
    [
        "x = 9223372036854775807\ny = -9223372036854775808",
        "a.b.c.d = 1.5e3",
        'x = "' + "a." * 100 + '"',
        "x = '" + "a." * 100 + "'",
        'x = """' + "a.\n" * 100 + '"""',
        "x = '''" + "a.\n" * 100 + "'''",
        "# " + "a." * 100,
        'x = """a"""""',
        "x = [" + "1.5, " * 100 + "]",
        "x = 1979-05-27T07:32:00.999",
    ],
)
def test_dots_in_texts_and_numbers_are_no_keys(text: str) -> None:
    assert parse(text) == tomllib.loads(text)


@given(st.text(alphabet="ab.\"'\\\n#= []{}1-", max_size=60))
def test_what_is_read_is_what_the_library_reads(text: str) -> None:
    def outcome(reader: Any) -> Any:
        try:
            return reader(text)
        except (ValueError, RecursionError) as error:
            return "refused" if "more than" not in str(error) else "long"

    ours = outcome(parse)
    assert ours in ("long", outcome(tomllib.loads)) or ours == outcome(tomllib.loads)


def test_settings_of_the_command_line_have_the_same_bounds() -> None:
    assert recipes.parse_overrides(["policy.k=256"]) == {"policy": {"k": 256}}
    with pytest.raises(SettingError, match="seed"):
        recipes.resolve({"task": {"dataset": "sst-2"}, **recipes.parse_overrides(["seed=1" + "0" * 5000])})
