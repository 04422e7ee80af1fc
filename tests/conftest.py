"""Makes the modules of tests/toys importable by name from every test, and the tests patient on a loaded machine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "toys"))

from patient_ray import be_patient

from pinprompt.run import consent

be_patient()
# How long an example takes says what else the machine does, not whether the code is right.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="session")
def _agreed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests agree to is not remembered beside what the user agreed to."""
    place = tmp_path_factory.mktemp("agreed") / "agreed.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consent, "_path", lambda: place)
        yield
