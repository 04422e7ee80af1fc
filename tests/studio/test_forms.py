"""From a dropped file and a form to the command that does the same; without a server."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pinprompt.cli import app
from pinprompt.studio import forms
from pinprompt.studio.guard import Refused


def kept(root: Path, content: str, name: str = "data.csv", kind: str = "table") -> Path:
    return forms.keep(root, kind, name, content.encode())


@pytest.mark.parametrize(
    ("header", "row", "found"),
    [
        ("text,label", "fine,1", ("text", "label")),
        ("id,Review,Stars", "7,fine,1", ("Review", "Stars")),
        ("a,b", "a long text about this and that {n},x{m}", ("a", "b")),
        ("b,a", "x{m},a long text about this and that {n}", ("a", "b")),
        ("nr;words;kind", "{n};some words, more {n};k{m}", ("words", "kind")),
        ("when,subject,body,queue", "{n},hello {n},a longer text {n},q{m}", ("body", "queue")),
    ],
)
def test_columns_are_guessed(tmp_path: Path, header: str, row: str, found: tuple[str, str]) -> None:
    rows = [row.replace("{n}", str(number)).replace("{m}", str(number % 2)) for number in range(20)]
    said = forms.describe_table(kept(tmp_path, "\n".join([header, *rows])))
    assert (said["text_column"], said["label_column"]) == found


@pytest.mark.parametrize(
    ("content", "suffix"),
    [('{"text": "a", "label": "x"}\n', ".jsonl"), ("text\tlabel\na\tx\n", ".tsv"), ("text,label\na,x\n", ".csv")],
)
def test_what_is_pasted_is_known_for_what_it_is(tmp_path: Path, content: str, suffix: str) -> None:
    path = kept(tmp_path, content, "pasted")
    assert path.suffix == suffix
    assert forms.describe_table(path)["sample"][0]["text"] == "a"


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("text,label\na,1\nb,\n", 3, "label is empty"),
        ("text,label\na,1\nb,0,extra\n", 3, "3 fields"),
        ('text,label\na,1\n"b,0\n', 3, "not CSV"),
        ("text\na\nb\n", 1, "This is not a table"),
        ("text,label\na,1\nb,1\n", None, "All rows have the label '1'"),
        ("text,label\n", None, "no examples"),
    ],
)
def test_problems_are_named(tmp_path: Path, content: str, line: int | None, said: str) -> None:
    problems = forms.describe_table(kept(tmp_path, content))["problems"]
    assert [one["line"] for one in problems if said in one["message"]] == [line], problems


@pytest.mark.parametrize("content", ["a line of prose\nand another one\n", "Dear all,\nthis is a letter\n"])
def test_a_file_that_is_no_table_is_not_asked_for_its_columns(tmp_path: Path, content: str) -> None:
    found = forms.describe_table(kept(tmp_path, content))
    assert found["columns"] == []
    assert "This is not a table" in found["problems"][0]["message"]


def test_rows_without_a_text_are_counted_but_no_obstacle(tmp_path: Path) -> None:
    found = forms.describe_table(kept(tmp_path, "text,label\na,1\n,0\nb,0\n"))
    assert (found["rows"], found["blank"], found["problems"]) == (2, 1, [])


def test_labels_are_counted_and_get_words(tmp_path: Path) -> None:
    rows = [
        "a,positive",
        "b,negative",
        "c,positive",
        "d,negative",
        "e,Order status",
        "f,Order status",
        "g,3",
        "h,3",
    ]
    said = forms.describe_table(kept(tmp_path, "\n".join(["text,label", *rows])))
    found = {one["label"]: (one["count"], one["word"]) for one in said["labels"]}
    assert found == {
        "positive": (2, "great"), "negative": (2, "terrible"), "Order status": (2, "order status"), "3": (2, ""),
    }  # fmt: skip


def test_a_picture_and_lines_are_described(tmp_path: Path) -> None:
    import base64

    import run_samples as sample

    data = base64.b64decode(sample.png(24).split(",")[1])
    said = forms.describe_picture(forms.keep(tmp_path, "picture", "sun.png", data))
    assert (said["width"], said["height"], said["problems"]) == (24, 24, [])
    said = forms.describe_picture(forms.keep(tmp_path, "picture", "no.png", b"not a picture"))
    assert said["problems"]
    said = forms.describe_lines(kept(tmp_path, "one\ntwo\n", "x.txt", "lines"))
    assert said["rows"] == 2
    said = forms.describe_lines(kept(tmp_path, "one\n\ntwo\n", "y.txt", "lines"))
    assert said["problems"][0]["line"] == 2


def parsed(command: str) -> dict[str, Any]:
    """What the command line itself makes of a command."""
    group: Any = get_command(app)
    words = shlex.split(command)
    assert words[0] == "pinprompt"
    verb = group.commands[words[1]]
    context = verb.make_context(words[1], words[2:], resilient_parsing=False)
    return {"verb": words[1], **context.params}


def test_the_command_says_what_the_form_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = kept(tmp_path / "runs", "my text,label\na,1\nb,0\nc,1\nd,0\n", "tickets 2.csv")
    search = forms.search_command(
        tmp_path / "runs",
        {"kind": "classify", "train": path.name, "text_column": "my text", "label_column": "label",
         "words": {"1": "great one", "0": "-bad"}, "model": "gpt2", "calls": "500", "minutes": "2.5", "seed": "3",
         "banned": "awful, bo'ring", "required": "film", "length": "4", "dictionary": True, "sets": "policy.k=32\n\n"},
    )  # fmt: skip
    found = parsed(search.command)
    assert found["verb"] == "classify"
    assert Path(found["train"]) == Path("runs/uploads") / path.name
    assert (found["text_column"], found["label_column"]) == ("my text", None)
    assert found["word"] == ["1=great one", "0=-bad"]
    assert (found["task_model"], found["calls"], found["minutes"], found["seed"]) == ("gpt2", 500, 2.5, 3)
    assert found["sets"] == [
        'policy.constraints.banned=["awful", "bo\'ring"]', 'policy.constraints.required=["film"]', "policy.length=4",
        "policy.constraints.dictionary=true", "policy.k=32",
    ]  # fmt: skip
    assert Path(found["out"]) == Path("runs/tickets-2")


def test_nothing_is_said_that_the_form_leaves_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    search = forms.search_command(
        tmp_path, {"kind": "classify", "dataset": "rotten-tomatoes", "calls": "", "charset": ""}
    )
    assert search.command == "pinprompt classify rotten-tomatoes --out rotten-tomatoes"
    (tmp_path / "rotten-tomatoes").mkdir()
    again = forms.search_command(tmp_path, {"kind": "classify", "dataset": "rotten-tomatoes"})
    assert again.command.endswith("--out rotten-tomatoes-2")


def test_a_style_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [kept(tmp_path, f"{word}\n", f"{word}.txt", "lines").name for word in ("sad", "glad")]
    found = parsed(forms.search_command(tmp_path, {"kind": "restyle", "source": names[0], "target": names[1]}).command)
    assert (found["source"].name, found["target"].name) == (names[0], names[1])
    assert str(found["out"]) == "sad-to-glad"
    picture = forms.keep(tmp_path, "picture", "sun.png", b"x").name
    search = forms.search_command(tmp_path, {"kind": "invert", "pictures": [picture], "model": "emoji-clip"})
    found = parsed(search.command)
    assert ([path.name for path in found["images"]], found["model"]) == ([picture], "emoji-clip")


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"kind": "dance"}, "Choose the kind"),
        ({"kind": "classify"}, "not among the uploads"),
        ({"kind": "invert", "pictures": []}, "Drop a picture"),
        ({"kind": "classify", "dataset": "x", "calls": "many"}, "calls: a whole number is needed, not 'many'"),
        ({"kind": "classify", "dataset": "x", "minutes": "-1"}, "minutes: a number from 0.01"),
        ({"kind": "classify", "dataset": "x", "minutes": "nan"}, "minutes: a number"),
        ({"kind": "classify", "dataset": "x", "charset": "runes"}, "Characters must be one of"),
        ({"kind": "classify", "dataset": "x", "words": {"a=b": "c"}}, "contains '='"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, form: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        forms.search_command(tmp_path, form)


def test_a_word_is_added_to_those_that_are_banned_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = {"policy": {"constraints": {"banned": ["bad"], "required": ["film"]}}}
    search = forms.variation(tmp_path, tmp_path / "run", recipe, {"what": "banned", "word": "awful"})
    found = parsed(search.command)
    assert found["sets"] == ['policy.constraints.banned=["bad", "awful"]']
    assert str(found["out"]) == "run-without-awful"
    for word in ("", "two words", "x" * 61):
        with pytest.raises(Refused, match="Give one word"):
            forms.variation(tmp_path, tmp_path / "run", recipe, {"what": "banned", "word": word})


def test_the_defaults_on_the_page_are_those_of_the_command_line() -> None:
    from pinprompt.recipe import recipe as recipes
    from pinprompt.recipe.recipe import default_method

    for kind, task in forms.TASKS.items():
        recipe = recipes.resolve({"method": default_method(task, "quick"), "profile": "quick", "task": {"kind": task}})
        assert forms.defaults()[kind]["length"] == recipe.policy.length
    assert json.dumps(forms.defaults())
