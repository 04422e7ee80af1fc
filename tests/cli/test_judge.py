"""`pinprompt judge` against a server on loopback: marks, means, costs, limits, what is kept, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remote_servers import Action, refuse, reply, said, serving
from typer.testing import CliRunner

import pinprompt
from pinprompt.cli import app
from pinprompt.errors import ModelError, SettingError
from pinprompt.files import write_json
from pinprompt.remote.client import RemoteClient
from pinprompt.reports.report import write_report
from tests.cli.inversion_runs import invert, picture

PRICE = 'budget.prices={"gpt-4.1"={input=2.0, output=10.0}}'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two pictures, one seed each."""
    folder = tmp_path_factory.mktemp("judged")
    files = [picture(folder / f"{name}.png", name, seed) for seed, name in enumerate(("red", "blue"))]
    return [invert(folder, folder / "runs" / Path(file).stem, [file], seed).folder for seed, file in enumerate(files)]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-judge-secret")


def call(url: str, *words: object) -> Any:
    options = ["--model", "remote:gpt-4.1", "--set", f"remote.base_url={url}"]
    return CliRunner().invoke(app, ["judge", *map(str, words), *options])


def marks(*pairs: tuple[int, int]) -> Callable[..., Action]:
    """A server that gives these marks in turn."""
    answers = [json.dumps({"relevance": a, "interpretability": b}) for a, b in pairs]
    return lambda n, path, body: reply(said(answers[n % len(answers)], tokens=(1000, 20)))


def test_marks_means_and_costs(runs: list[Path]) -> None:
    with serving(marks((5, 2), (3, 2))) as server:
        done = call(server.url, *runs, "--json", "--set", PRICE)
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
    assert [(row["relevance"], row["interpretability"]) for row in answer["runs"]] == [(5, 2), (3, 2)]
    found = [json.loads((run / "result.json").read_text())["prompt"] for run in runs]
    assert [row["prompt"] for row in answer["runs"]] == found
    summary = answer["methods"]["pin"]
    assert (summary["relevance"], summary["interpretability"]) == (4, 2)
    assert summary["relevance_error"] == pytest.approx(1.0)  # standard deviation sqrt(2) over sqrt(2) pictures
    assert (summary["interpretability_error"], summary["images"], summary["judged"]) == (0, 2, 2)
    # 2,000 tokens at 2 and 40 at 10 per million.
    assert answer["costs"] == {"calls": 2, "tokens_in": 2000, "tokens_out": 40, "money": pytest.approx(0.0044)}
    asked = [body["messages"][0]["content"][0]["text"] for _, body, _ in server.seen]
    assert all(json.dumps(prompt) in text for prompt, text in zip(found, asked, strict=True))
    assert all("Relevance" in text and "Interpretability" in text for text in asked)


def test_people_get_a_table_and_the_mean(runs: list[Path]) -> None:
    with serving(marks((5, 2), (3, 2))) as server:
        done = call(server.url, runs[0].parent)
    assert done.exit_code == 0, done.output
    assert "pin: relevance 4.00 \N{PLUS-MINUS SIGN} 1.00, interpretability 2.00 \N{PLUS-MINUS SIGN} 0.00" in done.stdout
    assert "asked gpt-4.1 2 times: 2,000 tokens in and 40 out" in done.stdout


def test_money_without_a_price_is_unknown_not_nothing(runs: list[Path]) -> None:
    with serving(marks((4, 4))) as server:
        assert json.loads(call(server.url, runs[0], "--json").stdout)["costs"]["money"] is None
        assert "money: unknown (no budget.prices" in call(server.url, runs[0]).stdout
        known = call(server.url, runs[0], "--set", PRICE, "--no-memo")
    assert "money: 0.0022" in known.stdout  # 1,000 tokens at 2 and 20 at 10 per million
    kept = json.loads((runs[0] / "judgements.json").read_text())["judgements"]
    assert [one["costs"]["money"] for one in kept if one["model"] == "gpt-4.1"] == [pytest.approx(0.0022)]


