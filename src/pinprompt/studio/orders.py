"""From the form on the page to the command that does the same in a terminal; that command is what runs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprompt.recipe.presets import default_method
from pinprompt.recipe.recipe import file_name, resolve
from pinprompt.studio import intake
from pinprompt.studio.guard import Refused, words

TASKS = {"classify": "classification", "restyle": "style-transfer", "invert": "inversion"}
CHARSETS = ("any", "ascii", "letters")


@dataclass(frozen=True)
class Order:
    """A search to be run: the arguments of `pinprompt`, and the folder that it will write."""

    arguments: tuple[str, ...]
    folder: Path
    title: str

    @property
    def command(self) -> str:
        """What a person would type."""
        return shlex.join(["pinprompt", *self.arguments])

    def process(self, *more: str) -> list[str]:
        """The command as this Python runs it."""
        return [sys.executable, "-m", "pinprompt.cli", *self.arguments, *more]


def order(root: Path, form: Mapping[str, Any]) -> Order:
    """The search that a form describes; what it leaves out keeps the command line's own default."""
    kind = form.get("kind")
    if kind not in TASKS:
        raise Refused(400, "Choose what the prompt is for: labels, a style or a picture.")
    arguments, name = _SUBJECTS[kind](root, form)
    arguments += _text_option(form, "model", "--model" if kind == "invert" else "--task-model")
    arguments += _text_option(form, "method", "--method") + _limits(form)
    seed = _number(form, "seed", whole=True, least=0)
    arguments += [] if seed is None else ["--seed", str(seed)]
    for setting in constraints(form) + words(str(form.get("sets") or "").splitlines()):
        arguments += ["--set", setting]
    folder = unused(root, file_name(str(form.get("name") or name))[:80])
    return Order((kind, *arguments, "--out", shown(folder)), folder, folder.name)


def resumption(root: Path, folder: Path, form: Mapping[str, Any]) -> Order:
    """Resuming a run, with a larger budget where one is given."""
    recipe = shown(folder / "recipe.toml")
    arguments = ("tune", recipe, "--out", shown(folder), "--resume", *_limits(form))
    return Order(arguments, folder, folder.name)


def variation(root: Path, folder: Path, recipe: Mapping[str, Any], form: Mapping[str, Any]) -> Order:
    """A search like an earlier one with a word banned or required; scores that are known are not paid for again."""
    word, what = str(form.get("word") or "").strip(), form.get("what")
    if not word or len(word) > 60 or any(letter.isspace() for letter in word):
        raise Refused(400, "Give one word.")
    if what not in ("banned", "required"):
        raise Refused(400, "A word can be banned or required.")
    policy = recipe.get("policy")
    earlier = policy.get("constraints", {}) if isinstance(policy, Mapping) else {}
    known = earlier.get(what, []) if isinstance(earlier, Mapping) else []
    chosen = [*dict.fromkeys([*(str(one) for one in known if isinstance(one, str)), word])]
    stem = file_name(f"{folder.name}-{'without' if what == 'banned' else 'with'}-{word}")[:100]
    target = unused(root, stem)
    setting = f"policy.constraints.{what}={json.dumps(chosen, ensure_ascii=False)}"
    arguments = ("tune", shown(folder / "recipe.toml"), "--set", setting, "--out", shown(target))
    return Order(arguments, target, target.name)


def defaults() -> dict[str, dict[str, Any]]:
    """What the command line takes for what a form leaves empty, by kind of search."""
    found = {}
    for kind, task in TASKS.items():
        recipe = resolve({"method": default_method(task, "quick"), "profile": "quick", "task": {"kind": task}})
        found[kind] = {
            "calls": recipe.budget.calls or "no limit",
            "minutes": recipe.budget.minutes or "no limit",
            "length": recipe.policy.length,
            "seed": recipe.seed,
        }
    return found


def constraints(form: Mapping[str, Any]) -> list[str]:
    """The settings that say what a prompt may be."""
    found = []
    for name in ("banned", "required"):
        given = words(str(form.get(name) or "").replace("\n", ",").split(","))
        if given:
            found.append(f"policy.constraints.{name}={json.dumps(given, ensure_ascii=False)}")
    length = _number(form, "length", whole=True, least=1)
    found += [] if length is None else [f"policy.length={length}"]
    chars = _number(form, "max_chars", whole=True, least=1)
    found += [] if chars is None else [f"policy.constraints.max_chars={chars}"]
    charset = form.get("charset")
    if charset:
        if charset not in CHARSETS:
            raise Refused(400, f"The characters are one of: {', '.join(CHARSETS)}.")
        found.append(f'policy.constraints.charset="{charset}"')
    if form.get("dictionary"):
        found.append("policy.constraints.dictionary=true")
    return found


