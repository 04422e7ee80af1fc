"""The list of banned words: the recipe's, its file's, and the one that holds for all runs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pinprompt.errors import SettingError
from pinprompt.settings.policy import Constraints

LARGEST = 64 << 20
"""Bytes of a list."""


def banned_phrases(constraints: Constraints) -> list[str]:
    """Every banned word or phrase of a run, without doubles.

    The list for all runs is the file that PINPROMPT_BAN_FILE names, else `banned.txt` in pinprompt's home if there.
    """
    phrases = list(constraints.banned)
    if constraints.banned_file is not None:
        phrases += _lines(Path(constraints.banned_file), "constraints.banned_file")
    everywhere = list_for_all_runs()
    if everywhere is not None:
        phrases += _lines(*everywhere)
    return [phrase for phrase in dict.fromkeys(phrase.strip() for phrase in phrases) if phrase]


def list_for_all_runs() -> tuple[Path, str] | None:
    """The file that bans words in every run, and what it is; None where nobody set one."""
    named = os.environ.get("PINPROMPT_BAN_FILE")
    if named:
        return Path(named), "PINPROMPT_BAN_FILE"
    from pinprompt.models.sources import home

    path = home() / "banned.txt"
    return (path, "the ban list for all runs") if path.is_file() else None


def seal() -> dict[str, object] | None:
    """What a reader of a run may know of the list for all runs: that there was one, and which; not its words."""
    everywhere = list_for_all_runs()
    if everywhere is None:
        return None
    phrases = [line.strip() for line in _lines(*everywhere) if line.strip()]
    digest = hashlib.sha256("\n".join(phrases).encode("utf-8", "replace")).hexdigest()
    return {"set_by": everywhere[1], "phrases": len(phrases), "sha256": digest}


def _lines(path: Path, what: str) -> list[str]:
    try:
        path = path.expanduser()
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise OSError(f"it is no file, or has more than {LARGEST >> 20} MiB")
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingError(
            f"{what} cannot be read ({path}: {error}); give a text file with one word or phrase a line"
        ) from error
