"""Ten lines from labelled sentences to a prompt: python examples/classify.py reviews.csv

The file has columns `text` and `label` (0 and 1). The task model is `smollm2`, which comes from the package index.
"""

from __future__ import annotations

import sys

import pinprompt


def main(path: str, calls: int = 3200, out: str = "runs/reviews") -> pinprompt.Result:
    task = {"train": path, "words": {"0": "terrible", "1": "great"}, "model": "smollm2"}
    return pinprompt.tune(task, calls=calls, out=out, force=True)


if __name__ == "__main__":
    result = main(sys.argv[1])
    sys.stdout.write(f"{result.prompt!r}: accuracy {result.dev['accuracy']:.2f} on dev; see {result.report}\n")
