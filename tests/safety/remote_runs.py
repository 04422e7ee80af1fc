"""Whole runs against a server of ours: small data, a small writer, and a server that answers by a rule."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from remote_servers import Action, refuse, reply
from style_toys import encoder, save
from typer.testing import CliRunner

from pinprompt.cli import app
from tests.house.tiny import make_lm

KEY_ENV = "CANARY_KEY"
GOOD = ["a fine film", "i liked it", "what a joy", "the best one", "a happy end", "clever and warm"]
BAD = ["a dull film", "i hated it", "what a bore", "the worst one", "a sad end", "clumsy and cold"]
USAGE = {"prompt_tokens": 12, "completion_tokens": 2}


def call(*words: object) -> Any:
    """The command line, in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def draw(*parts: object) -> float:
    """A number from 0 to 1 that depends on these and nothing else."""
    return zlib.crc32(json.dumps(parts).encode()) / 2**32


def labeller(number: int, path: str, body: dict[str, Any]) -> Action:
    """Tells log-probabilities of completions: by a word in the text, and by the prompt."""
    if path != "/v1/completions" or not isinstance(body.get("logprobs"), int):
        return refuse(404, "no such path")
    text = body["prompt"]
    sign = 1.0 if any(line in text for line in GOOD) else -1.0
    great = -1.0 + sign * draw("sharp", text.rsplit(" ", 3)[1:]) + 0.2 * draw("noise", text)
    tops = {" great": min(great, -0.01), " terrible": -1.0, " a": -3.0}
    return reply({"choices": [{"text": " great", "logprobs": {"top_logprobs": [tops]}}], "usage": USAGE})


def rewriter(number: int, path: str, body: dict[str, Any]) -> Action:
    """Completes with a text that depends on what it read and on the seed; as many samples as were asked for."""
    if path != "/v1/completions":
        return refuse(404, "no such path")
    words = ["the", "food", "was", "good", "nice", "very", "place", "love"]
    texts = []
    for sample in range(body.get("n", 1)):
        start = int(draw(body["prompt"], body["seed"], sample) * len(words))
        texts.append(" ".join(words[(start + place) % len(words)] for place in range(4)) + ".")
    return reply({"choices": [{"text": text} for text in texts], "usage": USAGE})


def writer(folder: Path) -> list[str]:
    """Options for a small writer and a short search."""
    sets = {
        "policy.model": make_lm(folder), "policy.k": "none", "policy.hidden": 32, "policy.length": 2,
        "policy.context": "none", "q_learning.steps": 6, "q_learning.prompts": 4, "q_learning.batch": 8,
        "q_learning.updates": 1, "q_learning.eval_every": 3, "scoring.finalists": 2,
    }  # fmt: skip
    return ["--method", "pin", *[word for name, value in sets.items() for word in ("--set", f"{name}={value}")]]


def server_at(url: str, **more: object) -> list[str]:
    """Options that name a server which is given up at once."""
    sets = {"base_url": url, "key_env": KEY_ENV, "retries": 0, "timeout": 900, "concurrency": 4, **more}
    return [word for name, value in sets.items() for word in ("--set", f"remote.{name}={value}")]


def labelled(folder: Path) -> list[str]:
    """Options for a classification of our own few texts."""
    lines = [f"{text},{label}" for pair in zip(GOOD, BAD, strict=True) for text, label in zip(pair, "10", strict=True)]
    words = ["--word", "0=terrible", "--word", "1=great", "--task-model", "remote:toy"]
    for name, part in {"train": lines[:6], "dev": lines[6:10], "test": lines[10:]}.items():
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *part]) + "\n", "utf-8")
        words += [f"--{name}", str(folder / f"{name}.csv")]
    return words


def styled(folder: Path) -> list[str]:
    """Options for a style transfer of our own few texts, with small judges."""
    source = [
        f"{who} {how} {word} {what} ."
        for who in ("we", "they", "it")
        for how in ("was", "is")
        for word in ("bad", "awful", "hate")
        for what in ("food", "place")
    ]
    target = [line.replace("bad", "good").replace("awful", "nice").replace("hate", "love") for line in source]
    (folder / "source.txt").write_text("\n".join(source) + "\n", "utf-8")
    (folder / "target.txt").write_text("\n".join(target) + "\n", "utf-8")
    sets = {
        "encoder": save(folder / "bert", encoder(), wrap=True), "sources": 2, "samples": 3, "bootstraps": 1,
        "dev_sources": 2, "test_sources": 2, "test_samples": 3, "baseline": 0.0,
    }  # fmt: skip
    words = ["--source", str(folder / "source.txt"), "--target", str(folder / "target.txt"), "--force-judge"]
    words += [word for name, value in sets.items() for word in ("--set", f"task.{name}={value}")]
    return [*words, "--task-model", "remote:toy"]
