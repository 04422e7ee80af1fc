"""Soak test: small runs are killed or damaged at random, then resumed. They must equal the undisturbed run, or fail.

    python tools/soak.py --kills 1000 --damages 1000     # make soak: half an hour
    python tools/soak.py --minutes 2                     # make soak-short: what CI runs

Every case is a real run: tiny models of the real classes in their real formats, real run folders, the real table of
answers, requests, memo and checkpoint. Runs are forked from a process that has torch and the models in memory, so that
a run takes a fraction of a second. A run is killed by the kernel after a random share of its CPU time, or in the middle
of a random disk operation (half a line written, a file not yet renamed, or renamed and not yet synced). It is killed up
to four times, then resumed to its end; no answer may be asked for twice on the way. Damage is done to one file in a
copy of a killed or finished run, or to the memo: a bit, a block, its length or its rows are changed, or it is deleted.
The resumed run must then give the same events, prompts and result, or stop with one of pinprompt's own errors. A
different result or any other error is a failure. Runs on Ray are separate processes, and there are only a few of them,
since Ray takes many seconds to start.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests" / "toys")]

from tests.toys.lines import read_lines  # noqa: E402

from pinprompt import sweeps  # noqa: E402
from pinprompt.answers.log import Log  # noqa: E402
from pinprompt.answers.table import unpack_rows  # noqa: E402
from pinprompt.errors import PinpromptError  # noqa: E402
from pinprompt.folder import folder  # noqa: E402
from pinprompt.folder.checkpoint import ANSWERS, Checkpoint  # noqa: E402
from pinprompt.maths import labels  # noqa: E402
from pinprompt.methods.table import METHODS  # noqa: E402
from pinprompt.models import loading  # noqa: E402
from pinprompt.recipe import recipe as recipes  # noqa: E402
from pinprompt.recipe.recipe import Recipe  # noqa: E402
from pinprompt.run import running  # noqa: E402

SMALL: dict[str, Any] = {
    "q_learning": {"steps": 3, "prompts": 2, "batch": 4, "updates": 1, "eval_every": 2},
    "untrained": {"prompts": 12},
    "race": {"least": 2, "max_perplexity": None},
    "autoprompt": {"steps": 3},
    "pez": {"steps": 4, "eval_every": 2},
    "soft_prompt": {"epochs": 3},
    "grips": {"steps": 3},
}
VARY = ("seconds", "paid_calls")
"""Fields of result.json that depend on the machine and on kills, not on the run."""


@dataclass
class Case:
    """One case: the recipe, and the circumstances of its runs."""

    name: str
    tree: dict[str, Any]
    memo: bool = False
    force: bool = False
    """Whether the folder has a run with another seed, which `--force` removes."""
    sweep: bool = False
    """Whether it is a cell of a sweep, which must be whole at the end, with its report."""
    cpu: float = 0.0
    operations: int = 0
    expected: Any = None
    whole: Path = Path()
    """The undisturbed run, with the folder of its memo."""
    killed: list[Path] = field(default_factory=list)
    """Runs that were killed at different moments."""

    @property
    def recipe(self) -> Recipe:
        return recipes.resolve(self.tree)


@dataclass
class Tally:
    """Counts of what has happened so far."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def fail(self, sentence: str) -> None:
        self.failures.append(sentence)
        print(f"FAILED: {sentence}", flush=True)


# The cases: every method with a budget and a dev split, and some of them with other features.


