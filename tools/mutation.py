"""The mutation score of the files in which a mistake would cost the most: `make mutation`.

mutmut changes one thing at a time in a function (a sign, a constant, an argument) and runs the tests that reach it. A
change that no test detects survives. mutmut runs on a copy in a temporary folder, so the working tree is not modified.

    python tools/mutation.py                      all files; exit code 1 if any of them is below 85 %
    python tools/mutation.py replay --keep /tmp/m  files with "replay" in their path; the copy is kept for inspection

The copy has an extra conftest.py: mutmut 3.8 reads `Item._nodeid`, which pytest 9 no longer has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Each file with the tests that must detect changes to it.
FILES = {
    "src/pinprompt/maths/bootstrap.py": ["tests/maths/test_bootstrap.py"],
    "src/pinprompt/maths/entropy.py": ["tests/maths"],
    "src/pinprompt/maths/gaussian_process.py": ["tests/maths/test_gaussian_process.py"],
    "src/pinprompt/maths/relative_sparsemax.py": [
        "tests/maths/test_entropy.py",
        "tests/maths/test_relative_sparsemax.py",
    ],
    "src/pinprompt/maths/sparsemax.py": ["tests/maths"],
    "src/pinprompt/maths/targets.py": ["tests/maths"],
    "src/pinprompt/maths/state_values.py": ["tests/maths"],
    "src/pinprompt/answers/budget.py": ["tests/answers/test_budget.py"],
    "src/pinprompt/methods/pin/replay.py": ["tests/methods/pin/test_replay.py", "tests/methods/pin/test_rewards.py"],
}

# mutmut's own time limit is many times the duration of all tests of a mutant. If a test takes this many CPU seconds
# (an endless loop in a mutant), the mutant is stopped earlier, with mutmut's exit code for a timeout. Hypothesis draws
# the same examples every time, so that scores are reproducible, and does not shrink failing examples.
SHIM = """
import os, signal, hypothesis, pytest

pytest.Item._nodeid = property(lambda self: self.nodeid)
drawing = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
hypothesis.settings.register_profile("mutants", derandomize=True, phases=drawing)
hypothesis.settings.load_profile("mutants")
signal.signal(signal.SIGVTALRM, lambda *_: os._exit(36))

def pytest_runtest_logstart():
    signal.setitimer(signal.ITIMER_VIRTUAL, 30)

def pytest_runtest_logfinish():
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
"""

# The exit codes that mutmut counts as killed (a failed test, an error inside pytest), and those of its time limit: a
# mutant that never ends is detected, too. Every other exit code counts against the score.
NOTICED = (1, 3, 24, -24, 36, 152, 255)
UNTESTED = 33


def main() -> int:
    """Run mutmut on a copy, and print the score and the survivors of each file."""
    parser = argparse.ArgumentParser(description="Mutation score of the files in which a mistake would cost the most.")
    parser.add_argument("only", nargs="*", help="parts of paths; without any, all files")
    parser.add_argument("--min", type=float, default=85.0, help="the score in percent that every file must reach")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that run in parallel")
    parser.add_argument("--keep", type=Path, help="where to put the copy, and to leave it")
    options = parser.parse_args()
    files = [path for path in FILES if not options.only or any(part in path for part in options.only)]
    if not files:
        parser.error(f"no file matches {options.only}; known: {', '.join(FILES)}")
    if options.keep:
        if options.keep.exists():
            parser.error(f"{options.keep} is there already; give a folder that is not")
        return measured(options.keep, files, options.jobs, options.min)
    with tempfile.TemporaryDirectory() as folder:
        return measured(Path(folder), files, options.jobs, options.min)


def measured(folder: Path, files: Sequence[str], jobs: int, least: float) -> int:
    """Run mutmut in the folder; the exit code is 0 if every file reaches the score."""
    copied(folder, files)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs)]
    with (folder / "mutmut.log").open("w") as log:
        code = subprocess.call(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    if code:
        print((folder / "mutmut.log").read_text()[-4000:])
        return code
    low = [path for path in files if not scored(folder, path, least)]
    if low:
        print(f"below {least:g} %: {', '.join(low)}")
    return 1 if low else 0


def copied(folder: Path, files: Sequence[str]) -> None:
    """Copy the package and the relevant tests to a folder, and write mutmut's settings there."""
    code = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.png", "*.npz")
    shutil.copytree(ROOT / "src", folder / "src", ignore=code)
    tests = sorted({test for path in files for test in FILES[path]})
    for test in tests:
        for source in sorted((ROOT / test).glob("*.py")) if (ROOT / test).is_dir() else [ROOT / test]:
            copy = folder / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            # A surviving mutant runs every example; fewer examples can only lower the score.
            copy.write_text(source.read_text().replace("max_examples=10_000", "max_examples=500"))
    (folder / "tests/conftest.py").write_text(SHIM)
    lines = ["[tool.pytest.ini_options]", 'addopts = "-q"', "[tool.mutmut]", 'source_paths = ["src"]']
    lines += [f"only_mutate = {json.dumps(list(files))}", f"pytest_add_cli_args_test_selection = {json.dumps(tests)}"]
    # Loading plugins that a mutant does not need takes as long as running the tests.
    unneeded = [word for name in ("cacheprovider", "xdist", "cov", "timeout", "anyio") for word in ("-p", f"no:{name}")]
    lines += [f"pytest_add_cli_args = {json.dumps(unneeded)}", "use_git_change_detection = false"]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")


def scored(folder: Path, path: str, least: float) -> bool:
    """Print a file's score and its survivors; True if the score is high enough."""
    codes: dict[str, int | None] = json.loads((folder / "mutants" / f"{path}.meta").read_text())["exit_code_by_key"]
    survivors = [name for name, code in codes.items() if code not in NOTICED]
    score = 100 * (1 - len(survivors) / len(codes))
    print(f"{path}: {len(codes) - len(survivors)} of {len(codes)} noticed, {score:.1f} %", flush=True)
    for name in survivors:
        shown = subprocess.run(
            [sys.executable, "-m", "mutmut", "show", name], cwd=folder, capture_output=True, text=True, check=False
        )
        changed = [line for line in shown.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        print(f"  {name}{' (no test reaches it)' if codes[name] == UNTESTED else ''}")
        print("\n".join(f"    {line}" for line in changed), flush=True)
    return score >= least


if __name__ == "__main__":
    sys.exit(main())
