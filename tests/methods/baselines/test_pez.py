"""PEZ: its projection against a full search, Algorithm 1 by hand, and planted answers for LMs and CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baseline_toys import MAGIC, SEEDS, WordTask, assert_resumes, planted, run, worth_of
from PIL import Image

from pinprompt.errors import ModelError, SettingError
from pinprompt.methods import gradients
from pinprompt.methods.baselines.pez import pez
from pinprompt.methods.gradients import TokenSpace
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.recipe.sections import Constraints, PezSettings, PolicySettings
from pinprompt.recipe.task_sections import InversionSettings
from pinprompt.tasks.protocol import Draft, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Prompt, Row

CLIP = {"optimiser": "adamw", "learning_rate": 0.1}


def method(constraints: dict[str, Any] | None = None, length: int = 2, **settings: Any) -> Any:
    policy = PolicySettings(length=length, constraints=Constraints(**(constraints or {})))

    def search(search: Search) -> Outcome:
        return pez(replace(search, policy=policy), PezSettings(**settings))

    return search


class Landscape:
    """A differentiable task in the plane: five words, and a loss that is the distance to a target."""

    info = TaskInfo("plane", "plane")
    rows = (Row("train", 0),)

    def __init__(self, words: dict[str, list[float]], target: list[float]) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", "a", *words])}, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
        self.embeddings = torch.tensor([[9.0, -9.0], [-9.0, -9.0], *words.values()])
        self.words, self.target = words, torch.tensor(target)
        self.points: list[torch.Tensor] = []

    def differentiable(self) -> Landscape:
        return self

    def loss(self, vectors: torch.Tensor, rows: Any) -> torch.Tensor:
        self.points.append(vectors.detach().clone())
        return (vectors - self.target).square().sum()

    def answers(self, vectors: torch.Tensor, rows: Sequence[int]) -> Answers:
        return Answers(tuple(rows), np.full(len(rows), -float((vectors - self.target).square().sum())))

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        ids = [self.tokenizer(prompt.text)["input_ids"] for prompt in prompts]
        return [self.answers(self.embeddings[own], rows) for own in ids]

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return answers.on(rows)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        return Evaluation("train", {"score": float(answers.on(rows).mean())}, len(rows))

    def context(self) -> str:
        return ""

    def drafts(self) -> list[Draft]:
        return []


def test_the_projection_is_the_full_search() -> None:
    view = planted("masked").differentiable()
    space = TokenSpace(view, 6, Constraints())
    vectors = torch.randn(6, 32, generator=torch.Generator().manual_seed(3))
    special = set(view.tokenizer.all_special_ids)
    for vector, token in zip(vectors, space.project(vectors), strict=True):
        cosines = {
            other: float(vector.double() @ row.double() / vector.double().norm() / row.double().norm())
            for other, row in enumerate(view.embeddings)
            if other not in special
        }
        assert token == max(cosines, key=lambda other: cosines[other])


def test_a_word_projects_on_itself_whatever_its_length() -> None:
    view = planted("masked").differentiable()
    space = TokenSpace(view, 3, Constraints())
    ids = tuple(view.tokenizer.convert_tokens_to_ids(["river", "verdict", "so"]))
    assert space.project(17.0 * space.vectors(ids)) == ids


def test_the_projection_keeps_constraints_from_left_to_right() -> None:
    view = planted("masked").differentiable()
    river, the = view.tokenizer.convert_tokens_to_ids(["river", "the"])
    wanted = view.embeddings[torch.tensor([river, river, river])]
    free = TokenSpace(view, 3, Constraints()).project(wanted)
    assert free == (river, river, river)
    apart = TokenSpace(view, 3, Constraints(no_repeats="tokens")).project(wanted)
    assert apart[0] == river
    assert len(set(apart)) == 3
    required = TokenSpace(view, 3, Constraints(required=("the",), banned=("river",))).project(wanted)
    assert the in required
    assert river not in required


def test_algorithm_1_by_hand(tmp_path: Path) -> None:
    # One vector from the word east, (1, 0); target north, (0, 1); plain numbers for AdamW's first step: rate x sign.
    words = {"east": [1.0, 0.0], "north": [0.0, 1.0]}
    task = Landscape(words, [0.0, 1.0])
    steps = 6
    settings = {**CLIP, "length": 1, "steps": steps, "eval_every": 1, "learning_rate": 0.2}
    seed = next(
        seed for seed in range(20)
        if TokenSpace(task, 1, Constraints()).text(_first(task, seed)) == "east"
    )  # fmt: skip
    outcome, _, _ = run(method(**settings), task, tmp_path / "run", seed=seed)
    # At east the gradient is 2 (1, -1): the continuous point moves by about 0.2 a step to (0.8, 0.2), (0.6, 0.4),
    # (0.4, 0.6), where north is nearer. The gradient was taken at the words all the while.
    seen = [point.tolist()[0] for point in task.points]
    assert seen == [[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3
    assert outcome.candidates[0].prompt.text == "north"
    assert outcome.candidates[0].score == 0.0


def _first(task: Landscape, seed: int) -> tuple[int, ...]:
    from pinprompt.values import derive

    return TokenSpace(task, 1, Constraints()).draw(torch.Generator().manual_seed(derive(seed, "pez")))


@pytest.mark.learning
@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_it_finds_the_word_that_the_model_wants(tmp_path: Path, kind: str) -> None:
    found = 0
    for seed in SEEDS:
        task = planted(kind, seed=seed)
        outcome, events, search = run(method(steps=150, eval_every=10), task, tmp_path / str(seed), seed=seed)
        best = outcome.candidates[0]
        found += best.prompt.text.split()[-1] == MAGIC and best.score > 100
        assert best.prompt.ids == ()  # they would be another tokenizer's than the writer's
        assert worth_of(task, best.prompt) == pytest.approx(best.score)
        assert events[-1].data["best_prompt"] in {candidate.prompt.text for candidate in outcome.candidates}
        assert search.evaluator.charged_calls == 150 * 16 * 3 + len(search.evaluator.prompts_table()) * 32
    assert found >= 2


@pytest.mark.learning
def test_clip_words_come_nearer_to_the_picture(tmp_path: Path) -> None:
    from pinprompt.tasks.inversion import InversionTask

    Image.new("RGB", (48, 48), "red").save(tmp_path / "red.png")
    task = InversionTask.build(InversionSettings(images=(str(tmp_path / "red.png"),), model="emoji-clip"))
    outcome, events, search = run(method(**CLIP, steps=40, eval_every=5, length=4), task, tmp_path / "run")
    assert outcome.candidates[0].score > events[0].data["score_mean"] + 0.05
    assert worth_of(task, outcome.candidates[0].prompt) == pytest.approx(outcome.candidates[0].score)
    assert search.evaluator.charged_calls == 40 * 3 + len(search.evaluator.prompts_table())


def test_constraints_hold_for_every_prompt(tmp_path: Path) -> None:
    task = planted("causal")
    rules = {"banned": [MAGIC, "so"], "no_repeats": "tokens"}
    _, _, search = run(method(rules, steps=40, eval_every=1), task, tmp_path / "run")
    texts = [row["prompt"].split() for row in search.evaluator.prompts_table()]
    assert len(texts) > 3
    for words in texts:
        assert len(words) == len(set(words)) == 2
        assert not {MAGIC, "so"} & set(words)


@pytest.mark.parametrize("optimiser", ["adafactor", "adamw"])
@pytest.mark.parametrize("die_at", [1, 4])
def test_it_resumes(tmp_path: Path, optimiser: str, die_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BATCH", 6)
    asked = method(steps=17, eval_every=3, optimiser=optimiser)
    assert_resumes(asked, lambda: planted("causal"), tmp_path, die_at)


def test_the_budget_is_kept_and_the_least_loss_is_scored_from_what_was_set_aside(tmp_path: Path) -> None:
    outcome, events, search = run(method(steps=500, eval_every=100), planted("causal"), tmp_path / "run", calls=400)
    assert outcome.stopped == "budget"
    assert search.evaluator.charged_calls <= 400
    assert len(events) == 2
    assert len(outcome.candidates) == 2
    assert outcome.steps == (400 - 64 - 32) // 48


def test_nan_keeps_the_best_so_far(tmp_path: Path) -> None:
    class Breaking(Landscape):
        def loss(self, vectors: torch.Tensor, rows: Any) -> torch.Tensor:
            value = super().loss(vectors, rows)
            return value if len(self.points) < 4 else value * float("nan")

    task = Breaking({"east": [1.0, 0.0], "north": [0.0, 1.0]}, [0.0, 1.0])
    outcome, events, _ = run(method(**CLIP, length=1, steps=9, eval_every=1), task, tmp_path / "run")
    assert outcome.stopped == "diverged"
    assert outcome.steps == 3
    assert "pez.learning_rate" in outcome.extras["problem"]
    assert outcome.candidates
    assert events[-1].kind == "problem"
    task.points += [torch.zeros(1)] * 9
    with pytest.raises(SettingError, match="not a finite number at step 0"):
        run(method(**CLIP, length=1, steps=9), task, tmp_path / "at once")


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="60 prompt vectors leave no room"):
        run(method(length=60, steps=1), planted("causal"), tmp_path / "long")
    with pytest.raises(SettingError, match="loosen"):
        run(method({"max_chars": 1}), planted("causal"), tmp_path / "none")
    view = planted("causal").differentiable()
    with pytest.raises(SettingError, match="no token of the task model meets the constraints"):
        TokenSpace(view, 2, Constraints(), without=list(view.tokenizer.get_vocab()))
    with pytest.raises(ModelError, match="'pez' needs gradients"):
        run(method(steps=1), WordTask(len), tmp_path / "black")
