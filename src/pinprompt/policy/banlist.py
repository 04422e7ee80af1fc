"""The list of banned words: the recipe's, its file's, and the one that holds for all runs."""

from __future__ import annotations

import os
from pathlib import Path

from pinprompt.errors import SettingError
from pinprompt.settings.policy import Constraints


def banned_phrases(constraints: Constraints) -> list[str]:
    """Every banned word or phrase of a run, without doubles.

    The list for all runs is the file that PINPROMPT_BAN_FILE names, else `banned.txt` in pinprompt's home if there.
    """
    phrases = list(constraints.banned)
    if constraints.banned_file is not None:
        phrases += _lines(Path(constraints.banned_file), "constraints.banned_file")
    everywhere = os.environ.get("PINPROMPT_BAN_FILE")
    if everywhere:
        phrases += _lines(Path(everywhere), "PINPROMPT_BAN_FILE")
    else:
        from pinprompt.models.sources import home

        if (path := home() / "banned.txt").is_file():
            phrases += _lines(path, "the ban list for all runs")
    return [phrase for phrase in dict.fromkeys(phrase.strip() for phrase in phrases) if phrase]


def _lines(path: Path, what: str) -> list[str]:
    try:
        return path.expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"{what} cannot be read ({path}: {error}); give a text file with one word or phrase a line"
        ) from error
