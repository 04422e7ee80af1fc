"""Scoring on a real embedded Ray: the same scores with one worker or more, and with one that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from children import wait_until
from patient_ray import started
from scoring_toys import Toy, build_noisy, noisy, prompts

from pinprompt.errors import MissingExtra, ServerDown, SettingError, TaskError
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.scoring import executors
from pinprompt.scoring.budget import Budget
from pinprompt.scoring.evaluator import Evaluator
from pinprompt.scoring.executors import Inline, Ray, Worker, _as_error
from pinprompt.values import Evaluation, Prompt, Score

TEXTS = [f"prompt {number}" for number in range(10)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 80 * 2**20}
    try:
        started(lambda: ray.init(num_cpus=2, **options))
        yield
    finally:
        ray.shutdown()


def build_broken() -> Toy:
    """A task that fails in one of our ways."""
    raise SettingError("no such label")


class Deadly(Toy):
    """Kills the process it runs in."""

    def score(self, *_: object) -> list[Score]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []


class Mortal(Toy):
    """Kills the process that is first to score the fourth prompt, and leaves its number."""

    def __init__(self, victim: Path) -> None:
        super().__init__(noisy, stochastic=True)
        self.victim = victim

    def score(self, prompts: Sequence[Prompt], seeds: Sequence[int], split: str = "train") -> list[Score]:
        if TEXTS[3] in [prompt.text for prompt in prompts] and not self.victim.exists():
            self.victim.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().score(prompts, seeds, split)


class Sociable(Toy):
    """Evaluates its first two prompts only when both have been begun, each by a worker of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def evaluate(self, prompt: Prompt, split: str, seed: int = 0) -> Evaluation:
        (self.folder / prompt.text).touch()
        wait_until(lambda: len(list(self.folder.iterdir())) >= 2, "two evaluations at the same time")
        return super().evaluate(prompt, split, seed)


def counted(evaluator: Evaluator) -> tuple[int, ...]:
    spent = (evaluator.charged_calls, evaluator.report_calls, evaluator.paid_calls)
    return (*spent, evaluator.memo_hits, evaluator.repeats, evaluator.distinct)


def run(executor: Ray | Inline) -> tuple[list[Score], tuple[int, ...]]:
    evaluator = Evaluator(build_noisy(), Budget(BudgetSettings()), executor=executor, seed=3)
    scores = evaluator.score(prompts(*TEXTS))
    scores += evaluator.score(prompts(*TEXTS[:3]), "dev")
    evaluator.evaluate(Prompt("a"), "test")
    return scores, counted(evaluator)


def test_workers_do_not_change_the_run_even_when_one_is_killed(tmp_path: Path) -> None:
    inline = run(Inline(build_noisy()))
    two = Ray(partial(Mortal, tmp_path / "victim"), workers=2)
    before = set(two.processes())
    assert run(two) == inline
    victim = int((tmp_path / "victim").read_text())
    assert before - set(two.processes()) == {victim}
    two.close()
    one = Ray(build_noisy, workers=1, chunk=3)
    assert run(one) == inline
    one.close()


def test_evaluations_are_shared_among_the_workers(tmp_path: Path) -> None:
    asked = prompts("a", "bb", "ccc", "dddd")
    executor = Ray(partial(Sociable, tmp_path), workers=2)
    assert executor.evaluate_many(asked, "test", 7) == Inline(Toy()).evaluate_many(asked, "test", 7)
    executor.close()


def test_failures_come_home_as_what_they_were() -> None:
    executor = Ray(build_broken, workers=1)
    with pytest.raises(SettingError, match="no such label"):
        list(executor.run(prompts("a"), [0], "train", lambda: False))
    with pytest.raises(SettingError, match="no such label"):
        executor.evaluate_many([Prompt("a")], "dev", 0)
    executor.close()
    foreign = _as_error(("ZeroDivisionError", "division by zero"))
    assert isinstance(foreign, TaskError)
    assert "ZeroDivisionError: division by zero" in str(foreign)
    assert isinstance(_as_error(("MissingExtra", "pip install")), MissingExtra)


def test_stop_gives_back_what_was_sent() -> None:
    executor = Ray(build_noisy, workers=1)
    asked = iter([False, False, True])
    assert len(list(executor.run(prompts("a", "b", "c", "d"), [0, 1, 2, 3], "train", lambda: next(asked)))) == 2
    executor.close()


def test_a_prompt_that_kills_every_worker_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Ray(Deadly, workers=1)
    with pytest.raises(ServerDown, match="workers died"):
        list(executor.run(prompts("a"), [0], "train", lambda: False))
    monkeypatch.setattr(executors, "DEATHS", 1)  # the one that is dead already: hiring more takes long
    with pytest.raises(ServerDown, match="1 workers died"):
        executor.evaluate_many([Prompt("a")], "dev", 0)
    executor.close()


def test_what_a_worker_does_is_what_the_task_does() -> None:
    """The same class here as in an actor: the task is built once, at the first question."""
    import ray.cloudpickle

    worker = Worker(ray.cloudpickle.dumps(Toy), ["/nowhere/to/be/found"], threads=1)
    try:
        assert worker.task is None
        scores, failure = worker.score(prompts("abc"), [5], "train")
        assert ([score.value for score in scores], failure) == ([3.0], None)
        built = worker.task
        evaluation, failure = worker.evaluate(Prompt("abc"), "dev", 7)
        assert evaluation is not None
        assert (evaluation.metrics["accuracy"], failure) == (0.3, None)
        assert worker.task is built
        assert worker.process() == os.getpid()
        assert sys.path[-1] == "/nowhere/to/be/found"
    finally:
        sys.path.remove("/nowhere/to/be/found")
    broken = Worker(ray.cloudpickle.dumps(build_broken), [], threads=1)
    assert broken.score(prompts("a"), [0], "train") == ([], ("SettingError", "no such label"))
    assert broken.evaluate(Prompt("a"), "dev", 0) == (None, ("SettingError", "no such label"))


def test_without_ray_there_is_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[ray\]"):
        Ray(build_noisy)
