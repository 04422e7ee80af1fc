"""A sweep on Ray in a process of its own, to be killed: python -m tests.sweeps.drive SWEEP OUT."""

from __future__ import annotations

import sys

import ray

from pinprompt.sweeps import read_sweep, run_on_ray
from tests.toys.patient_ray import patient_init

if __name__ == "__main__":
    ray.init = patient_init()
    sweep = read_sweep(sys.argv[1], sys.argv[2])
    outcomes = run_on_ray(sweep, lambda cell, what: None, device="cpu", workers=2)
    sys.stdout.write(repr(sorted(set(outcomes.values()))))
