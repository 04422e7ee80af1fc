"""The race: its plan by hand, what it finds and spends, and that a killed one goes on as if nothing had happened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from baseline_toys import Killed, opened, planted, writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.answers.requests import Requests
from pinprompt.errors import SettingError
from pinprompt.methods import race as race_module
from pinprompt.methods.protocol import Block, Outcome, Search
from pinprompt.methods.race import Runner, blocks_of, cut, plan, prune, race, race_cost
from pinprompt.methods.selection import chances_of_best
from pinprompt.policy.backbone import Backbone
from pinprompt.recipe.sections import BudgetSettings, RaceSettings
from pinprompt.tasks.protocol import WITH_EXAMPLES, Draft, Labelling, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Prompt, Row

SETTINGS = RaceSettings(max_perplexity=None, first_block=4)
TRAIN, DEV = 8, 8


@pytest.fixture(autouse=True, scope="module")
def few_words() -> Iterator[None]:
    """A small pool of the toy writer's words."""
    pool = {"WRITTEN": 60, "HEADS": ("w3",), "LONGEST": 2}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in pool.items():
            patch.setattr(race_module, name, value)
        yield


class Noisy:
    """A prompt is worth its number of good words; each row sees that through noise of its own."""

    def __init__(self, hand: dict[str, str] | None = None, noise: float = 0.3, language: str = "en") -> None:
        self.hand, self.noise = hand or {}, noise
        self.info = TaskInfo("noisy", "noisy-1", language=language)
        self.rows = (*(Row("train", index) for index in range(TRAIN)), *(Row("dev", index) for index in range(DEV)))
        self.asked: list[tuple[str, int]] = []
        """The cells that were asked, in order."""

    def worth(self, text: str) -> float:
        return float(sum(word in ("w7", "w8", "w9", "w10", "w11", "best") for word in text.split()))

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        self.asked += [(prompt.text, row) for prompt in prompts for row in rows]
        return [self._answers(prompt.text, tuple(rows)) for prompt in prompts]

    def _answers(self, text: str, rows: tuple[int, ...]) -> Answers:
        return Answers(rows, np.array([self.worth(text) + self.noise * self._luck(text, row) for row in rows]))

    def _luck(self, text: str, row: int) -> float:
        digest = hashlib.sha256(f"{text}/{row}".encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**31 - 1

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Any:
        return np.asarray(answers.on(rows))

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        return Evaluation(self.rows[rows[0]].split, {"score": float(answers.on(rows).mean())}, len(rows))

    def context(self) -> str:
        return ""

    def drafts(self) -> list[Draft]:
        return [Draft(text, name) for name, text in self.hand.items()]


class Told(Noisy):
    """Takes ten tokens a row, and may take twice as many."""

    billed = None

    def most_tokens(self, prompt: Prompt, rows: Sequence[int], report: bool = False) -> tuple[int, int]:
        return 20 * len(rows), 0

    likely_tokens = most_tokens

    def attach(self, meter: Requests) -> bool:
        return False

    def _answers(self, text: str, rows: tuple[int, ...]) -> Answers:
        return replace(super()._answers(text, rows), tokens=(10 * len(rows), 0))


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
    assert plan([8, 8, 16, 32], 688, 0, settings)[:2] == (4, 45)
    # A prompt more takes 8 + 8 + 16 = 32 calls more: 46 enter, 16 and 6 go on.
    assert plan([8, 8, 16, 32], 719, 0, settings)[:2] == (4, 45)
    assert plan([8, 8, 16, 32], 720, 0, settings)[:2] == (4, 46)
    # Four prompts on all 64 rows take 256 calls, more than half of 511: the last block goes.
    assert plan([8, 8, 16, 32], 511, 0, settings)[0] == 3
    assert plan([8, 8, 16, 32], 512, 0, settings)[0] == 4
    assert plan([8, 8], None, 0, settings)[:2] == (2, settings.prompts)
    # A tenth of 765 calls, 76, is kept for pruning: 689 are left, and 721 of 801.
    assert plan([8, 8, 16, 32], 765, 0, RaceSettings(prune=0.1))[:2] == (4, 45)
    assert plan([8, 8, 16, 32], 801, 0, RaceSettings(prune=0.1))[:2] == (4, 46)
    with pytest.raises(SettingError, match="needs 32 calls for 4 prompts"):
        plan([8, 8], 31, 0, settings)
    # A task that learns from rows: 256 rows take 768 of 968 calls for two hand-written prompts and one more, so that
    # all rows are asked; without learning, 64 rows are.
    blocks = [8, 8, 16, 32, 64, 128]
    learning = plan(blocks, 968, 2, settings, learns=True)
    assert (learning.blocks, learning.settings.least) == (6, 1)
    # A ninth advances: 26 prompts on 8 rows, three of them and the two hand-written ones on 8 more, then one and two.
    assert learning.prompts == 26
    assert 26 * 8 + 5 * 8 + 3 * (16 + 32 + 64 + 128) == 968
    assert plan(blocks, 968, 2, settings).blocks == 4
    assert plan(blocks, 400, 2, settings, learns=True)[:2] == plan(blocks, 400, 2, settings)[:2], "rows do not fit"


@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    costs=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    calls=st.integers(1, 4000),
    hand=st.integers(0, 4),
    keep=st.floats(0.05, 1.0),
    least=st.integers(1, 8),
    luck=st.binary(min_size=5, max_size=5),
    learns=st.booleans(),
)
def test_no_race_costs_more_than_its_calls(
    costs: list[int], calls: int, hand: int, keep: float, least: int, luck: bytes, learns: bool
) -> None:
    """Whatever blocks cost and whoever goes on, the rows that are asked fit into the calls; and no more would."""
    chosen = RaceSettings(keep=keep, least=least, prune=0)
    try:
        blocks, count, chosen = plan(costs, calls, hand, chosen, learns)
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
    asked = len(task.asked)
    assert search.evaluator.charged_calls == asked <= min(calls, total or calls)
    assert search.evaluator.budget.spent.tokens == 10 * asked <= (tokens or 10**9)
    assert len(task.asked) == len(set(task.asked))
    assert outcome.finalists
    assert {finalist.rows for finalist in outcome.finalists} == {outcome.finalists[0].rows}


