"""A model behind an API, from the command line: searching, using what was found, and a server that dies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pinprompt.remote.client import RemoteClient
from tests.safety.remote_runs import GOOD, Action, call, labelled, labeller, rewriter, server_at, styled, writer

from remote_servers import hang_up, refuse, reply, serving  # isort: skip
from style_toys import encoder, save  # isort: skip


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))


def test_classify_and_use_what_was_found(tmp_path: Path, lm_folder: Path) -> None:
    with serving(labeller) as server:
        asked = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url)]
        estimate = call(*asked, "--estimate", "--json")
        assert estimate.exit_code == 0, estimate.output
        figures = json.loads(estimate.stdout)
        assert server.seen == []
        assert "was not contacted" in figures["note"]
        assert figures["calls"] > 0
        assert figures["minutes"] is None
        done = call(*asked, "--out", tmp_path / "run", "--json")
        assert done.exit_code == 0, done.output
        assert "labels by log-probabilities of the label words in completions" in done.stderr
        result = json.loads(done.stdout)
        assert result["calls"] <= figures["calls"]
        assert result["test"]["accuracy"] == 1.0
        usage = result["tables"]["usage"]
        assert usage == {"tokens_in": 12 * 2, "tokens_out": 2 * 2}
        again = call("evaluate", tmp_path / "run", "--json")
        assert json.loads(again.stdout)["models"]["remote:toy"]["accuracy"] == 1.0
        assert "labels by log-probabilities" in again.stderr
        labels = call("predict", tmp_path / "run", "a fine film", "a dull film", "--json")
        assert [row["label"] for row in json.loads(labels.stdout)["predictions"]] == ["1", "0"]
    gone = call("predict", tmp_path / "run", "a fine film")
    assert gone.exit_code == 2
    assert "no connection" in gone.stderr


def test_a_label_that_could_not_be_had_is_not_made_up(tmp_path: Path, lm_folder: Path) -> None:
    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        return reply({"choices": []}) if "a dull film" in body["prompt"] else labeller(number, path, body)

    with serving(labeller) as server:
        asked = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url)]
        assert call(*asked, "--out", tmp_path / "run", "--calls", 60).exit_code == 0
        server.script = script
        labels = call("predict", tmp_path / "run", "a fine film", "a dull film")
        assert labels.exit_code == 2
        assert "no usable answer for 1 of 2 texts" in labels.stderr


def test_a_chat_model_without_log_probabilities_gives_labels_and_no_confidence(tmp_path: Path, lm_folder: Path) -> None:
    def chat(number: int, path: str, body: dict[str, Any]) -> Action:
        if path != "/v1/chat/completions":
            return refuse(404, "no such path")
        good = any(line in body["messages"][-1]["content"] for line in GOOD)
        return reply({"choices": [{"message": {"role": "assistant", "content": "great" if good else "terrible"}}]})

    encoder_folder = save(tmp_path / "bert", encoder(), wrap=True)
    with serving(chat) as server:
        asked = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url)]
        asked += ["--set", f"task.embeddings={encoder_folder}"]
        done = call(*asked, "--out", tmp_path / "run", "--calls", 60)
        assert done.exit_code == 0, done.output
        result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
        own, others = (one["dev"]["outcomes"] for one in (result, result["baselines"]["embeddings"]))
        others["label"] = own["label"]  # a small encoder of random weights agrees with nothing
        (tmp_path / "run" / "result.json").write_text(json.dumps(result), "utf-8")
        (tmp_path / "run" / "run.json").unlink()  # its seal
        labels = call("predict", tmp_path / "run", "a fine film", "--unsure")
        table = tmp_path / "new.csv"
        table.write_text("text\na fine film\na dull film\n", "utf-8")
        assert call("predict", tmp_path / "run", "--input", table, "--output", tmp_path / "out.csv").exit_code == 0
    assert "1" in labels.stdout
    assert not re.search(r"\d\.\d|%", labels.stdout)
    assert "4 of 4 labels are sure, and 100.0% of these are correct" in labels.stderr
    assert (tmp_path / "out.csv").read_text("utf-8").splitlines() == ["text,label", "a fine film,1", "a dull film,0"]
    assert "most confident" not in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_a_chat_is_told_what_to_do_by_instructions(tmp_path: Path, lm_folder: Path) -> None:
    """The plain one is the default, which nobody wrote; common ones race, and a better one wins."""

    def chat(number: int, path: str, body: dict[str, Any]) -> Action:
        if path != "/v1/chat/completions":
            return refuse(404, "no such path")
        system, user = (body["messages"][0]["content"], body["messages"][-1]["content"])
        good = any(line in user for line in GOOD) and "mainly" in system
        return reply({"choices": [{"message": {"role": "assistant", "content": "great" if good else "terrible"}}]})

    encoder_folder = save(tmp_path / "bert", encoder(), wrap=True)
    with serving(chat) as server:
        asked = ["classify", *labelled(tmp_path), *writer(lm_folder), *server_at(server.url)]
        asked += ["--set", f"task.embeddings={encoder_folder}"]
        done = call(*asked, "--method", "race", "--out", tmp_path / "run", "--calls", 90)
        assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))
    default = result["baselines"]["default"]["prompt"]
    assert default == "Classify the text as terrible or great. Reply with one of these words only."
    assert "mainly" in result["prompt"]
    assert [one["role"] for one in result["sent"]["messages"]] == ["system", "user"]
    assert result["sent"]["messages"][0]["content"] == result["prompt"]
    sent = [one for _, body, _ in server.seen for one in body.get("messages", ())]
    systems = {one["content"] for one in sent if one["role"] == "system"}
    assert default in systems


def test_restyle_and_use_what_was_found(tmp_path: Path, lm_folder: Path) -> None:
    with serving(rewriter) as server:
        asked = ["restyle", *styled(tmp_path), *writer(lm_folder), *server_at(server.url), "--calls", 60]
        estimate = call(*asked, "--estimate")
        assert estimate.exit_code == 0, estimate.output
        assert "was not contacted" in estimate.stdout
        assert server.seen == []
        done = call(*asked, "--out", tmp_path / "run", "--json")
        assert done.exit_code == 0, done.output
        assert "rewrites by completions, 3 samples per request" in done.stderr
        assert "top_k = 10 is not sent" in done.stderr
        result = json.loads(done.stdout)
        assert "tiny-gpt2@" in result["judges"]["perplexity"]
        assert result["tables"]["rewrites"][0]["rewrite"].endswith(".")
        assert result["tables"]["failures"] == []
        bodies = [body for _, body, _ in server.seen[1:]]
        assert {body["n"] for body in bodies} == {3}
        # A repeated question (the same prompt, in the report) has the same seed, a new one has its own.
        assert len({body["seed"] for body in bodies}) > len(bodies) / 4
        first = call("rewrite", tmp_path / "run", "it was bad food .", "--json", "--n", 2)
        assert first.exit_code == 0, first.output
        assert call("rewrite", tmp_path / "run", "it was bad food .", "--json", "--n", 2).stdout == first.stdout
        assert call("evaluate", tmp_path / "run").exit_code == 0
        twin = call(*asked, "--out", tmp_path / "twin", "--json")
        assert json.loads(twin.stdout)["prompt"] == result["prompt"]
    events = [(tmp_path / name / "events.jsonl").read_bytes() for name in ("run", "twin")]
    assert events[0] == events[1]


def test_a_rewrite_that_fails_is_recorded_and_the_run_continues(tmp_path: Path, lm_folder: Path) -> None:
    def script(number: int, path: str, body: dict[str, Any]) -> Action:
        return reply({"oops": 1}) if number % 5 == 4 else rewriter(number, path, body)

    with serving(script) as server:
        asked = ["restyle", *styled(tmp_path), *writer(lm_folder), *server_at(server.url), "--calls", 60]
        done = call(*asked, "--out", tmp_path / "run", "--json")
        assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "run" / "answers.jsonl").read_text("utf-8").splitlines()]
    failures = [failure for line in lines for _, failure in line.get("failures", [])]
    assert failures
    assert all("the answer has no text" in failure for failure in failures)


@pytest.mark.parametrize("verb", ["classify", "restyle"])
def test_a_server_that_dies_stops_the_run_which_is_resumed(
    tmp_path: Path, lm_folder: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteClient, "give_up_after", 2)
    script = labeller if verb == "classify" else rewriter
    data = labelled(tmp_path) if verb == "classify" else styled(tmp_path)
    deaths = (1, 40, 75) if verb == "classify" else (1, 20, 33)
    with serving(script) as server:
        port, url = server.server_address[1], server.url
        asked = [verb, *data, *writer(lm_folder), *server_at(url), "--no-memo"]
        asked += ["--calls", 400]
        whole = call(*asked, "--out", tmp_path / "whole", "--quiet", "--json")
        assert whole.exit_code == 0, whole.output
        requests = len(server.seen)
    resumed = ["--resume"]
    for death in deaths:

        def dying(number: int, path: str, body: dict[str, Any], death: int = death) -> Action:
            if number == death:
                server.die()
                return hang_up
            return script(number, path, body)

        with serving(dying, port) as server:
            stopped = call(*asked, "--out", tmp_path / "run", "--json", *resumed)
        assert stopped.exit_code == 2, stopped.output
        assert stopped.exception is None or isinstance(stopped.exception, SystemExit)
        assert "does not answer requests" in json.loads(stopped.stdout)["error"]
        assert "--resume" in stopped.stderr
        assert stopped.stderr.count("Traceback") == 0
    assert "best so far" in stopped.stderr
    assert call("report", tmp_path / "run").exit_code == 0  # what there is can be looked at
    with serving(script, port) as server:
        # More patience may be shown to a server that died; another server would be another run.
        other = call(*asked, "--out", tmp_path / "run", "--resume", "--set", "remote.window=999")
        assert other.exit_code == 2
        assert "other settings (remote)" in other.stderr
        patient = ["--set", "remote.timeout=950", "--set", "remote.retries=2"]
        finished = call(*asked, *patient, "--out", tmp_path / "run", "--resume", "--quiet", "--json")
        assert finished.exit_code == 0, finished.output
        assert len(server.seen) < requests  # what was paid for is not paid for again
    for name in ("events.jsonl", "prompts.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    told = [json.loads(one.stdout) for one in (whole, finished)]
    for name in ("prompt", "score", "dev", "test", "calls", "top", "tables"):
        assert told[0][name] == told[1][name]
