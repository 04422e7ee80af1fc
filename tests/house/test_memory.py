"""When a run has ended, its models are freed at once, so a sweep of many runs needs no more memory than one run."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from pinprompt.run import running
from tests.house.race_child import searched


def held() -> int:
    """The bytes of all tensors in this process."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    return sum(one.numel() * one.element_size() for one in tensors)


@pytest.mark.parametrize("method", ["race", "random", "pin", "guided", "grips", "autoprompt", "pez", "soft-prompt"])
def test_a_run_frees_its_tensors_without_the_garbage_collector(lm_folder: Path, tmp_path: Path, method: str) -> None:
    """Its budget ends in the middle of a batch, so that exceptions with their frames are among what could be kept."""
    recipe = searched(lm_folder, method)
    running.run(recipe, tmp_path / "first", device="cpu", threads=1)  # imports leave cycles of their own
    gc.collect()
    gc.disable()
    try:
        before = held()
        running.run(recipe, tmp_path / "run", device="cpu", threads=1)
        assert held() <= before
    finally:
        gc.enable()
