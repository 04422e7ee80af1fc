"""The race: its plan by hand, what it finds and spends, and that a killed one goes on as if nothing had happened."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from baseline_toys import Killed, opened, planted, writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.errors import SettingError
from pinprompt.methods import race as race_module
from pinprompt.methods.protocol import Outcome, Search
from pinprompt.methods.race import Runner, cut, plan, prune, race, race_cost
from pinprompt.methods.selection import chances_of_best
from pinprompt.policy.backbone import Backbone
from pinprompt.recipe.sections import RaceSettings
from pinprompt.tasks.protocol import Task
from pinprompt.values import Evaluation, Prompt, Score

SETTINGS = RaceSettings(written=60, max_perplexity=None, heads=("w3",), openers=(), cores=("w4 w5",), words=2)
ROWS = {"a": 4, "b": 4, "c": 8}


class Noisy(Task):
    """A prompt is worth its number of good words; each row sees that through noise of its own."""

    name, fingerprint, primary, stochastic = "noisy", "noisy-1", "score", False
    splits: tuple[str, ...] = ("train", "dev")
    blocks = tuple(ROWS)

    def __init__(self, hand: dict[str, str] | None = None, noise: float = 0.3) -> None:
        self.hand, self.noise = hand or {}, noise
        self.asked: list[tuple[str, str]] = []

    def worth(self, text: str) -> float:
        return float(sum(word in ("w7", "w8", "w9", "w10", "w11", "best") for word in text.split()))

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int] = (), split: str = "train") -> list[Score]:
        self.asked += [(prompt.text, split) for prompt in prompts]
        return [self._score(prompt.text, split) for prompt in prompts]

    def _score(self, text: str, split: str) -> Score:
        values = np.array([self.worth(text) + self.noise * self._luck(text, split, row) for row in range(ROWS[split])])
        return Score(float(values.mean()), ROWS[split], answers=values.astype("<f8").tobytes())

    def _luck(self, text: str, split: str, row: int) -> float:
        digest = hashlib.sha256(f"{text}/{split}/{row}".encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**31 - 1

    def pooled(self, scores: Sequence[Score]) -> list[float]:
        return [float(value) for score in scores for value in np.frombuffer(score.answers, "<f8")]

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        return Evaluation(split, {"score": self.worth(prompt.text)}, 1, 1)

    def calls(self, split: str = "train") -> int:
        return ROWS.get(split, 8)

    def context(self) -> str:
        return ""

    def baselines(self) -> dict[str, str]:
        return self.hand


class Told(Noisy):
    """Takes ten tokens a row, and may take twice as many."""

    def tokens(self, prompt: Prompt, split: str = "train") -> tuple[int, int]:
        return 20 * self.calls(split), 0

    def _score(self, text: str, split: str) -> Score:
        return replace(super()._score(text, split), details={"tokens_in": 10.0 * ROWS[split], "tokens_out": 0.0})


def run(task: Any, folder: Path, settings: RaceSettings = SETTINGS, **more: Any) -> tuple[Outcome, Search]:
    made = writer(length=6)
    with opened(task, folder, **more) as (search, _):
        search.writer = lambda: made
        return race(search, settings), search


def test_the_plan_by_hand() -> None:
    # Ten prompts on 8 rows, then ceil(10/3) = 4 on 8 more, 4 on 16, 4 on 32: 80 + 32 + 64 + 128.
    settings = RaceSettings(prune=0)
    assert race_cost([8, 8, 16, 32], 10, 0, settings) == 304
    # Two hand-written prompts may go on beside the best four.
    assert race_cost([8, 8, 16, 32], 10, 2, settings) == 80 + 6 * 8 + 6 * 16 + 6 * 32
    assert race_cost([8, 8, 16, 32], 45, 0, settings) == 45 * 8 + 15 * 8 + 5 * 16 + 4 * 32
    assert plan([8, 8, 16, 32], 688, 0, settings) == (4, 45)
    # A prompt more takes 8 + 8 + 16 = 32 calls more: 46 enter, 16 and 6 go on.
    assert plan([8, 8, 16, 32], 719, 0, settings) == (4, 45)
    assert plan([8, 8, 16, 32], 720, 0, settings) == (4, 46)
    # Four prompts on all 64 rows take 256 calls, more than half of 511: the last block goes.
    assert plan([8, 8, 16, 32], 511, 0, settings)[0] == 3
    assert plan([8, 8, 16, 32], 512, 0, settings)[0] == 4
    assert plan([8, 8], None, 0, settings) == (2, settings.prompts)
    # A tenth of 765 calls, 76, is kept for pruning: 689 are left, and 721 of 801.
    assert plan([8, 8, 16, 32], 765, 0, RaceSettings(prune=0.1)) == (4, 45)
    assert plan([8, 8, 16, 32], 801, 0, RaceSettings(prune=0.1)) == (4, 46)
    with pytest.raises(SettingError, match="needs 32 calls for 4 prompts"):
        plan([8, 8], 31, 0, settings)


@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    costs=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    calls=st.integers(1, 4000),
    hand=st.integers(0, 4),
    keep=st.floats(0.05, 1.0),
    least=st.integers(1, 8),
    luck=st.binary(min_size=5, max_size=5),
)
def test_no_race_costs_more_than_its_calls(
    costs: list[int], calls: int, hand: int, keep: float, least: int, luck: bytes
) -> None:
    """Whatever blocks cost and whoever goes on, the rows that are asked fit into the calls; and no more would."""
    chosen = RaceSettings(keep=keep, least=least, prune=0)
    try:
        blocks, count = plan(costs, calls, hand, chosen)
    except SettingError:
        assert max(least, hand + 1) * costs[0] > calls
        return
    runners = [Runner(Prompt(f"hand {n}"), "manual") for n in range(hand)]
    runners += [Runner(Prompt(str(n)), "pool") for n in range(count - hand)]
    asked = 0
    for place, cost in enumerate(costs[:blocks]):
        asked += cost * len(runners)
        for number, runner in enumerate(runners):  # in some order, hand-written ones first or last as luck has it
            runner.values = np.array([float(number if luck[place] % 2 else -number)])
        runners = cut(runners, chosen)
    assert asked <= calls
    assert race_cost(costs[:blocks], count + 1, hand, chosen) > calls


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(calls=st.integers(1, 400), total=st.none() | st.integers(1, 400), tokens=st.none() | st.integers(1, 4000))
def test_no_race_goes_beyond_any_limit(
    calls: int, total: int | None, tokens: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Limits that cut a race in the middle leave an answer from the rows that were paid for; nothing is overspent."""
    task = Told({"manual": "w3 w4"})
    limits = {"calls": calls, "total_calls": total, "tokens": tokens}
    try:
        outcome, search = run(task, tmp_path_factory.mktemp("run"), **limits)
    except SettingError:
        return
    asked = [ROWS[split] for _, split in task.asked]
    assert search.evaluator.charged_calls == sum(asked) <= min(calls, total or calls)
    assert search.evaluator.budget.spent.tokens == 10 * sum(asked) <= (tokens or 10**9)
    assert len(task.asked) == len(set(task.asked))
    assert outcome.finalists
    assert {finalist.rows for finalist in outcome.finalists} == {outcome.finalists[0].rows}


