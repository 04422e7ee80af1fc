"""Parallel scoring inside one run: however many workers, the same events byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from patient_ray import patient_init

from pinprompt.errors import SettingError
from pinprompt.run import running
from tests.house.tiny import FindTheWords, recipe

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(3600)
def test_workers_do_not_change_the_events(lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray's workers must find the test's own module.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    over = {"task": {"function": "tests.cli.scoring:vowels"}, "q_learning": {"steps": 5, "eval_every": 2}}
    monkeypatch.setattr(ray, "init", patient_init())
    seen = {}
    for workers in (1, 2, 8):
        out = tmp_path / str(workers)
        made = recipe(lm_folder, **over, scoring={"workers": workers})
        try:
            result = running.run(made, out, device="cpu", threads=1)
        finally:
            ray.shutdown()  # nothing is left to do where the run did it
        seen[workers] = ((out / "events.jsonl").read_bytes(), result.prompt, result.calls)
    assert len(set(seen.values())) == 1, seen.keys()


def test_a_function_without_a_name_cannot_be_sent(lm_folder: Path, tmp_path: Path) -> None:
    made = recipe(lm_folder, task={"function": "lambda"}, scoring={"workers": 2})
    with pytest.raises(SettingError, match="module:name"):
        running.run(made, tmp_path / "run", task=FindTheWords(), device="cpu", threads=1)