def unused(root: Path, stem: str) -> Path:
    """A folder below the root that is not there yet."""
    for number in range(1, 10_000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        if not os.path.lexists(path):
            return path
    raise Refused(400, "There are too many runs of this name; choose another.")


def shown(path: Path) -> str:
    """A path as a person would write it: from the current folder where it lies below it."""
    whole = path.absolute()
    try:
        return str(whole.relative_to(Path.cwd()))
    except ValueError:
        return str(whole)


def _labels(root: Path, form: Mapping[str, Any]) -> tuple[list[str], str]:
    dataset = str(form.get("dataset") or "").strip()
    pairs = form.get("words")
    words_given = {str(a).strip(): str(b).strip() for a, b in pairs.items()} if isinstance(pairs, Mapping) else {}
    found: list[str] = []
    if dataset:
        if dataset.startswith("-"):
            raise Refused(400, "A dataset's name does not begin with a dash.")
        arguments, name = [dataset], dataset
    else:
        path = intake.kept(root, form.get("train"))
        arguments, name = ["--train", shown(path)], path.stem.rpartition("-")[0]
        for column, option in (("text_column", "--text-column"), ("label_column", "--label-column")):
            given = str(form.get(column) or "")
            if given and given != column.removesuffix("_column"):
                found.append(f"{option}={given}")
        missing = [label for label, word in words_given.items() if not word]
        if missing:
            raise Refused(400, f"Which word would a model say for '{missing[0]}'? Fill it in below the labels.")
    for label, word in words_given.items():
        if "=" in label:
            raise Refused(400, f"The label '{label}' contains '=', which the command line cannot take. Rename it.")
        found.append(f"--word={label}={word}")
    rows = _number(form, "test_rows", whole=True, least=1)
    return arguments + found + ([] if rows is None else ["--test-rows", str(rows)]), name


def _style(root: Path, form: Mapping[str, Any]) -> tuple[list[str], str]:
    source, target = intake.kept(root, form.get("source")), intake.kept(root, form.get("target"))
    names = [path.stem.rpartition("-")[0] for path in (source, target)]
    return ["--source", shown(source), "--target", shown(target)], f"{names[0]}-to-{names[1]}"


def _picture(root: Path, form: Mapping[str, Any]) -> tuple[list[str], str]:
    given = form.get("pictures")
    names: Sequence[Any] = given if isinstance(given, list) else []
    paths = [intake.kept(root, name) for name in names[:20]]
    if not paths:
        raise Refused(400, "Drop a picture first.")
    return [shown(path) for path in paths], f"words-for-{paths[0].stem.rpartition('-')[0]}"


_SUBJECTS = {"classify": _labels, "restyle": _style, "invert": _picture}


def _limits(form: Mapping[str, Any]) -> list[str]:
    calls, minutes = _number(form, "calls", whole=True, least=1), _number(form, "minutes", least=0.01)
    found = [] if calls is None else ["--calls", str(calls)]
    return found + ([] if minutes is None else ["--minutes", f"{minutes:g}"])


def _text_option(form: Mapping[str, Any], name: str, option: str) -> list[str]:
    given = str(form.get(name) or "").strip()
    if len(given) > 300 or any(ord(letter) < 32 for letter in given):
        raise Refused(400, f"The {name} is not a name.")
    return [f"{option}={given}"] if given.startswith("-") else [option, given] if given else []


def _number(form: Mapping[str, Any], name: str, *, whole: bool = False, least: float = 0) -> float | int | None:
    given = form.get(name)
    if given is None or given == "":
        return None
    kind = "a whole number" if whole else "a number"
    try:
        value = int(str(given)) if whole else float(str(given))
    except (ValueError, OverflowError):
        raise Refused(400, f"{name.replace('_', ' ')}: {kind} is needed, not '{str(given)[:40]}'.") from None
    if not least <= value < 1e12:
        raise Refused(400, f"{name.replace('_', ' ')}: {kind} from {least:g} is needed.")
    return value
