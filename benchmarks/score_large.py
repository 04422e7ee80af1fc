"""How fast `qwen-coder` in bfloat16 scores prompts: the benchmark `score` with a model of ten times the work."""

from __future__ import annotations

from typing import Any

from benchmarks import score


def measure() -> dict[str, Any]:
    """The figures of `score`; fewer prompts, so that it takes minutes."""
    return score.measure("qwen-coder", prompts=18, precision="bf16")