def test_answers_are_kept_and_no_memo_asks_again(runs: list[Path]) -> None:
    with serving(marks((4, 4))) as server:
        for expected, words in ((1, []), (1, []), (2, ["--no-memo"])):
            done = call(server.url, runs[0], *words)
            assert done.exit_code == 0, done.output
            assert len(server.seen) == expected
        assert json.loads(call(server.url, runs[0], "--json").stdout)["costs"]["calls"] == 0


def test_the_run_folder_and_the_report_have_it(runs: list[Path]) -> None:
    with serving(marks((4, 3), (2, 1))) as server:
        assert call(server.url, runs[0], "--top", 2, "--no-memo").exit_code == 0
    kept = json.loads((runs[0] / "judgements.json").read_text())["judgements"]
    [given] = [one for one in kept if one["model"] == "gpt-4.1"]
    assert [(row["relevance"], row["interpretability"]) for row in given["opinions"]] == [(4, 3), (2, 1)]
    assert len({row["prompt"] for row in given["opinions"]}) == 2
    page = (runs[0] / "report.html").read_text()
    assert "Ratings by a vision model" in page
    assert "gpt-4.1" in page
    before = {"model": "another", "opinions": [{"prompt": "<b>x</b>", "picture": "p", "relevance": 1}]}
    write_json(runs[0] / "judgements.json", {"judgements": [before, 7]})
    with serving(marks((4, 3))) as server:
        assert call(server.url, runs[0]).exit_code == 0
    names = [one["model"] for one in json.loads((runs[0] / "judgements.json").read_text())["judgements"]]
    assert names == ["another", "gpt-4.1"]
    assert "&lt;b&gt;x&lt;/b&gt;" in write_report(runs[0]).read_text()


def test_a_budget_ends_it_early_and_keeps_what_was_paid_for(runs: list[Path]) -> None:
    with serving(marks((4, 4))) as server:
        done = call(server.url, *runs, "--calls", 1, "--json")
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        assert len(answer["runs"]) == len(server.seen) == 1
        assert "budget of 1 calls" in answer["stopped"]
        again = json.loads(call(server.url, *runs, "--calls", 1, "--json").stdout)
        assert (len(again["runs"]), again["stopped"], len(server.seen)) == (2, "", 2)


def test_money_is_set_aside_before_it_is_spent(runs: list[Path]) -> None:
    with serving(marks((4, 4))) as server:
        tiny = json.loads(call(server.url, runs[0], "--set", PRICE, "--set", "budget.money=0.01", "--json").stdout)
        assert "money" in tiny["stopped"]
        assert not server.seen
        unpriced = call(server.url, runs[0], "--set", "budget.money=1")
        assert unpriced.exit_code == 2
        assert "no price for the model 'gpt-4.1'" in unpriced.stderr
        assert not server.seen


def test_seeds_of_one_picture_count_as_one(runs: list[Path], tmp_path: Path) -> None:
    images = [str(runs[0].parents[1] / "red.png")]
    other = invert(runs[0].parents[1], tmp_path / "again", images, seed=9).folder
    with serving(marks((5, 5), (1, 5), (3, 5))) as server:
        found = pinprompt.judge(
            [runs[0], other, runs[1]], model="remote:m", settings={"remote": {"base_url": server.url}}, memo=False
        )
    summary = found.methods["pin"]
    # Red: (5 + 1) / 2 = 3, blue: 3; over runs it would be an error of 2 / sqrt(3).
    assert (summary.relevance, summary.relevance_error) == (3, 0)
    assert (summary.images, summary.judged) == (2, 3)


def test_every_picture_of_a_run_is_asked_about(runs: list[Path], tmp_path: Path) -> None:
    base = runs[0].parents[1]
    both = invert(base, tmp_path / "both", [str(base / "red.png"), str(base / "blue.png")])
    with serving(marks((5, 1), (2, 1))) as server:
        found = pinprompt.judge(both.folder, model="remote:m", settings={"remote": {"base_url": server.url}})
    assert [one.picture for one in found.runs[0].opinions] == ["red.png", "blue.png"]
    assert found.runs[0].summary.relevance == 3.5
    assert "blue.png" in (both.folder / "report.html").read_text()


