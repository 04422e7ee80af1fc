"""The style-transfer task on small models: its contract, its numbers, and input that is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from style_toys import VOCABULARY, causal_lm, encoder, save

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.errors import DataError, RunError, SettingError
from pinprompt.models.generator import Generated
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.recipe.task_sections import RemoteSettings, StyleTransferSettings
from pinprompt.tasks.protocol import Task, calls, check_task, hand_written, split_rows, splits
from pinprompt.tasks.rewriting import Rewriter, kept_rewriter
from pinprompt.tasks.style_data import style_data
from pinprompt.tasks.style_transfer import StyleTransferTask
from pinprompt.values import Answers, Draw, Evaluation, Prompt

LINES = [
    f"{who} {how} {word} {what} {last}"
    for who in ("we", "they", "it")
    for how in ("was", "is")
    for word in ("bad", "awful", "hate")
    for what in ("food", "place")
    for last in (".", "!", "a .")
]
OTHER = [line.replace("bad", "good").replace("awful", "nice").replace("hate", "love") for line in LINES]
PROMPTS = [Prompt("very nice"), Prompt("love the food"), Prompt("good")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and a source and a target file."""
    folder = tmp_path_factory.mktemp("style")
    save(folder / "lm", causal_lm(places=96))
    save(folder / "bert", encoder(), wrap=True)
    save(folder / "judge", encoder(["negative", "positive"], seed=2), wrap=True)
    (folder / "negative.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (folder / "positive.txt").write_text("\n".join(OTHER) + "\n", encoding="utf-8")
    return folder


def settings(home: Path, **changes: Any) -> StyleTransferSettings:
    given: dict[str, Any] = {
        "source": str(home / "negative.txt"), "target": str(home / "positive.txt"), "model": str(home / "lm"),
        "encoder": str(home / "bert"), "samples": 3, "bootstraps": 2, "sources": 2, "dev_sources": 3,
        "test_sources": 5, "test_samples": 4, "baseline": 0.0, "force_judge": True,
    }  # fmt: skip
    return StyleTransferSettings(**(given | changes))


@pytest.fixture(scope="module")
def task(home: Path) -> StyleTransferTask:
    return StyleTransferTask.build(settings(home))


def asked(
    task: StyleTransferTask, prompts: list[Prompt], seeds: list[int], split: str = "train", report: bool = False
) -> list[Answers]:
    return task.ask(prompts, split_rows(task, split), [Draw(seed, report) for seed in seeds])


def contents(answers: list[Answers]) -> list[Any]:
    return [one.contents for one in answers]


def evaluated(task: StyleTransferTask, split: str = "test", seed: int = 0) -> Evaluation:
    [answers] = asked(task, PROMPTS[:1], [seed], split, report=True)
    return task.metrics(answers, split_rows(task, split), seed=seed)


def texts(task: StyleTransferTask, split: str = "test") -> list[str]:
    return [task.rows[row].input for row in split_rows(task, split)]


def test_it_is_a_task(task: StyleTransferTask) -> None:
    assert isinstance(task, Task)
    assert task.info.stochastic
    assert splits(task) == ("train", "dev", "test")
    rows = [split_rows(task, split) for split in splits(task)]
    assert [calls(task, own) for own in rows] == [2 * 3 * 2, 3 * 3 * 2, 5 * 4]
    assert calls(task, rows[1], report=True) == 3 * 4, "a report of dev has as many outputs as one of test"


def test_a_value_is_the_best_of_each_group_of_outputs(task: StyleTransferTask) -> None:
    rows = split_rows(task, "train")
    for answers in asked(task, PROMPTS, [5, 6, 7]):
        values = task.values(answers, rows)
        assert values.shape == (2, 2), "two sources, two groups"
        for row, groups in zip(values, answers.contents, strict=True):
            assert row == pytest.approx([score for score, _, _ in groups])
            # content and style of the outputs that counted have the score as their mean
            assert row == pytest.approx([(content + style) / 2 for _, content, style in groups])
        assert 0 < values.mean() < 100


def test_a_value_can_be_worked_out_from_the_outputs(task: StyleTransferTask) -> None:
    from pinprompt.models.generator import Request
    from pinprompt.values import derive

    [answers] = asked(task, PROMPTS[:1], [5])
    source = texts(task, "train")[1]
    made = task.generator.sample([Request("very nice", source, 6, derive(5, "train", 1))])[0].texts
    values = []
    for text in made:
        content, style = task._judges.content([source], [text])[0], task._judges.style([text])[0]
        values.append(100 * (content + style) / 2 if text else 0.0)
    found = task.values(answers, split_rows(task, "train"))[1]
    assert found == pytest.approx([max(values[:3]), max(values[3:])])


def test_each_step_of_q_learning_has_its_own_sources_and_each_prompt_one_of_them(task: StyleTransferTask) -> None:
    def sources(step: int) -> list[str]:
        rows = [task.rows_of_step(step, place) for place in range(4)]
        assert [calls(task, own) for own in rows] == [6] * 4, "one source, two groups of three outputs"
        return [task.rows[row].input for (row,) in rows]

    drawn = {step: sources(step) for step in range(6)}
    for own in drawn.values():
        assert len(set(own)) == 2, "two sources a step"
        assert own[:2] == own[2:], "in turn, so that prompts of one source can be compared"
    assert len({tuple(own) for own in drawn.values()}) > 1, "other steps have other sources"
    assert sources(3) == drawn[3], "whoever asks, whenever"
    assert {text for own in drawn.values() for text in own} - set(texts(task, "train")), "from more than train"
    assert len(split_rows(task, "train")) == 2
    held_out = {*texts(task, "dev"), *texts(task, "test")}
    assert held_out.isdisjoint(text for own in drawn.values() for text in own)


def test_what_a_step_draws_is_charged_by_the_row(task: StyleTransferTask) -> None:
    evaluator = Evaluator(task, Budget(BudgetSettings(calls=100)))
    rows = [task.rows_of_step(4, place) for place in range(4)]
    scores = evaluator.score_each([Prompt("very nice")] * 4, rows)
    assert [score.rows for score in scores] == rows
    assert evaluator.charged_calls == 4 * 6


def test_fixed_sources_are_the_same_for_every_step(home: Path) -> None:
    fixed = StyleTransferTask.build(settings(home, draw="fixed"))
    assert {fixed.rows_of_step(step, 0) for step in range(3)} == {()}
    assert {row.split for row in fixed.rows} == {"train", "dev", "test"}


def test_an_answer_depends_on_prompt_row_and_seed_alone(home: Path, task: StyleTransferTask) -> None:
    together = contents(asked(task, PROMPTS, [5, 6, 7]))
    alone = [contents(asked(task, [prompt], [seed]))[0] for prompt, seed in zip(PROMPTS, [5, 6, 7], strict=True)]
    again = contents(asked(StyleTransferTask.build(settings(home)), PROMPTS[::-1], [7, 6, 5]))[::-1]
    assert together == alone == again
    assert contents(asked(task, PROMPTS[:1], [8]))[0] != together[0]
    row = split_rows(task, "train")[1]
    [single] = task.ask(PROMPTS[:1], (row,), [Draw(5)])
    assert single.contents == together[0][1:], "a row gets the draws that it gets among others"


def test_prompts_of_a_block_have_the_same_draws(home: Path) -> None:
    task = StyleTransferTask.build(settings(home, draw="fixed", samples=24))
    evaluator = Evaluator(task, Budget(BudgetSettings()), seed=3)

    def values(prompts: list[Prompt], name: str) -> list[Any]:
        return [score.values.tolist() for score in evaluator.score(prompts, "train", name=name)]

    together = values([*PROMPTS, *PROMPTS], "train-1-2")
    assert together[:3] == together[3:]
    assert values(PROMPTS[::-1], "train-1-2")[::-1] == together[:3], "in another request too"
    assert len({str(one) for one in together}) > 1
    apart = values([*PROMPTS, *PROMPTS], "")
    assert apart[:3] != apart[3:], "the sampling of a search that learns is its own each time"


def test_a_copy_is_worth_nothing_where_a_gain_is_asked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for reward in ("mean", "gain"):
        task = StyleTransferTask.build(settings(home, reward=reward))
        copies = [Generated((text, text.upper())) for text in texts(task)]
        monkeypatch.setattr(task.generator, "sample", lambda requests, copies=copies: copies)
        evaluation = evaluated(task)
        assert evaluation.metrics["copies"] == 100
        assert evaluation.metrics["content"] > 60
        if reward == "gain":
            assert evaluation.metrics["score"] == 0, "in whatever case it is written"
        else:
            assert evaluation.metrics["score"] > 30, "half of the published reward is content"


def test_of_outputs_that_gain_nothing_a_changed_one_is_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = StyleTransferTask.build(settings(home, reward="gain"))
    made = [Generated((text, "", text + " a")) for text in texts(task)]
    monkeypatch.setattr(task.generator, "sample", lambda requests: made)
    monkeypatch.setattr(task._judges.style, "_judge", lambda texts: [0.5] * len(texts))
    assert evaluated(task).metrics["copies"] == 0


def test_the_report_has_every_metric_and_says_who_judged(task: StyleTransferTask) -> None:
    evaluation = evaluated(task, seed=1)
    assert set(evaluation.metrics) == {"content", "style", "fluency", "j", "gm", "score", "perplexity", "copies"}
    assert evaluation.rows == 5
    rows = evaluation.tables["rewrites"]
    assert [row["source"] for row in rows] == texts(task)
    assert evaluation.metrics["content"] == pytest.approx(sum(row["content"] for row in rows) / 5)
    # A rewrite has the style or not; the table shows how likely the judge finds it.
    each = [row["content"] * (row["style"] > 50) * row["fluency"] / 100 for row in rows]
    assert evaluation.metrics["j"] == pytest.approx(sum(each) / 5)
    assert evaluation.outcomes["j"] == pytest.approx(each)
    judges = task.judges()
    assert judges["style (search)"] != judges["style (report)"]
    assert "held-out accuracy" in judges["style (search)"]
    assert evaluated(task, seed=1) == evaluation


def test_references_bring_bleu_and_bertscore(home: Path) -> None:
    pytest.importorskip("sacrebleu")
    (home / "test.txt").write_text("we was bad food .\nthey hate it .\n", encoding="utf-8")
    (home / "ref.txt").write_text("we was good food .\nthey love it .\n", encoding="utf-8")
    files = {"test": str(home / "test.txt"), "references": str(home / "ref.txt"), "test_sources": None}
    task = StyleTransferTask.build(settings(home, **files))
    assert {"bleu", "bertscore"} <= set(evaluated(task).metrics)
    assert {"bleu", "bertscore"}.isdisjoint(evaluated(task, "dev").metrics)
    with pytest.raises(SettingError, match="2 references, no test file"):
        style_data(settings(home, references=str(home / "ref.txt")))


def test_the_parts_are_disjoint_and_the_judges_have_halves(home: Path) -> None:
    data = style_data(settings(home, draw="fixed"))
    (first, wanted), (second, other) = data.halves
    parts = [set(texts) for texts in data.sources.values()]
    for one in (*parts, set(second)):
        assert one.isdisjoint(first)
    assert sum(map(len, parts)) == 2 + 3 + 5
    assert set(wanted).isdisjoint(other)
    assert len(first) + len(second) == len(LINES) - 10
    assert style_data(settings(home, draw="fixed")).fingerprint == data.fingerprint
    assert style_data(settings(home, draw="fixed", split=14)).fingerprint != data.fingerprint
    # To draw from, a fifth of the texts; the judges still see none of them.
    wide = style_data(settings(home))
    assert len(wide.sources["train"]) == len(LINES) // 5
    assert set(wide.sources["train"]).isdisjoint([*wide.halves[0][0], *wide.halves[1][0], *wide.sources["dev"]])


def test_rewrites_come_best_first_and_distinct(task: StyleTransferTask) -> None:
    found = task.rewrite("very nice", 'they "hate" the food', n=3, seed=2)
    assert 1 <= len(found) <= 3
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert len({one.text for one in found}) == len(found)
    assert all('"' not in one.text for one in found)
    assert found[0].score == pytest.approx((found[0].content + found[0].style) / 2)
    # The same judges as in the table of the report.
    content, style = task._judges.content, task._judges.test_style
    for one in found:
        assert one.content == pytest.approx(100 * content(['they "hate" the food'], [one.text])[0])
        assert one.style == pytest.approx(100 * style([one.text])[0])
    with pytest.raises(SettingError, match="empty"):
        task.rewrite("very nice", "  ")
    with pytest.raises(DataError, match="window of 96"):
        task.rewrite("very nice", "very " * 80)


def test_a_rewrite_that_changes_nothing_comes_last() -> None:
    class Writes:
        def sample(self, requests: list[Any]) -> list[Generated]:
            return [Generated(["We like  it", "we love it", "", "we love it", "it"]) for _ in requests]

    def content(sources: Any, texts: Any) -> list[float]:
        return [1.0 if "it" in text and len(text) > 2 else 0.1 for text in texts]

    def style(texts: Any) -> list[float]:
        return [{"We like  it": 0.9, "we love it": 0.8, "it": 0.1}[text] for text in texts]

    made: Any = Rewriter(Writes(), content, style, 5)  # type: ignore[arg-type]
    assert [one.text for one in made.rewrite("p", "we like it", n=5)] == ["we love it", "it", "We like  it"]


def test_rewriting_needs_the_kept_judges_and_no_text(home: Path, task: StyleTransferTask) -> None:
    kept = json.loads(json.dumps(task.kept_judges()))
    without = settings(home, source="/gone.txt", target="/gone.txt")
    again = kept_rewriter(without, kept, "cpu", RemoteSettings())
    text = "they hate the food"
    assert again.rewrite("very nice", text, n=3, seed=2) == task.rewrite("very nice", text, n=3, seed=2)
    for broken in ({}, {"baseline": 2}, kept | {"style": None}, kept | {"style": kept["style"] | {"weights": [1.0]}}):
        with pytest.raises(RunError, match=r"judges\.json"):
            kept_rewriter(without, broken, "cpu", RemoteSettings())


def test_context_and_drafts(home: Path, task: StyleTransferTask) -> None:
    context = task.context()
    assert context.count('"') == 8
    listed, by_hand = context.split("\n")[1:], hand_written(task)
    assert listed == [f"1. {by_hand['default']}", f"2. {by_hand['instructions']}", "3."]
    drafts = [draft.text for draft in task.drafts()]
    assert len(drafts) > len(by_hand)
    assert all("negative" in text or "positive" in text for text in map(str.lower, drafts))
    assert {text.count("{text}") for text in drafts} == {0, 1}
    assert not any("{" in text.replace("{text}", "") for text in drafts)
    assert by_hand == {
        "default": "Change the following sentence from negative to positive.",
        "instructions": "You are given a sentence that is negative. "
        "Write it anew to be positive, and keep what it says.",
    }
    named = StyleTransferTask.build(settings(home, manual="Hello:"))
    assert hand_written(named)["manual"] == "Hello:"
    assert named.info.fingerprint != task.info.fingerprint


def test_a_model_with_a_chat_template_is_also_asked_in_its_chat_format(home: Path, tmp_path: Path) -> None:
    """The answer begins with the quote that a rewrite ends with."""
    model = shutil.copytree(home / "lm", tmp_path / "chat")
    template = "{% for one in messages %}[{{ one['role'] }}] {{ one['content'] }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]\n{% endif %}"
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    task = StyleTransferTask.build(settings(home, model=str(model)))
    chats = [draft.text for draft in task.drafts() if draft.name == "chat"]
    asked_for = "Rewrite the negative sentence so that it is positive, and keep its meaning. "
    asked_for += "Reply with the new sentence only."
    assert chats == [
        f"[system] {asked_for}\n[user] {{text}}\n[assistant]\n", f"[user] {asked_for}\n\n{{text}}\n[assistant]\n"
    ]  # fmt: skip
    assert task.generator.fill(chats[0], "so bad") == f'[system] {asked_for}\n[user] "so bad"\n[assistant]\n"'
    assert not set(chats) & set(hand_written(task).values())
    assert "[user]" not in task.context()


def test_judges_can_be_named(home: Path) -> None:
    judge = str(home / "judge")
    given = {"style": judge, "test_style": judge, "fluency": judge, "content": "alignment"}
    task = StyleTransferTask.build(settings(home, **given))
    judges = task.judges()
    assert judges["content"].startswith("alignment(")
    assert judges["style (search)"].endswith(": positive")
    assert judges["fluency"].startswith("acceptability(")
    text = "they love it ."
    assert task._judges.style([text])[0] + task._judges.test_style([text])[0] <= 2
    opposite = StyleTransferTask.build(settings(home, **{**given, "style": f"{judge}#negative"}))
    assert opposite._judges.style([text])[0] == pytest.approx(1 - task._judges.style([text])[0])


def test_a_catalogue_folder_is_read_in_both_directions(home: Path, tmp_path: Path) -> None:
    for style, lines in (("negative", LINES), ("positive", OTHER)):
        (tmp_path / f"dev.{style}.txt").write_text("\n".join(lines), encoding="utf-8")
        (tmp_path / f"test.{style}.txt").write_text("\n".join(lines[:3]), encoding="utf-8")
        (tmp_path / f"ref.{style}.txt").write_text("\n".join(lines[3:6]), encoding="utf-8")
    given = {"source": None, "target": None, "dataset": "yelp", "data": str(tmp_path), "test_sources": 2}
    there, back = (style_data(settings(home, **given, direction=d)) for d in (None, "positive-to-negative"))
    assert (there.styles, there.label) == (("negative", "positive"), "1")
    assert (back.styles, back.label) == (("positive", "negative"), "0")
    assert there.lower
    for data, lines in ((there, LINES), (back, OTHER)):
        assert len(data.sources["test"]) == 2
        pairs = dict(zip(lines[:3], lines[3:6], strict=True))
        assert data.references == tuple(pairs[text] for text in data.sources["test"])
        assert set(data.sources["test"]).isdisjoint([*data.sources["train"], *data.halves[0][0], *data.halves[1][0]])
    with pytest.raises(SettingError, match="no direction"):
        style_data(settings(home, **given, direction="up"))


def test_empty_lines_are_skipped(home: Path, tmp_path: Path) -> None:
    (tmp_path / "gaps.txt").write_text("\n\n".join(LINES) + "\n\n", encoding="utf-8")
    with_gaps = style_data(settings(home, source=str(tmp_path / "gaps.txt")))
    assert with_gaps.fingerprint == style_data(settings(home)).fingerprint


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["we hate it ."], r"there are 1 different source texts; 50 of each style are enough"),
        (["we hate it ."] * 9, r"there are 1 different source texts"),
        (LINES[:8], r"there are 8 different texts in the source style and \d+ in the target style, too few to train"),
    ],
)
def test_a_short_file_is_refused_with_what_is_needed(
    home: Path, tmp_path: Path, lines: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a model is loaded or downloaded."""
    monkeypatch.setattr("pinprompt.tasks.style_transfer.load_causal_lm", None)
    (tmp_path / "few.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        StyleTransferTask.build(settings(home, source=str(tmp_path / "few.txt")))


def test_identical_files_are_refused_before_a_model_is_loaded(home: Path) -> None:
    same = {"target": str(home / "negative.txt")}
    with pytest.raises(DataError, match=r"source texts are also target texts.*--force-judge"):
        style_data(settings(home, **same, force_judge=False))
    assert style_data(settings(home, **same)).halves[0][0]


def test_texts_must_be_named(home: Path) -> None:
    with pytest.raises(SettingError, match="needs texts"):
        style_data(settings(home, source=None))
    with pytest.raises(SettingError, match="not both"):
        style_data(settings(home, dataset="yelp"))


def test_texts_beyond_the_window_are_left_out_of_the_search_and_recorded_in_the_report(
    home: Path, tmp_path: Path
) -> None:
    long = " ".join(["very"] * 70)
    (tmp_path / "test.txt").write_text(f"we hate it .\n{long}\n", encoding="utf-8")
    task = StyleTransferTask.build(settings(home, test=str(tmp_path / "test.txt"), test_sources=None))
    evaluation = evaluated(task)
    assert evaluation.rows == 2
    assert len(evaluation.tables["failures"]) == 1
    assert "does not fit" in evaluation.tables["failures"][0]
    assert evaluation.tables["rewrites"][1]["rewrite"] == ""
    (tmp_path / "long.txt").write_text("\n".join(f"{long} {line}" for line in LINES), encoding="utf-8")
    with pytest.raises(DataError, match=r"none of the \d+ train texts fits"):
        StyleTransferTask.build(settings(home, source=str(tmp_path / "long.txt")))


def test_outputs_that_are_always_empty_are_worth_nothing_and_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = StyleTransferTask.build(settings(home))
    plain = task.generator.model.forward

    def silent(*args: Any, **kwargs: Any) -> Any:
        answer = plain(*args, **kwargs)
        answer.logits = answer.logits.clone()
        answer.logits[..., VOCABULARY.index('"')] += 1e4
        return answer

    monkeypatch.setattr(task.generator.model, "forward", silent)  # tasks share loaded models
    [answers] = asked(task, PROMPTS[:1], [1])
    assert task.values(answers, split_rows(task, "train")).mean() == 0
    assert [failure.split(": ")[1] for failure in answers.failures.values()] == ["every output is empty"] * 2
    evaluation = evaluated(task)
    assert evaluation.metrics["j"] == evaluation.metrics["gm"] == evaluation.metrics["content"] == 0
    assert "perplexity" not in evaluation.metrics
    with pytest.raises(DataError, match="every output is empty"):
        task.rewrite("very nice", "we hate it")


def test_it_keeps_the_contract(task: StyleTransferTask) -> None:
    check_task(task, [prompt.text for prompt in PROMPTS])
