"""The command line: one JSON object where asked for, sentences and exit codes for mistakes, runs left resumable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from children import child, wait_until
from typer.main import get_command
from typer.testing import CliRunner

from pinprompt import api
from pinprompt.cli import app
from pinprompt.errors import SettingError
from pinprompt.recipe import recipe as recipes
from tests.house.tiny import recipe

ROOT = Path(__file__).parents[2]
FUNCTION = "tests.cli.scoring:vowels"


def call(*words: str) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    made = recipe(folder, task={"function": FUNCTION}, q_learning={"steps": 4, "eval_every": 2})
    path = folder / "recipe.toml"
    path.write_text(recipes.to_toml(made), "utf-8")
    return path


@pytest.mark.parametrize("verb", ["methods", "models", "doctor", "cache"])
def test_information_commands_print_text_and_json(verb: str) -> None:
    for_people = call(verb)
    healthy = verb != "doctor" or api.doctor()["ok"]  # the machine of the tests may have its problems
    assert for_people.exit_code == (0 if healthy else 1), for_people.output
    for_machines = call(verb, "--json")
    assert isinstance(json.loads(for_machines.stdout), dict)


def test_methods_are_listed_by_name() -> None:
    names = {row["name"] for row in json.loads(call("methods", "--json").stdout)["methods"]}
    assert {"pin", "pin-no-fluency", "rlprompt", "rlprompt-fluency", "rlprompt-rb", "rlprompt-rb-fluency"} <= names


def test_a_recipe_is_tuned_and_its_run_can_be_used(tiny_recipe: Path, tmp_path: Path) -> None:
    words = ("--json", "--quiet", "--threads", "1", "--trust")
    done = call("tune", str(tiny_recipe), "--out", str(tmp_path / "run"), *words)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert {"method", "prompt", "score", "dev", "test", "calls", "seconds"} <= set(answer)
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "recipe.toml", "events.jsonl", "prompts.csv", "result.json", "report.html", "checkpoint"
    }  # fmt: skip
    again = call("tune", str(tiny_recipe), "--out", str(tmp_path / "run"))
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    resumed = call("tune", str(tiny_recipe), "--out", str(tmp_path / "run"), "--resume", "--json", "--quiet")
    assert json.loads(resumed.stdout)["prompt"] == answer["prompt"]
    own = call("tune", str(tmp_path / "run" / "recipe.toml"), "--out", str(tmp_path / "twin"), "--quiet", "--json")
    assert json.loads(own.stdout)["prompt"] == answer["prompt"]
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == (tmp_path / "twin" / "events.jsonl").read_bytes()
    continued = call("resume", str(tmp_path / "run"), "--json", "--quiet")
    assert json.loads(continued.stdout)["prompt"] == answer["prompt"], continued.output
    assert "already finished" in call("resume", str(tmp_path / "run")).stderr
    listed = json.loads(call("ls", str(tmp_path), "--json").stdout)["runs"]
    assert {(Path(one["folder"]).name, one["prompt"], one["state"]) for one in listed} == {
        (name, answer["prompt"], "finished") for name in ("run", "twin")
    }
    assert answer["prompt"].split()[0] in call("ls", str(tmp_path)).stdout
    assert "not a run folder" in call("resume", str(tmp_path)).stderr
    assert call("report", str(tmp_path / "run")).exit_code == 0
    compared = call("compare", str(tmp_path / "run"), str(tmp_path / "twin"), "--json")
    assert compared.exit_code == 0, compared.output
    assert json.loads(compared.stdout)["tables"]


def test_a_run_without_a_report_ends_with_its_prompt_and_can_be_given_one(tiny_recipe: Path, tmp_path: Path) -> None:
    whole, short = tmp_path / "whole", tmp_path / "short"
    expected = json.loads(call("tune", str(tiny_recipe), "--out", str(whole), "--json", "--quiet").stdout)
    done = call("tune", str(tiny_recipe), "--out", str(short), "--no-report", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["prompt"] == expected["prompt"]
    assert f"found: {answer['prompt']}" in done.stderr
    assert answer["report"] is None
    assert not (short / "report.html").exists()
    assert answer["baselines"] == {}
    assert "tokens" not in answer
    again = call("resume", str(short), "--no-report", "--json", "--quiet")
    assert json.loads(again.stdout)["reported"] is False
    assert not (short / "report.html").exists()
    reported = call("resume", str(short), "--json", "--quiet")
    assert reported.exit_code == 0, reported.output
    assert (short / "report.html").exists()
    measured = ("prompt", "score", "dev", "test", "train", "baselines", "tokens", "readability", "top")
    assert {name: json.loads(reported.stdout)[name] for name in measured} == {name: expected[name] for name in measured}


def test_test_rows_reach_the_task_of_every_kind(tmp_path: Path) -> None:
    from pinprompt.cli.search import _test_rows

    assert _test_rows({"task": {"kind": "classification"}}, 5) == {"test_rows": 5}
    assert _test_rows({"task": {"kind": "style-transfer"}}, 5) == {"test_sources": 5}
    with pytest.raises(SettingError, match="no test rows"):
        _test_rows({"task": {"kind": "inversion"}}, 5)


def test_overrides_budget_and_seed_reach_the_recipe(tiny_recipe: Path, tmp_path: Path) -> None:
    words = ("--set", "q_learning.steps=2", "--calls", "40", "--seed", "5", "--no-memo", "--quiet", "--json", "--trust")
    done = call("tune", str(tiny_recipe), "--out", str(tmp_path / "run"), *words)
    assert done.exit_code == 0, done.output
    made = recipes.load(tmp_path / "run" / "recipe.toml")
    assert (made.q_learning.steps, made.budget.calls, made.seed, made.scoring.memo) == (2, 40, 5, False)
    assert json.loads(done.stdout)["calls"] <= 40


def test_an_estimate_comes_before_anything_is_spent(tiny_recipe: Path, tmp_path: Path) -> None:
    done = call("tune", str(tiny_recipe), "--estimate", "--json", "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    # 4 steps of 16 prompts, and a greedy prompt at step 2, and one at the end.
    assert json.loads(done.stdout)["calls"] == 4 * 16 + 3
    assert api.estimate(tiny_recipe, calls=20)["calls"] == 20
    assert api.estimate(len, settings={"q_learning": {"steps": 4}}, method="pin", calls=7)["calls"] == 7
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "none.toml"), "cannot be read"),
        (("classify",), "--train FILE"),
        (("classify", "sst2"), "did you mean 'sst-2'"),
        (("classify", "sst-2", "--word", "great"), "label=word"),
        (("classify", "rotten-tomatoes", "--method", "pni"), "did you mean 'pin'"),
        (("classify", "rotten-tomatoes", "--set", "policy.kk=3"), "did you mean 'policy.k'"),
        (("classify", "rotten-tomatoes", "--set", "policy.k"), "section.name=value"),
        (("classify", "rotten-tomatoes", "--resume", "--force"), "give one of them"),
        (("restyle",), "--source FILE"),
        (("invert", "none.png"), "none.png"),
        (("predict", "nowhere", "text"), "not a run folder"),
        (("rewrite", "nowhere", "text"), "not a run folder"),
        (("evaluate", "nowhere"), "not a run folder"),
        (("report", "nowhere"), "no run folder"),
        (("compare", "nowhere"), "nowhere"),
        (("sweep", "none.toml"), "cannot be read"),
        (("classify", "rotten-tomatoes", "--device", "tpu9"), "device"),
        (("classify", "rotten-tomatoes", "--task-model", "no/such-model"), "no/such-model"),
    ],
)
def test_a_mistake_gives_an_error_message_and_exit_code_2(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run")) if words[0] in ("classify", "tune", "invert", "restyle") else ()
    done = call(*words, *out)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output
    machine = call(*words, *out, "--json")
    assert machine.exit_code == 2
    assert said in json.loads(machine.stdout)["error"]


COMPUTING = {
    "demo",
    "tune",
    "classify",
    "answer",
    "restyle",
    "invert",
    "sweep",
    "predict",
    "rewrite",
    "evaluate",
    "draw",
    "resume",
}


def offered(verb: str) -> set[str]:
    group: Any = get_command(app)
    return {name for parameter in group.commands[verb].params for name in parameter.opts}


@pytest.mark.parametrize("verb", sorted(get_command(app).commands))  # type: ignore[attr-defined]
def test_verbs_offer_only_options_that_they_use(verb: str) -> None:
    options = offered(verb)
    assert {"--json", "--quiet"} <= options
    assert ("--device" in options) == (verb in COMPUTING)
    assert ("--threads" in options) == (verb in COMPUTING)
    assert ("--seed" in options) == (verb in COMPUTING - {"predict", "evaluate", "resume"})


def test_every_search_offers_the_same_limits() -> None:
    shared = {"--out", "--resume", "--calls", "--minutes", "--set", "--no-memo", "--estimate", "--seed"}
    for verb in ("demo", "tune", "classify", "restyle", "invert"):
        assert shared <= offered(verb), verb


def test_every_verb_is_a_function_of_the_api() -> None:
    searches = {"demo", "classify", "answer", "restyle", "invert"}
    for verb in get_command(app).commands:  # type: ignore[attr-defined]
        assert callable(getattr(api, "tune" if verb in searches else verb)), verb


def test_python_runs_the_package_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "pinprompt", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.strip() == version("pinprompt")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['pinprompt', '--help']\n"
        "from pinprompt.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'ray', 'httpx'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_ctrl_c_leaves_the_run_resumable(tiny_recipe: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pinprompt",
        "tune",
        str(tiny_recipe),
        "--out",
        str(tmp_path / "run"),
        "--quiet",
        "--trust",
    ]
    slow = ["--set", "q_learning.steps=4000", "--set", "q_learning.updates=40"]
    events = tmp_path / "run" / "events.jsonl"
    with child([*command, *slow], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        wait_until(lambda: events.exists() and b'"step":2' in events.read_bytes(), "the second step", run)
        os.kill(run.pid, signal.SIGINT)
        _, said = run.communicate()
    assert run.returncode == 130, said
    assert "--resume" in said
    assert "Traceback" not in said


def test_a_prompt_of_one_model_is_refused_where_it_makes_no_sense(tiny_recipe: Path, tmp_path: Path) -> None:
    call("tune", str(tiny_recipe), "--out", str(tmp_path / "run"), "--quiet", "--trust")
    assert "classification run" in call("predict", str(tmp_path / "run"), "text").stderr
    assert "style-transfer run" in call("rewrite", str(tmp_path / "run"), "text").stderr
    assert "no model to replace" in call("evaluate", str(tmp_path / "run"), "--task-model", "gpt2").stderr


def test_sweeps_run_resume_and_show_themselves_dry(tiny_recipe: Path, tmp_path: Path) -> None:
    base = recipes.read_toml(tiny_recipe)
    lines = [f'[base]\nmethod = "pin"\n[base.task]\nkind = "custom"\nfunction = "{FUNCTION}"']
    lines.append(f'[base.policy]\nmodel = "{base["policy"]["model"]}"\nlength = 2\nhidden = 16\nk = "none"')
    lines.append("[base.q_learning]\nsteps = 2\nbatch = 8\n[base.scoring]\nmemo = false\n[grid]\nseed = [1, 2]")
    path = tmp_path / "sweep.toml"
    path.write_text("\n".join(lines))
    dry = json.loads(call("sweep", str(path), "--dry-run", "--json").stdout)
    assert [cell["varied"] for cell in dry["cells"]] == [{"seed": 1}, {"seed": 2}]
    assert "2 cells, 2 to run" in call("sweep", str(path), "--dry-run").stdout
    first = call("sweep", str(path), "--out", str(tmp_path / "cells"), "--json", "--trust")
    assert first.exit_code == 0, first.output
    assert set(json.loads(first.stdout)["cells"].values()) == {"finished"}
    second = call("sweep", str(path), "--out", str(tmp_path / "cells"), "--json")
    assert set(json.loads(second.stdout)["cells"].values()) == {"already finished"}
    swept = api.sweep(path, out=tmp_path / "cells", settings={"budget": {"calls": 5}}, threads=1)
    assert swept.folder == tmp_path / "cells"
    assert set(swept.cells.values()) == {"finished"}
    assert not set(swept.cells) & set(json.loads(first.stdout)["cells"])  # other settings are other cells
    assert "choose inline or ray" in call("sweep", str(path), "--engine", "slurm").stderr
