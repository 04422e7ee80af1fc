"""A key that is known to us, everything that can meet it, and a search of every byte that was written or said."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from pinprompt.answers.memo import Memo
from pinprompt.errors import PinpromptError
from pinprompt.judges.vision import VisionJudge
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import RemoteClient, open_client
from pinprompt.remote.generator import RemoteJudge
from pinprompt.run import consent
from tests.safety.remote_runs import KEY_ENV, Action, call, labelled, labeller, rewriter, server_at, styled, writer

from remote_servers import Handler, cut, refuse, reply, said, serving  # isort: skip

CANARY = 'sk-cAnArY/7+"q\\z-0123456789abcdef'
"""With marks in it that JSON and addresses spell in another way."""


def spellings(key: str) -> dict[str, bytes]:
    """The key as programs write it; in base64 it looks different at each of three places."""
    found = {"plain": key, "json": json.dumps(key)[1:-1], "slashes": json.dumps(key)[1:-1].replace("/", "\\/")}
    found |= {"address": urllib.parse.quote(key, safe=""), "repr": repr(key)[1:-1], "html": key.replace('"', "&#34;")}
    found["inside"] = key[3:-3]  # and half of it is too much too
    written = {name: text.encode() for name, text in found.items()}
    written |= {f"utf-16 {order}": key.encode(f"utf-16-{order}") for order in ("le", "be")}
    written["hex"] = key.encode().hex().encode()
    for shift in range(3):
        coded = base64.b64encode(b"x" * shift + key.encode())
        written[f"base64 {shift}"] = coded[4 if shift else 0 : -4]
    return written


def leaks(folder: Path, said_aloud: dict[str, str]) -> list[str]:
    """Where the key is: files under a folder, and what was said."""
    places: dict[str, bytes] = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    places |= {str(path) + " (name)": str(path).encode() for path in folder.rglob("*")}
    places |= {name: text.encode("utf-8", "replace") for name, text in said_aloud.items()}
    return [
        f"{how} in {place}"
        for place, content in places.items()
        for how, spelling in spellings(CANARY).items()
        if spelling in content
    ]


def echo(status: int, around: str = "{}") -> Action:
    """Say the request's headers back."""

    def act(handler: Handler, body: dict[str, Any]) -> None:
        handler.send(around.format(json.dumps(handler.headers["Authorization"])).encode(), status)

    return act


