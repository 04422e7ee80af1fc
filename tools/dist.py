"""Builds the wheel and the sdist, checks them, and tries the wheel in a fresh environment: `make dist`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TORCH = "torch==2.13.0"
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
SMOKE = ("demo", "--calls", "120", "--set", "task.test_rows=40", "--quiet")
"""The demo with a small budget: downloads its model and data unless they are cached, then takes a minute."""
CHECKS_LEFT_OUT = "W002"  # two files of the same content: empty __init__.py files


def main() -> None:
    """Run all steps, print their commands, and stop at the first failure."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    wheel, sdist = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    run(sys.executable, "-m", "check_wheel_contents", "--ignore", CHECKS_LEFT_OUT, wheel)
    check_contents(wheel)
    with tempfile.TemporaryDirectory(prefix="pinprompt-dist-") as place:
        venv.create(place, with_pip=True)
        folder = Path(place) / ("Scripts" if sys.platform == "win32" else "bin")
        run(folder / "python", *PIP, TORCH)
        run(folder / "python", *PIP, wheel)
        run(folder / "pinprompt", "--version", cwd=place)
        run(folder / "pinprompt", "methods", cwd=place)
        run(folder / "pinprompt", *SMOKE, cwd=place)
    sys.stdout.write(f"ready: {wheel.name}, {sdist.name}\n")


def run(*words: object, cwd: str | Path = ROOT) -> None:
    """Run a command, or end with its exit code."""
    command = [str(word) for word in words]
    sys.stdout.write("$ " + " ".join(command) + "\n")
    sys.stdout.flush()
    done = subprocess.run(command, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def check_contents(wheel: Path) -> None:
    """Check that the wheel has every file of the package and nothing else.

    Tests in a checkout cannot find this: there, templates and weights are always present.
    """
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "pinprompt").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    names = zipfile.ZipFile(wheel).namelist()
    missing = sorted(files - set(names))
    stray = sorted({name.split("/")[0] for name in names if not name.startswith(("pinprompt/", "pinprompt-"))})
    if missing or stray:
        raise SystemExit(f"{wheel.name}: missing {missing}, not part of the package {stray}")


if __name__ == "__main__":
    main()
