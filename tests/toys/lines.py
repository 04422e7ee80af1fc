"""Reads the logs of a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pinprompt.files import object_of, whole_lines


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of sealed lines, without checking whom they belong to."""
    for line in whole_lines(path):
        if (found := object_of(line)) is not None:
            yield {name: value for name, value in found.items() if name != "crc"}