def test_the_best_advance_and_so_do_the_hand_written() -> None:
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
    assert search.evaluator.charged_calls == len(task.asked) <= 300
    assert search.evaluator.charged_calls > 250
    assert outcome.finalists is not None
    assert {finalist.rows for finalist in outcome.finalists} == {16}
    assert sum(finalist.chance or 0 for finalist in outcome.finalists) == pytest.approx(1)


def test_a_hand_written_prompt_that_is_best_wins(tmp_path: Path) -> None:
    outcome, _ = run(Noisy({"manual": "best best best best best best"}), tmp_path / "run", calls=300)
    assert outcome.candidates[0].source == "manual"


def test_a_race_in_which_only_hand_written_prompts_advance_is_not_called_one_of_these_alone(tmp_path: Path) -> None:
    task = Noisy({"manual": "best best best best best best"})
    outcome, _ = run(task, tmp_path / "run", SETTINGS.model_copy(update={"least": 1, "keep": 0.01}), calls=300)
    assert {candidate.source for candidate in outcome.candidates} == {"manual"}
    assert len({text for text, _ in task.asked}) > 10
    assert "problem" not in outcome.extras


def test_a_killed_race_resumes_to_the_same_result(tmp_path: Path) -> None:
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


def ask_all(search: Search, runner: Runner) -> list[Block]:
    """Ask a prompt on every block, as a race does with its finalists; returns the blocks."""
    blocks = blocks_of(search.task, SETTINGS.first_block)
    for number in range(1, len(blocks) + 1):
        race_module._ask(search, [runner], blocks[:number])
    return blocks


def test_needless_words_are_taken_out_where_that_pays(tmp_path: Path) -> None:
    task = Cluttered(noise=0.3)
    made = writer(length=6)
    with opened(task, tmp_path / "run", calls=400) as (search, _):
        long = Runner(made.prompt(made.vocabulary.tokens.encode(" w7 w3 w8 w3")), "pool")
        blocks = ask_all(search, long)
        asked = len(task.asked)
        short = prune(search, made, None, blocks, long)
        assert short.prompt.text.split() == ["w7", "w8"]
        assert short.source == "pruned"
        # No word of what is left may go: each is worth something.
        assert prune(search, made, None, blocks, short) is short
        assert len(task.asked) > asked
        assert len(task.asked) == len(set(task.asked))


def test_pruning_needs_more_than_chance(tmp_path: Path) -> None:
    kept = 0
    for number in range(12):
        task = Noisy(noise=1.0)  # words that are worth nothing: every gain is luck
        made = writer(length=6)
        with opened(task, tmp_path / str(number), calls=400) as (search, _):
            long = Runner(made.prompt(made.vocabulary.tokens.encode(f" w{number + 20} w{number + 40}")), "pool")
            blocks = ask_all(search, long)
            kept += prune(search, made, None, blocks, long) is long
    assert kept >= 5  # by a higher mean alone about a quarter would be left


