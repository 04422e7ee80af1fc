"""Learnt labels: other words than the label words are read from the same answers, in tasks, searches and results."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_toys import WORDS, make, save
from remote_servers import reply, serving

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.api import evaluate, export, predict, tune
from pinprompt.errors import SettingError
from pinprompt.judges.frozen import embed
from pinprompt.maths.readout import Readout
from pinprompt.models.label_text import Frame
from pinprompt.models.labels import CausalLabels, MaskedLabels
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.recipe.task_sections import ClassificationSettings
from pinprompt.tasks.classification import ClassificationTask
from pinprompt.tasks.protocol import check_task, report_fit_rows, split_rows
from pinprompt.values import Answers, Prompt

PROMPT = Prompt("It was")
_MORE = ("film", "story", "plot", "drama", "heart", "task", "news", "world", "sports", "answer", "word", "start", "end")
GOOD = [f"a truly wonderful little {one} with a big {other}" for one in _MORE for other in _MORE[:2]]
BAD = [f"dull , slow and awful {one} from the {other}" for one in _MORE for other in _MORE[:2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("learnt")
    for name in ("llama", "roberta", "bert"):
        save(name, place / name)
    rows = [f'"{text}",pos' for text in GOOD] + [f'"{text}",neg' for text in BAD]
    (place / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return place


def build(folder: Path, model: str = "llama", readout: Readout | None = None, **more: Any) -> ClassificationTask:
    given: dict[str, Any] = {
        "train": str(folder / "train.csv"),
        "words": WORDS,
        "model": str(folder / model),
        "shots": 2,
        "labels": "learnt",
    }
    return ClassificationTask.build(ClassificationSettings(**{**given, **more}), readout=readout)


def asked(task: ClassificationTask, prompt: Prompt = PROMPT) -> Answers:
    return task.ask([prompt], range(len(task.rows)))[0]


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_a_task_with_learnt_labels_keeps_its_contract(folder: Path, model: str) -> None:
    assert check_task(build(folder, model), ["It was", "the answer is"]) == []


@pytest.mark.parametrize("words", [WORDS, {"neg": "terrible film", "pos": "great"}])
@pytest.mark.parametrize("kind", ["llama", "roberta"])
def test_other_words_are_read_beside_the_label_words(kind: str, words: dict[str, str]) -> None:
    """The label words' numbers do not change, and the others are the model's own, from a plain pass."""
    model, tokenizer = make(kind)
    texts, mask = GOOD[:3], "<mask>" if kind == "roberta" else ""
    frame = Frame("", " It was ", ("after", len(" It was "))) if mask else Frame("", " It was")
    labels = (MaskedLabels if mask else CausalLabels)(model, tokenizer, words, frame)
    inputs = labels.prepare(texts, keep=True)
    [plain] = labels.log_probs([frame], inputs)
    others = labels.tokens_of(["film", "good", "the"])
    assert set(others) == {"film", "good", "the"}
    labels.words = type(labels.words)(labels.words.words, labels.words.ids, others)
    [both] = labels.log_probs([frame], inputs)
    assert both[:, : len(words)] == pytest.approx(plain, abs=1e-5)
    ids = list(others.values())
    for row, text in enumerate(texts):
        masks = 1 if all(len(one) == 1 for one in labels.words.ids) else len(labels.words.ids[0])
        given = tokenizer(frame.around(text, mask, masks)[0], return_tensors="pt")["input_ids"]
        place = int((given[0] == tokenizer.mask_token_id).nonzero()[0]) if mask else -1
        logits = model(given).logits[0, place, ids]
        assert both[row, len(words) :] == pytest.approx(torch.log_softmax(logits.float(), -1).detach(), abs=1e-4)


def test_words_are_whole_words_and_no_label_words(folder: Path) -> None:
    task = build(folder)
    words = task.model.words.others
    assert len(words) > 10
    assert not {"terrible", "great"} & set(words)
    assert all(word.isalpha() for word in words)
    assert task.info.opening_calls == 4, "each training row was read once to choose them"


def test_opening_a_task_counts_as_calls(folder: Path) -> None:
    task = build(folder)
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=100)))
    evaluator.score([PROMPT])
    assert evaluator.charged_calls == 4 + 4


def test_a_row_is_read_without_what_it_taught(folder: Path) -> None:
    """The probabilities of a labelled row do not change with its own label; those of other rows may."""
    task = build(folder, shots=3)
    answers, fit = asked(task), report_fit_rows(task)
    before = task.probabilities(answers, fit, fit)
    place = next(at for at, row in enumerate(fit) if task.rows[row].target == 0)
    own = task._targets[fit[place]]
    task._targets[fit[place]] = 1 - own
    after = task.probabilities(answers, fit, fit)
    task._targets[fit[place]] = own
    assert not np.allclose(before, after)
    assert task.confusion(answers, fit, fit).sum() == len(fit)


def test_an_evaluation_has_the_figures_of_every_reading(folder: Path) -> None:
    task = build(folder, shots=3)
    rows = split_rows(task, "dev")
    found = task.metrics(asked(task), rows, report_fit_rows(task))
    plain = build(folder, labels="words", shots=3)
    moved = build(folder, labels="calibrated", shots=3)
    assert found.metrics["raw_accuracy"] == plain.metrics(asked(plain), rows).metrics["accuracy"]
    expected = moved.metrics(asked(moved), rows, report_fit_rows(moved)).metrics["accuracy"]
    assert found.metrics["calibrated_accuracy"] == expected
    assert found.tables["readout"]["kind"] == "learnt"


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("learnt-run")
    data = place / "rows.csv"
    data.write_text((folder / "train.csv").read_text(encoding="utf-8"), encoding="utf-8")
    task = {"train": str(data), "words": WORDS, "model": str(folder / "llama"), "shots": 8, "labels": "learnt"}
    task["embeddings"] = str(folder / "bert")
    settings = {"policy": {"model": str(folder / "llama"), "k": None}, "scoring": {"memo": False}}
    result = tune(task, out=place / "run", method="manual", settings=settings)
    assert result.data["readout"]["words"], "the toy's words must tell the labels apart"
    assert evaluate(result.folder)[str(folder / "llama")].metrics["accuracy"] == result.data["test"]["accuracy"]
    data.unlink()  # nothing below may need the training data
    return Path(result.folder)


def test_words_and_weights_belong_to_the_answer(run: Path) -> None:
    page = (run / "report.html").read_text("utf-8")
    assert "Labels are read from the label words and" in page
    assert "Words that speak for each label" in page
    assert sorted(predict(run, [GOOD[0]])[0]["probabilities"]) == ["neg", "pos"]


def test_a_regression_on_embeddings_is_shown_beside_the_prompts(run: Path) -> None:
    result = json.loads((run / "result.json").read_text("utf-8"))
    other = result["baselines"]["embeddings"]
    assert other["test"]["rows"] == result["test"]["rows"]
    assert other["test"]["accuracy"] > 0.9, "the two kinds of texts have hardly a word in common"
    assert (result["verdict"]["kind"], other["prompt"]) == ("alone", "")  # it is no hand-written prompt
    assert "no prompt: regression on embeddings" in (run / "report.html").read_text("utf-8")


def test_a_row_of_dev_is_embedded_without_what_it_taught(folder: Path) -> None:
    """A label that is turned round is predicted as before, from the other rows."""
    task, turned = (build(folder, shots=8, embeddings=str(folder / "bert")) for _ in range(2))
    row = split_rows(task, "dev")[0]
    turned._targets[row] = 1 - turned._targets[row]
    outcomes = [one.without_prompt()["dev"]["outcomes"]["accuracy"][0] for one in (task, turned)]
    assert outcomes == ["1", "0"]


def test_without_its_encoder_the_row_says_so(folder: Path) -> None:
    assert "/no/such" in build(folder, embeddings="/no/such/folder").without_prompt()["missing"]
    assert build(folder, embeddings=None).without_prompt() == {}


def test_labels_that_embeddings_contradict_or_with_a_low_probability_are_unsure(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    texts = [*GOOD, *BAD, "slow heart"]
    sure = [one for one in predict(run, texts, unsure=True, notes=said.append) if not one["unsure"]]
    assert sure
    assert all(max(one["probabilities"].values()) >= 0.7 for one in sure)
    result = json.loads((run / "result.json").read_text("utf-8"))
    dev, other = result["dev"]["outcomes"], result["baselines"]["embeddings"]["dev"]["outcomes"]
    kept = [at for at in range(16) if dev["label"][at] == other["label"][at] and float(dev["probability"][at]) >= 0.7]
    right = sum(dev["accuracy"][at] == "1" for at in kept)
    assert f"{len(kept)} of 16 labels are sure, and {right / len(kept):.1%}" in said[0]
    # Turned round, the regression contradicts every label that it agreed with.
    turned = shutil.copytree(run, tmp_path / "turned")
    weights = result["baselines"]["embeddings"]
    for name in ("weights", "bias"):
        weights[name] = dict(zip(weights[name], reversed(list(weights[name].values())), strict=True))
    (turned / "result.json").write_text(json.dumps(result), "utf-8")
    (turned / "run.json").unlink()  # its seal
    assert all(one["unsure"] for one in predict(turned, [one["text"] for one in sure], unsure=True))


def test_a_second_opinion_needs_the_regression(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    result = json.loads((run / "result.json").read_text("utf-8"))
    result["baselines"]["embeddings"] = {"prompt": "", "missing": "no index"}
    (other / "result.json").write_text(json.dumps(result), "utf-8")
    (other / "run.json").unlink()
    with pytest.raises(SettingError, match="no index"):
        predict(other, [GOOD[0]], unsure=True)


def test_the_code_for_transformers_gives_the_same_probabilities(run: Path) -> None:
    import pinprompt

    text = "the new film felt good"
    names: dict[str, Any] = {}
    exec(compile(pinprompt.use(run, text)["snippets"]["transformers"], "snippet", "exec"), names)
    assert names["probabilities"](text) == pytest.approx(predict(run, [text])[0]["probabilities"], abs=1e-4)


def spoken(text: str) -> dict[str, float]:
    """A server's most likely words, never a label word: what is good is wonderful, what is bad is dull."""
    own, other = (" lovely", " dreary") if "wonderful" in text else (" dreary", " lovely")
    return {" the": -1.0, own: -1.5, other: -4.0 + len(text) % 3, " it": -2.0 - len(text) % 5}