def cases(base: Path, url: str) -> list[Case]:
    """Every method, and some of them with a memo, a server and `--force`."""
    from tests.safety import remote_runs
    from tests.toys import label_runs

    def tree(method: str, calls: int, **over: Any) -> dict[str, Any]:
        asked = {"task": {"instruction": "Say whether the film was good."}, "budget": {"calls": calls}}
        raw = label_runs.settings_of(base, method=method, **asked, **SMALL)
        if "remote" in over:
            raw["task"].pop("words")  # the server has labels of its own
        return recipes.merge(raw, over)

    found = [Case(method, tree(method, 60 if method in ("race", "beam") else 90)) for method in METHODS]
    remote_runs.labelled(base)
    remote = {
        "task": {
            "model": "remote:toy", "train": str(base / "train.csv"), "dev": str(base / "dev.csv"),
            "test": str(base / "test.csv"), "text_column": "text", "label_column": "label",
            "words": {"0": "terrible", "1": "great"}, "shots": 2,
        },
        "remote": {"base_url": url, "key_env": remote_runs.KEY_ENV, "retries": 0, "concurrency": 2},
    }  # fmt: skip
    for method in ("pin", "random", "race"):
        found.append(Case(f"{method}, memo", tree(method, 60, scoring={"memo": True}), memo=True))
        found.append(Case(f"{method}, force", tree(method, 60), force=True))
        found.append(Case(f"{method}, remote", tree(method, 150, **remote)))
        found.append(Case(f"{method}, remote, memo", tree(method, 150, **remote, scoring={"memo": True}), memo=True))
        found.append(Case(f"{method}, sweep", tree(method, 60), sweep=True))
    useless = {**remote, "task": {**remote["task"], "model": "remote:useless"}}
    found.append(Case("random, remote, useless answers", tree("random", 150, **useless)))
    sets = remote_runs.styled(base)  # writes the files of its data and its judge
    settings = {word.split("=")[0]: word.split("=")[1] for word in sets if word.startswith("task.")}
    style = {
        "kind": "style-transfer", "model": "remote:toy", "source": str(base / "source.txt"),
        "target": str(base / "target.txt"), "force_judge": True,
        **{name.removeprefix("task."): value if "/" in value else float(value) if "." in value else int(value)
           for name, value in settings.items()},
    }  # fmt: skip
    for method in ("pin", "race"):
        styled = {**tree(method, 300), "task": style, "remote": remote["remote"]}
        found.append(Case(f"{method}, restyle, remote", styled))
    return found


# One run in a child process.


@dataclass(frozen=True)
class Ended:
    """How a child ended: 'done', 'killed', 'refused' (one of pinprompt's errors), or 'broken' (any other)."""

    how: str
    said: str
    cpu: float


