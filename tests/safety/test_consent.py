"""What a stranger's recipe or run folder asks for happens only after its user agreed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from remote_servers import serving

from pinprompt import api
from pinprompt.errors import NotAgreed, NotFetched, SettingError
from pinprompt.models import cache, sources
from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.task_sections import RemoteSettings
from pinprompt.remote.client import RemoteClient
from pinprompt.run import consent
from tests.safety.remote_runs import call, labeller

CODE = """
open({proof!r}, "w").close()


def score(prompt):
    return float(len(prompt))
"""
RESULT = {"prompt": "It was", "score": 1.0, "dev": None, "test": None, "calls": 1, "seconds": 1.0}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a home in which nothing was agreed to."""
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(consent, "_path", lambda: tmp_path / "home" / "agreed.json")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def folder_of(place: Path, tree: dict[str, Any], **result: Any) -> Path:
    """A finished run folder as a stranger would write it."""
    place.mkdir()
    (place / "recipe.toml").write_text(recipes.to_toml(recipes.resolve(tree)), "utf-8")
    (place / "result.json").write_text(json.dumps({**RESULT, **result}), "utf-8")
    return place


def module(folder: Path, name: str) -> Path:
    """A module that leaves a proof when it is imported."""
    proof = folder / f"{name}.proof"
    (folder / f"{name}.py").write_text(CODE.format(proof=str(proof)), "utf-8")
    return proof


def with_function(place: str) -> dict[str, Any]:
    return {"method": "manual", "task": {"kind": "custom", "function": place}}


def with_server(url: str, **task: Any) -> dict[str, Any]:
    words = {"0": "terrible", "1": "great"}
    task = {
        "kind": "classification",
        "words": words,
        "model": "remote:toy",
        "labels": "words",
        "embeddings": None,
        **task,
    }
    return {"method": "manual", "task": task, "remote": {"base_url": url, "key_env": "AWS_SECRET_ACCESS_KEY"}}


def test_a_function_is_imported_after_a_yes_and_not_before(here: Path) -> None:
    proof = module(here, "theirs_a")
    run = folder_of(here / "run", with_function("theirs_a:score"))
    sweep = here / "sweep.toml"
    sweep.write_text('[base]\nmethod = "manual"\n[base.task]\nkind = "custom"\nfunction = "theirs_a:score"\n', "utf-8")
    for words in (
        ("evaluate", run, "--split", "train"),
        ("resume", run),
        ("tune", run / "recipe.toml", "--out", here / "new"),
        ("sweep", sweep, "--out", here / "cells"),
        ("sweep", sweep, "--out", here / "cells", "--engine", "ray"),
    ):
        done = call(*words, "--json")
        assert done.exit_code == 2, words
        said = json.loads(done.stdout)["error"]
        assert "task.function = 'theirs_a:score'" in said
        assert str(here / "theirs_a.py") in said
        assert "--trust" in said
    for verb in (api.evaluate, api.resume, api.sweep):
        with pytest.raises(NotAgreed):
            verb(sweep if verb is api.sweep else run)
    with pytest.raises(NotAgreed):
        api.tune(run / "recipe.toml", out=here / "new")
    assert not proof.exists()
    # What only looks, or counts, imports nothing and needs no answer.
    for words in (
        ("report", run),
        ("compare", run),
        ("ls", here),
        ("tune", run / "recipe.toml", "--estimate"),
        ("sweep", sweep, "--dry-run"),
    ):
        done = call(*words)
        assert done.exit_code == 0, done.output
    assert not proof.exists()
    done = call("evaluate", run, "--split", "train", "--trust", "--json")
    assert done.exit_code == 0, done.output
    assert proof.exists()
    # The answer holds for every file that asks for the same.
    assert call("evaluate", run, "--split", "train").exit_code == 0
    api.evaluate(run, split="train")


