"""Trackers get the numbers that a run tells, in the real files of TensorBoard and MLflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprompt.records.trackers import mlflow, numbers, tensorboard
from pinprompt.values import Event

EVENTS = [
    Event("start", 0, {"method": "pin", "seed": 3}),
    Event("step", 0, {"score_mean": 1.5, "support": [4.0, 2.0], "best_prompt": "x", "loss": None}, {"write": 0.25}),
    Event("evaluation", 1, {"name": "found", "split": "dev", "metrics": {"accuracy": 0.75}, "intervals": {}}),
    Event("selected", 1, {"prompt": "It was", "score": 2.0}),
    Event("end", 1, {"stopped": "finished", "calls": 12}),
]


def test_numbers_are_named_by_kind_and_place() -> None:
    assert dict(numbers(EVENTS[1])) == {
        "step/score_mean": 1.5, "step/support/0": 4.0, "step/support/1": 2.0, "step/write": 0.25
    }  # fmt: skip
    assert dict(numbers(EVENTS[2])) == {"found/dev/accuracy": 0.75}


def test_tensorboard_files_hold_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    listen = tensorboard(tmp_path)
    for event in EVENTS:
        listen(event)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert read.Scalars("step/score_mean")[0].value == 1.5
    assert read.Scalars("end/calls")[0].value == 12


def test_mlflow_holds_the_numbers(tmp_path: Path) -> None:
    mlflow_library = pytest.importorskip("mlflow", reason="the extra `track` is not installed")
    uri = (tmp_path / "mlruns").as_uri()
    try:
        listen = mlflow("trial", uri)
    except Exception as error:
        pytest.skip(f"this mlflow has no file store: {str(error)[:80]}")
    for event in EVENTS:
        listen(event)
    client = mlflow_library.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert run.data.metrics["found/dev/accuracy"] == 0.75
    assert run.data.tags["prompt"] == "It was"
