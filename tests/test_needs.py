"""What a recipe lacks is said before it is run; nothing is loaded or downloaded for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinprompt.models import sources
from pinprompt.needs import missing
from pinprompt.recipe.recipe import resolve


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """A hub that cannot be reached, and how often it was asked."""
    asked: list[int] = []
    monkeypatch.setattr(sources, "unreachable", lambda: asked.append(1) or "the hub is down")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    return asked


def lacking(method: str = "pin", **task: Any) -> list[str]:
    return missing(resolve({"method": method, "policy": {"model": "smollm2"}, "task": task}))


def test_packages_and_files_count_as_had(tmp_path: Path) -> None:
    assert lacking(kind="classification", dataset="rotten-tomatoes", model="smollm2") == []
    assert lacking(kind="style-transfer", dataset="vader-products", model="smollm2") == []
    (tmp_path / "octopus.png").write_bytes(b"")
    assert lacking(kind="inversion", model="emoji-clip", images=[str(tmp_path / "octopus.png")]) == []
    assert lacking(kind="custom", function="a:b") == []
    assert lacking(kind="classification", dataset="rotten-tomatoes", model="remote:gpt-x") == []


def test_everything_that_is_not_available_is_named() -> None:
    [model] = lacking(kind="classification", dataset="rotten-tomatoes", model="nobody/no-such-model")
    assert model == "model 'nobody/no-such-model': not in the hub's cache on this machine, and the hub is down"
    [folder] = lacking(kind="classification", dataset="sst-2", model="smollm2", data="/no/such/folder")
    assert folder.startswith("data: there is no folder '/no/such/folder'; ")
    [split] = lacking(kind="classification", dataset="sst-2", model="smollm2", data=str(Path(__file__).parent))
    assert split.startswith(f"data 'sst-2' in '{Path(__file__).parent}': ")
    assert "no split '16-13'" in split
    [texts] = lacking(kind="style-transfer", dataset="yelp", model="smollm2")
    assert texts == "texts 'yelp': set task.data to the folder with its files"
    [picture] = lacking(kind="inversion", model="emoji-clip", images=["/no/such.png", "/no/other.png"])
    assert picture.startswith("picture: there is no '/no'; correct task.images"), "a missing folder is named once"
    [picture] = lacking(kind="inversion", model="emoji-clip", images=["/no-such.png"])
    assert picture.startswith("picture: there is no '/no-such.png'; correct task.images")
    [gguf] = lacking(kind="classification", dataset="rotten-tomatoes", model="/no/such.gguf")
    assert gguf == "model '/no/such.gguf': there is no such file or folder"


def test_judges_are_models_too() -> None:
    judges = {"style": "nobody/style", "test_style": "nobody/test-style", "fluency": "nobody/fluency"}
    told = lacking(kind="style-transfer", dataset="vader-products", model="smollm2", encoder="nobody/bert", **judges)
    assert {sentence.split("'")[1] for sentence in told} == {*judges.values(), "nobody/bert"}


def test_a_hand_written_prompt_needs_no_writer() -> None:
    recipe = {"policy": {"model": "nobody/writer"}, "task": {"dataset": "rotten-tomatoes", "model": "smollm2"}}
    assert missing(resolve({"method": "manual", **recipe})) == []
    assert len(missing(resolve({"method": "pin", **recipe}))) == 1


def test_the_hub_is_asked_once_for_all_cells(no_hub: list[int]) -> None:
    known: dict[str, str | None] = {}
    for name in ("one", "two", "one"):
        task = {"dataset": "rotten-tomatoes", "model": f"nobody/{name}"}
        assert len(missing(resolve({"policy": {"model": "smollm2"}, "task": task}), known)) == 1
    assert len(no_hub) == 1