def test_pruning_ends_with_the_budget(tmp_path: Path) -> None:
    task = Cluttered()
    made = writer(length=6)
    with opened(task, tmp_path / "run", calls=16 + 7) as (search, _):
        long = Runner(made.prompt(made.vocabulary.tokens.encode(" w7 w3 w8")), "pool")
        blocks = ask_all(search, long)
        assert prune(search, made, None, blocks, long) is long
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


WRITTEN = ("w3 w7 w20 w21", "w30 w31 w8")


class Drafted(Noisy):
    """A task that people have written prompts for."""

    def drafts(self) -> list[Draft]:
        return [*super().drafts(), *(Draft(text) for text in WRITTEN)]


def test_drafts_and_their_variations_race_in_place_of_what_the_lm_writes(tmp_path: Path) -> None:
    task = Drafted({"manual": "w40 w41 w9"})
    outcome, _ = run(task, tmp_path / "run", calls=400)
    texts = list(dict.fromkeys(text for text, _ in task.asked))
    assert texts[0] == "w40 w41 w9"
    assert set(texts[1:3]) == set(WRITTEN)
    known = {word for text in (*WRITTEN, "w40 w41 w9") for word in text.split()}
    assert all(known & set(text.split()) for text in texts[: len(texts) // 2]), "something of a draft is left"
    assert len(texts) > 10
    best = outcome.candidates[0].prompt.text
    assert task.worth(best) >= 1


def test_drafts_with_examples_race_and_are_not_varied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = race_module.variations
    monkeypatch.setattr(
        race_module,
        "variations",
        lambda made, texts, *rest, **more: (seen.extend(texts), real(made, texts, *rest, **more))[1],
    )
    shown = "w7 w8 w9 w10 w11 best w40"  # worth more than any other

    class Showing(Drafted):
        def drafts(self) -> list[Draft]:
            return [*super().drafts(), Draft(shown, WITH_EXAMPLES)]

    outcome, _ = run(Showing({"manual": "w40 w41 w9"}), tmp_path / "run", calls=400)
    assert outcome.candidates[0].prompt.text == shown
    assert seen
    assert shown not in seen


def test_of_equal_prompts_the_shorter_is_the_answer(tmp_path: Path) -> None:
    class Same(Drafted):
        def worth(self, text: str) -> float:
            return float("w7" in text.split())

        def drafts(self) -> list[Draft]:
            return [*super().drafts(), Draft("w40 w7 w41 w42 w43", WITH_EXAMPLES), Draft("w40 w7")]

    settings = SETTINGS.model_copy(update={"choose": "paired", "prune": 0.0})
    outcome, _ = run(Same({"manual": "w40 w41 w9"}, noise=0.0), tmp_path / "run", settings, calls=400)
    equal = [one.prompt.text for one in outcome.candidates if one.score == outcome.candidates[0].score]
    assert "w40 w7 w41 w42 w43" in equal
    assert outcome.candidates[0].prompt.text == min(equal, key=len)


def test_no_limit_of_perplexity_holds_for_drafts(tmp_path: Path) -> None:
    task = Drafted({"manual": "w40 w41 w9"})
    run(task, tmp_path / "run", SETTINGS.model_copy(update={"max_perplexity": 1e-9}), calls=400)
    assert {text for text, _ in task.asked} == {"w40 w41 w9", *WRITTEN}


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
    assert seen[0] == ["w40 w41", *WRITTEN]
    assert len(seen[1]) == SETTINGS.least
    scored = [text for text, row in task.asked if row == 0]
    before = scored[: 1 + len(scored) // 2]
    best = sorted((task.worth(text) for text in before), reverse=True)[: SETTINGS.least]
    assert sorted((task.worth(text) for text in seen[1]), reverse=True) == best


class Listed(Noisy):
    """Prompts with given values on the rows of dev; on train the found one is far ahead."""

    def __init__(self, dev: dict[str, list[float]]) -> None:
        super().__init__({"manual": "w40 w41", "instructions": "w42 w43"})
        self.dev = dev

    def _answers(self, text: str, rows: tuple[int, ...]) -> Answers:
        values = [9.0 * (text == "w7")] * TRAIN + self.dev[text]
        return Answers(rows, np.array([values[row] for row in rows]))


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ([2.0, 2.1, 1.9, 2.0, 2.2, 1.8, 2.0, 2.0], "w7"),  # ahead on every row of dev
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "w42 w43"),  # as good as the better hand-written one
        ([9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "w42 w43"),  # ahead on average, by one row alone
        ([0.5, 0.6, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5], "w42 w43"),  # ahead of one hand-written prompt, not of both
    ],
)
def test_an_answer_replaces_hand_written_prompts_on_a_paired_win_on_dev_only(
    tmp_path: Path, found: list[float], answer: str
) -> None:
    task = Listed({"w7": found, "w40 w41": [0.0] * 8, "w42 w43": [1.0] * 8})
    with opened(task, tmp_path) as (search, _):
        finalists = [Runner(Prompt("w7"), "pool"), *(Runner(Prompt(one.text), one.name) for one in task.drafts())]
        for runner in finalists:
            ask_all(search, runner)
        assert finalists[race_module._paired(search, finalists)].prompt.text == answer


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


def test_in_another_language_there_are_no_english_beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_module, "HEADS", ("w3 w3",))
    task = Noisy(language="de")
    run(task, tmp_path / "run", calls=300)
    texts = {text for text, _ in task.asked}
    assert texts
    assert not any(text.lower().startswith("w3 w3") for text in texts)


