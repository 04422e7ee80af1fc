"""Whether code that a model brings may run. Only a person says so, on the command line; never a recipe or a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_trusting = False


def trusted() -> bool:
    """May a model's own code run in this process, now?"""
    return _trusting


@contextmanager
def trusting(on: bool = True) -> Iterator[None]:
    """Let the code of the models that are loaded meanwhile run, if `on`."""
    global _trusting
    before, _trusting = _trusting, on
    try:
        yield
    finally:
        _trusting = before
