"""Files from strangers: any bytes give a result or an error of ours, and nothing outside a folder is touched."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console as Rich

from pinprompt import api
from pinprompt.answers.budget import Budget
from pinprompt.answers.log import Log
from pinprompt.answers.requests import Requests
from pinprompt.answers.table import Table
from pinprompt.cli.shown import shown_result
from pinprompt.data.examples import read_lines
from pinprompt.data.style import load_style
from pinprompt.errors import NotAgreed, PinpromptError, RunError, SettingError
from pinprompt.files import seal, write_json
from pinprompt.folder.checkpoint import Checkpoint
from pinprompt.folder.reading import read_run
from pinprompt.models.sources import kind_of
from pinprompt.policy.words import banned_phrases
from pinprompt.policy.words import seal as ban_list
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.sections import BudgetSettings, Constraints
from pinprompt.reports.compare import compare
from pinprompt.reports.report import write_report
from pinprompt.run import running
from pinprompt.sweeps import read_sweep
from tests.house.tiny import FindTheWords, recipe

BOUNDED = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEW = settings(BOUNDED, max_examples=25)
SHORT: dict[str, Any] = {
    "q_learning": {"steps": 3, "prompts": 4, "batch": 8, "updates": 1, "eval_every": 2},
    "scoring": {"finalists": 2},
}
FILES = ("recipe.toml", "result.json", "events.jsonl", "costs.jsonl", "prompts.csv", "environment.json")
RESUME_FILES = ("answers.jsonl", "checkpoint/trials.jsonl", "checkpoint/state.safetensors")

WORDS = "task kind method policy model base grid zip random where when set samples threads low high seed sizes step"
keys = st.sampled_from([*WORDS.split(" "), "provided", "state"])
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from(["pin", "custom", "classification", "none", "../../x", "/etc/passwd"]),
)  # fmt: skip
trees = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(keys, st.text(max_size=5)), inner, max_size=4)
    ),
    max_leaves=12,
)


def ours(function: Callable[[], object]) -> None:
    """A result, or an error of our family."""
    with contextlib.suppress(PinpromptError):
        function()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, lm_folder: Path) -> Path:
    """A run of ours that a stranger has changed."""
    folder = tmp_path_factory.mktemp("stranger") / "run"
    running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", reporter=write_report)
    assert all((folder / name).is_file() for name in (*FILES, *RESUME_FILES))
    return folder


@pytest.fixture
def changed(finished: Path) -> Iterator[Callable[[str, bytes], Path]]:
    """Puts bytes into one file of the run; the run is whole again afterwards."""
    shutil.copytree(finished, finished.with_name("whole"), dirs_exist_ok=True)

    def change(name: str, content: bytes) -> Path:
        shutil.rmtree(finished)
        shutil.copytree(finished.with_name("whole"), finished)
        (finished / name).write_bytes(content)
        return finished

    yield change
    shutil.rmtree(finished)
    shutil.copytree(finished.with_name("whole"), finished)


@st.composite
def harm(draw: Any) -> Callable[[bytes], bytes]:
    """A way to change a file: junk put in or over it, a cut, or JSON of any shape in its place."""
    way = draw(st.sampled_from(["insert", "over", "cut", "all", "tree", "lines"]))
    junk, place, tree = draw(st.binary(max_size=40)), draw(st.floats(0, 1)), draw(trees)

    def change(content: bytes) -> bytes:
        at = int(place * len(content))
        text = json.dumps(tree).encode()
        return {
            "insert": content[:at] + junk + content[at:], "over": content[:at] + junk + content[at + len(junk) :],
            "cut": content[:at], "all": junk, "tree": text, "lines": text + b"\n" + content,
        }[way]  # fmt: skip

    return change


@BOUNDED
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_recipe_and_sweep_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(content)
    ours(lambda: recipes.load(path))
    ours(lambda: read_sweep(path))


@BOUNDED
@given(tree=st.dictionaries(keys, trees, max_size=5))
def test_recipes_and_sweeps_of_any_shape(tmp_path: Path, tree: dict[str, Any]) -> None:
    ours(lambda: api.default_folder(recipes.resolve(tree)))
    ours(lambda: recipes.validate(tree))
    path = tmp_path / "sweep.toml"
    lines = [f"{name} = {_toml(value)}" for name, value in tree.items() if value is not None]
    path.write_text("\n".join(lines), "utf-8", "replace")
    ours(lambda: read_sweep(path))
    base = 'base = {method = "pin", task = {kind = "custom", function = "a:b"}}'
    path.write_text("\n".join([base, *(line for line in lines if not line.startswith("base"))]), "utf-8", "replace")
    ours(lambda: read_sweep(path, tmp_path / "out"))


def _toml(value: Any) -> str:
    """A value as TOML has it; None, which TOML lacks, is a text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("null" if value is None else value)


