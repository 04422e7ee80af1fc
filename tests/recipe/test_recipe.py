"""Recipes: TOML in and out, presets, overrides, and mistakes that get a sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pinprompt.data.datasets import CARDS
from pinprompt.errors import SettingError
from pinprompt.methods.baselines.grips import TextRules
from pinprompt.methods.table import METHODS
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.recipe.task_sections import ClassificationSettings, CustomSettings, StyleTransferSettings


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", ["paper", "quick"])
def test_every_preset_survives_the_way_through_toml(method: str, profile: str) -> None:
    recipe = recipes.resolve({"method": method, "profile": profile, "task": {"dataset": "sst-2"}})
    again = recipes.resolve(tomllib.loads(recipes.to_toml(recipe)))
    assert again == recipe
    assert again.hash == recipe.hash


def test_the_defaults_are_the_papers() -> None:
    recipe = recipes.resolve({"task": {"dataset": "sst-2"}})
    assert (recipe.policy.model, recipe.policy.length, recipe.policy.k) == ("facebook/opt-125m", 5, 10_000)
    learning = recipe.q_learning
    assert (learning.batch, learning.learning_rate, learning.capacity, learning.rho) == (256, 5e-5, 64_000, 0.999)
    assert (learning.steps, learning.prompts, learning.alpha) == (6000, 16, 1.0)
    assert recipe.task.model == "roberta-large"


def test_presets_differ_where_the_paper_says() -> None:
    rlprompt = recipes.resolve({"method": "rlprompt", "task": {}})
    assert (rlprompt.q_learning.entropy, rlprompt.q_learning.replay, rlprompt.q_learning.top_q) == (
        "shannon",
        False,
        256,
    )
    assert rlprompt.q_learning.alpha == pytest.approx(1 / 5)
    assert rlprompt.policy.k is None
    fluent = recipes.resolve({"method": "rlprompt-rb-fluency", "task": {}})
    assert (fluent.policy.k, fluent.q_learning.filter, fluent.q_learning.replay) == (256, "sampling", True)


def test_grips_can_start_from_every_instruction_in_both_profiles() -> None:
    for profile in ("paper", "quick"):
        rules = TextRules(recipes.resolve({"method": "grips", "profile": profile}).policy.constraints)
        assert [rules.broken(card.instruction) for card in CARDS.values()] == [None] * len(CARDS)


def test_what_the_user_says_wins_over_presets() -> None:
    recipe = recipes.resolve({"method": "rlprompt", "q_learning": {"top_q": "none", "alpha": 2}, "task": {}})
    assert recipe.q_learning.top_q is None
    assert recipe.q_learning.alpha == 2.0


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"policy": {"lenght": 3}}, "did you mean 'policy.length'"),
        ({"polcy": {"k": 3}}, "did you mean 'policy"),
        ({"task": {"datset": "sst-2"}}, "did you mean 'task.dataset'"),
        ({"method": "pni"}, "did you mean 'pin'"),
        ({"q_learning": {"alpha": 0}}, "q_learning.alpha"),
        ({"q_learning": {"alpha": -1.0}}, "q_learning.alpha"),
        ({"q_learning": {"rho": 1.5}}, "q_learning.rho"),
        ({"q_learning": {"alpha": float("nan")}}, "q_learning.alpha"),
        ({"policy": {"length": 0}}, "policy.length"),
        ({"policy": {"k": 0}}, "policy.k"),
        ({"seed": -1}, "seed"),
        ({"task": {"kind": "poetry"}}, "poetry"),
        ({"task": "sst-2"}, "task"),
    ],
)
def test_a_mistake_gives_an_error_message(raw: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError, match=said.replace("(", r"\(")):
        recipes.resolve(raw)


def test_overrides_are_toml_values_or_plain_text() -> None:
    tree = recipes.parse_overrides(["policy.k=256", "policy.model=smollm2", "policy.constraints.banned=['a', 'b']"])
    assert tree == {"policy": {"k": 256, "model": "smollm2", "constraints": {"banned": ["a", "b"]}}}
    with pytest.raises(SettingError, match=r"section\.name=value"):
        recipes.parse_overrides(["policy.k"])


def test_unreadable_recipes_are_refused_with_their_path(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        recipes.load(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("policy = [")
    with pytest.raises(SettingError, match=r"bad\.toml is not valid TOML"):
        recipes.load(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="not valid TOML"):
        recipes.load(bad)


def test_frozen() -> None:
    recipe = recipes.resolve({"task": {}})
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3


def test_every_setting_is_described_once() -> None:
    rows = list(recipes.fields())
    assert all(description.endswith(".") for _, _, _, description in rows)
    paths = [path for path, *_ in rows]
    assert len(paths) == len(set(paths))
    assert "policy.constraints.banned" in paths


@given(st.text(max_size=40), st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=3))
def test_any_text_survives_toml(text: str, words: dict[str, str]) -> None:
    recipe = recipes.resolve({"task": {"template": text or "x", "words": words}, "policy": {"context": text}})
    assert recipes.resolve(tomllib.loads(recipes.to_toml(recipe))) == recipe


def test_a_recipe_is_named_by_the_settings_that_it_uses() -> None:
    def name(method: str, **more: object) -> str:
        return recipes.resolve({"method": method, "task": {"kind": "classification", "dataset": "sst-2"}, **more}).hash

    assert name("pin", grips={"steps": 3}, remote={"timeout": 5}) == name("pin")
    assert name("grips", grips={"steps": 3}) != name("grips")
    assert name("soft-prompt", soft_prompt={"epochs": 3}) != name("soft-prompt")
    assert name("manual", q_learning={"steps": 3}) == name("manual")
    assert name("pin", q_learning={"steps": 3}) != name("pin")
    assert name("random", q_learning={"steps": 3}) == name("random")
    assert name("pin") != name("pin", seed=1)


@pytest.mark.parametrize("profile", ["paper", "quick"])
@pytest.mark.parametrize("kind", ["classification", "style-transfer", "inversion"])
def test_the_control_has_the_settings_of_pin(profile: str, kind: str) -> None:
    task = {"kind": kind, "dataset": "sst-2"} if kind == "classification" else {"kind": kind}
    pin, control = (recipes.resolve({"method": m, "profile": profile, "task": task}) for m in ("pin", "pin-untrained"))
    assert control.model_dump() == {**pin.model_dump(), "method": "pin-untrained"}


def test_a_replay_that_never_holds_a_batch_is_refused() -> None:
    tree: dict[str, Any] = {"task": {"dataset": "sst-2"}, "q_learning": {"batch": 64, "capacity": 63}}
    with pytest.raises(SettingError, match=r"^q_learning: capacity .* nothing would be learnt; raise capacity"):
        recipes.resolve(tree)
    recipes.resolve({**tree, "q_learning": {**tree["q_learning"], "replay": False}})


RL = [name for name, row in METHODS.items() if row.kind == "rl"]


@pytest.mark.parametrize("kind", ["classification", "style-transfer", "inversion"])
def test_short_searches_give_every_q_learning_method_the_same_care(kind: str) -> None:
    learning = [recipes.resolve({"method": name, "profile": "quick", "task": {"kind": kind}}).q_learning for name in RL]
    for shared in ("explore", "updates", "steps", "on_collapse", "renormalise", "rho"):
        assert len({getattr(one, shared) for one in learning}) == 1, shared
    for shared in ("capacity", "keep_best", "batch"):
        assert len({getattr(one, shared) for one in learning if one.replay}) == 1, shared
    # No method may begin with one fixed set of tokens: where the policy is cut to its largest Q, the cut comes later.
    for one in learning:
        assert one.top_q is None or one.top_q_from >= 64


def test_the_style_sets_constraints_that_the_user_can_override() -> None:
    picture = {"kind": "inversion", "images": ["a.png"]}

    def rules(**raw: Any) -> Any:
        return recipes.resolve({"profile": "quick", **raw}).policy.constraints

    assert recipes.resolve({"profile": "quick", "task": picture}).method == "guided"
    assert recipes.resolve({"task": picture}).method == "pin"
    caption = rules(task=picture)
    assert (caption.whole_words, caption.no_repeats) == (True, "words")
    listed = rules(task=picture, method="pin")
    assert (listed.whole_words, listed.no_repeats) == (True, "tokens")
    tags = rules(task={**picture, "style": "tags"}, method="pin")
    assert (tags.whole_words, tags.no_repeats) == (False, "words")
    assert tags.charset == "tags"
    assert rules(task=picture, policy={"constraints": {"whole_words": False}}).whole_words is False
    assert recipes.resolve({"task": {**picture, "style": "caption"}}).policy.context == "task"
    with pytest.raises(SettingError, match="style"):
        recipes.resolve({"task": {**picture, "style": "poem"}})


@pytest.mark.parametrize(
    "wrong", [{"target": "path-mean"}, {"replay": False}, {"normalise": "batch", "renormalise": False}]
)
def test_rewards_per_prefix_need_settings_that_support_them(wrong: dict[str, Any]) -> None:
    fine = {"rewards": "prefix", "normalise": "none"}
    recipes.resolve({"task": {"kind": "inversion"}, "q_learning": fine})
    with pytest.raises(SettingError, match="prefix"):
        recipes.resolve({"task": {"kind": "inversion"}, "q_learning": {**fine, **wrong}})


def test_ten_mistakes_are_named_and_the_rest_are_counted() -> None:
    with pytest.raises(SettingError) as caught:
        recipes.resolve({"task": {"kind": "custom"}, **{f"nothing{n}": 1 for n in range(50_000)}})
    said = str(caught.value)
    assert said.count("there is no setting") == 10
    assert said.endswith("and 49,990 more mistakes")


def test_a_long_value_is_not_repeated_in_full() -> None:
    for tree in ({"seed": "x" * 100_000}, {"method": "x" * 100_000}, {"y" * 100_000: 1}):
        with pytest.raises(SettingError) as caught:
            recipes.resolve({"task": {"kind": "custom"}, **tree})
        assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("text", ["x = ", "x = 1" + "0" * 5000, "x = " + "[" * 100_000])
def test_a_file_that_is_not_toml_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingError, match="is not valid TOML"):
        recipes.load(path)


def test_settings_of_the_command_line_have_the_same_bounds() -> None:
    assert recipes.parse_overrides(["policy.k=256"]) == {"policy": {"k": 256}}
    with pytest.raises(SettingError, match="seed"):
        recipes.resolve({"task": {"dataset": "sst-2"}, **recipes.parse_overrides(["seed=1" + "0" * 5000])})


def whole_numbers(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """The settings of a section, and of those in it, that take whole numbers."""
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        if int in kinds:
            yield f"{path}{name}"
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from whole_numbers(kind, f"{path}{name}.")


TASKS = {"classification": ClassificationSettings, "style-transfer": StyleTransferSettings, "custom": CustomSettings}
EVERY = [(name, "classification") for name in whole_numbers(Recipe) if not name.startswith("task.")] + [
    (f"task.{name}", kind) for kind, section in TASKS.items() for name in whole_numbers(section)
]


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_every_whole_number_has_an_upper_bound(name: str, kind: str) -> None:
    """A number that no laptop survives is refused before anything is allocated, or waited for."""
    tree: Any = 10**16 if not name.endswith(("seed", "split")) else 2**64
    for part in reversed(name.split(".")):
        tree = {part: tree}
    with pytest.raises(SettingError, match="less than or equal to"):
        recipes.resolve(recipes.merge({"task": {"kind": kind}}, tree))
