"""Ray on a busy machine: it is given time to start, and is started again where its own limits ran out."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

TRIES = 20
"""Ray waits thirty seconds for its own processes, and no setting changes that."""

SETTINGS = {
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    "RAY_gcs_server_port_wait_time_s": "600",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "120000",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_niceness": "0",  # Ray's 15 leaves its workers next to nothing beside other work
    "RAY_worker_register_timeout_seconds": "600",
}


def be_patient() -> None:
    """Set up every Ray that this process and its children start; to be called before Ray is imported."""
    os.environ.update(SETTINGS)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def started(start: Callable[[], Any]) -> Any:
    """What a function returns that starts Ray; what a failed try left behind is ended."""
    import ray

    for left in reversed(range(TRIES)):
        try:
            return start()
        except Exception:
            ray.shutdown()
            if not left:
                raise
    raise AssertionError("not reached")


def patient_init() -> Callable[..., Any]:
    """`ray.init` that tries again."""
    import ray

    init = ray.init
    return lambda *given, **named: started(lambda: init(*given, **named))