def test_the_best_go_on_and_so_do_the_hand_written() -> None:
    runners = [Runner(Prompt(str(n)), "pool", values=np.array([float(n)])) for n in range(9)]
    runners.append(Runner(Prompt("mine"), "manual", values=np.array([-1.0])))
    kept = cut(runners, RaceSettings(least=2))
    assert [runner.prompt.text for runner in kept] == ["8", "7", "6", "5", "mine"]


@pytest.mark.learning
def test_it_finds_what_most_of_the_pool_is_not(tmp_path: Path) -> None:
    task = Noisy()
    found, average = [], []
    for seed in range(5):
        outcome, search = run(task, tmp_path / str(seed), seed=seed, calls=400)
        found.append(task.worth(outcome.candidates[0].prompt.text))
        average.append(np.mean([task.worth(row["prompt"]) for row in search.evaluator.prompts_table()]))
    assert np.mean(found) > np.mean(average) + 0.8


def test_no_row_is_asked_twice_and_the_budget_is_kept(tmp_path: Path) -> None:
    task = Noisy({"manual": "w3 w4"})
    outcome, search = run(task, tmp_path / "run", calls=300)
    assert len(task.asked) == len(set(task.asked))
    assert search.evaluator.charged_calls == sum(ROWS[split] for _, split in task.asked) <= 300
    assert search.evaluator.charged_calls > 250
    assert outcome.finalists is not None
    assert {finalist.rows for finalist in outcome.finalists} == {16}
    assert sum(finalist.chance or 0 for finalist in outcome.finalists) == pytest.approx(1)


