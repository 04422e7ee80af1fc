"""pinprompt finds short, readable prompts for a model that can only be called, not trained."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinprompt.api import (
        compare,
        draw,
        estimate,
        evaluate,
        export,
        figures,
        judge,
        ls,
        predict,
        predict_table,
        report,
        resume,
        rewrite,
        sweep,
        tune,
        use,
    )  # fmt: skip
    from pinprompt.errors import PinpromptError
    from pinprompt.recipe.recipe import Recipe
    from pinprompt.run.running import Result
    from pinprompt.tasks.protocol import check_task
    from pinprompt.values import Evaluation, Event, Prompt, Score

__all__ = [
    "Evaluation", "Event", "PinpromptError", "Prompt", "Recipe", "Result", "Score", "check_task", "compare", "draw",
    "estimate", "evaluate", "export", "figures", "judge", "ls", "predict", "predict_table", "report", "resume",
    "rewrite", "sweep", "tune", "use",
]  # fmt: skip

# Imported on first use, so that `import pinprompt` and `pinprompt --help` do not import torch; the others are in `api`.
_HOMES = {
    "check_task": "tasks.protocol", "Recipe": "recipe.recipe", "Result": "run.running", "Prompt": "values",
    "Score": "values", "Evaluation": "values", "Event": "values", "PinpromptError": "errors",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pinprompt")
    if name in __all__:
        return getattr(import_module(f"pinprompt.{_HOMES.get(name, 'api')}"), name)
    raise AttributeError(f"module 'pinprompt' has no attribute '{name}'")
