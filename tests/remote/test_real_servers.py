"""Real servers on loopback with smollm2, started and stopped here."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from children import LIMIT, child, wait_until

from pinprompt.errors import ServerDown
from pinprompt.models import sources
from pinprompt.models.generator import Request
from pinprompt.models.label_text import Frame
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import open_client
from pinprompt.remote.generator import RemoteGenerator
from pinprompt.remote.labels import RemoteClassifier

WORDS = {"0": "terrible", "1": "great"}
FRAME = Frame("", " It was")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, ready: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, from its first sign of life to its end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=LIMIT).close()
        except OSError:
            return False
        return True

    with log.open("wb") as output, child(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as process:
        try:
            wait_until(answers, "the server answers", process)
        except AssertionError as error:
            pytest.fail(f"{error}; it said: {log.read_text(errors='replace')[-2000:]}")
        yield process


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn", "openai")),
    reason="transformers serve needs transformers[serving]",
)
def test_transformers_serve_answers_in_words(tmp_path: Path) -> None:
    folder, port = str(sources.resolve("smollm2").path), free_port()
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", folder]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    settings = RemoteSettings(
        base_url=f"http://127.0.0.1:{port}/v1", key_env="", timeout=LIMIT, retries=0, concurrency=2
    )
    with running(command, port, "/health", tmp_path / "log") as process:
        model = RemoteClassifier(open_client(f"remote:{folder}", settings), WORDS)
        # It says nothing of log-probabilities, and knows no constraints: what is left are words.
        assert model.way == "parsed"
        assert "free-text answers" in model.notes[0]
        inputs = model.prepare(["a wonderful film.", "a dull, lifeless mess."])
        logs, failures, (tokens_in, tokens_out) = model.answers(FRAME, inputs)
        assert tokens_in > 20
        assert 2 <= tokens_out <= 32
        assert np.exp(logs).sum(1) == pytest.approx([1.0, 1.0])
        equal = sum(row.tolist() == pytest.approx([-0.6931, -0.6931], abs=1e-3) for row in logs)
        assert equal == len(failures)
        assert equal < 2  # at least one answer held a label word
        client = open_client(f"remote:{folder}", settings)
        generator = RemoteGenerator(client, "{prompt} {text}", temperature=0.0, max_new_tokens=3)
        generator.probe(1)
        (made,) = generator.sample([Request("The capital of", "France is", 1, 0)])
        assert "Paris" in made.texts[0]
        process.kill()
        process.wait()
        with pytest.raises(ServerDown, match="resume the run"):
            model.answers(FRAME, model.prepare(["one", "two", "three", "four"]))


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None or "SMOLLM2_GGUF" not in os.environ,
    reason="needs llama-cpp-python[server] (built from source) and SMOLLM2_GGUF, the path of the model's .gguf file",
)
def test_llama_cpp_gives_log_probabilities(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", os.environ["SMOLLM2_GGUF"], "--host", "127.0.0.1"]
    command += ["--port", str(port), "--logits_all", "true", "--n_ctx", "512", "--model_alias", "smollm2"]
    settings = RemoteSettings(base_url=f"http://127.0.0.1:{port}/v1", key_env="", timeout=LIMIT, concurrency=1)
    with running(command, port, "/v1/models", tmp_path / "log"):
        model = RemoteClassifier(open_client("remote:smollm2", settings), WORDS)
        assert model.way == "completions"
        inputs = model.prepare(["i loved it, a wonderful film.", "the worst film ever."])
        logs, failures, _ = model.answers(FRAME, inputs)
        assert logs[0, 1] - logs[0, 0] > logs[1, 1] - logs[1, 0]
        assert failures == {}