def test_a_hand_written_prompt_that_is_best_wins(tmp_path: Path) -> None:
    outcome, _ = run(Noisy({"manual": "best best best best best best"}), tmp_path / "run", calls=300)
    assert outcome.candidates[0].source == "manual"


def test_a_killed_race_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    task = Noisy({"manual": "w3 w4"})
    whole, search = run(task, tmp_path / "whole", calls=300)
    for die_at in (1, 3, 6):
        torn = Noisy({"manual": "w3 w4"})
        with pytest.raises(Killed):
            run(torn, tmp_path / f"torn-{die_at}", calls=300, die_at=die_at)
        again, after = run(torn, tmp_path / f"torn-{die_at}", calls=300)
        assert again == whole
        assert len(torn.asked) == len(set(torn.asked)) == len(task.asked)
        assert after.evaluator.charged_calls == search.evaluator.charged_calls
        name = f"torn-{die_at}/events.jsonl"
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole/events.jsonl").read_bytes()


class Cluttered(Noisy):
    """A word that is not good spoils a prompt."""

    def worth(self, text: str) -> float:
        good = super().worth(text)
        return good - 0.8 * (len(text.split()) - good)


def test_needless_words_are_taken_out_where_that_pays(tmp_path: Path) -> None:
    task = Cluttered(noise=0.3)
    made = writer(length=6)
    with opened(task, tmp_path / "run", calls=400) as (search, _):
        long = Runner(made.prompt(made.vocabulary.tokens.encode(" w7 w3 w8 w3")), "pool")
        for block in ROWS:
            race_module._ask(search, [long], block)
        asked = len(task.asked)
        short = prune(search, made, None, tuple(ROWS), long)
        assert short.prompt.text.split() == ["w7", "w8"]
        assert short.source == "pruned"
        # No word of what is left may go: each is worth something.
        assert prune(search, made, None, tuple(ROWS), short) is short
        assert len(task.asked) > asked
        assert len(task.asked) == len(set(task.asked))


def test_pruning_needs_more_than_chance(tmp_path: Path) -> None:
    kept = 0
    for number in range(12):
        task = Noisy(noise=1.0)  # words that are worth nothing: every gain is luck
        made = writer(length=6)
        with opened(task, tmp_path / str(number), calls=400) as (search, _):
            long = Runner(made.prompt(made.vocabulary.tokens.encode(f" w{number + 20} w{number + 40}")), "pool")
            for block in ROWS:
                race_module._ask(search, [long], block)
            kept += prune(search, made, None, tuple(ROWS), long) is long
    assert kept >= 5  # by a higher mean alone about a quarter would be left


def test_pruning_ends_with_the_budget(tmp_path: Path) -> None:
    task = Cluttered()
    made = writer(length=6)
    with opened(task, tmp_path / "run", calls=16 + 7) as (search, _):
        long = Runner(made.prompt(made.vocabulary.tokens.encode(" w7 w3 w8")), "pool")
        for block in ROWS:
            race_module._ask(search, [long], block)
        assert prune(search, made, None, tuple(ROWS), long) is long
        assert search.evaluator.charged_calls <= 23


