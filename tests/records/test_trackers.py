"""Trackers get the numbers that a run tells, in the real files of TensorBoard and MLflow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pinprompt.errors import MissingExtra
from pinprompt.records.trackers import mlflow, numbers, tensorboard
from pinprompt.values import Event, Listener

EVENTS = [
    Event("start", 0, {"method": "pin", "seed": 3}),
    Event(
        "step", 0, {"score_mean": 1.5, "support": [4.0, 2.0, None], "best_prompt": "x", "loss": None}, {"write": 0.25}
    ),
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


def test_mlflow_holds_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow_library = pytest.importorskip("mlflow", reason="the extra `track` is not installed")
    # MLflow's small build has no database; its store of files wants to be asked for by name.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    for _ in range(2):  # the second run finds the experiment of the first
        listen = mlflow("trial", uri)
        for event in EVENTS:
            listen(event)
    client = mlflow_library.MlflowClient(tracking_uri=uri)
    one, two = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert one.data.metrics == two.data.metrics
    assert one.data.metrics["found/dev/accuracy"] == 0.75
    assert one.data.params == {"method": "pin", "seed": "3"}
    assert one.data.tags["prompt"] == "It was"
    assert one.info.status == "FINISHED"


@pytest.mark.parametrize(("tracker", "module"), [(tensorboard, "torch.utils.tensorboard"), (mlflow, "mlflow")])
def test_without_the_extra_there_is_an_install_line(
    tracker: Callable[[str], Listener], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[track\]"):
        tracker("anywhere")
