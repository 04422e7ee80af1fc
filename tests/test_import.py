"""`import pinprompt` changes nothing in the process; the session line prepares the threads of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

THREADS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")


def printed(code: str, **given: str) -> str:
    """What a new Python process prints."""
    environment = {name: value for name, value in os.environ.items() if name not in THREADS} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_changes_neither_the_environment_nor_the_process() -> None:
    code = """
import logging, os, signal, sys, threading, warnings
def state():
    signals = [signal.getsignal(one) for one in signal.valid_signals()]
    return (dict(os.environ), os.getcwd(), signals, threading.active_count(), warnings.filters[:],
            logging.getLogger().handlers[:], sys.path[:], sys.excepthook)
before = state()
import pinprompt
print(state() == before, "torch" in sys.modules)
"""
    assert printed(code) == "True False"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "PASSIVE False"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE False"),
        ({"GOMP_SPINCOUNT": "1000"}, "None False"),
        ({"KMP_BLOCKTIME": "1"}, "None False"),
    ],
)
def test_threads_of_a_command_sleep_while_they_wait_unless_the_user_chose(given: dict[str, str], expected: str) -> None:
    code = """
import os, sys
from pinprompt.cli.console import Output, session
with session(Output()):
    print(os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)  # set before torch reads it
"""
    assert printed(code, **given) == expected