def test_what_was_pruned_is_told(tmp_path: Path) -> None:
    found = []
    for seed in range(6):
        settings = SETTINGS.model_copy(update={"prune": 0.4})
        outcome, search = run(Cluttered(), tmp_path / str(seed), settings, seed=seed, calls=400)
        assert search.evaluator.charged_calls <= 400
        if outcome.extras:
            best = outcome.candidates[0]
            assert best.source == "pruned"
            assert len(best.prompt.text.split()) < len(outcome.extras["pruned"]["from"].split())
            assert best.score > outcome.extras["pruned"]["score"]
            found.append(seed)
    assert found


class Drafted(Noisy):
    """A task that people have written prompts for; dev is the last block."""

    def drafts(self) -> tuple[str, ...]:
        return "w3 w7 w20 w21", "w30 w31 w8"

    def whole_splits(self, scores: Sequence[Score]) -> dict[str, Score]:
        return {"dev": scores[2]} if len(scores) == 3 else {}

    def row_values(self, score: Score, split: str) -> list[float]:
        return [float(value) for value in np.frombuffer(score.answers, "<f8")]


def test_drafts_and_their_variations_race_in_place_of_stock_phrases(tmp_path: Path) -> None:
    task = Drafted({"manual": "w40 w41 w9"})
    outcome, _ = run(task, tmp_path / "run", calls=400)
    texts = list(dict.fromkeys(text for text, _ in task.asked))
    assert texts[0] == "w40 w41 w9"
    assert set(texts[1:3]) == {"w3 w7 w20 w21", "w30 w31 w8"}
    known = {word for text in (*task.drafts(), "w40 w41 w9") for word in text.split()}
    assert all(known & set(text.split()) for text in texts[: len(texts) // 2]), "something of a draft is left"
    assert len(texts) > 10
    best = outcome.candidates[0].prompt.text
    assert task.worth(best) >= 1


def test_no_limit_of_perplexity_holds_for_drafts(tmp_path: Path) -> None:
    task = Drafted({"manual": "w40 w41 w9"})
    run(task, tmp_path / "run", SETTINGS.model_copy(update={"max_perplexity": 1e-9}), calls=400)
    assert {text for text, _ in task.asked} == {"w40 w41 w9", *task.drafts()}


def test_the_second_half_has_variations_of_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = race_module.variations

    def watched(made: Any, texts: Sequence[str], *args: Any, **more: Any) -> list[Prompt]:
        seen.append(list(texts))
        return real(made, texts, *args, **more)

    monkeypatch.setattr(race_module, "variations", watched)
    task = Drafted({"manual": "w40 w41"}, noise=0.0)
    run(task, tmp_path / "run", calls=400)
    assert len(seen) == 2
    assert seen[0] == ["w40 w41", *task.drafts()]
    assert len(seen[1]) == SETTINGS.least
    scored = [text for text, block in task.asked if block == "a"]
    before = scored[: 1 + len(scored) // 2]
    best = sorted((task.worth(text) for text in before), reverse=True)[: SETTINGS.least]
    assert sorted((task.worth(text) for text in seen[1]), reverse=True) == best


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ([2.0, 2.1, 1.9, 2.0, 2.2, 1.8, 2.0, 2.0], "w7"),  # ahead on every row of dev
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "w42 w43"),  # as good as the better hand-written one
        ([9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "w42 w43"),  # ahead on average, by one row alone
        ([0.5, 0.6, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5], "w42 w43"),  # ahead of one hand-written prompt, not of both
    ],
)
def test_an_answer_replaces_hand_written_prompts_on_a_paired_win_on_dev_only(found: list[float], answer: str) -> None:
    def runner(text: str, source: str, dev: list[float]) -> Runner:
        rows = [[9.0 if source == "pool" else 0.0] * 4] * 2 + [dev]  # whatever the rows of train say
        scores = [Score(float(np.mean(part)), answers=np.array(part, "<f8").tobytes()) for part in rows]
        return Runner(Prompt(text), source, scores, np.concatenate([np.array(part) for part in rows]))

    finalists = [
        runner("w7", "pool", found),
        runner("w40 w41", "manual", [0.0] * 8),
        runner("w42 w43", "instructions", [1.0] * 8),
    ]
    assert finalists[race_module._paired(Drafted(), finalists)].prompt.text == answer


def test_the_answer_is_the_one_that_the_pairs_choose(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"choose": "paired"})
    task = Drafted({"manual": "w40 w41"}, noise=0.1)
    outcome, _ = run(task, tmp_path / "low", settings, calls=300)
    assert outcome.candidates[0].source == "pool"
    high = Drafted({"manual": "best best best best best best best best"}, noise=0.1)
    outcome, _ = run(high, tmp_path / "high", settings, calls=300)
    assert outcome.candidates[0].source == "manual"
    assert outcome.finalists is not None
    assert len({one.candidate.prompt.text for one in outcome.finalists}) == len(outcome.finalists)


