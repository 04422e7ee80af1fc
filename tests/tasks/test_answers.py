"""Free answers: data, answers, metrics and searches, with models that do as they are told."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from remote_servers import Action, reply, said, serving
from small_aliases import make_home

import pinprompt
from pinprompt.errors import DataError, SettingError
from pinprompt.models.chat import Messages
from pinprompt.recipe.task_sections import AnswerSettings
from pinprompt.tasks.answer_data import Asked, answer_data, copied
from pinprompt.tasks.answers import AnswerTask, instruction_in
from pinprompt.tasks.protocol import check_task
from pinprompt.values import Prompt

INSTRUCTION = "Give the code."
BEST = "Reply with the code only."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which smollm2 is small: it writes the prompts."""
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def rows(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with 60 messages and the code in each."""
    monkeypatch.setenv("PINPROMPT_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    lines = [{"message": f"Hello, about {code} of today.", "code": code} for code in (f"A{n}" for n in range(60))]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def obedient(messages: list[list[dict[str, str]]]) -> list[str]:
    """A model that gives the code alone if it is told to do so with 'only', else in a sentence."""
    found = []
    for chat in messages:
        code = re.findall(r"\bA\d+\b", chat[-1]["content"])[-1]
        asked = " ".join(one["content"] for one in chat)
        found.append(code if "only" in asked else f"The code is {code}, I think.")
    return found


def settings(rows: Path, **more: Any) -> dict[str, Any]:
    columns = {"input_column": "message", "target_column": "code"}
    return {"kind": "answers", "train": str(rows), **columns, "prompts": [INSTRUCTION], "proposals": 0, **more}


def task_of(rows: Path, model: Any = obedient, **more: Any) -> AnswerTask:
    return AnswerTask.build(AnswerSettings(**settings(rows, **more)), model=model)


def test_it_keeps_the_contract(rows: Path) -> None:
    assert check_task(task_of(rows), (INSTRUCTION, BEST, "Code of {text}:")) == []


def test_rows_are_split_and_examples_set_aside(rows: Path) -> None:
    data = answer_data(AnswerSettings(**settings(rows)))
    assert {name: len(own) for name, own in data.splits.items()} == {"train": 17, "dev": 20, "test": 20}
    everything = [row.input for own in (*data.splits.values(), data.examples) for row in own]
    assert len(set(everything)) == 60
    few = answer_data(AnswerSettings(**settings(rows, test=str(rows), test_rows=5, examples=0)))
    assert {name: len(own) for name, own in few.splits.items()} == {"train": 30, "dev": 30, "test": 5}


def test_rows_without_input_or_reference_are_left_out_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("message,code\nhello,A1\n,A2\nbye,\nagain,A3\nmore,A4\n", "utf-8")
    data = answer_data(AnswerSettings(**settings(path)))
    assert any("2 rows without an input or a reference were left out (line 3, line 4)" in note for note in data.notes)
    path.write_text("message,other\nhello,A1\n", "utf-8")
    with pytest.raises(DataError, match=r"there is no column 'code'.*--target-column"):
        answer_data(AnswerSettings(**settings(path)))
    path.write_text("message,code\nhello,\n,\n", "utf-8")
    with pytest.raises(DataError, match="at least two rows are needed"):
        answer_data(AnswerSettings(**settings(path)))


def test_the_prompt_is_where_the_setting_says(rows: Path) -> None:
    def chat(prompt: str, **more: Any) -> Messages:
        return task_of(rows, **more).messages(prompt, "hi")

    system, user = {"role": "system", "content": "Do it."}, {"role": "user", "content": "hi"}
    assert chat("Do it.") == [system, user]
    assert chat("Do it.", place="before") == [{"role": "user", "content": "Do it.\n\nhi"}]
    assert chat("Do it.", place="after") == [{"role": "user", "content": "hi\n\nDo it."}]
    assert chat("Read {text} twice.") == [{"role": "user", "content": "Read hi twice."}]


def test_a_search_finds_an_instruction_that_is_obeyed(rows: Path, tmp_path: Path) -> None:
    result = pinprompt.tune(settings(rows), model=obedient, calls=250, out=tmp_path / "run")
    assert "only" in result.prompt
    assert result.test is not None
    assert result.test["correct"] == 1.0
    manual = result.data["baselines"]["manual"]["test"]
    assert manual["correct"] == 0.0
    assert manual["intervals"]["correct"][1] > 0.1, "20 wrong answers are no proof of never being right"
    assert result.data["verdict"]["kind"] == "better"
    page = result.report.read_text("utf-8")
    assert "Answers" in page
    told = pinprompt.predict(tmp_path / "run", ["Hello, about A77 of today."], model=obedient)
    assert [one["answer"] for one in told] == ["A77"]
    with pytest.raises(SettingError, match="was a Python callable; pass it again"):
        pinprompt.predict(tmp_path / "run", ["Hello"])
    answers = result.data["tables"]["answers"]
    assert {"input", "reference", "answer", "value", "why"} == set(answers[0])


def test_rows_may_be_a_list_of_dicts_for_each_split(rows: Path, tmp_path: Path) -> None:
    known = [json.loads(line) for line in rows.read_text("utf-8").splitlines()]
    parts = {"train": known[:20], "dev": known[20:35], "test": known[35:]}
    result = pinprompt.tune({**settings(rows), **parts}, model=obedient, calls=250, out=tmp_path / "run")
    assert result.test is not None
    assert (result.test["correct"], result.test["rows"]) == (1.0, 25)
    assert result.dev is not None
    assert result.dev["rows"] == 15


def test_your_own_metric_is_the_objective(rows: Path, tmp_path: Path) -> None:
    def short(answer: str, row: dict[str, Any]) -> tuple[float, str]:
        return 1 / (1 + len(answer) - len(row["code"])), "longer than the code"

    result = pinprompt.tune(settings(rows), model=obedient, metric=short, calls=250, out=tmp_path / "run")
    assert "only" in result.prompt
    assert result.data["primary"] == "score"
    assert result.test is not None
    assert result.test["score"] == 1.0


def test_failures_of_single_rows_are_recorded(rows: Path) -> None:
    def moody(texts: list[str]) -> list[str]:
        if any("A7 " in text for text in texts):
            raise ValueError("not this one")
        return ["A1"] * len(texts)

    task = task_of(rows, moody)
    every = range(len(task.rows))
    [answers] = task.ask([Prompt(BEST)], every)
    failed = [task.rows[row].target for row in answers.failures]
    assert failed == ["A7"]
    assert "not this one" in next(iter(answers.failures.values()))
    assert task.values(answers, every).sum() == 1


def test_a_judge_rates_answers_and_its_calls_count(rows: Path) -> None:
    def both(texts: list[str]) -> list[str]:
        return [("5" if "Answer: A" in text else "nonsense") if "Reply with one number" in text
                else obedient([[{"content": text}]])[0] for text in texts]  # fmt: skip

    task = task_of(rows, both, metric="judge")
    assert task.rows[0].calls == 2
    good, bad = task.ask([Prompt(BEST), Prompt(INSTRUCTION)], [0, 1])
    assert task.values(good, [0, 1]).tolist() == [1.0, 1.0]
    assert "the judge gave no rating: it answered 'nonsense'" in bad.failures[0]


def test_a_judge_behind_an_api_is_refused_besides_the_task_model(rows: Path) -> None:
    with pytest.raises(SettingError, match="the budget would not cover a judge behind an API"):
        task_of(rows, metric="judge", judge="remote:other")


def proposing(number: int, path: str, body: dict[str, Any]) -> Action:
    return reply(said(f"Reply with the code only, try {number}.", tokens=(300, 12)))


def test_a_second_model_on_a_server_proposes_within_its_own_limits(rows: Path, tmp_path: Path) -> None:
    with serving(proposing) as server:
        task = settings(rows, proposer="remote:big", proposals=6)
        over = {
            "remote": {"base_url": server.url},
            "budget": {"money": 1.0, "prices": {"big": {"input": 10.0, "output": 100.0}}},
        }
        how: dict[str, Any] = {"model": obedient, "calls": 400, "settings": over}
        first = pinprompt.tune(task, out=tmp_path / "run", **how)
        assert [body["model"] for _, body, _ in server.seen] == ["big"] * 6
        spent = first.data["spent"]
        assert spent["money"] == pytest.approx(6 * (300 * 10 + 12 * 100) / 1e6)
        assert (spent["sent"]["tokens_in"], spent["sent"]["tokens_out"]) == (6 * 300, 6 * 12)
        assert first.calls <= 400
        assert "try 1." in (tmp_path / "run" / "prompts.csv").read_text("utf-8")
        # Interrupted after its proposals, the run asks for none of them again.
        interrupts = [True]

        def tired(messages: list[list[dict[str, str]]]) -> list[str]:
            if server.seen[6:] and interrupts:
                interrupts.clear()
                raise KeyboardInterrupt
            return obedient(messages)

        how |= {"model": tired, "out": tmp_path / "stopped"}
        with pytest.raises(KeyboardInterrupt):
            pinprompt.tune(task, **how)
        before = len(server.seen)
        again = pinprompt.tune(task, resume=True, **how)
        assert before in (10, 12)
        assert len(server.seen) == 12
        assert again.data["spent"]["money"] == first.data["spent"]["money"]
        assert again.prompt == first.prompt


def test_the_money_of_a_second_model_is_limited(rows: Path, tmp_path: Path) -> None:
    with serving(proposing) as server:
        task = settings(rows, proposer="remote:big", proposals=6)
        over: dict[str, Any] = {"remote": {"base_url": server.url}, "budget": {"money": 1e-6}}
        with pytest.raises(SettingError, match="no price for the model 'big'"):
            pinprompt.tune(task, model=obedient, calls=400, out=tmp_path / "no-price", settings=over)
        over["budget"]["prices"] = {"big": {"input": 10.0, "output": 100.0}}
        result = pinprompt.tune(task, model=obedient, calls=400, out=tmp_path / "poor", settings=over)
        assert result.data["stopped"] == "budget"
        assert server.seen == []


def test_prompts_that_copy_rows_are_noticed() -> None:
    known = [Asked("please send the parcel to my new address in Bonn", "Bonn-17"), Asked("hello there", "yes")]
    assert copied("Say where to send the parcel to my new address", known) is not None
    assert copied("The answer is often Bonn-17 here", known) == "Bonn-17"
    assert copied("Reply with yes or no", known) is None


def test_what_the_writer_copies_from_rows_is_not_asked(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = "Hello, about A1 of today."

    def copying(writer: Any, texts: Sequence[str], count: int, seed: int) -> list[Prompt]:
        return [Prompt(copy), Prompt("Only the code.")]

    monkeypatch.setattr("pinprompt.methods.race.variations", copying)
    over = {"race": {"max_perplexity": None}}
    result = pinprompt.tune(settings(rows, examples=0), model=obedient, calls=250, out=tmp_path / "run", settings=over)
    asked = (tmp_path / "run" / "prompts.csv").read_text("utf-8")
    assert "Only the code." in asked
    assert copy not in asked
    assert "only" in result.prompt.lower()


def test_what_a_model_proposes_is_cleaned_and_checked(rows: Path) -> None:
    assert instruction_in('Here is a better instruction:\n"Reply  with it."\n\nIt is short.') == "Reply with it."
    said_before: list[str] = []

    def proposer(texts: list[str]) -> list[str]:
        said_before.extend(texts)
        copy = "Answer hello, about A1 of today. with A1"
        return [f'"{BEST}"' if place % 2 else copy for place in range(len(texts))]

    task = task_of(rows, proposer, proposals=6)
    [answers] = task.ask([Prompt(INSTRUCTION)], [0, 1, 2])
    said_before.clear()
    found = task.proposals([(Prompt(INSTRUCTION), answers)], seed=0)
    assert found.count(BEST) == 2
    assert not any("hello, about A1" in text and "Examples" not in text for text in found)
    assert found[0].startswith(f"{INSTRUCTION}\n\nExamples:\nInput: ")
    assert all(INSTRUCTION in text and "Its answer: " in text for text in said_before)
    assert (task.proposal_calls, task.most_proposals) == (2, 6)


def test_an_interrupted_search_continues_and_asks_nothing_twice(rows: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def noted(messages: list[list[dict[str, str]]]) -> list[str]:
        asked.extend(json.dumps(chat) for chat in messages)
        if len(asked) > interrupted_after:
            raise KeyboardInterrupt
        return obedient(messages)

    how: dict[str, Any] = {"model": noted, "calls": 250, "settings": {"scoring": {"memo": False}}}
    interrupted_after = 10**9
    whole = pinprompt.tune(settings(rows), out=tmp_path / "whole", **how)
    once = len(asked)
    asked.clear()
    interrupted_after = once // 2
    with pytest.raises(KeyboardInterrupt):
        pinprompt.tune(settings(rows), out=tmp_path / "cut", **how)
    interrupted_after = 10**9
    kept = {json.dumps(line["text"]) for line in map(json.loads, (tmp_path / "cut/answers.jsonl").open())}
    assert kept
    asked.clear()
    resumed = pinprompt.tune(settings(rows), out=tmp_path / "cut", resume=True, **how)
    assert len(asked) < once
    timeless = {"seconds", "spent", "paid_calls"}
    assert {k: v for k, v in resumed.data.items() if k not in timeless} == {
        k: v for k, v in whole.data.items() if k not in timeless
    }


def test_a_search_stops_if_no_answer_ever_matches(rows: Path, tmp_path: Path) -> None:
    def stubborn(texts: list[str]) -> list[str]:
        return ["no"] * len(texts)

    result = pinprompt.tune(settings(rows), model=stubborn, calls=300, out=tmp_path / "run")
    assert result.data["stopped"] == "tied"
    assert "have the same value on each of the first 6 rows (0 on average)" in result.data["problem"]
    assert result.calls < 200


def chatting(number: int, path: str, body: dict[str, Any]) -> Action:
    return reply(said(obedient([body["messages"]])[0], tokens=(60, 4)))


def test_a_system_prompt_for_a_server_within_calls_and_a_dollar(rows: Path, tmp_path: Path) -> None:
    with serving(chatting) as server:
        limits = {"calls": 300, "money": 1.0, "prices": {"gpt": {"input": 3.0, "output": 15.0}}}
        over = {"remote": {"base_url": server.url}, "budget": limits, "scoring": {"memo": False}}
        result = pinprompt.tune(settings(rows, model="remote:gpt"), out=tmp_path / "run", settings=over)
        assert "only" in result.prompt
        assert all(path.endswith("/chat/completions") for path, _, _ in server.seen)
        assert result.calls <= 300
        assert 0 < result.data["spent"]["money"] <= 1.0
        sent = result.data["spent"]["sent"]["calls"]
        assert sent == len(server.seen)
        roles = {message["role"] for _, body, _ in server.seen for message in body["messages"]}
        assert {"system", "user"} <= roles
        answered = pinprompt.predict(tmp_path / "run", ["Hello, about A99 of today."])
    assert answered == [{"text": "Hello, about A99 of today.", "answer": "A99"}]


def test_what_was_found_can_be_used_elsewhere(rows: Path, tmp_path: Path) -> None:
    from pinprompt import api

    result = pinprompt.tune(settings(rows), model=obedient, calls=250, out=tmp_path / "run")
    used = api.use(tmp_path / "run", "about A5")
    texts: Sequence[str] = [one["content"] for one in used["messages"]]
    assert any("about A5" in text for text in texts)
    config = json.loads(api.export(tmp_path / "run", "promptfoo", tmp_path / "promptfoo.json").read_text("utf-8"))
    assert config["tests"][0]["assert"] == [{"type": "equals", "value": "{{reference}}"}]
    assert "{{text}}" in config["prompts"][0]
    known = {(row["message"], row["code"]) for row in map(json.loads, rows.read_text("utf-8").splitlines())}
    tested = {(one["vars"]["text"], one["vars"]["reference"]) for one in config["tests"]}
    assert len(tested) == 20, "the rows of the report"
    assert tested <= known
    for tool, where in (("dspy", ("signature", "instructions")), ("langchain", ("template",))):
        made = json.loads(api.export(tmp_path / "run", tool, tmp_path / "out.json").read_text("utf-8"))
        for name in where:
            made = made[name]
        assert result.prompt.split("{text}")[0].strip() in made
    assert "transformers" not in used["snippets"], "a callable cannot be loaded by its name"
    compile(used["snippets"]["openai"], "snippet", "exec")


def test_private_runs_keep_no_texts(rows: Path, tmp_path: Path) -> None:
    over = {"private": True}
    result = pinprompt.tune(settings(rows, examples=0), model=obedient, calls=250, out=tmp_path / "run", settings=over)
    for name in ("answers.jsonl", "result.json", "report.html"):
        assert "of today" not in (tmp_path / "run" / name).read_text("utf-8")
    assert "answers" not in result.data["tables"]


def test_the_matrix_of_the_studio_shows_right_and_wrong(rows: Path, tmp_path: Path) -> None:
    from pinprompt.studio.runs import Library

    pinprompt.tune(settings(rows), model=obedient, calls=250, out=tmp_path / "run")
    scored = Library().prompts_of(tmp_path / "run")
    by_prompt = {column.prompt: column for column in scored.columns}
    assert scored.rows.labels == ["wrong", "right"]
    assert by_prompt[INSTRUCTION].accuracy == 0.0
    assert max(column.accuracy or 0.0 for column in scored.columns) == 1.0


def test_inputs_that_do_not_fit_and_answers_that_are_cut_are_said(rows: Path) -> None:
    with rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"message": "word " * 50_000, "code": "A61"}) + "\n")
    task = AnswerTask.build(AnswerSettings(**settings(rows, model="smollm2", max_new_tokens=1, examples=0)))
    [note] = [note for note in task.info.notes if "longer than the model's window" in note]
    assert "1 (" in note
    assert "line 61" in note
    place = next(index for index, row in enumerate(task.rows) if row.target == "A61")
    asked = [place, *(index for index in range(4) if index != place)]
    [answers] = task.ask([Prompt(BEST)], asked)
    warnings = task.metrics(answers, asked).tables["warnings"]
    assert any(f"of {len(asked)} answers were cut after 1 tokens; raise task.max_new_tokens" in one for one in warnings)
    assert any(f"1 of {len(asked)} rows could not be answered" in one for one in warnings)
