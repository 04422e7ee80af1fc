"""Rough estimates of a recipe's cost."""

from __future__ import annotations

import pytest

from benchmarks.rough import parameters, rough
from pinprompt.recipe.recipe import resolve


def test_a_rough_estimate_counts_calls_and_multiplications() -> None:
    task = {"kind": "classification", "dataset": "sst-2", "model": "smollm2"}
    fixed = resolve({"method": "manual", "task": task, "policy": {"model": "distilgpt2", "length": 5}})
    # One prompt on 32 training and 32 dev rows, 5 tokens and 4 around them through 135 million parameters.
    assert rough(fixed, speed=1e9) == {"prompts": 2, "calls": 64, "minutes": pytest.approx(64 * 9 * 0.135 / 60)}
    short = fixed.model_copy(update={"method": "random", "budget": fixed.budget.model_copy(update={"calls": 320})})
    # Ten prompts at the most, each written by a model of 82 million parameters.
    assert rough(short, speed=1e9)["minutes"] == pytest.approx((320 * 9 * 0.135 + 10 * 5 * 0.082) / 60)
    assert rough(short, speed=1e9)["prompts"] == 10  # what 320 calls on 32 rows pay for
    style = {
        "kind": "style-transfer",
        "sources": 3,
        "samples": 4,
        "bootstraps": 2,
        "dev_sources": 5,
    }
    short = {"untrained": {"prompts": 10}, "scoring": {"finalists": 2}}
    figures = rough(resolve({"method": "random", "task": style, **short, "policy": {"model": "?"}}), speed=1e9)
    assert figures["calls"] == 10 * 3 * 4 * 2 + 2 * 5 * 4 * 2
    assert figures["minutes"] is None, "the size of the model is not known"


def test_a_rough_estimate_reads_whole_inputs_with_masked_models_and_counts_the_money_of_a_server() -> None:
    task = {"kind": "classification", "dataset": "sst-2", "model": "roberta-large"}
    masked = resolve({"method": "manual", "task": task, "policy": {"length": 5}})
    # 64 calls of 64 tokens of input, 5 of the prompt and 4 around them through 355 million parameters.
    assert rough(masked, speed=1e9)["minutes"] == pytest.approx(64 * 73 * 0.355 / 60)
    prices = {"m": {"input": 2.0, "output": 10.0}}
    server = {"method": "manual", "task": {**task, "model": "remote:m"}, "policy": {"length": 5}}
    priced = rough(resolve({**server, "budget": {"prices": prices}}), speed=1e9)
    assert priced["tokens"] == 64 * 73 + 64
    assert priced["money"] == pytest.approx((64 * 73 * 2 + 64 * 10) / 1e6)
    assert priced["minutes"] is None, "nobody here knows how fast the server is"
    assert rough(resolve(server), speed=1e9)["money"] is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("facebook/opt-1.3b", 1.3e9),
        ("facebook/opt-125m", 125e6),
        ("roberta-large", 355e6),
        ("/models/smollm2", 135e6),
        ("Qwen2.5-0.5B-Instruct", 0.5e9),
        ("my-model", None),
        ("clip4max", None),
    ],
)
def test_sizes_by_name(name: str, size: float | None) -> None:
    assert parameters(name) == size