def test_in_another_language_the_cap_for_english_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Backbone, "perplexities", lambda self, texts, after="": [401.0] * len(texts)
    )  # just above the default
    for language, cap, raced in (("de", 400.0, True), ("de", 300.0, False), ("en", 400.0, False)):
        task = Noisy(language=language)
        settings = SETTINGS.model_copy(update={"max_perplexity": cap})
        if raced:
            outcome, _ = run(task, tmp_path / f"{language}{cap}", settings, calls=300)
            assert any(one.source == "pool" for one in outcome.candidates)
        else:
            with pytest.raises(SettingError, match=r"race\.max_perplexity"):
                run(task, tmp_path / f"{language}{cap}", settings, calls=300)


def test_the_chances_are_those_of_the_rows() -> None:
    sure = chances_of_best(np.array([[2.0] * 8, [1.0] * 8, [0.0] * 8]), seed=0)
    assert sure == [1.0, 0.0, 0.0]
    random = np.random.default_rng(0)
    # Two prompts whose rows differ by noise alone: neither is sure to be the best.
    alike = chances_of_best(random.normal(size=(2, 400)) * 5 + np.array([[0.0], [0.1]]), seed=0)
    assert 0.05 < alike[0] < 0.95


@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("labels", ["words", "calibrated"])
def test_blocks_of_a_classification_task_are_its_splits(kind: str, labels: str) -> None:
    """Asked block by block, a prompt costs as much and is worth the same as on whole splits."""
    task = planted(kind, rows=20, labels=labels)
    blocks = blocks_of(task, 8)
    assert [block.name for block in blocks] == ["train-1-8", "train-9-16", "train-17-20", "dev-1-20"]
    for block in blocks[:3]:
        targets = [task.rows[row].target for row in block.rows]
        assert len(set(targets[:2])) == 2
        assert all(targets.count(target) == len(targets) / 2 for target in targets), "as many of each class"
    prompt = Prompt("the verdict")
    raced, whole = (Evaluator(task, Budget(BudgetSettings())) for _ in range(2))
    for block in blocks:
        raced.ask([prompt], block.rows, name=block.name)
    known = [raced.known(prompt, split) for split in ("train", "dev")]
    scores = [whole.score([prompt], split)[0] for split in ("train", "dev")]
    assert raced.charged_calls == whole.charged_calls == 40
    for one, other in zip(known, scores, strict=True):
        assert one is not None
        assert one.value == pytest.approx(other.value, abs=1e-3)
        assert one.values == pytest.approx(other.values, abs=1e-3)


def test_phrases_that_state_the_task_are_in_every_race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Named(Noisy, Labelling):
        def label_words(self) -> tuple[str, ...]:
            return ("w5", "w6")

    def stating(writer: Any, words: Sequence[str]) -> list[Prompt]:
        return [writer.prompt(writer.vocabulary.tokens.encode(" " + " ".join(words)))]

    monkeypatch.setattr(race_module, "stating", stating)
    task = Named({"manual": "w3 w4"})
    run(task, tmp_path / "run", calls=300)
    assert "w5 w6" in {text.strip() for text, _ in task.asked}


def test_among_equals_the_phrase_that_states_the_task_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.9, 1.0, 1.1], [0.0, 0.0, 0.0, 0.0]])
    reads = {"odd": 5.0, "plain": 50.0, "bad": 1.0}
    finalists = [
        Runner(Prompt(text), "pool", states, 1, own)
        for text, states, own in zip(reads, (False, True, True), values, strict=True)
    ]
    writes: Any = SimpleNamespace(
        backbone=SimpleNamespace(perplexities=lambda texts, after: [reads[text] for text in texts])
    )
    search: Any = None
    assert race_module._chosen(search, writes, "readable", finalists, values) == 1
    assert race_module._chosen(search, writes, "score", finalists, values) == 0
    finalists[1].states_task = False
    assert race_module._chosen(search, writes, "readable", finalists, values) == 0
