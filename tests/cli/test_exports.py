"""What `pinprompt export` writes, read by the tools that it is for and sent to a server by them.

promptfoo comes from npm, and dspy wants older versions of what pinprompt needs: `make test-exports` installs both in
folders of their own and names them here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from remote_servers import Action, refuse, reply, said, serving

from pinprompt.errors import SettingError
from pinprompt.reports.usage import TOOLS, Sent, export, snippets

BEFORE, AFTER = '{{say}} {% if %} {"x"} of ', " it was"
WORDS = {"neg": "bad", "pos": "good"}
COMPLETES = Sent("classification", "p", BEFORE, AFTER, "m", words=WORDS, word_ids={"neg": [1], "pos": [2, 3]})
CONTENT = f"{BEFORE}{{text}}{AFTER} ...\n\nAnswer with {{{{one}}}} word."
CHATS = Sent("classification", "p", BEFORE, AFTER, "m", words=WORDS, messages=[{"role": "user", "content": CONTENT}])
TEXT = 'a "film" with {text} in it'
ASKED = CONTENT.replace("{text}", TEXT, 1)


def answers(number: int, path: str, body: dict[str, Any]) -> Action:
    """A server that knows completions and chats, and finds everything good."""
    if path == "/v1/completions":
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        choice = {"text": " good", "index": 0, "finish_reason": "stop", "logprobs": None}
        return reply({"id": "1", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage})
    if path == "/v1/chat/completions":
        content = "[[ ## label ## ]]\ngood\n\n[[ ## completed ## ]]"
        return reply({"id": "1", "object": "chat.completion", "created": 1, "model": "m", **said(content)})
    return refuse(404)


@pytest.fixture(scope="module")
def promptfoo() -> str:
    """The program."""
    tool = os.environ.get("PROMPTFOO") or shutil.which("promptfoo")
    if tool is None:
        pytest.skip("promptfoo is not installed: `make test-exports` installs it with npm")
    return os.path.abspath(tool)


@pytest.mark.parametrize("sent", [COMPLETES, CHATS], ids=["completion", "chat"])
def test_promptfoo_sends_its_export(promptfoo: str, sent: Sent, tmp_path: Path) -> None:
    config = json.loads(export(sent, "promptfoo")[1])
    config["tests"][0]["vars"]["text"] = TEXT  # as the file tells its reader to
    with serving(answers) as server:
        assert server.url != config["providers"][0]["config"]["apiBaseUrl"]
        config["providers"][0]["config"]["apiBaseUrl"] = server.url
        (tmp_path / "promptfooconfig.json").write_text(json.dumps(config), "utf-8")
        home = {"PROMPTFOO_CONFIG_DIR": str(tmp_path / "home"), "OPENAI_API_KEY": "none"}
        quiet = {f"PROMPTFOO_DISABLE_{name}": "1" for name in ("TELEMETRY", "UPDATE", "SHARING")}
        words = ["eval", "-c", "promptfooconfig.json", "--no-cache", "--no-table", "--no-write", "-o", "out.json"]
        done = subprocess.run(
            [promptfoo, *words], cwd=tmp_path, env={**os.environ, **home, **quiet}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        ((path, body, _),) = server.seen
    stats = json.loads((tmp_path / "out.json").read_text("utf-8"))["results"]["stats"]
    assert (stats["successes"], stats["failures"], stats["errors"]) == (1, 0, 0)
    assert (body["model"], body["temperature"]) == ("m", 0)
    if sent is CHATS:
        assert path == "/v1/chat/completions"
        assert body["messages"] == [{"role": "user", "content": ASKED}]
    else:
        assert path == "/v1/completions"
        assert body["prompt"] == sent.text_for(TEXT)
        assert body["max_tokens"] == 2  # of the longer word


ASK_DSPY = """\
import sys
import dspy
program = dspy.Predict("text -> label")
program.load(sys.argv[1])
dspy.configure(lm=dspy.LM("openai/m", api_base=sys.argv[2], api_key="none", cache=False, num_retries=0))
print("answer:", program(text=sys.argv[3]).label)
"""


def test_dspy_sends_its_export(tmp_path: Path) -> None:
    python = os.environ.get("DSPY_PYTHON") or (sys.executable if importlib.util.find_spec("dspy") else None)
    if python is None:
        pytest.skip("dspy is not installed: `make test-exports` installs it in an environment of its own")
    (tmp_path / "program.json").write_text(export(COMPLETES, "dspy")[1])
    own = {"DSPY_CACHEDIR": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with serving(answers) as server:
        words = [os.path.abspath(python), "-c", ASK_DSPY, str(tmp_path / "program.json"), server.url, TEXT]
        done = subprocess.run(words, cwd=tmp_path, env={**bare, **own}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        ((_, body, _),) = server.seen
    assert "answer: good" in done.stdout
    asked = "\n".join(str(one["content"]) for one in body["messages"])
    assert COMPLETES.open_text in asked
    assert TEXT in asked
    assert "bad, good" in asked


def test_langchain_loads_its_export_and_asks_with_it(tmp_path: Path) -> None:
    loading = pytest.importorskip("langchain_core.prompts.loading", reason="pip install langchain-core")
    models = pytest.importorskip("langchain_core.language_models.fake")
    (tmp_path / "prompt.json").write_text(export(COMPLETES, "langchain")[1])
    try:
        loaded = loading.load_prompt(tmp_path / "prompt.json", allow_dangerous_paths=True)
    except TypeError:  # versions before the option
        loaded = loading.load_prompt(tmp_path / "prompt.json")
    assert loaded.format(text=TEXT) == COMPLETES.text_for(TEXT)
    assert (loaded | models.FakeListLLM(responses=["good"])).invoke({"text": TEXT}) == "good"


@pytest.mark.parametrize("sent", [COMPLETES, CHATS], ids=["completion", "chat"])
def test_the_openai_client_sends_its_export_and_its_snippet(sent: Sent) -> None:
    openai = pytest.importorskip("openai", reason="pip install openai")
    request = json.loads(export(sent, "openai")[1].replace("{text}", json.dumps(TEXT)[1:-1]))
    with serving(answers) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        (client.chat if sent is CHATS else client).completions.create(**request)
        code = snippets(sent, TEXT)["openai"].replace("http://localhost:8000/v1", server.url)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_API_KEY", "none")
            exec(compile(code, "snippet", "exec"), {})
        (_, exported, _), (_, pasted, _) = server.seen
    assert exported == pasted
    assert (pasted["messages"][0]["content"] if sent is CHATS else pasted["prompt"]) in (ASKED, sent.text_for(TEXT))


def test_the_openai_snippet_prints_the_calibrated_label(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai", reason="pip install openai")
    ids = {"neg": [1], "pos": [2]}
    sent = Sent("classification", "p", BEFORE, AFTER, "m", words=WORDS, word_ids=ids, offsets={"neg": -2.0, "pos": 0.5})

    def labels(number: int, path: str, body: dict[str, Any]) -> Action:
        tops = {" good": -0.2, " fine": -1.5}  # "bad" is not among the likeliest: it counts as the least of them
        choice = {"text": " good", "index": 0, "finish_reason": "length", "logprobs": {"top_logprobs": [tops]}}
        return reply({"id": "1", "object": "text_completion", "model": "m", "choices": [choice]})

    with serving(labels) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none")
        code = snippets(sent, TEXT)["openai"].replace("http://localhost:8000/v1", server.url)
        exec(compile(code, "snippet", "exec"), {})
    assert capsys.readouterr().out == "neg\n"  # -1.5 + 2 against -0.2 - 0.5


def test_curl_sends_its_snippet() -> None:
    if shutil.which("curl") is None or shutil.which("sh") is None:
        pytest.skip("curl is not installed")
    with serving(answers) as server:
        command = snippets(CHATS, TEXT)["curl"].replace("http://localhost:8000/v1", server.url)
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ((_, body, _),) = server.seen
    assert body["messages"][0]["content"] == ASKED


def test_texts_to_rewrite_are_in_quotes() -> None:
    sent = Sent("style-transfer", "p", 'Formal. "', '" "', "m")
    assert sent.text_for('so "nice"') == 'Formal. "so \'nice\'" "'
    names: dict[str, Any] = {}
    exec(compile(snippets(sent, "hi")["python"], "snippet", "exec"), names)
    assert names["full_text"]('so "nice"') == sent.text_for('so "nice"')
    assert json.loads(export(sent, "openai")[1])["stop"] == ['"']


def test_a_model_that_fills_masks_goes_to_no_server() -> None:
    sent = Sent("classification", "p", "", " It was <mask>", "m", kind="masked", words=WORDS)
    for tool in TOOLS:
        if tool in ("promptfoo", "openai"):
            with pytest.raises(SettingError, match="fills a mask"):
                export(sent, tool)
        else:
            assert "It was <mask>" in export(sent, tool)[1]