def test_the_question_says_everything_and_a_no_is_a_no(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = module(here, "theirs_b")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-user")
    tree = with_function("theirs_b:score")
    run = folder_of(here / "run", tree)
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with consent.answering(False, no), pytest.raises(NotAgreed):
        api.evaluate(run, split="train")
    assert "theirs_b:score" in asked[0]
    assert not proof.exists()
    (here / "remote").mkdir()
    server = with_server("https://evil.example/v1", train="/somewhere/private.csv")
    with consent.answering(False, no), pytest.raises(NotAgreed) as refused:
        api.evaluate(folder_of(here / "remote" / "run", server))
    for part in ("https://evil.example/v1", "with the key in AWS_SECRET_ACCESS_KEY", "/somewhere/private.csv", "toy"):
        assert part in asked[1]
        assert part in str(refused.value)
    assert "secret-of-the-user" not in asked[1] + str(refused.value)
    with consent.answering(False, lambda question: True):
        api.evaluate(run, split="train")
    assert proof.exists()
    assert len(asked) == 2


def test_a_yes_on_the_terminal_is_a_yes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pinprompt.cli.console import Console

    class Typed:
        def __init__(self, line: str) -> None:
            self.line = line

        def readline(self) -> str:
            return self.line

    for line, answer in (("y\n", True), ("Yes\n", True), ("\n", False), ("", False), ("n\n", False)):
        monkeypatch.setattr("sys.stdin", Typed(line))
        assert Console(False, False).ask("Do you trust it?") is answer


def test_a_strangers_server_hears_nothing_before_a_yes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-user")
    (here / "rows.csv").write_text("text,label\na fine film,1\na dull film,0\n", "utf-8")
    with serving(labeller) as server:
        run = folder_of(here / "run", with_server(server.url, train="rows.csv", dev="rows.csv", test="rows.csv"))
        style = with_server(server.url)
        style["task"] = {"kind": "style-transfer", "source": "a.txt", "target": "b.txt", "model": "remote:toy"}
        for words in (
            ("predict", run, "a fine film"),
            ("evaluate", run),
            ("evaluate", run, "--test", here / "rows.csv"),
            ("evaluate", run, "--task-model", "remote:other"),
            ("resume", run),
            ("tune", run / "recipe.toml", "--out", here / "new"),
            ("rewrite", folder_of(here / "style", style), "a fine film"),
        ):
            done = call(*words)
            assert done.exit_code == 2, words
            assert "with the key in AWS_SECRET_ACCESS_KEY" in done.stderr
        for words in (("report", run), ("use", run), ("tune", run / "recipe.toml", "--estimate")):
            call(*words)
        assert server.seen == []
        done = call("predict", run, "a fine film", "--trust")
        assert done.exit_code == 0, done.output
        assert server.seen
        assert call("predict", run, "a fine film").exit_code == 0, "the answer is remembered"


def test_what_the_user_names_is_not_asked_about(here: Path, lm_folder: Path) -> None:
    proof = module(here, "mine_c")
    path = here / "recipe.toml"
    path.write_text(recipes.to_toml(recipes.resolve(with_function("theirs_c:score"))), "utf-8")
    request = consent.request_of(recipes.load(path, ["task.function=mine_c:score"]))
    assert not request.foreign({"task": {"function": "mine_c:score"}}, [here], True)
    assert request.foreign({}, [here], True)
    assert request.foreign({"task": {"stochastic": True}}, [here], True)
    assert not proof.exists()
    server = consent.request_of(recipes.resolve(with_server("https://a.example/v1")))
    assert server.foreign({"remote": {"base_url": "https://a.example/v1"}}, [here], True), "the file named the key"
    both = {"base_url": "https://a.example/v1", "key_env": "AWS_SECRET_ACCESS_KEY"}
    assert not server.foreign({"remote": both}, [here], True)


def test_a_run_that_was_made_here_is_not_asked_about(here: Path) -> None:
    tree = with_server("https://a.example/v1", train="/elsewhere/rows.csv")
    made, other = (
        recipes.resolve(tree),
        recipes.resolve(with_server("https://b.example/v1", train="/elsewhere/rows.csv")),
    )
    assert not consent.known(made, here / "run")
    consent.vouch(made)
    assert consent.known(made, here / "run")
    assert consent.known(made.model_copy(update={"seed": 5, "method": "race"}), here / "run")
    assert not consent.known(other, here / "run")
    key = recipes.resolve(recipes.merge(tree, {"remote": {"key_env": "OTHER_KEY"}}))
    assert not consent.known(key, here / "run")
    file = recipes.resolve(recipes.merge(tree, {"task": {"train": "/elsewhere/secret.csv"}}))
    assert not consent.known(file, here / "run")
    local = recipes.resolve(recipes.merge(tree, {"task": {"model": "smollm2"}}))
    assert consent.known(local, here / "run"), "the same without a server"


def test_an_answer_belongs_to_the_file_of_the_function(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipes.resolve(with_function("same_name:score"))
    module(here, "same_name")
    consent.vouch(made)
    assert consent.known(made, here)
    other = here.parent / "theirs"
    other.mkdir()
    module(other, "same_name")
    monkeypatch.chdir(other)
    assert not consent.known(made, other)


def test_a_module_is_found_without_running_what_is_above_it(here: Path) -> None:
    proof = here / "above.proof"
    (here / "above").mkdir()
    (here / "above" / "__init__.py").write_text(f"open({str(proof)!r}, 'w').close()\n", "utf-8")
    (here / "above" / "within.py").write_text("", "utf-8")
    assert consent.origin_of("above.within") == str(here / "above" / "within.py")
    assert consent.origin_of("above") == str(here / "above" / "__init__.py")
    assert consent.origin_of("above.nothing") == ""
    assert consent.origin_of("") == ""
    assert not proof.exists()


def test_an_installed_package_may_offer_functions(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = here.parent / "site"
    (site / "acme_scores-1.0.dist-info").mkdir(parents=True)
    (site / "acme_scores-1.0.dist-info" / "METADATA").write_text("Name: acme-scores\nVersion: 1.0\n", "utf-8")
    (site / "acme_scores-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{consent.ENTRY_POINTS}]\nlength = acme_scores:score\n", "utf-8"
    )
    module(site, "acme_scores")
    monkeypatch.syspath_prepend(str(site))
    assert consent.known(recipes.resolve(with_function("acme_scores:score")), here)
    assert not consent.known(recipes.resolve(with_function("acme_scores:other")), here)
    # A file of the same name in the working folder would be imported in its place.
    module(here, "acme_scores")
    assert not consent.known(recipes.resolve(with_function("acme_scores:score")), here)


def test_files_elsewhere_are_asked_about_and_files_at_hand_are_not(here: Path) -> None:
    def labels(**task: Any) -> recipes.Recipe:
        return recipes.resolve({"task": {"kind": "classification", "model": "smollm2", **task}})

    outside = here.parent / "outside.csv"
    outside.write_text("", "utf-8")
    (here / "link.csv").symlink_to(outside)
    assert consent.known(labels(train="rows.csv", data=str(here / "data")), here)
    for path in (str(outside), "../outside.csv", "link.csv", "~/x.csv", ".ssh/id_rsa", "data/.hidden/x.csv"):
        assert not consent.known(labels(train=path), here), path
    assert not consent.known(recipes.resolve({"task": {"kind": "inversion", "images": ["/etc/x.png"]}}), here)
    banned = {"policy": {"constraints": {"banned_file": "/etc/passwd"}}}
    assert not consent.known(recipes.resolve({"task": {"kind": "inversion"}, **banned}), here)
    consent.agree(labels(train=str(outside)), here, reads=False)  # to label texts, no data are read


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"agreed": []}', b"\xff", b'{"agreed": {"x": 1}}'])
def test_a_damaged_memory_agrees_to_nothing(here: Path, content: bytes) -> None:
    made = recipes.resolve(with_function("theirs_d:score"))
    consent.vouch(made)
    assert consent.known(made, here)
    (cache.home() / "agreed.json").write_bytes(content)
    assert not consent.known(made, here)
    consent.vouch(made)
    assert consent.known(made, here)


def test_a_key_goes_nowhere_without_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret-of-the-user")
    for url in ("http://example.org/v1", "http://192.168.1.5:8000/v1", "http://localhost.example.org/v1"):
        with pytest.raises(SettingError, match="without encryption"):
            RemoteClient(RemoteSettings(base_url=url, key_env="SOME_KEY"), "m")
        RemoteClient(RemoteSettings(base_url=url, key_env=""), "m")
    for url in ("https://example.org/v1", "http://127.0.0.1:8000/v1", "http://localhost:1/v1", "http://[::1]:80/v1"):
        RemoteClient(RemoteSettings(base_url=url, key_env="SOME_KEY"), "m")


def test_an_estimate_fetches_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(here / "hub"))
    for name in ("unreachable", "hf_hub_download"):
        monkeypatch.setattr(sources, name, lambda *_, **__: pytest.fail("the hub was asked"), raising=False)
    monkeypatch.setattr("pinprompt.models.wheels.subprocess", None)
    for model in ("smollm2", "nobody/no-model"):
        done = call("classify", "rotten-tomatoes", "--task-model", model, "--estimate", "--json")
        assert done.exit_code == 0, done.output
        figures = json.loads(done.stdout)
        assert figures["minutes"] is None
        assert "nothing is fetched for an estimate" in figures["note"]
    said = call("classify", "rotten-tomatoes", "--task-model", "smollm2", "--estimate").stdout
    assert "an unknown number for the report" in " ".join(said.split())  # not 0
    with cache.fetching_nothing(), pytest.raises(NotFetched):
        sources.resolve("smollm2")
    assert cache.may_fetch()


def test_an_estimate_reads_no_file_elsewhere_before_a_yes(here: Path) -> None:
    private = here.parent / "private.csv"
    rows = [f"film {number} is fine,0\nfilm {number} is dull,1\n" for number in range(20)]
    private.write_text("text,label\n" + "".join(rows), "utf-8")
    tree = with_server("http://127.0.0.1:1/v1", train=str(private), shots=4)
    recipe = here / "recipe.toml"
    recipe.write_text(recipes.to_toml(recipes.resolve(tree)), "utf-8")
    figures = json.loads(call("tune", recipe, "--estimate", "--json").stdout)
    assert figures["report_calls"] is None
    assert f"{private} was not read" in figures["note"]
    assert api.estimate(recipe) == figures
    # What the user names is the user's own word, and so is a yes.
    named = json.loads(call("tune", recipe, "--estimate", "--json", "--set", f"task.train={private}").stdout)
    agreed = json.loads(call("tune", recipe, "--estimate", "--json", "--trust").stdout)
    for read in (named, agreed):
        assert read["report_calls"] > 0
    private.rename(here / "near.csv")
    tree["task"]["train"] = "near.csv"
    recipe.write_text(recipes.to_toml(recipes.resolve(tree)), "utf-8")
    assert api.estimate(recipe)["report_calls"] > 0


def test_what_is_asked_for_is_shown_as_text(here: Path) -> None:
    hostile = "x\x1b[2Jy\u202e:z\n"
    with pytest.raises(NotAgreed) as refused:
        consent.agree(recipes.resolve(with_function(hostile)), here / "a\x1b[2Jb")
    assert "\x1b" not in str(refused.value)
    assert "\u202e" not in str(refused.value)
    assert os.linesep not in str(refused.value)
