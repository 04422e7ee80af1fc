"""Makes the modules of tests/toys importable by name from every test, and the tests patient on a loaded machine."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "toys"))

from patient_ray import be_patient

be_patient()
# How long an example takes says what else the machine does, not whether the code is right.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