def test_the_toml_of_these_tests_is_toml() -> None:
    tree = {"a": [1, 2.5, float("inf"), {"b": True}], "c": "x"}
    assert tomllib.loads("\n".join(f"{name} = {_toml(value)}" for name, value in tree.items())) == tree


@BOUNDED
@given(name=st.sampled_from(FILES), change=harm())
def test_a_run_folder_can_be_looked_at(
    changed: Callable[[str, bytes], Path], finished: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    folder = changed(name, change((finished.with_name("whole") / name).read_bytes()))
    ours(lambda: read_run(folder))
    ours(lambda: write_report(folder))
    ours(lambda: running.result_of(folder))
    ours(lambda: api.recipe_of(folder))
    ours(lambda: compare([folder]))


values = st.one_of(trees, st.just({"accuracy": 0.5, "rows": "x", "intervals": {"accuracy": [1]}}))


@BOUNDED
@given(
    changes=st.dictionaries(
        st.sampled_from(["primary", "dev", "test", "baselines", "tables", "judges", "calls", "prompts", "top", "sent"]),
        values,
        max_size=4,
    )
)
def test_a_result_of_any_shape_can_be_shown(
    changed: Callable[[str, bytes], Path], finished: Path, changes: dict[str, Any]
) -> None:
    result = json.loads((finished.with_name("whole") / "result.json").read_text("utf-8"))
    folder = changed("result.json", json.dumps({**result, **changes}).encode())

    def look() -> None:
        found = running.result_of(folder)
        console = Rich(file=io.StringIO(), markup=False)
        for part in shown_result(found):
            console.print(part)
        assert isinstance(found.top, list)
        found._repr_html_()
        api.use(folder)

    ours(look)


@FEW
@given(name=st.sampled_from([*RESUME_FILES, "recipe.toml", "result.json", "events.jsonl"]), change=harm())
def test_a_run_folder_can_be_resumed(
    changed: Callable[[str, bytes], Path],
    finished: Path,
    lm_folder: Path,
    name: str,
    change: Callable[[bytes], bytes],
) -> None:
    folder = changed(name, change((finished.with_name("whole") / name).read_bytes()))
    (folder / "result.json").unlink()
    ours(lambda: running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", resume=True))


@BOUNDED
@given(state=trees, content=st.binary(max_size=60))
def test_checkpoints_and_logs(tmp_path: Path, state: Any, content: bytes) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir(exist_ok=True)
    (folder / "state.safetensors").write_bytes(content)
    (folder / "trials.jsonl").write_bytes(content)
    (tmp_path / "answers.jsonl").write_bytes(json.dumps(state).encode() + b"\n" + content)
    # A stranger can seal what he writes, and knows the run's id.
    known = state if isinstance(state, dict) and state else {"rows": state}
    (tmp_path / "sealed.jsonl").write_bytes(seal(json.loads(json.dumps(known)), "one") + b"\n" + content)

    def look() -> None:
        checkpoint = Checkpoint(folder)
        checkpoint.load()
        list(checkpoint.stream("trials"))

    ours(look)
    for name in ("answers.jsonl", "sealed.jsonl"):
        ours(lambda name=name: Table(Log(tmp_path / name, "one")).restore([]))  # type: ignore[misc]
        requests = Requests(Log(tmp_path / name, "one"), Budget(BudgetSettings()))
        ours(requests.restore)


@BOUNDED
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=80).map(str.encode)))
def test_texts_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(content)
    monkeypatch.setenv("PINPROMPT_BAN_FILE", str(path))
    ours(lambda: banned_phrases(Constraints(banned_file=str(path))))
    ours(ban_list)
    ours(lambda: read_lines(path))
    for name in ("train.0", "train.1", "dev.0", "dev.1", "test.0", "test.1"):
        (tmp_path / f"sentiment.{name}.clean").write_bytes(content)
    for part in ("train", "dev", "test"):
        ours(lambda part=part: load_style("yelp", tmp_path, part))  # type: ignore[misc]


