"""A task function that takes a little while, so that a kill finds cells at work."""

import time


def slow_vowels(prompt: str) -> float:
    """The share of vowels, after a short rest."""
    time.sleep(0.01)
    return sum(letter in "aeiou" for letter in prompt) / max(1, len(prompt))
