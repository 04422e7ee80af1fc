"""The doctor: quick, complete, and never without advice."""

from __future__ import annotations

import importlib.metadata
import json
import re
import socket
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from pinprompt import doctor
from pinprompt.errors import MissingExtra
from pinprompt.models.wheels import ALIASES

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_extras_are_those_of_the_project() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    del declared["dev"]
    declared.pop("all", None)  # only the sum of the others
    assert {extra.name: set(extra.distributions) for extra in doctor.EXTRAS} == {
        name: {requirement.split(">=")[0] for requirement in requirements} for name, requirements in declared.items()
    }


def test_the_report_is_plain_json_and_names_what_there_is() -> None:
    report = json.loads(json.dumps(doctor.examine()))
    assert report["python"]["executable"] == sys.executable
    assert report["libraries"]["torch"] == importlib.metadata.version("torch")
    assert report["device"]["name"] in {"cpu", "cuda", "mps"}
    assert report["cores"] >= 1
    assert report["hub"]["reason"] == "HF_HUB_OFFLINE is set"
    assert "smollm2" in report["hub"]["advice"]
    models, data = {"smollm2", "qwen-coder", "gemma-270m", "minilm"}, {"rotten-tomatoes", "vader", "orange-text"}
    assert set(report["aliases"]) == models | data


def test_a_missing_extra_gets_its_exact_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in {"ray", "sacrebleu", "gguf"}:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    report = doctor.examine()
    extras = {extra["name"]: extra for extra in report["extras"]}
    assert extras["ray"]["install"].endswith(("[ray]'", "[ray]"))
    assert extras["style"]["missing"] == ["sacrebleu"]
    assert "gguf is not installed: pip install pinprompt" in report["problems"]
    assert report["ok"] is False


def test_a_cache_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "file"))
    report = doctor.examine()
    assert report["cache"]["writable"] is False
    assert any("set PINPROMPT_HOME" in problem for problem in report["problems"])
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "new" / "deep"))
    report = doctor.examine()
    assert (report["cache"]["writable"], report["cache"]["exists"]) == (True, False)
    assert not (tmp_path / "new").exists()


def test_little_room_and_no_pip_are_problems_while_something_is_to_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=0.3e9))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    advice = doctor.examine()["problems"]
    assert any("another disk" in line for line in advice)
    assert any("ensurepip" in line for line in advice)
    for name in ("smollm2", "minilm", "rotten-tomatoes", "vader", "orange-text"):
        ALIASES[name].folder.mkdir(parents=True)
    assert doctor.examine()["problems"] == [], "nobody has to fetch a large model"


def test_a_silent_hub_does_not_block_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        hub = doctor.examine()["hub"]
        assert hub["reachable"] is False
        assert re.search("timed out|did not answer within 1 s", hub["reason"])
        silent.accept()[0].close()  # it was asked


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'pinprompt[ray]'"),
        ({"url": "https://example.org/pinprompt.whl"}, "pip install 'pinprompt[ray]'"),
        ({"url": "file:///gone/away", "dir_info": {"editable": True}}, "pip install 'pinprompt[ray]'"),
        ({"url": "HERE", "dir_info": {}}, "pip install 'FOLDER[ray]'"),
        ({"url": "HERE", "dir_info": {"editable": True}}, "pip install --editable 'FOLDER[ray]'"),
    ],
)
def test_install_lines_work_from_a_clone(
    origin: dict[str, object] | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin).replace("HERE", clone.as_uri())

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    assert MissingExtra("ray", "this").args[0].endswith(line.replace("FOLDER", str(clone)))


def test_a_model_that_is_not_there_yet_is_called_so() -> None:
    from pinprompt.cli.about import _shown

    facts = _shown({"aliases": {"smollm2": True, "gemma-270m": False}, "extras": [], "problems": []})[0]
    assert [cell.plain for cell in facts.columns[1].cells] == ["yes", "not downloaded yet"]
