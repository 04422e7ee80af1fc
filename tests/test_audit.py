"""What `make check` makes of pip-audit's answer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / "tools" / "audit.py"
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0)"}
CLEAN = {"name": "numpy", "version": "2.0", "vulns": []}
HIT = {"name": "pillow", "version": "9.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["9.1"]}, {"id": "PYSEC-2"}]}


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_an_index_the_check_fails_with_a_message(
    audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for report in ({"dependencies": [SKIPPED, SKIPPED]}, {"dependencies": []}, {}):
        lines, code = audit.verdict(report)
        assert code == 3
        assert len(lines) == 1
        assert "nothing was audited" in lines[0]
    for failure in (FileNotFoundError("pip-audit"), audit.subprocess.TimeoutExpired("pip-audit", 1), ValueError("{")):
        monkeypatch.setattr(audit.subprocess, "run", lambda *_, failure=failure, **__: (_ for _ in ()).throw(failure))
        assert audit.main() == 3
        assert "cannot be reached" in capsys.readouterr().out


def test_what_was_audited_is_counted(audit: Any) -> None:
    lines, code = audit.verdict({"dependencies": [CLEAN, SKIPPED]})
    assert (lines, code) == (
        ["pip-audit: 1 packages audited, 0 known vulnerabilities; 1 are not known to the index"],
        0,
    )


def test_a_known_vulnerability_fails_the_check(audit: Any) -> None:
    lines, code = audit.verdict({"dependencies": [CLEAN, HIT]})
    assert code == 1
    assert lines[0] == "pip-audit: pillow 9.0: PYSEC-1, fixed in 9.1"
    assert "2 packages audited, 2 known vulnerabilities" in lines[-1]
