"""The measurement beside a busy process."""

from __future__ import annotations

import os

from benchmarks.neighbour import measure


def test_every_measurement_is_there_and_the_environment_stays() -> None:
    before = dict(os.environ)
    found = measure(rounds=1, passes=1, threads=1)
    assert os.environ == before
    assert set(found["seconds"]) == {"passive_alone", "passive_beside", "spinning_alone", "spinning_beside"}
    assert found["slowdown"] == found["slowdown_rounds"][0] > 0
    assert found["slowdown_spinning"] > 0
