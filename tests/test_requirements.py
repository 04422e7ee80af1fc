"""requirements/ci.txt keeps up with pyproject.toml: `make lock` writes it again."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKED_FOR = "3.11"
APART = {"torch"}
"""Its builds differ by machine, so the Makefile installs it first, by its exact version."""


def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes by package."""
    found: dict[str, tuple[str, int]] = {}
    name = ""
    for line in (ROOT / "requirements" / "ci.txt").read_text("utf-8").splitlines():
        if pin := re.match(r"([A-Za-z0-9._-]+)(?:\[[\w,-]+\])?==([^ ;\\]+)", line):
            name = canonicalize_name(pin[1])
            found[name] = (pin[2], 0)
        elif line.strip().startswith("--hash=sha256:"):
            found[name] = (found[name][0], found[name][1] + 1)
    return found


def test_every_dependency_is_locked_at_a_version_that_is_allowed() -> None:
    known = locked()
    extras = [one for group in PROJECT["optional-dependencies"].values() for one in group]
    lagging = []
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"python_version": LOCKED_FOR})
        if name == PROJECT["name"] or name in APART or not applies:
            continue
        if name not in known:
            lagging.append(f"{name} is missing")
        elif not requirement.specifier.contains(known[name][0], prereleases=True):
            lagging.append(f"{name} {known[name][0]} is not {requirement.specifier}")
    assert not lagging, f"requirements/ci.txt lags behind pyproject.toml (run `make lock`): {', '.join(lagging)}"


def test_everything_that_is_locked_has_hashes() -> None:
    known = locked()
    assert known
    assert [name for name, (_, hashes) in known.items() if not hashes] == []
    assert not APART & known.keys()


def test_the_declared_versions_of_python_agree() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named == sorted(named, key=lambda version: int(version[2:]))
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert all(allowed.contains(version) for version in named)
    assert not allowed.contains(f"3.{int(named[0][2:]) - 1}"), "requires-python allows what no classifier names"