def test_in_another_language_there_are_no_stock_phrases(tmp_path: Path) -> None:
    task = Noisy()
    task.language = "de"
    settings = SETTINGS.model_copy(update={"cores": ("w4 w5",), "heads": ("w3 w3",)})
    run(task, tmp_path / "run", settings, calls=300)
    texts = {text for text, _ in task.asked}
    assert texts
    assert not any(text.lower().startswith(("w4 w5", "w3 w3")) for text in texts)


def test_in_another_language_the_cap_for_english_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backbone, "perplexities", lambda self, texts: [401.0] * len(texts))  # just above the default
    for language, cap, raced in (("de", 400.0, True), ("de", 300.0, False), ("en", 400.0, False)):
        task = Noisy()
        task.language = language
        settings = SETTINGS.model_copy(update={"max_perplexity": cap})
        if raced:
            outcome, _ = run(task, tmp_path / f"{language}{cap}", settings, calls=300)
            assert any(one.source == "pool" for one in outcome.candidates)
        else:
            with pytest.raises(SettingError, match=r"race\.max_perplexity"):
                run(task, tmp_path / f"{language}{cap}", settings, calls=300)


def test_screening_can_be_switched_off(tmp_path: Path) -> None:
    outcome, _ = run(Noisy(), tmp_path / "run", SETTINGS.model_copy(update={"screen": False}), calls=300)
    assert outcome.candidates


def test_the_chances_are_those_of_the_rows() -> None:
    sure = chances_of_best(np.array([[2.0] * 8, [1.0] * 8, [0.0] * 8]), seed=0)
    assert sure == [1.0, 0.0, 0.0]
    random = np.random.default_rng(0)
    # Two prompts whose rows differ by noise alone: neither is sure to be the best.
    alike = chances_of_best(random.normal(size=(2, 400)) * 5 + np.array([[0.0], [0.1]]), seed=0)
    assert 0.05 < alike[0] < 0.95


@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("calibrate", ["none", "batch", "content-free"])
def test_blocks_of_a_classification_task_are_its_splits(kind: str, calibrate: str) -> None:
    task = planted(kind, rows=20, calibrate=calibrate)
    assert task.blocks == ("train-1-8", "train-9-16", "train-17-20", "dev-1-20")
    prompt = Prompt("the verdict")
    scores = []
    for block in task.blocks:
        scores.append(task.score([prompt], split=block)[0])
        prompt = Prompt(prompt.text, offsets=scores[0].offsets)
    assert sum(score.calls for score in scores) == sum(task.calls(block) for block in task.blocks)
    whole = task.whole_splits(scores)
    train = task.score([Prompt("the verdict")])[0]
    assert whole["train"].value == pytest.approx(train.value, abs=1e-3)
    assert whole["train"].offsets == pytest.approx(train.offsets, abs=1e-5)
    dev = task.score([Prompt("the verdict", offsets=train.offsets)], split="dev")[0]
    assert whole["dev"].value == pytest.approx(dev.value, abs=1e-3)
    values = task.pooled(scores)
    assert len(values) == 40
    if calibrate == "none":
        assert np.mean(values) == pytest.approx((train.value + dev.value) / 2, abs=1e-3)
