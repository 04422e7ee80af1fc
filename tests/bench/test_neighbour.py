"""The measurement beside a busy process, and the waiting policy that it is about."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pinprompt.bench.neighbour import measure


def _policy_after_import(**given: str) -> str:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    code = "import pinprompt, os, sys; print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return asked.stdout.strip()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "PASSIVE False"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE False"),
        ({"GOMP_SPINCOUNT": "1000"}, "None False"),
        ({"KMP_BLOCKTIME": "1"}, "None False"),
    ],
)
def test_threads_sleep_while_they_wait_unless_the_user_chose(given: dict[str, str], expected: str) -> None:
    assert _policy_after_import(**given) == expected


def test_every_measurement_is_there_and_the_environment_stays() -> None:
    before = dict(os.environ)
    found = measure(rounds=1, passes=1, threads=1)
    assert os.environ == before
    assert set(found["seconds"]) == {"passive_alone", "passive_beside", "spinning_alone", "spinning_beside"}
    assert found["slowdown"] == found["slowdown_rounds"][0] > 0
    assert found["slowdown_spinning"] > 0