def in_child(work: Callable[[], None], after: float | None = None) -> Ended:
    """Run a function in a fork; with `after`, the kernel kills it after that many seconds of CPU time."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        try:
            if after is not None:
                signal.setitimer(signal.ITIMER_PROF, max(after, 1e-3))
            work()
            code = 0
        except PinpromptError as error:
            os.write(write, str(error).encode("utf-8", "replace")[:4000])
            code = 2
        except BaseException:
            os.write(write, traceback.format_exc().encode("utf-8", "replace")[-4000:])
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status, used = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        how = "killed" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGKILL) else "broken"
    else:
        how = {0: "done", 2: "refused"}.get(os.WEXITSTATUS(status), "broken")
    return Ended(how, said, used.ru_utime + used.ru_stime)


class Operations:
    """Counts a run's disk operations, and kills the process in the middle of one of them."""

    def __init__(self, last: int = 0) -> None:
        self.count, self.last = 0, last

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count appends, renames and syncs."""
        write, replace, sync = Log._write, os.replace, os.fsync

        def torn(log: Log, data: bytes) -> None:
            if data and self._is_last():
                write(log, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            write(log, data)

        def renamed(source: Any, target: Any) -> None:
            if self._is_last():
                if self.last % 2:
                    replace(source, target)
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        def synced(handle: int) -> None:
            if self._is_last():
                os.kill(os.getpid(), signal.SIGKILL)
            sync(handle)

        Log._write = torn  # type: ignore[method-assign]
        os.replace, os.fsync = renamed, synced  # type: ignore[assignment]
        try:
            yield
        finally:
            Log._write = write  # type: ignore[method-assign]
            os.replace, os.fsync = replace, sync

    def _is_last(self) -> bool:
        self.count += 1
        return self.count == self.last


def carry_out(case: Case, out: Path, *, resume: bool, kill: Operations | None = None) -> None:
    """Run a case in the same way as `pinprompt tune`."""
    os.environ["PINPROMPT_HOME"] = str(out.parent / "home")
    with (kill or Operations()).counted():
        if case.sweep:
            cell = sweeps.Cell(case.recipe, out, {})
            outcome = sweeps.run_cell(cell, "cpu", 1)
            if outcome.startswith("failed"):
                raise PinpromptError(outcome)
            assert cell.done
            assert folder.verify(out).ok
            return
        running.run(
            case.recipe, out, device="cpu", threads=1, resume=resume and not case.force, force=case.force and resume
        )


def told(out: Path) -> Any:
    """The part of a run that its user sees."""
    result = json.loads((out / "result.json").read_text("utf-8"))
    for name in VARY:
        result.pop(name)
    result["spent"].pop("sent")
    return (out / "events.jsonl").read_bytes(), result, (out / "prompts.csv").read_bytes()


def asked_twice(out: Path) -> list[str]:
    """Cells of the table of answers, and questions to a server, that a run has more than once."""
    cells: Counter[str] = Counter()
    for line in read_lines(out / ANSWERS):
        cells.update(f"{line['draw']} {line['text']!r} on row {row}" for row in unpack_rows(line["rows"]))
    requests = [line for line in read_lines(out / folder.REQUESTS) if line["kind"] == "reply"]
    cells.update(f"reply {line['key']}" for line in requests)
    return [name for name, count in cells.items() if count > 1]


def measure(case: Case, base: Path, dice: random.Random) -> None:
    """Make the undisturbed run, which gives the expected result, the duration and the disk operations; and killed ones.

    Runs are killed early, halfway and late, but never before their folder exists. Damage is done to copies of these.
    """
    out = base / "run"
    base.mkdir()

    # In this process, so that everything imported or compiled during the run is available to all forks.
    operations, started = Operations(), time.process_time()
    carry_out(case, out, resume=False, kill=operations)
    case.expected, case.whole = told(out), base
    case.cpu, case.operations = time.process_time() - started, operations.count
    for share in (0.4, 0.6, 0.8):
        place = base.with_name(f"{base.name}-killed-{share}")
        place.mkdir()
        kill = Operations(max(4, int((share + 0.2 * dice.random()) * case.operations)))
        in_child(lambda kill=kill, place=place: carry_out(case, place / "run", resume=False, kill=kill))  # type: ignore[misc]
        if (place / "run").exists():
            case.killed.append(place)


# Kills.


def kill_and_resume(case: Case, base: Path, dice: random.Random, tally: Tally) -> None:
    """Kill a run up to four times, resume it to its end, and compare."""
    out, kills = base / "run", 0
    if case.force:
        other = Case(case.name, recipes.merge(case.tree, {"seed": 7}))
        in_child(lambda: carry_out(other, out, resume=False), after=dice.random() * case.cpu)
        if not out.exists():
            out.mkdir()
    story = []
    for _ in range(dice.randint(1, 4)):
        if dice.random() < 0.5:
            share = dice.random()
            story.append(f"after {share:.2f} of its time")
            ended = in_child(lambda: carry_out(case, out, resume=True), after=share * case.cpu)
        else:
            last = dice.randint(1, case.operations)
            story.append(f"at operation {last} on the disk")
            ended = in_child(lambda last=last: carry_out(case, out, resume=True, kill=Operations(last)))  # type: ignore[misc]
        if ended.how == "done":
            break
        kills += ended.how == "killed"
        if ended.how != "killed":
            tally.fail(f"{case.name}, killed {' and '.join(story)}: {ended.said}")
            return
    tally.counts["kills"] += kills
    ended = in_child(lambda: carry_out(case, out, resume=True))
    tally.counts["runs"] += 1
    if ended.how != "done":
        tally.fail(f"{case.name}, killed {' and '.join(story)}, could not be resumed: {ended.said}")
    elif told(out) != case.expected:
        keep = Path(tempfile.mkdtemp(prefix="soak-failed-"))
        shutil.copytree(out, keep / "run", dirs_exist_ok=True)
        tally.fail(f"{case.name}, killed {' and '.join(story)}, ended well but different; kept in {keep}")
    elif twice := asked_twice(out):
        tally.fail(f"{case.name}, killed {' and '.join(story)}, asked twice: {', '.join(twice[:5])}")


# Damage.


def damage(path: Path, dice: random.Random) -> str:
    """Change a file in a random way; returns a description of the change."""
    content = path.read_bytes()
    if not content or dice.random() < 0.08:
        path.unlink()
        return "deleted"
    way, place = dice.choice(("bit", "byte", "block", "cut", "empty", "junk", "row", "swap", "twice")), 0
    place = dice.randrange(len(content))
    lines = content.splitlines(keepends=True)
    if way in ("row", "swap", "twice") and len(lines) < 3:
        way = "bit"
    if way == "bit":
        new = content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
    elif way == "byte":
        new = content[:place] + bytes([dice.randrange(256)]) + content[place + 1 :]
    elif way == "block":
        new = content[:place] + bytes(min(512, len(content) - place)) + content[place + 512 :]
    elif way == "cut":
        new = content[:place]
    elif way == "empty":
        new = b""
    elif way == "junk":
        new = content[:place] + dice.randbytes(20) + content[place:]
    else:
        at = dice.randrange(len(lines) - 1)
        swapped = {"row": [], "swap": [lines[at + 1], lines[at]], "twice": [lines[at], lines[at], lines[at + 1]]}[way]
        new = b"".join([*lines[:at], *swapped, *lines[at + (1 if way == "row" else 2) :]])
    path.write_bytes(new)
    return way


def damage_and_resume(case: Case, base: Path, dice: random.Random, tally: Tally) -> None:
    """Damage one file of a killed or finished run, resume it, and compare."""
    out, finished = base / "run", dice.random() < 0.3
    shutil.copytree(case.whole if finished else dice.choice(case.killed), base, dirs_exist_ok=True)
    places = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != ".lock"]
    places += sorted((base / "home").glob("memo.sqlite")) if case.memo else []
    if not places:
        return
    path = dice.choice(places)
    way = damage(path, dice)
    what = f"{case.name}, {'finished' if finished else 'killed'}: {path.relative_to(base)} ({way})"
    ended = in_child(lambda: carry_out(case, out, resume=True))
    tally.counts["damages"] += 1
    if ended.how == "refused":
        tally.counts["refused"] += 1
    elif ended.how != "done":
        tally.fail(f"{what}: {ended.said or ended.how}")
    elif told(out) != case.expected:
        keep = Path(tempfile.mkdtemp(prefix="soak-failed-"))
        shutil.copytree(out, keep / "run", dirs_exist_ok=True)
        tally.fail(f"{what}: ended well but different; kept in {keep}")
    else:
        tally.counts["repaired"] += 1


# Ray: separate processes.

RAY = """
import sys
from tools import soak
soak.with_ray(*sys.argv[1:])
"""
ON_RAY = ("pin", "random", "beam")
"""Methods whose runs are killed on Ray, in turn."""


def with_ray(method: str, models: str, out: str, last: str) -> None:
    """A run whose prompts are scored by two Ray workers; prints the number of disk operations."""
    from tests.house.tiny import recipe
    from tests.toys import patient_ray

    patient_ray.be_patient()
    import ray

    ray.init = patient_ray.patient_init()
    Checkpoint.due = lambda self: True  # type: ignore[method-assign]
    made = recipe(
        Path(models), **SMALL, method=method, task={"function": "tests.cli.scoring:vowels"},
        scoring={"workers": 2}, budget={"calls": 40},
    )  # fmt: skip
    operations = Operations(int(last))
    with operations.counted():
        running.run(made, Path(out), device="cpu", threads=1, resume=True)
    print(operations.count, flush=True)


def ray_kills(base: Path, dice: random.Random, count: int, tally: Tally) -> None:
    """Kill the driver of a run on Ray in the middle of a disk operation, resume it, and compare."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "PINPROMPT_HOME": str(base / "ray-home")}

    def carried_out(method: str, out: Path, last: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", RAY, method, str(base), str(out), str(last)]
        return subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=True, check=False)

    operations: dict[str, int] = {}
    for number in range(count):
        method = ON_RAY[number % len(ON_RAY)]
        whole, out = base / f"ray-{method}", base / f"ray-{number}"
        if method not in operations:
            ended = carried_out(method, whole)
            if ended.returncode:
                tally.fail(f"{method} on Ray, undisturbed: {ended.stderr[-2000:]}")
                return
            operations[method] = int(ended.stdout.split()[-1])
        last = dice.randint(operations[method] // 10, operations[method])
        torn = carried_out(method, out, last)
        if torn.returncode not in (0, -signal.SIGKILL):
            tally.fail(f"{method} on Ray failed before operation {last} on the disk: {torn.stderr[-2000:]}")
            continue
        # Answers are synced once a second, so that a fast run has fewer operations and may end before the last.
        tally.counts["kills on Ray"] += torn.returncode != 0
        again = carried_out(method, out)
        if again.returncode or told(out) != told(whole):
            what = again.stderr[-2000:] if again.returncode else "ended well but different"
            tally.fail(f"{method} on Ray, killed at operation {last} on the disk: {what}")
        print(f"{tally.counts['kills on Ray']} kills on Ray, {len(tally.failures)} failures", flush=True)


def soak(kills: int, damages: int, minutes: float | None, seed: int, ray: int) -> int:
    """Run everything until the counts or the minutes are reached; returns the number of failures."""
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    Checkpoint.due = lambda self: True  # type: ignore[method-assign]  # every step is saved, so that kills hit saves
    loading.load_causal_lm = functools.cache(loading.load_causal_lm)  # forks share the parent's models
    labels.RESAMPLES = 50  # intervals of reports are not tested here, and would take most of the time
    dice, tally, started = random.Random(seed), Tally(), time.monotonic()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a killed process loses nothing there either
    with tempfile.TemporaryDirectory(prefix="soak-", dir=memory) as place, _server() as url:
        base = Path(place)
        known = cases(base, url)
        for model in ("tiny-gpt2", "label-model"):
            loading.load_causal_lm(str(base / model), "cpu")
        gc.freeze()
        number = 0

        def more() -> bool:
            if minutes is not None and time.monotonic() - started > minutes * 60:
                return False
            return tally.counts["kills"] < kills or tally.counts["damages"] < damages

        while more():
            case, trial = known[number % len(known)], base / "trial"
            number += 1
            if case.expected is None:
                measure(case, base / f"whole-{number}", dice)
            trial.mkdir()
            if tally.counts["kills"] * damages <= tally.counts["damages"] * kills:
                kill_and_resume(case, trial, dice, tally)
            else:
                damage_and_resume(case, trial, dice, tally)
            shutil.rmtree(trial)
            if number % 50 == 0:
                print(_figures(tally, started), flush=True)
        if ray and not tally.failures:
            ray_kills(base, dice, ray, tally)
    print(_figures(tally, started))
    for failure in tally.failures:
        print(f"FAILED: {failure}")
    return len(tally.failures)


def answers(number: int, path: str, body: dict[str, Any]) -> Any:
    """The server of the remote cases: labels, rewrites, and for one model every fourth answer useless."""
    from remote_servers import reply
    from tests.safety import remote_runs

    if not isinstance(body.get("logprobs"), int):
        return remote_runs.rewriter(number, path, body)
    # By the question, not by its number: a question that is asked again after a kill has the same answer.
    if body["model"] == "useless" and remote_runs.draw("useless", body["prompt"]) < 0.25:
        return reply({"choices": [], "usage": remote_runs.USAGE})
    return remote_runs.labeller(number, path, body)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """The server of the remote cases, in a separate process: its threads must not be in a forked process."""
    code = (
        "from tools.soak import answers\nfrom remote_servers import serving\nimport sys, threading\n"
        "with serving(answers) as server:\n    print(server.url, flush=True)\n    sys.stdin.read()\n"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "tests" / "toys")])
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def _figures(tally: Tally, started: float) -> str:
    counts = tally.counts
    return (
        f"{(time.monotonic() - started) / 60:.1f} min: {counts['kills']} kills in {counts['runs']} runs, "
        f"{counts['damages']} damages ({counts['repaired']} repaired, {counts['refused']} refused), "
        f"{counts['kills on Ray']} kills on Ray; {len(tally.failures)} failures"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="kills to reach")
    parser.add_argument("--damages", type=int, default=1000, help="damages to reach")
    parser.add_argument("--minutes", type=float, default=None, help="stop after this many minutes")
    parser.add_argument("--seed", type=int, default=None, help="of the dice; by default another one each time")
    parser.add_argument("--ray", type=int, default=0, help="kills on Ray")
    options = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "big") if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    sys.exit(1 if soak(options.kills, options.damages, options.minutes, seed, options.ray) else 0)


if __name__ == "__main__":
    main()