@BOUNDED
@given(content=st.one_of(st.binary(max_size=60), trees.map(lambda tree: json.dumps(tree).encode())))
def test_a_models_description(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "config.json").write_bytes(content)
    ours(lambda: kind_of(str(tmp_path / "model")))


# What lies outside a folder is not read and not written.

OUTSIDE = b"not yours\n"


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs links that can be refused")
@pytest.mark.parametrize(
    "name",
    [".lock", "events.jsonl", "costs.jsonl", "answers.jsonl",
     "checkpoint/trials.jsonl", "checkpoint/state.safetensors", "recipe.toml", "report.html", "prompts.csv",
     "environment.json", "result.json"],
)  # fmt: skip
def test_a_link_in_a_run_folder_is_not_followed(
    changed: Callable[[str, bytes], Path], lm_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = changed("result.json", b"{}")
    outside = tmp_path / "outside"
    outside.write_bytes(OUTSIDE)
    (folder / "result.json").unlink()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    ours(lambda: write_report(folder))
    ours(lambda: running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", resume=True))
    ours(lambda: running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", force=True))
    assert outside.read_bytes() == OUTSIDE


@pytest.mark.parametrize("name", ["checkpoint", "drawings"])
def test_a_linked_folder_is_not_followed(
    changed: Callable[[str, bytes], Path], lm_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = changed("result.json", b"{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "state.safetensors").write_bytes(OUTSIDE)
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).symlink_to(outside)
    if name == "checkpoint":
        with pytest.raises(RunError, match="is a link"):
            running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", resume=True)
    running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", force=True)
    assert [path.name for path in outside.iterdir()] == ["state.safetensors"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", [".lock", "events.jsonl", "answers.jsonl", "checkpoint/state.safetensors"])
def test_a_pipe_in_a_run_folder_does_not_hang(
    changed: Callable[[str, bytes], Path], lm_folder: Path, name: str
) -> None:
    folder = changed("result.json", b"{}")
    (folder / "result.json").unlink()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(PinpromptError):
        running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", resume=True)


def test_names_in_a_recipe_stay_within_the_runs_folder(tmp_path: Path) -> None:
    task = {"kind": "classification", "dataset": "../../../outside", "model": "smollm2"}
    assert len(api.default_folder(recipes.resolve({"task": task})).parts) == 2
    path = tmp_path / "sweep.toml"
    path.write_text('name = "../../x"\n[base.task]\ndataset = "../../../outside"\nmodel = "smollm2"\n', "utf-8")
    sweep = read_sweep(path)
    assert len(sweep.out.parts) == 2
    assert [cell.folder.parent for cell in sweep.cells] == [sweep.out]


@pytest.mark.parametrize(
    "place", ["os:system", "builtins:eval", "torch:os.system", "torch.utils.collect_env:run", "sympy:sympify"]
)
def test_a_run_folder_cannot_call_a_tool(tmp_path: Path, place: str) -> None:
    proof = tmp_path / "proof"
    made = recipes.resolve({"method": "manual", "task": {"kind": "custom", "function": place}})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(recipes.to_toml(made), "utf-8")
    prompt = f"__import__('pathlib').Path({str(proof)!r}).touch()" if "sympify" in place else f"touch {proof}"
    result = {"prompt": prompt, "score": 1, "dev": None, "test": None, "calls": 1, "seconds": 1}
    (tmp_path / "run" / "result.json").write_text(json.dumps(result), "utf-8")
    with pytest.raises(NotAgreed, match=place):
        api.evaluate(tmp_path / "run", split="train")
    assert not proof.exists()


@pytest.mark.parametrize("out", ["../up", "/tmp/elsewhere", "runs/../../up", "link/x"])
def test_a_sweeps_cells_stay_below_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "work")
    path = tmp_path / "work" / "sweep.toml"
    path.write_text(f'out = "{out}"\n[base.task]\ndataset = "sst-2"\n', "utf-8")
    with pytest.raises(SettingError, match="--out"):
        read_sweep(path)
    assert read_sweep(path, tmp_path / "said").out == tmp_path / "said"
    path.write_text('out = "runs/mine"\n[base.task]\ndataset = "sst-2"\n', "utf-8")
    assert read_sweep(path).out == Path("runs/mine")


@pytest.mark.skipif(not hasattr(os, "link"), reason="needs hard links")
@pytest.mark.parametrize("name", [".lock", "events.jsonl", "costs.jsonl", "answers.jsonl", "checkpoint/trials.jsonl"])
def test_a_second_name_of_a_file_elsewhere_is_not_written_to(
    changed: Callable[[str, bytes], Path], lm_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = changed("result.json", b"{}")
    (folder / "result.json").unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(OUTSIDE)
    (folder / name).unlink(missing_ok=True)
    os.link(outside, folder / name)
    ours(lambda: running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", resume=True))
    assert outside.read_bytes() == OUTSIDE


def test_a_temporary_file_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(OUTSIDE)
    os.link(outside, tmp_path / f".x.json.{os.getpid()}.tmp")
    write_json(tmp_path / "x.json", {"a": 1})
    assert outside.read_bytes() == OUTSIDE
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompt", ["x"]), ("prompt", None), ("score", "x"), ("dev", []), ("test", 1), ("calls", None), ("calls", True),
     ("seconds", {})],
)  # fmt: skip
def test_a_result_of_wrong_types_is_made_again_or_refused_by_name(
    changed: Callable[[str, bytes], Path], finished: Path, lm_folder: Path, name: str, value: Any
) -> None:
    result = json.loads((finished.with_name("whole") / "result.json").read_text("utf-8"))
    folder = changed("result.json", json.dumps({**result, name: value}).encode())
    again = running.run(recipe(lm_folder, **SHORT), folder, task=FindTheWords(), device="cpu", resume=True)
    assert again.prompt == result["prompt"], "the seal of the run tells that the file was changed"
    (folder / "result.json").write_text(json.dumps({**result, name: value}), "utf-8")
    (folder / "run.json").unlink()  # a run of an earlier version has no seal
    with pytest.raises(RunError, match=f"as '{name}'"):
        running.result_of(folder)


def test_no_cell_of_a_runs_table_is_a_formula(tmp_path: Path) -> None:
    from pinprompt.folder.folder import RunFolder

    rows: list[dict[str, Any]] = [{"prompt": "=1+1", "train": -0.5}, {"prompt": "@x", "train": 1.0}]
    with RunFolder(tmp_path / "run") as record:
        record.save_prompts(rows)
        found = (tmp_path / "run" / "prompts.csv").read_text("utf-8").splitlines()
    assert found == ["prompt,train", "'=1+1,-0.5", "'@x,1.0"]


def test_a_grid_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("[grid]\n" + "\n".join(f'"a{n}" = [1, 1, 1, 1]' for n in range(40)), "utf-8")
    with pytest.raises(SettingError):
        read_sweep(path)
