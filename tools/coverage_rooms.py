"""Check the branch coverage of the main packages in coverage's JSON report: the last step of `make coverage`.

    python tools/coverage_rooms.py coverage.json [least]      exit code 1 if a package is below `least` (default: 95)

The figure is computed as in coverage.py: executed statements and branches, as a share of all in the package's files.
The shares of statements alone and of branches alone are printed next to it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOMS = ("maths", "policy", "answers", "methods/pin", "folder")


def main(report: str = "coverage.json", least: str = "95") -> int:
    """Print a line for each package; return 1 if one is below `least`."""
    files: Mapping[str, Any] = json.loads(Path(report).read_text())["files"]
    print(f"{'room':<20}{'covered':>9}{'statements':>12}{'branches':>10}")
    low = []
    for room in ROOMS:
        parts = [row["summary"] for path, row in files.items() if f"pinprompt/{room}/" in path.replace("\\", "/")]
        if not parts:
            print(f"{room}: not in {report}; was it measured with --cov=pinprompt?")
            return 2
        total = {key: sum(part[key] for part in parts) for key in parts[0] if isinstance(parts[0][key], int)}
        statements = share(total["covered_lines"], total["num_statements"])
        branches = share(total["covered_branches"], total["num_branches"])
        covered = share(
            total["covered_lines"] + total["covered_branches"], total["num_statements"] + total["num_branches"]
        )
        print(f"{room:<20}{covered:>8.1f}%{statements:>11.1f}%{branches:>9.1f}%")
        if min(covered, branches) < float(least):
            low.append(room)
    if low:
        print(f"below {least} %: {', '.join(low)}")
    return 1 if low else 0


def share(part: int, whole: int) -> float:
    """A share in percent; 100 if there is nothing to cover."""
    return 100 * part / whole if whole else 100.0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
