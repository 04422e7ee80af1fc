"""Your own task is a plain function from a prompt's text to a number: nothing to subclass.

Run it: python examples/own_task.py
Here the "model" is a rule, so that the example needs no more than the writer: it likes calm words and short prompts.
"""

from __future__ import annotations

import sys

import pinprompt

CALM = {"quiet", "calm", "gentle", "slow", "soft", "still", "peace", "rest", "breathe", "easy"}


def calmness(prompt: str) -> float:
    words = prompt.lower().split()
    return sum(word.strip(".,!") in CALM for word in words) - 0.01 * len(prompt)


def main(steps: int = 12, out: str = "runs/own-task") -> pinprompt.Result:
    settings = {
        "policy": {"length": 3, "k": 512, "context": "Words for a quiet evening:"},
        "q_learning": {"steps": steps, "batch": 32},
    }
    return pinprompt.tune(calmness, settings=settings, out=out, force=True)


if __name__ == "__main__":
    result = main(*map(int, sys.argv[1:2]))
    sys.stdout.write(f"{result.prompt!r} scores {result.score:.2f} after {result.calls} calls; see {result.report}\n")
