"""Makes the modules of tests/toys importable by name from every test, and the tests patient on a loaded machine."""

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "toys"))

from patient_ray import be_patient

from pinprompt.run import consent

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium. Playwright holds an event loop as long as it is open, so it ends with the file that uses it:
    no later test of the same process meets a loop that runs, or a second Playwright.
    """
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as player:
        found = player.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield found
        found.close()
