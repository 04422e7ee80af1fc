"""TOML from anybody, read in bounded time: the standard library's reader behind checks of what would exhaust it."""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_PARTS = 16
"""Parts of a dotted key: the reader's time grows with their square, and the deepest setting has four."""
LARGEST_NUMBER = 2**63
"""TOML's integers have 64 bits; Python reads any, and fails later where it has to write them."""

_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"{3,5}|\'\'\'(?:[^\']|\'{1,2}(?!\'))*+\'{3,5}'  # texts of several lines
    r'|(?P<part>"(?!"")(?:[^"\\\n]|\\.)*+"|\'(?!\'\')[^\'\n]*+\'|[\w-]+)'  # parts of keys, and plain values
    r"|(?P<dot>\.)|(?P<space>[ \t]+)|\#[^\n]*|[^\"'\w.\- \t#]+",
    re.DOTALL,
)


def parse(text: str) -> dict[str, Any]:
    """The tree of a TOML text; ValueError or RecursionError where it is none, or has what no recipe has."""
    if _longest_key(text) > MOST_PARTS:
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    tree = tomllib.loads(text)
    _check_numbers(tree)
    return tree


def _longest_key(text: str) -> int:
    """The most parts that are joined by dots anywhere outside texts and comments."""
    longest = parts = place = 0
    joined = False
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return longest  # a text that does not end: the reader stops there too
        place = token.end()
        kind = token.lastgroup
        if kind == "part":
            parts = parts + 1 if joined else 1
            longest, joined = max(longest, parts), False
        elif kind == "dot":
            joined = True
        elif kind != "space":
            parts, joined = 0, False
    return longest


def _check_numbers(tree: dict[str, Any]) -> None:
    """Level by level, since a stranger may have nested it deeply."""
    level: list[Any] = [tree]
    while level:
        inner: list[Any] = []
        for one in level:
            for value in one.values() if isinstance(one, dict) else one:
                if isinstance(value, dict | list):
                    inner.append(value)
                elif isinstance(value, int) and not -LARGEST_NUMBER <= value < LARGEST_NUMBER:
                    raise ValueError("an integer has more than 64 bits")
        level = inner
