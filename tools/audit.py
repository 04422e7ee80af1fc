"""Run pip-audit on the installed packages, and print in one line how many of them were audited.

Exit code 1 means that there is a known vulnerability. Exit code 3 means that the source of advisories could not be
reached and nothing was audited; `make check` reports this in its last line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

UNREACHED = "pip-audit: the index of vulnerabilities cannot be reached from here; nothing was audited"
NOT_ASKED = 3
SECONDS = 300


def verdict(report: dict[str, Any]) -> tuple[list[str], int]:
    """The contents of pip-audit's JSON as lines of text, and the exit code."""
    packages = report.get("dependencies", [])
    asked = [package for package in packages if "skip_reason" not in package]
    if not asked:
        return [UNREACHED], NOT_ASKED
    lines = [
        f"pip-audit: {package['name']} {package['version']}: {found['id']}"
        + (f", fixed in {', '.join(found['fix_versions'])}" if found.get("fix_versions") else "")
        for package in asked
        for found in package.get("vulns", [])
    ]
    skipped = len(packages) - len(asked)
    told = f"pip-audit: {len(asked)} packages audited, {len(lines)} known vulnerabilities"
    return [*lines, told + (f"; {skipped} are not known to the index" if skipped else "")], int(bool(lines))


def main() -> int:
    """Run the pip-audit of this interpreter's environment."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--progress-spinner", "off", "--skip-editable"]
    try:
        done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=SECONDS)
        report = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        print(UNREACHED)
        return NOT_ASKED
    lines, code = verdict(report)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
