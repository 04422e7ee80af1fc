"""What `--estimate` says beside what the run then really spends: calls and tokens within a quarter."""

from __future__ import annotations

import csv
import json
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from remote_servers import Action, refuse, reply, serving
from small_aliases import DATA, make_home
from typer.testing import CliRunner

from pinprompt.cli import app
from pinprompt.recipe import recipe as recipes
from pinprompt.run import estimating
from pinprompt.tasks.function import FunctionTask

LABELS = ("billing", "delivery", "account")
NEAR = 0.25


def call(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which smollm2 and minilm are small."""
    tokenizer()  # that of the real model, before its place is taken
    return make_home(tmp_path_factory.mktemp("home"))


@cache
def tokenizer() -> Any:
    """That of a model that people use: what a server bills is counted by one like it."""
    from transformers import AutoTokenizer

    from pinprompt.models import sources

    return AutoTokenizer.from_pretrained(sources.resolve("smollm2").path)


def tokens(text: str) -> int:
    return len(tokenizer()(text, add_special_tokens=False)["input_ids"])


@cache
def queues() -> dict[str, str]:
    with (DATA / "tickets.csv").open(encoding="utf-8", newline="") as file:
        return {row["body"]: row["queue"] for row in csv.DictReader(file)}


def labeller(number: int, path: str, body: dict[str, Any]) -> Action:
    """Log-probabilities of the label words: the more words a prompt has, up to six, the surer of the right one."""
    if path != "/v1/completions" or not isinstance(body.get("logprobs"), int):
        return refuse(404)
    text = body["prompt"]
    ticket = next((one for one in queues() if text.startswith(one)), "")
    sure = min(6, len(text[len(ticket) :].split())) + sum(map(ord, text)) % 17 / 10
    tops = {f" {label}": -0.1 if label == queues().get(ticket) else -0.1 - sure for label in LABELS}
    usage = {"prompt_tokens": tokens(text), "completion_tokens": 1}
    return reply({"choices": [{"text": " account", "logprobs": {"top_logprobs": [tops]}}], "usage": usage})


def rewriter(number: int, path: str, body: dict[str, Any]) -> Action:
    """Says the text again in other words, as many times as asked."""
    if path != "/v1/completions":
        return refuse(404)
    text = "Please, " + body["prompt"].split('"')[1].lower()
    usage = {"prompt_tokens": tokens(body["prompt"]), "completion_tokens": body["n"] * tokens(text + '"')}
    return reply({"choices": [{"text": text}] * body["n"], "usage": usage})


@pytest.fixture(autouse=True)
def _here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh folder with the example data."""
    for path in DATA.glob("*.*"):
        shutil.copy(path, tmp_path)
    monkeypatch.setenv("PINPROMPT_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def tickets(*more: object) -> list[object]:
    words = [word for label in LABELS for word in ("--word", f"{label}={label}")]
    columns = ["--text-column", "body", "--label-column", "queue"]
    return ["classify", "--train", "tickets.csv", *columns, *words, "--set", "task.shots=8", "--no-memo", *more]


def styles(*more: object) -> list[object]:
    files = ["--source", "casual.txt", "--target", "formal.txt"]
    # An encoder with random weights tells no styles apart; the judge is used all the same.
    return ["restyle", *files, "--method", "pin", "--force-judge", "--test-rows", 10, "--no-memo", *more]


def compare(asked: list[object]) -> None:
    """Estimate, run, compare."""
    figures = call(*asked, "--estimate")
    spent = call(*asked, "--out", "run")["spent"]
    assert figures["calls"] == pytest.approx(spent["search"]["calls"], rel=NEAR)
    assert figures["total_calls"] == pytest.approx(spent["search"]["calls"] + spent["report"]["calls"], rel=NEAR)
    if "tokens" in figures:
        parts = [spent["sent"]] if "tokens_in" in spent["sent"] else [spent["search"], spent["report"]]
        really = sum(part["tokens_in"] + part["tokens_out"] for part in parts)
        assert figures["tokens"] == pytest.approx(really, rel=NEAR)
        assert figures["most_tokens"] >= really
    if figures.get("money") is not None:
        assert figures["money"] == pytest.approx(spent["money"], rel=NEAR)


def on(server: Any) -> list[object]:
    prices = 'budget.prices={"m"={input=1.0, output=4.0}}'
    address = f"remote.base_url={server.url}"
    return ["--task-model", "remote:m", "--set", address, "--set", 'remote.key_env=""', "--set", prices]


CALIBRATED = ("--set", "task.labels=calibrated")
SEARCH_ALONE = ("--set", "budget.total_calls=5000")
"""With a limit on everything that is sent, --calls limits the search alone."""


@pytest.mark.parametrize("method", ["pin", "random"])
def test_labels_by_a_model_on_this_machine(method: str) -> None:
    """Not by race: with random weights the hand-written prompt wins, and then the report has nothing to compare."""
    compare(tickets("--method", method, "--calls", 600))


def test_labels_by_a_model_behind_an_api() -> None:
    with serving(labeller) as server:
        compare(tickets("--calls", 600, "--set", "race.early_stop=false", *on(server)))


def test_rewrites_by_a_model_on_this_machine() -> None:
    compare(styles("--calls", 400))


def test_rewrites_by_a_model_behind_an_api() -> None:
    with serving(rewriter) as server:
        compare(styles("--calls", 400, *SEARCH_ALONE, *on(server)))


def test_a_race_with_few_calls_asks_for_the_other_rows_in_its_report() -> None:
    with serving(labeller) as server:
        asked = tickets("--calls", 100, *SEARCH_ALONE, *CALIBRATED, "--set", "scoring.word_values=on", *on(server))
        figures, run = call(*asked, "--estimate"), call(*asked, "--out", "run")
        words = run["prompt"].split()
        shorter = " ".join(words[1:])
        texts = (run["prompt"], shorter[:1].upper() + shorter[1:])  # it still begins with a capital letter
        with_it, without_it = (train_score(text, server, f"by-hand-{place}") for place, text in enumerate(texts))
    spent = run["spent"]
    # The race sees 9 of 48 rows: the report asks for the other 39, and for 24 of test, with the found prompt and the
    # hand-written one. The rest is the found prompt less a word, on the 24 rows of train.
    left = figures["report_calls"] - 2 * (39 + 24)
    assert left % 24 == 0
    assert left >= 24
    together = spent["search"]["calls"] + spent["report"]["calls"]
    assert figures["total_calls"] == pytest.approx(together, rel=NEAR)
    # What a word is worth is the difference of two scores on the same rows, those of train.
    assert len(words) == len(run["tokens"]) > 1
    assert all(part["score_with"] == pytest.approx(with_it) != run["score"] for part in run["tokens"])
    assert run["tokens"][0]["score_without"] == pytest.approx(without_it)


def test_reports_on_models_behind_an_api_leave_single_words_alone() -> None:
    with serving(labeller) as server:
        asked = tickets("--calls", 100, *SEARCH_ALONE, *on(server))
        figures, run = call(*asked, "--estimate"), call(*asked, "--out", "run")
    assert figures["report_calls"] == 2 * (39 + 24)  # as in the test above, without the words
    assert run["tokens"] == []


def test_calls_to_a_model_behind_an_api_include_the_report() -> None:
    with serving(labeller) as server:
        asked = tickets("--calls", 300, *on(server))
        figures, run = call(*asked, "--estimate"), call(*asked, "--out", "run")
        few = CliRunner().invoke(app, [*map(str, tickets("--calls", 40, *on(server)))])
    assert figures["total_calls"] <= 300
    assert run["spent"]["sent"]["calls"] <= 300
    assert run["test"]["rows"] == 24
    assert few.exit_code == 2
    assert "40 calls do not suffice for the report" in few.stderr


def train_score(text: str, server: Any, out: str) -> float:
    """The score of a prompt on all rows of train, by a run of its own that does nothing else."""
    asked = tickets("--method", "manual", "--set", f"task.manual={json.dumps(text)}", *CALIBRATED, "--no-report")
    asked += on(server)
    return float(call(*asked, "--out", out)["score"])


def test_without_a_report_only_the_found_prompt_is_evaluated() -> None:
    with serving(labeller) as server:
        for calls, more in ((100, 48 - 9), (600, 0)):  # the race has seen 9 of 48 rows; with 600 every one
            asked = tickets("--calls", calls, *SEARCH_ALONE, "--no-report", *on(server))
            figures, run = call(*asked, "--estimate"), call(*asked, "--out", f"run-{calls}")
            assert figures["report_calls"] == run["report_calls"] == more
        said = CliRunner().invoke(app, [*map(str, asked), "--estimate"]).stdout
    assert "about 0 for the evaluation of the found prompt" in " ".join(said.split())


def test_guided_reads_a_prefix_once_for_all_of_its_continuations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)

    class Writer:
        length = 8

        def lm_continue(self, prefixes: list[Any], lengths: list[int], random: Any) -> None:
            clock.now += len(prefixes)  # a prompt takes a second

    monkeypatch.setattr(estimating.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(estimating.build, "build_writer", lambda *_: Writer())
    task = FunctionTask(len)
    tree: dict[str, Any] = {"task": {"kind": "inversion", "images": ["sun.png"]}, "guided": {"tokens": 50}}
    for method, prompts in (("guided", 20), ("random", 1000)):
        recipe = recipes.resolve({**tree, "method": method})
        recipe = recipe.model_copy(update={"budget": recipe.budget.model_copy(update={"calls": 1000})})
        cost = estimating.cost_of(recipe, task)
        assert estimating._writing(recipe, task, "cpu", cost) == prompts


def test_minutes_include_the_report_where_outputs_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search gets its share of all calls, and at most two fifths of the minutes."""
    monkeypatch.setattr(estimating, "billed", lambda task: None)
    monkeypatch.setattr(estimating, "_report", lambda *_: [SimpleNamespace(calls=300)])
    task: Any = SimpleNamespace(info=SimpleNamespace(stochastic=True))
    for calls, minutes in ((100, 0.75), (9_000, 1.2)):
        monkeypatch.setattr(estimating, "cost_of", lambda *_, calls=calls: SimpleNamespace(calls=calls))
        recipe = recipes.Recipe.model_validate({"task": {"kind": "style-transfer"}, "budget": {"minutes": 3}})
        assert estimating.with_report_inside(recipe, task).budget.minutes == pytest.approx(minutes)
        untimed = recipe.model_copy(update={"budget": recipe.budget.model_copy(update={"minutes": None})})
        task.info.costly = False
        assert [estimating.parts_of(one, task, 5) for one in (recipe, untimed)] == [0, 5]