def echo_as_answer(handler: Handler, body: dict[str, Any]) -> None:
    """Say the key back where an answer is due: as a text, as a token, in a chat."""
    key = handler.headers["Authorization"].removeprefix("Bearer ")
    text = f"food {key} was good."
    tops = {key: -0.1, " great": -0.5, " terrible": -1.0}
    choice = {"text": text, "message": {"content": text}, "logprobs": {"top_logprobs": [tops]}}
    reply({"choices": [choice] * body.get("n", 1), key: [key, {"usage": key}]})(handler, body)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Everything that commands say; the key is in the environment, and the home is ours."""
    monkeypatch.setenv(KEY_ENV, CANARY)
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return {}


def tell(told: dict[str, str], *words: object) -> Any:
    """A command, and what it said."""
    done = call(*words)
    name = f"{len(told)} {' '.join(map(str, words))[:60]}"
    told[name] = f"{done.stdout}\n{done.stderr}\n{done.exception!r}\n{done.exc_info}"
    return done


def test_the_search_finds_a_key_that_leaked(tmp_path: Path) -> None:
    for number, spelling in enumerate(spellings(CANARY).values()):
        folder = tmp_path / str(number) / "deeper"
        folder.mkdir(parents=True)
        (folder / "memo.sqlite").write_bytes(b"before" + spelling + b"after")
        assert leaks(folder, {}), spelling
    assert leaks(tmp_path / "none", {"stderr": f"no {CANARY}"})


def test_no_run_writes_or_says_the_key(
    tmp_path: Path, lm_folder: Path, told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteClient, "give_up_after", 50)

    def moody(script: Any) -> Any:
        def act(number: int, path: str, body: dict[str, Any]) -> Action:
            moods: dict[int, Action] = {
                3: echo(400, '{{"error": {}}}'), 5: echo_as_answer, 7: echo(500), 11: cut, 13: echo(200),
                17: echo(400, "x" * 370 + "{0}" + "{0}" * 90),
            }  # fmt: skip
            return moods.get(number % 19, script(number, path, body)) if number > 2 else script(number, path, body)

        return act

    with serving(moody(labeller)) as server:
        asked = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url)]
        assert tell(told, *asked, "--out", tmp_path / "labels", "--json").exit_code == 0
        assert all(headers["Authorization"] == f"Bearer {CANARY}" for _, _, headers in server.seen)
        assert len(server.seen) > 60
        tell(told, "evaluate", tmp_path / "labels", "--json")
        for _ in range(3):
            tell(told, "predict", tmp_path / "labels", "a fine film", "a dull film", "--json")
    with serving(moody(rewriter)) as server:
        asked = [
            "restyle",
            *styled(tmp_path),
            *writer(lm_folder),
            *server_at(server.url),
            "--calls",
            100,
        ]
        assert tell(told, *asked, "--out", tmp_path / "style").exit_code == 0
        for _ in range(3):
            tell(told, "rewrite", tmp_path / "style", "it was bad food .", "--n", 3)
    for name in ("labels", "style"):
        assert tell(told, "report", tmp_path / name).exit_code == 0
    for verb in (("cache",), ("doctor",), ("models",), ("compare", tmp_path / "labels")):
        assert tell(told, *verb, "--json").exit_code == 0
    assert leaks(tmp_path, told) == []
    # What the server said back was met, and replaced: in the answers, in failures, in texts.
    answers = (tmp_path / "labels" / "answers.jsonl").read_text("utf-8")
    assert "***" in answers
    assert "the server answered 400" in answers


def test_no_refusal_says_the_key(tmp_path: Path, lm_folder: Path, told: dict[str, str]) -> None:
    data = [*labelled(tmp_path), *writer(lm_folder)]
    for number, action in enumerate([echo(401), echo(403), echo(402), echo(307), echo(404, "no model {}"), echo(500)]):
        with serving(lambda *_, action=action: action) as server:  # type: ignore[misc]
            done = tell(told, "classify", *data, *server_at(server.url), "--out", tmp_path / str(number), "--json")
            assert done.exit_code == 2, done.output
    chatty = ["--set", "remote.answers=parsed"]
    with serving(lambda *_: echo_as_answer) as server:
        tell(told, "classify", *data, *server_at(server.url), *chatty, "--out", tmp_path / "chat", "--calls", 60)
        shutil.copy(consent._path(), tmp_path / "home" / "agreed.json")  # another process of the same user
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-X", "dev", "-m", "pinprompt", "predict", str(tmp_path / "chat"), "a film"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        told["process"] = done.stdout + done.stderr
        assert done.returncode == 2
    # The key given where it does not belong.
    for wrong in (
        f"remote.key_env={CANARY}", f"remote.key={CANARY}", f"remote.base_url=http://me:{CANARY}@127.0.0.1/v1",
        f"remote.base_url=http://127.0.0.1/v1?key={CANARY}",
    ):  # fmt: skip
        done = tell(told, "classify", *data, "--set", wrong, "--out", tmp_path / "wrong", "--json")
        assert done.exit_code == 2
        told = {name: text for name, text in told.items() if wrong[:60] not in name}  # the command itself has it
        assert leaks(tmp_path, {"said": done.stdout + done.stderr}) == []
    assert leaks(tmp_path, told) == []


def test_no_judge_keeps_the_key(tmp_path: Path, told: dict[str, str]) -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (8, 8))
    marks = said('{"relevance": 4, "interpretability": 2}')

    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        return [echo(400), echo_as_answer, reply(marks), refuse(400, CANARY)][number % 4]

    with serving(script) as server:
        settings = RemoteSettings(base_url=server.url, key_env=KEY_ENV, retries=0)
        judge = VisionJudge(RemoteJudge(open_client("remote:eyes", settings)), Memo(tmp_path / "memo.sqlite"))
        told["verdicts"] = str([judge.judge(caption, image) for caption in ("a house", "a tree", "a cat")])
        told["objects"] = repr(vars(judge)) + repr(vars(judge.model))
        assert any("Authorization" in headers for _, _, headers in server.seen)
    with serving(lambda *_: echo(401)) as server:
        settings = RemoteSettings(base_url=server.url, key_env=KEY_ENV)
        refused = VisionJudge(RemoteJudge(open_client("remote:eyes", settings)))
        with pytest.raises(PinpromptError) as caught:
            refused.judge("a house", image)
    told["refusal"] = str(caught.value)
    assert (tmp_path / "memo.sqlite").exists()
    assert leaks(tmp_path, told) == []
