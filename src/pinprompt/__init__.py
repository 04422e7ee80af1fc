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
    )
    from pinprompt.errors import PinpromptError
    from pinprompt.recipe.recipe import Recipe
    from pinprompt.run.running import Result
    from pinprompt.tasks.protocol import check_task
    from pinprompt.values import Evaluation, Event, Prompt, Score

# Imported on first use, so that `import pinprompt` and `pinprompt --help` do not import torch.
_HOMES = {
    "compare": "api",
    "draw": "api",
    "estimate": "api",
    "evaluate": "api",
    "export": "api",
    "figures": "api",
    "judge": "api",
    "ls": "api",
    "predict": "api",
    "predict_table": "api",
    "report": "api",
    "resume": "api",
    "rewrite": "api",
    "sweep": "api",
    "tune": "api",
    "use": "api",
    "check_task": "tasks.protocol",
    "Recipe": "recipe.recipe",
    "Result": "run.running",
    "Prompt": "values",
    "Score": "values",
    "Evaluation": "values",
    "Event": "values",
    "PinpromptError": "errors",
}

__all__ = [
    "Evaluation",
    "Event",
    "PinpromptError",
    "Prompt",
    "Recipe",
    "Result",
    "Score",
    "check_task",
    "compare",
    "draw",
    "estimate",
    "evaluate",
    "export",
    "figures",
    "judge",
    "ls",
    "predict",
    "predict_table",
    "report",
    "resume",
    "rewrite",
    "sweep",
    "tune",
    "use",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pinprompt")
    if name in _HOMES:
        return getattr(import_module(f"pinprompt.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'pinprompt' has no attribute '{name}'")