def test_error_messages_do_not_contain_the_key(runs: list[Path]) -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return reply(said('{"relevance": 9}')) if n < 3 else reply(said('{"relevance": 4, "interpretability": 4}'))

    with serving(script) as server:
        done = call(server.url, *runs)
        assert done.exit_code == 0, done.output
        assert len(server.seen) == 4  # three tries for the first, one for the second
        assert "1 without marks; the first: gpt-4.1 gave no two marks" in done.stdout
    with serving(lambda *_: refuse(400, "pictures? with sk-judge-secret?")) as server:
        done = call(server.url, *runs, "--no-memo")
        assert done.exit_code == 2
        assert "no prompt could be rated" in done.stderr
        assert "pictures?" in done.stderr
        kept = "".join((run / "judgements.json").read_text() + (run / "report.html").read_text() for run in runs)
        assert "sk-judge-secret" not in done.output + done.stderr + kept


def test_a_server_that_goes_down_costs_nothing_twice(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def script(n: int, path: str, body: dict[str, Any]) -> Action:
        return marks((5, 5))(n, path, body) if n == 0 else refuse(500)

    impatient = ("--set", "remote.retries=0")
    monkeypatch.setattr(RemoteClient, "give_up_after", 1)
    (runs[0] / "judgements.json").unlink(missing_ok=True)
    with serving(script) as server:
        done = call(server.url, *runs, *impatient)
        assert done.exit_code == 2
        assert "does not answer requests" in done.stderr
    assert "gpt-4.1" in (runs[0] / "judgements.json").read_text()
    with serving(marks((1, 1))) as server:
        answer = json.loads(call(server.url, *runs, "--json").stdout)
        assert len(server.seen) == 1, "the first was paid for before"
    assert [row["relevance"] for row in answer["runs"]] == [5, 1]


def test_the_run_folder_does_not_choose_the_server(runs: list[Path], tmp_path: Path) -> None:
    with serving(marks((4, 4))) as evil, serving(marks((4, 4))) as good:
        copy = tmp_path / "given"
        copy.mkdir()
        for name in ("recipe.toml", "result.json", "events.jsonl"):
            text = (runs[0] / name).read_text().replace("http://127.0.0.1:8000/v1", evil.url)
            (copy / name).write_text(text)
        assert evil.url in (copy / "recipe.toml").read_text()
        assert call(good.url, copy).exit_code == 0
        assert (len(evil.seen), len(good.seen)) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "model", "said_of_it"),
    [({"policy": {"k": 3}}, "remote:m", "no setting 'policy'"), ({}, "gpt-4.1", "write 'remote:<model name>'")],
)
def test_mistakes_give_error_messages(runs: list[Path], settings: dict[str, Any], model: str, said_of_it: str) -> None:
    with pytest.raises(SettingError, match=said_of_it):
        pinprompt.judge(runs, model=model, settings=settings)


def test_runs_that_cannot_be_judged(runs: list[Path], tmp_path: Path) -> None:
    recipe = (runs[0] / "recipe.toml").read_text()
    result = json.loads((runs[0] / "result.json").read_text())
    wordless = tmp_path / "wordless"
    wordless.mkdir()
    (wordless / "recipe.toml").write_text(recipe)
    write_json(wordless / "result.json", {**result, "prompt": "", "top": []})
    with pytest.raises(SettingError, match="has no prompt to judge"):
        pinprompt.judge(wordless, model="remote:m")
    custom = tmp_path / "custom"
    custom.mkdir()
    (custom / "recipe.toml").write_text('[task]\nkind = "custom"\nfunction = "a:b"\n')
    write_json(custom / "result.json", result)
    with pytest.raises(SettingError, match="custom run"):
        pinprompt.judge(custom, model="remote:m")
    with serving(lambda *_: refuse(401)) as server, pytest.raises(ModelError, match="refuses 'm'"):
        pinprompt.judge(runs, model="remote:m", settings={"remote": {"base_url": server.url}})
