"""The *deterministic* and *resumes* tests: same recipe, same bytes; killed at any moment, as if nothing were."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lines import read_lines

from pinprompt.errors import RunError
from pinprompt.run import running
from pinprompt.values import Row
from tests.house.child import SETTINGS
from tests.house.tiny import FindTheWords, make_lm, recipe

ROOT = Path(__file__).parents[2]


def events(folder: Path) -> bytes:
    return (folder / "events.jsonl").read_bytes()


def run(lm_folder: Path, out: Path, *, resume: bool = False, **over: Any) -> running.Result:
    return running.run(recipe(lm_folder, **over), out, task=FindTheWords(), device="cpu", threads=1, resume=resume)


def test_the_same_recipe_and_seed_give_the_same_bytes(lm_folder: Path, tmp_path: Path) -> None:
    short = {"q_learning": {"steps": 12}}
    run(lm_folder, tmp_path / "a", **short)
    run(lm_folder, tmp_path / "b", **short)
    run(lm_folder, tmp_path / "c", seed=1, **short)
    assert events(tmp_path / "a") == events(tmp_path / "b") != events(tmp_path / "c")
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in "ab")
    assert first.pop("seconds") > 0
    second.pop("seconds")
    assert first == second


def test_memo_on_and_off_give_the_same_run(lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    short = {"q_learning": {"steps": 12}, "budget": {"calls": 150}}
    run(lm_folder, tmp_path / "off", **short)
    run(lm_folder, tmp_path / "first", scoring={"memo": True}, **short)
    known = run(lm_folder, tmp_path / "second", scoring={"memo": True}, **short)
    assert known.data["paid_calls"] == 0 < known.calls
    assert events(tmp_path / "off") == events(tmp_path / "first") == events(tmp_path / "second")


def test_killed_at_any_moment_and_resumed_it_ends_as_if_nothing_had_happened(lm_folder: Path, tmp_path: Path) -> None:
    make_lm(lm_folder)
    command = [sys.executable, "-m", "tests.house.child", str(lm_folder)]
    whole = subprocess.run(
        [*command, str(tmp_path / "whole"), "resume", "0"], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    moments = int(whole.stdout)
    chance = random.Random(0)
    for _ in range(5):
        # Killed by itself after the given number of function calls, so that a moment is the same on every machine.
        moment = chance.randint(moments // 50, moments // 6)
        torn = subprocess.run(
            [*command, str(tmp_path / "torn"), "resume", str(moment)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        assert torn.returncode == -signal.SIGKILL, torn.stderr
    begun = read_lines(tmp_path / "torn" / "events.jsonl")
    assert sum(row["event"] == "step" for row in begun) > 1  # the kills found it at work
    subprocess.run([*command, str(tmp_path / "torn"), "resume", "0"], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    assert events(tmp_path / "torn") == events(tmp_path / "whole")
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("torn", "whole"))
    for name in ("prompt", "score", "calls", "prompts", "top", "tokens"):
        assert ours[name] == theirs[name], name
    assert (tmp_path / "torn" / "prompts.csv").read_bytes() == (tmp_path / "whole" / "prompts.csv").read_bytes()


def test_a_budget_ends_the_run_cleanly_and_more_of_it_continues_the_run(lm_folder: Path, tmp_path: Path) -> None:
    short = {"q_learning": {"steps": 12, "target": "bootstrap"}}
    small = run(lm_folder, tmp_path / "run", budget={"calls": 100}, **short)
    assert small.data["stopped"] == "budget"
    assert small.calls <= 100
    assert small.prompt
    more = run(lm_folder, tmp_path / "run", budget={"calls": 140}, resume=True, **short)
    assert small.calls < more.calls <= 140
    run(lm_folder, tmp_path / "at-once", budget={"calls": 140}, **short)
    assert events(tmp_path / "run") == events(tmp_path / "at-once")


class WithDev(FindTheWords):
    rows = (Row("train", 0), Row("dev", 0))


@pytest.mark.parametrize("less", [{"calls": 40}, {"calls": 150, "minutes": 1e-9}])
def test_resumed_with_less_than_it_has_spent_it_answers_from_what_it_has(
    lm_folder: Path, tmp_path: Path, less: dict[str, Any]
) -> None:
    short = {"q_learning": {"steps": 12}}
    asked = {"task": WithDev(), "device": "cpu", "threads": 1}
    first = running.run(recipe(lm_folder, budget={"calls": 100}, **short), tmp_path / "run", **asked)
    again = running.run(recipe(lm_folder, budget=less, **short), tmp_path / "run", resume=True, **asked)
    assert again.prompt == first.prompt  # a prompt is worth the same on dev and on train here
    assert again.calls <= first.calls


def test_a_finished_run_is_not_run_again(lm_folder: Path, tmp_path: Path) -> None:
    first = run(lm_folder, tmp_path / "run", q_learning={"steps": 3})
    stamp = (tmp_path / "run" / "result.json").stat().st_mtime_ns
    again = run(lm_folder, tmp_path / "run", q_learning={"steps": 3}, resume=True)
    assert again == first
    assert (tmp_path / "run" / "result.json").stat().st_mtime_ns == stamp


def test_a_run_is_resumed_only_with_its_own_recipe(lm_folder: Path, tmp_path: Path) -> None:
    run(lm_folder, tmp_path / "run", q_learning={"steps": 3})
    with pytest.raises(RunError, match=r"other settings.*q_learning"):
        run(lm_folder, tmp_path / "run", q_learning={"steps": 4}, resume=True)


def test_a_collapsed_search_restarts_or_stops(lm_folder: Path, tmp_path: Path) -> None:
    eager = {**SETTINGS["q_learning"], "target": "monte-carlo", "learning_rate": 2e-2, "steps": 40}
    restarted = run(lm_folder, tmp_path / "restart", q_learning=eager)
    assert restarted.data["restarts"] >= 1
    told = [row for row in read_lines(tmp_path / "restart" / "events.jsonl") if row["event"] == "restart"]
    assert len(told) == restarted.data["restarts"]
    stopped = run(lm_folder, tmp_path / "stop", q_learning={**eager, "on_collapse": "stop"})
    assert stopped.data["stopped"] == "collapsed"
    assert stopped.data["steps"] < 40


def test_a_restart_leaves_no_repeats_in_the_replay_and_a_resumed_run_knows(lm_folder: Path, tmp_path: Path) -> None:
    eager = {**SETTINGS["q_learning"], "target": "monte-carlo", "learning_rate": 2e-2, "steps": 40}
    whole = run(lm_folder, tmp_path / "whole", q_learning=eager, budget={"calls": 10_000})
    # Cut just before the end, so that the resumed part samples from a replay that a restart has cleaned.
    run(lm_folder, tmp_path / "cut", q_learning=eager, budget={"calls": whole.calls - 2})
    assert any(row["event"] == "restart" for row in read_lines(tmp_path / "cut" / "events.jsonl"))
    run(lm_folder, tmp_path / "cut", q_learning=eager, budget={"calls": 10_000}, resume=True)
    assert events(tmp_path / "cut") == events(tmp_path / "whole")
