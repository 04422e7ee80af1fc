"""A run's settings as one frozen object: from TOML and `--set a.b=c`, resolved over presets, back to TOML.

The defaults in sections.py are the paper's settings for few-shot classification, with the target of the released code;
presets.toml has what each task, method and profile changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from pinprompt.errors import SettingError, did_you_mean
from pinprompt.methods.table import METHODS, SECTIONS, Tree, row_of
from pinprompt.recipe import sections, task_sections
from pinprompt.recipe.sections import Section

TaskSettings = Annotated[
    task_sections.ClassificationSettings
    | task_sections.StyleTransferSettings
    | task_sections.InversionSettings
    | task_sections.AnswerSettings
    | task_sections.CustomSettings,
    Field(discriminator="kind"),
]
MAX_RECIPE_BYTES = 1_000_000
"""Maximum size of a recipe file in bytes."""
MAX_MISTAKES_SHOWN = 10
"""Maximum number of mistakes that are listed: finding the name that was meant takes time."""
LONGEST_SHOWN = 200
"""Maximum number of characters of a name or value that are repeated in a message."""
KINDS = ("classification", "style-transfer", "inversion", "answers", "custom")


class Recipe(Section):
    """Everything that determines a run; the same recipe gives the same events."""

    method: str = "pin"
    """Search method; `pinprompt methods` lists the names."""
    profile: Literal["paper", "quick"] = "paper"
    """paper: the published settings; quick: settings for a few minutes on a laptop."""
    seed: int = Field(0, ge=0, le=2**63 - 1)
    """The random seed; 0 is a seed like any other."""
    private: bool = False
    """Keep your texts and pictures out of the run folder and its report."""
    task: TaskSettings
    policy: sections.PolicySettings = sections.PolicySettings()
    q_learning: sections.QLearningSettings = sections.QLearningSettings()
    untrained: sections.UntrainedSettings = sections.UntrainedSettings()
    race: sections.RaceSettings = sections.RaceSettings()
    guided: sections.GuidedSettings = sections.GuidedSettings()
    soft_prompt: sections.SoftPromptSettings = sections.SoftPromptSettings()
    autoprompt: sections.AutoPromptSettings = sections.AutoPromptSettings()
    pez: sections.PezSettings = sections.PezSettings()
    grips: sections.GripsSettings = sections.GripsSettings()
    own: dict[str, Any] = Field(default_factory=dict)
    """Settings of a method of your own."""
    budget: sections.BudgetSettings = sections.BudgetSettings()
    scoring: sections.ScoringSettings = sections.ScoringSettings()
    models: task_sections.ModelSettings = task_sections.ModelSettings()
    remote: task_sections.RemoteSettings = task_sections.RemoteSettings()

    @property
    def method_settings(self) -> Any:
        """The section that the method reads; None for a method without one."""
        section = row_of(self.method).section
        return None if section is None else getattr(self, section)

    @property
    def other_methods(self) -> set[str]:
        """The sections of methods that this recipe does not use."""
        return {*SECTIONS, "own"} - {row_of(self.method).section}

    @property
    def served(self) -> str | None:
        """The task model's name on its server; None for a local model."""
        name = str(getattr(self.task, "model", ""))
        return name.removeprefix(task_sections.REMOTE) if task_sections.is_remote(name) else None

    @property
    def remote_models(self) -> list[str]:
        """The models on the server of [remote], by their names there."""
        names = [str(getattr(self.task, setting, None) or "") for setting in ("model", "proposer")]
        found = [name.removeprefix(task_sections.REMOTE) for name in names if task_sections.is_remote(name)]
        return list(dict.fromkeys(found))

    @property
    def hash(self) -> str:
        """Twelve hex digits that identify this recipe; settings of unused methods and servers are ignored."""
        unused = {*self.other_methods, "private"}  # `private` changes what is shown, not what is computed
        if not self.remote_models:
            unused.add("remote")
        canonical = json.dumps(self.model_dump(mode="json", exclude=unused), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def resolve(raw: Mapping[str, Any]) -> Recipe:
    """The complete recipe: defaults, then the presets of task, method and profile, then `raw` itself."""
    profile, task = raw.get("profile", "paper"), raw.get("task", {})
    kind = task.get("kind", "classification") if isinstance(task, Mapping) else "classification"
    method = raw.get("method", default_method(str(kind), str(profile)))
    if not isinstance(method, str) or not (method in METHODS or ":" in method):
        said = _cut(str(method))
        raise SettingError(
            f"there is no method '{said}': {did_you_mean(said, METHODS)} A method of your own is 'module:name'"
        )
    tree: dict[str, Any] = {"method": method, "task": {"kind": kind}}
    for layer in layers(str(method), str(kind), str(profile)):
        tree = merge(tree, layer)
    asked = task.get("style") if isinstance(task, Mapping) else None
    if kind == "inversion" and (profile == "quick" or asked is not None):
        style = tree["task"].get("style", "words") if asked is None else asked
        tree = merge(tree, presets()["styles"].get(str(style), {}))
    return validate(merge(tree, raw))


def validate(tree: Mapping[str, Any]) -> Recipe:
    """A recipe from a complete tree; mistakes are raised as one SettingError that lists them."""
    try:
        return Recipe.model_validate(_none_words(tree, Recipe))
    except ValidationError as mistakes:
        found = mistakes.errors(include_url=False, include_context=False)
        more = [f"and {len(found) - MAX_MISTAKES_SHOWN:,} more mistakes"] if len(found) > MAX_MISTAKES_SHOWN else []
        raise SettingError("; ".join([*map(_sentence, found[:MAX_MISTAKES_SHOWN]), *more])) from None


def load(path: Path | str, overrides: list[str] | None = None) -> Recipe:
    """The recipe in a TOML file, with `a.b=c` overrides on top."""
    return resolve(merge(read_toml(path), parse_overrides(overrides or [])))


def read_toml(path: Path | str) -> dict[str, Any]:
    """A TOML file as a tree; an error names the place of a mistake."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_RECIPE_BYTES + 1)
    except OSError as error:
        raise SettingError(
            f"the recipe {path} cannot be read: {error.strerror}; give the path of a TOML file"
        ) from None
    if len(data) > MAX_RECIPE_BYTES:
        raise SettingError(f"{path} is larger than {MAX_RECIPE_BYTES:,} bytes; a recipe is a small TOML file")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is not valid TOML: {str(error)[:300]}") from None


def parse_overrides(overrides: list[str]) -> dict[str, Any]:
    """`["policy.k=256"]` as a tree."""
    tree: dict[str, Any] = {}
    for override in overrides:
        tree = with_setting(tree, *parse_override(override))
    return tree


def parse_override(override: str) -> tuple[str, Any]:
    """`"policy.k=256"` as `("policy.k", 256)`; a value that is not valid TOML is taken as plain text."""
    setting, equals, text = override.partition("=")
    if not equals or not setting.strip():
        raise SettingError(f"'{override}' is not a setting: write section.name=value, such as policy.k=256")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    return setting.strip(), value


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `under`, section by section."""
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge(below, value)
        else:
            merged[name] = value
    return merged


def with_setting(tree: Mapping[str, Any], setting: str, value: Any) -> dict[str, Any]:
    """A tree with a setting such as "policy.k" set to a value."""
    for name in reversed(setting.split(".")):
        value = {name: value}
    return merge(tree, value)


def setting_in(tree: Any, setting: str) -> Any:
    """The value of a setting such as "policy.k" in a tree; None if there is none."""
    for name in setting.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML with every field written out; `load` of it gives an equal recipe."""
    return tomli_w.dumps(_without_none(recipe.model_dump(mode="json")))


def file_name(text: str) -> str:
    """A text as a single file name, so that a name from a recipe cannot point to another folder."""
    return re.sub(r"[^\w.-]+", "-", text).lstrip(".") or "run"


def fields(section: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Every setting as (path, type, default, description), for help texts and docs/recipe.md."""
    for name, info in section.model_fields.items():
        inner = _sections_of(info)
        if inner:
            for part in inner:
                mark = f"{name}({part.model_fields['kind'].default})" if "kind" in part.model_fields else name
                yield from fields(part, f"{prefix}{mark}.")
        elif name != "kind":
            yield f"{prefix}{name}", _type_name(info), _default(info), " ".join((info.description or "").split())


def _without_none(value: Any) -> Any:
    """Replace None by the word "none", since TOML has no null; `_none_words` is the way back."""
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return "none" if value is None else value


def _none_words(tree: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """Replace the word "none" by None in optional fields, since TOML has no null."""
    clean: dict[str, Any] = {}
    for name, value in tree.items():
        info = section.model_fields.get(name)
        inner = _sections_of(info) if info else []
        if isinstance(value, Mapping) and inner:
            kinds = {part.model_fields["kind"].default: part for part in inner if "kind" in part.model_fields}
            clean[name] = _none_words(value, kinds.get(str(value.get("kind")), inner[0]))
        else:
            clean[name] = None if value == "none" and info and type(None) in typing.get_args(info.annotation) else value
    return clean


def _sections_of(info: FieldInfo) -> list[type[BaseModel]]:
    options = typing.get_args(info.annotation) or (info.annotation,)
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def _type_name(info: FieldInfo) -> str:
    annotation = info.annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Literal):
        return " or ".join(map(_literal_or_name, typing.get_args(annotation)))
    return _literal_or_name(annotation)


def _literal_or_name(part: Any) -> str:
    if part is type(None):
        return "none"
    if typing.get_origin(part) is typing.Literal:
        return " or ".join(map(str, typing.get_args(part)))
    if isinstance(part, type) and not typing.get_args(part):
        return part.__name__
    return str(part).replace("typing.", "")


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    return "none" if value is None else json.dumps(value, default=str)


def _sentence(error: Any) -> str:
    path = [str(part) for part in error["loc"] if part not in KINDS]
    where = _cut(".".join(path))
    if error["type"] == "extra_forbidden":
        return f"there is no setting '{where}': {did_you_mean(where, _known_names())}"
    # The user may have put the API key into these fields by mistake, so their value is never repeated.
    unsaid = isinstance(error.get("input"), dict) or where in ("remote.key_env", "remote.base_url")
    given = "" if unsaid else f" (given: {_cut(repr(error.get('input')))})"
    told = error["msg"].removeprefix("Value error, ")  # pydantic's words before those of our own checks
    return f"{where or 'recipe'}: {told[0].lower()}{told[1:]}{given}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def _known_names() -> set[str]:
    """Every name that a recipe may contain: sections and settings; those of tasks without their kind."""
    plain = {f"task.{path.partition(').')[2]}" if ")." in path else path for path, *_ in fields()}
    return plain | set(Recipe.model_fields)


@cache
def presets() -> dict[str, Any]:
    """What tasks, methods and profiles change in the defaults (presets.toml beside this file)."""
    return tomllib.loads((Path(__file__).parent / "presets.toml").read_text("utf-8"))


def default_method(kind: str, profile: str) -> str:
    """The default method: the paper's, or in the profile quick the one that measured best."""
    return str(presets()["quick-methods"].get(kind, "pin")) if profile == "quick" else "pin"


def layers(method: str, kind: str, profile: str) -> Iterator[Tree]:
    """The presets to apply over the defaults, least specific first."""
    known = presets()
    own = known["methods"].get(row_of(method).control_of or method, {})
    yield known["tasks"].get(kind, {})
    yield own.get("always", {})
    yield own.get("tasks", {}).get(kind, {})
    if profile == "quick":
        yield known["quick"]
        yield known["quick-tasks"].get(kind, {})
        yield own.get("quick", {})
        yield own.get("quick-tasks", {}).get(kind, {})
