"""A run in a process of its own, to be killed: python -m tests.house.child MODELS OUT [resume MOMENT | hold].

With a moment it kills itself at that many function calls of the program (0: never, and it prints how many there were).
With `hold` it stands still at its first question, until somebody kills it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import pinprompt
from pinprompt.folder.checkpoint import Checkpoint
from pinprompt.run import running
from pinprompt.values import Answers, Draw, Prompt
from tests.house.tiny import FindTheWords, recipe

SETTINGS = {"q_learning": {"steps": 30, "eval_every": 5, "on_collapse": "restart", "learning_rate": 3e-3}}
SOURCE = str(Path(pinprompt.__file__).parent)


class Held(FindTheWords):
    """Never answers."""

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        threading.Event().wait()
        return []


class Moments:
    """Counts what the program calls, Python and C alike, and ends the process at a number."""

    def __init__(self, last: int) -> None:
        self.count, self.last = 0, last

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(SOURCE):
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    torch.set_num_threads(1)
    # Save after every step, so that kills meet saving too.
    Checkpoint.due = lambda self: True  # type: ignore[method-assign]
    models, out, *more = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
    moments = Moments(int(more[1]) if len(more) > 1 else 0)
    task = Held() if "hold" in more else FindTheWords()
    sys.setprofile(moments)
    running.run(recipe(models, **SETTINGS), out, task=task, device="cpu", threads=1, resume="resume" in more)
    sys.setprofile(None)
    sys.stdout.write(f"{moments.count}\n")


if __name__ == "__main__":
    main()
