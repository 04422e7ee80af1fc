"""A task function that takes a little while, so that a kill finds cells at work, or stands still while told."""

import os
import time
from pathlib import Path

HOLD = "PINPROMPT_TEST_HOLD"
"""The variable that names a file; while that file is there, nothing is scored."""


def slow_vowels(prompt: str) -> float:
    """The share of vowels, after a short rest."""
    time.sleep(0.01)
    while HOLD in os.environ and Path(os.environ[HOLD]).exists():
        time.sleep(0.01)
    return sum(letter in "aeiou" for letter in prompt) / max(1, len(prompt))
