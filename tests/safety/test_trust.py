"""Code that a model brings along runs only where a person said so on the command line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from pinprompt.errors import ModelError, SettingError
from pinprompt.models import loading
from pinprompt.models.sources import trusted, trusting
from pinprompt.recipe import recipe as recipes
from tests.house.tiny import make_lm, recipe
from tests.safety.remote_runs import call

CODE = """
from transformers import GPT2Config, GPT2LMHeadModel

open({proof!r}, "w").close()


class OwnConfig(GPT2Config):
    model_type = "own"


class OwnModel(GPT2LMHeadModel):
    config_class = OwnConfig
"""


@pytest.fixture
def own(tmp_path: Path, lm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A model whose classes are in a file of its own, and the proof that the file was run."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, proof = tmp_path / "own", tmp_path / "proof"
    plain = make_lm(lm_folder)
    model, _ = loading.load_causal_lm(str(plain))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(plain).save_pretrained(folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"model_type": "own", "architectures": ["OwnModel"]}
    config["auto_map"] = {"AutoConfig": "code_of_it.OwnConfig", "AutoModelForCausalLM": "code_of_it.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "code_of_it.py").write_text(CODE.format(proof=str(proof)), "utf-8")
    return folder, proof


def test_only_the_command_line_allows_it(own: tuple[Path, Path], tmp_path: Path, lm_folder: Path) -> None:
    folder, proof = own
    steps = {"q_learning": {"steps": 2, "prompts": 2, "batch": 2}}
    made = recipe(lm_folder, policy={"model": str(folder)}, task={"function": "tests.cli.scoring:vowels"}, **steps)
    path = tmp_path / "recipe.toml"
    path.write_text(recipes.to_toml(made), "utf-8")
    refused = call("tune", path, "--out", tmp_path / "refused", "--threads", 1, "--trust")
    assert refused.exit_code == 2, refused.output
    assert "--trust-remote-code" in refused.stderr
    assert not proof.exists()
    done = call("tune", path, "--out", tmp_path / "run", "--trust-remote-code", "--threads", 1, "--json")
    assert done.exit_code == 0, done.output
    assert proof.exists()
    assert not trusted()
    # The run that it left does not record it: whoever opens it is asked again.
    proof.unlink()
    for word in ("trust", "proof"):
        assert word not in (tmp_path / "run" / "recipe.toml").read_text("utf-8").replace(str(folder), "")


@pytest.mark.parametrize("place", ["trust_remote_code", "policy.trust_remote_code", "task.trust_remote_code"])
def test_no_recipe_can_ask_for_it(place: str) -> None:
    tree = recipes.merge({"task": {"dataset": "sst-2"}}, recipes.parse_overrides([f"{place}=true"]))
    with pytest.raises(SettingError, match="there is no setting"):
        recipes.resolve(tree)


def test_code_is_allowed_inside_the_context_only(own: tuple[Path, Path]) -> None:
    folder, proof = own
    with contextlib.suppress(RuntimeError), trusting():
        assert trusted()
        raise RuntimeError("stop")
    assert not trusted()
    with pytest.raises(ModelError, match="brings its own code; read it"):
        loading.load_causal_lm(str(folder))
    assert not proof.exists()


class Touch:
    """Runs code when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


def test_trust_in_code_is_no_trust_in_pickles(own: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = own
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Touch(tmp_path / "unpickled")}, folder / "pytorch_model.bin")
    with trusting(), pytest.raises(ModelError, match="cannot be loaded"):
        loading.load_causal_lm(str(folder))
    assert not (tmp_path / "unpickled").exists()
