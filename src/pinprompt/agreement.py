"""Whether the user says yes: in advance (`--trust`), or to a question on the terminal; otherwise the answer is no."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Asker = Callable[[str], bool]
_agreed = False
_asker: Asker | None = None


@contextmanager
def answering(agreed: bool = True, asker: Asker | None = None) -> Iterator[None]:
    """Consent to everything in this context, or let `asker` show the question and return the answer."""
    global _agreed, _asker
    before = _agreed, _asker
    _agreed, _asker = agreed, asker
    try:
        yield
    finally:
        _agreed, _asker = before


def agreed_in_advance() -> bool:
    """Whether the user has consented to everything."""
    return _agreed


def says_yes(question: str) -> bool:
    """The user's answer; no if nobody can be asked."""
    return _agreed or (_asker is not None and _asker(question))
