"""A function that the command line's tests score with."""


def vowels(prompt: str) -> float:
    """The share of vowels."""
    return sum(letter in "aeiou" for letter in prompt) / max(1, len(prompt))