def test_words_are_learnt_from_a_server_that_gives_its_likeliest_words(folder: Path, tmp_path: Path) -> None:
    """The label words are never among them; the search, the result and new texts use the words that are."""

    def script(number: int, path: str, body: dict[str, Any]) -> Any:
        usage = {"prompt_tokens": 6, "completion_tokens": 1}
        return reply(
            {"choices": [{"text": "x", "logprobs": {"top_logprobs": [spoken(body["prompt"])]}}], "usage": usage}
        )

    with serving(script) as server:
        # The probe asks for a label word, which this server says only there.
        first = lambda n, path, body: reply(  # noqa: E731
            {"choices": [{"text": "x", "logprobs": {"top_logprobs": [{" great": -0.1, " terrible": -1.0}]}}]}
        )
        server.script = lambda n, path, body: (first if "opposite" in body["prompt"] else script)(n, path, body)
        remote = {"base_url": server.url, "requests_per_minute": 60_000}
        task = {
            "train": str(folder / "train.csv"), "words": WORDS, "model": "remote:small", "shots": 8, "labels": "learnt",
            "embeddings": None,
        }  # fmt: skip
        settings = {"remote": remote, "policy": {"model": str(folder / "llama")}}
        result = tune(task, method="manual", settings=settings, out=tmp_path / "run")
        words = {one["word"]: one["for"] for one in result.data["readout"]["words"]}
        assert (words["lovely"], words["dreary"]) == ("pos", "neg")
        assert result.test is not None
        assert result.test["accuracy"] == 1.0
        labelled = predict(tmp_path / "run", ["what a wonderful heart", "a dull and awful end"])
        assert [row["label"] for row in labelled] == ["pos", "neg"]
    assert result.data["test"]["calibrated_accuracy"] < 0.6, "no label word was said"


