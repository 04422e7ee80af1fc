"""Listeners that pass a run's numbers on to TensorBoard or MLflow (extra `track`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pinprompt.errors import MissingExtra
from pinprompt.values import Event, Listener


def tensorboard(folder: Path | str) -> Listener:
    """A listener that writes every number of a run as TensorBoard scalars into `folder`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("track", "The TensorBoard listener") from None
    writer: Any = SummaryWriter(str(folder))

    def listen(event: Event) -> None:
        for name, value in numbers(event):
            writer.add_scalar(name, value, event.step)
        if event.kind in ("selected", "greedy"):
            writer.add_text(f"{event.kind}/prompt", str(event.data.get("prompt", "")), event.step)
        if event.kind == "end":
            writer.close()

    return listen


def mlflow(experiment: str = "pinprompt", uri: str | None = None) -> Listener:
    """A listener that logs a run to MLflow: numbers as metrics, the answer as tags."""
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise MissingExtra("track", "The MLflow listener") from None
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    identity = found.experiment_id if found else client.create_experiment(experiment)
    run = client.create_run(identity).info.run_id

    def listen(event: Event) -> None:
        for name, value in numbers(event):
            client.log_metric(run, name, value, step=event.step)
        if event.kind == "start":
            for name, value in event.data.items():
                client.log_param(run, name, value)
        if event.kind == "selected":
            client.set_tag(run, "prompt", str(event.data.get("prompt", "")))
        if event.kind == "end":
            client.set_terminated(run)

    return listen


def numbers(event: Event) -> Iterator[tuple[str, float]]:
    """The numbers of an event by name; lists (support per position) by place, metrics by split."""
    prefix = event.kind
    if event.kind == "evaluation":
        prefix = f"{event.data.get('name')}/{event.data.get('split')}"
    for name, value in {**event.data, **event.costs, **event.data.get("metrics", {})}.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}/{name}", float(value)
        elif isinstance(value, list):
            for place, part in enumerate(value):
                if isinstance(part, int | float):
                    yield f"{prefix}/{name}/{place}", float(part)
