"""One root seed, many named streams of randomness, so that drawing more from one never shifts another."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream of that name: the same for the same root seed and name, on any machine."""
    key = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