PROMPTS = ("It was", "This is", "The word", "The answer is", "A story")


@pytest.fixture(scope="module")
def several(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an ensemble of three prompts."""
    place = tmp_path_factory.mktemp("ensemble")
    task = {"train": str(folder / "train.csv"), "words": WORDS, "model": str(folder / "llama"), "shots": 8}
    task |= {"labels": "learnt", "embeddings": str(folder / "bert")}
    settings = {"policy": {"model": str(folder / "llama"), "k": None}, "scoring": {"ensemble": 3, "choose": "rows"}}
    result = tune(task, out=place / "run", method=lambda search: PROMPTS, settings=settings)
    return Path(result.folder)


def test_an_ensemble_is_the_mean_of_its_prompts(several: Path, folder: Path) -> None:
    result = json.loads((several / "result.json").read_text("utf-8"))
    members = result["combined"]["ensemble"]["members"]
    assert members[0]["prompt"] == result["prompt"]
    assert len({one["prompt"] for one in members}) == 3
    texts, alone = [GOOD[0], BAD[0], "slow heart"], []
    for one in members:
        single = shutil.copytree(several, folder / f"single-{len(alone)}-{len(list(folder.iterdir()))}")
        changed = {**result, "prompt": one["prompt"], "readout": one["readout"], "combined": {}}
        (single / "result.json").write_text(json.dumps(changed), "utf-8")
        (single / "run.json").unlink()  # its seal
        alone.append([row["probabilities"]["pos"] for row in predict(single, texts)])
    together = [row["probabilities"]["pos"] for row in predict(several, texts)]
    assert together == pytest.approx(np.mean(alone, axis=0))
    measured = evaluate(several)[str(folder / "llama")].metrics["accuracy"]
    assert measured == result["combined"]["ensemble"]["test"]["accuracy"]
    page = (several / "report.html").read_text("utf-8")
    assert "3 calls per text" in page


def test_prompt_and_embeddings_can_be_used_together(several: Path, folder: Path) -> None:
    result = json.loads((several / "result.json").read_text("utf-8"))
    both = result["combined"]["with-embeddings"]
    assert both["test"]["rows"] == result["test"]["rows"]
    texts = [GOOD[0], BAD[0]]
    own, mixed = predict(several, texts), predict(several, texts, with_embeddings=True)
    kept = result["baselines"]["embeddings"]
    vectors = embed(str(folder / "bert"), texts)
    scores = vectors @ np.array([kept["weights"][label] for label in kept["bias"]]).T + np.array(
        [*kept["bias"].values()]
    )
    theirs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for row, one, other in zip(mixed, own, theirs, strict=True):
        expected = {label: (one["probabilities"][label] + other[at]) / 2 for at, label in enumerate(kept["bias"])}
        assert row["probabilities"] == pytest.approx(expected)


def test_an_export_says_what_it_cannot_hold(several: Path, tmp_path: Path) -> None:
    result = json.loads((several / "result.json").read_text("utf-8"))
    said: list[str] = []
    export(several, "promptfoo", tmp_path / "promptfoo.json", notes=said.append)
    assert "not the ensemble of 3" in said[0]
    assert f"{result['test']['raw_accuracy']:.1%} instead of {result['test']['accuracy']:.1%}" in said[1]
    said.clear()
    whole = json.loads(export(several, "json", tmp_path / "all.json", notes=said.append).read_text("utf-8"))
    assert not said
    assert [one["readout"]["words"] != [] for one in whole["ensemble"]]
    assert all({"before", "after", "readout"} <= set(one) for one in whole["ensemble"])


TEMPLATE = (
    "{% for one in messages %}[{{ one['role'] }}] {{ one['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def test_a_model_with_a_chat_template_is_also_asked_in_its_chat_format(folder: Path, tmp_path: Path) -> None:
    """The instruction is tried as a system message and before the text; words begin without a space there."""
    model = shutil.copytree(folder / "llama", tmp_path / "chat")
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    task = build(tmp_path, "chat", train=str(folder / "train.csv"), shots=8, instruction="Is it good?")
    chats = [draft.text for draft in task.drafts() if draft.name in ("instructions", "chat")]
    own, plain = "Is it good? Reply with one of these words only: neg or pos.", "Classify the text as neg or pos. "
    plain += "Reply with one of these words only."
    assert chats == [
        text
        for asked in (own, plain)
        for text in (f"[system] {asked}\n[user] {{text}}\n[assistant]\n", f"[user] {asked}\n\n{{text}}\n[assistant]\n")
    ]
    assert [draft.text for draft in task.drafts() if draft.name == "instructions"] == chats[:1]
    assert not [draft for draft in build(folder, shots=8).drafts() if draft.name == "chat"], "no template, no chat"
    [answers] = task.ask([Prompt(chats[0])], range(4))
    text = chats[0].replace("{text}", task.rows[0].input)
    start = task.model.tokenizer(text)["input_ids"]
    logs = torch.log_softmax(task.model.model(torch.tensor([start])).logits[0, -1].double(), -1)
    spelled = [task.model.tokenizer(name, add_special_tokens=False)["input_ids"] for name in ("neg", "pos")]
    expected = torch.log_softmax(torch.stack([logs[ids[0]] for ids in spelled]), 0)
    assert answers.contents[0][:2] == pytest.approx(expected.tolist(), abs=1e-4), "the first tokens of their names"
    assert task.sent(Prompt(chats[0]), None)["words"] == {"neg": "neg", "pos": "pos"}
    settings = {"policy": {"model": str(model), "k": None, "constraints": {"dictionary": False}},
                "race": {"max_perplexity": None, "early_stop": False}}  # fmt: skip
    given = {"train": str(folder / "train.csv"), "words": WORDS, "model": str(model), "shots": 8, "embeddings": None}
    result = tune({**given, "instruction": "Is it good?"}, calls=400, settings=settings, out=tmp_path / "run")
    tried = (result.folder / "prompts.csv").read_text("utf-8")
    assert "[system] Is it good?" in tried
    assert "[system] Classify" in tried
    banned = {"constraints": {"dictionary": False, "banned": ["classify"]}, "model": str(model), "k": None}
    result = tune({**given, "instruction": "Is it good?"}, calls=400, out=tmp_path / "banned",
                  settings={**settings, "policy": banned})  # fmt: skip
    assert "Classify" not in (result.folder / "prompts.csv").read_text("utf-8")


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_a_row_is_asked_without_its_own_example(folder: Path, model: str) -> None:
    """A model that sees a row with its label in the prompt only has to repeat it."""
    task = build(folder, model, shots=8, examples=4)
    best = [PROMPT, Prompt("the answer is")]
    opened = build(folder, model, shots=8).before_text(best, 3)
    made = task.before_text(best, 3)[: -len(opened)]
    shown = [(prompt.text.count("It was"), prompt.text.count("the answer is")) for prompt in made]
    one_each, two_each = [(3, 0), (0, 3)], [(5, 0), (0, 5)]
    assert shown == (one_each + two_each if model == "llama" else one_each), "roberta's window is too small for four"
    prompt = made[0]
    end = " It was" if model == "llama" else " It was <mask> ."
    tail = f"{{text}}{end.replace('<mask>', '{mask}')}"
    inside = [row for row, one in enumerate(task.rows) if one.split == "train" and one.input in prompt.text]
    assert len(inside) == 2
    answers = asked(task, prompt)
    for row in (*inside, next(row for row in range(len(task.rows)) if row not in inside)):
        # What the model reads, written by hand: the other examples in their order, then the row's text.
        others = [one for one in inside if one != row]
        others.sort(key=lambda one: prompt.text.index(task.rows[one].input))
        words = {one: list(WORDS.values())[int(task.rows[one].target)] for one in others}
        stop = "." if model == "llama" else " ."
        before = "".join(f"{task.rows[one].input} It was {words[one]}{stop} " for one in others)
        frame, _ = task.framed(before + tail)
        inputs = task.model.prepare([task.rows[row].input])
        [expected] = task.model.log_probs([frame], inputs, task.model.words_for(frame))
        assert answers.on([row])[0] == pytest.approx(expected[0].numpy(), abs=1e-4)


@pytest.mark.parametrize("model", ["llama", "roberta"])
def test_the_best_prompts_race_with_a_sentence_before_the_text(folder: Path, model: str) -> None:
    task = build(folder, model, shots=8)
    end = " It was" if model == "llama" else " It was {mask} ."
    made = task.before_text([PROMPT, Prompt("A whole one: {text} it is")], 0)
    assert f"I read this: {{text}}{end}" in [prompt.text for prompt in made]
    assert all(prompt.text.endswith(f"{{text}}{end}") for prompt in made)
    first = made[0]
    inside = task.model.prepare([task.rows[0].input])
    frame, _ = task.framed(first.text)
    [expected] = task.model.log_probs([frame], inside, task.model.words_for(frame))
    assert asked(task, first).on([0])[0] == pytest.approx(expected[0].numpy(), abs=1e-4)


def test_prompts_with_examples_are_in_the_race(folder: Path, tmp_path: Path) -> None:
    given = {"train": str(folder / "train.csv"), "words": WORDS, "model": str(folder / "llama"), "shots": 8,
             "embeddings": None, "examples": 4}  # fmt: skip
    settings = {"policy": {"model": str(folder / "llama"), "k": None, "constraints": {"dictionary": False}},
                "race": {"max_perplexity": None, "early_stop": False}}  # fmt: skip
    tried = []
    for number, policy in enumerate(({}, {"banned": ["film", "story", "task"]})):
        own = {**settings, "policy": {**settings["policy"], "constraints": {"dictionary": False, **policy}}}
        result = tune(given, calls=600, settings=own, out=tmp_path / str(number))
        with (result.folder / "prompts.csv").open(encoding="utf-8", newline="") as file:
            texts = [row["prompt"] for row in csv.DictReader(file)]
        tried.append([text for text in texts if text.endswith(text.rpartition("{text}")[2]) and "{text}" in text])
    shown = [[text for text in texts if any(one in text for one in GOOD + BAD)] for texts in tried]
    assert shown[0]
    assert not [text for text in shown[1] if any(word in text.split() for word in ("film", "story", "task"))]
