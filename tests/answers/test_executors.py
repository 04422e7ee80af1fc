"""Asking on a real embedded Ray: the same answers with one worker or more, and with one that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from answer_toys import Toy, build_noisy, noisy, prompts
from children import wait_until
from patient_ray import started

from pinprompt.answers import executors
from pinprompt.answers.budget import Budget
from pinprompt.answers.evaluator import Evaluator
from pinprompt.answers.executors import Inline, Job, Ray, Worker, _as_error, chunks
from pinprompt.errors import MissingExtra, ServerDown, SettingError, TaskError
from pinprompt.recipe.sections import BudgetSettings
from pinprompt.values import Answers, Draw, Prompt

TEXTS = [f"prompt {number}" for number in range(10)]
ROWS = (0, 1, 2, 3)


def jobs(*texts: str, rows: tuple[int, ...] = ROWS) -> list[Job]:
    return [Job(prompt, rows, Draw(seed)) for seed, prompt in enumerate(prompts(*texts))]


def go_on() -> bool:
    return False


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

    def ask(self, *_: object) -> list[Answers]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []


class Mortal(Toy):
    """Kills the process that is first to be asked about the fourth prompt, and leaves its number."""

    def __init__(self, victim: Path) -> None:
        super().__init__(noisy, stochastic=True)
        self.victim = victim

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        if TEXTS[3] in [prompt.text for prompt in prompts] and not self.victim.exists():
            self.victim.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().ask(prompts, rows, draws)


class Sociable(Toy):
    """Answers its first two prompts only when both have been begun, each by a worker of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        (self.folder / prompts[0].text).touch()
        wait_until(lambda: len(list(self.folder.iterdir())) >= 2, "two questions at the same time")
        return super().ask(prompts, rows, draws)


def run(executor: Ray | Inline) -> list[Any]:
    """What a search and a report see."""
    evaluator = Evaluator(build_noisy(), Budget(BudgetSettings()), executor=executor, seed=3)
    scores = evaluator.score(prompts(*TEXTS))
    scores += evaluator.score(prompts(*TEXTS[:3]), "dev")
    scores += evaluator.score_each(prompts(*TEXTS[:4]), [(0,), (1, 2), (0,), (3,)])
    shown = evaluator.evaluate(prompts("a", "b"), "test")
    spent = (evaluator.charged_calls, evaluator.report_calls, evaluator.paid_calls, evaluator.distinct)
    return [[(score.value, score.rows, score.values.tolist()) for score in scores], shown, spent]


def test_workers_do_not_change_the_run_even_when_one_is_killed(tmp_path: Path) -> None:
    inline = run(Inline(build_noisy()))
    assert run(Inline(build_noisy(), chunk=4)) == inline
    two = Ray(partial(Mortal, tmp_path / "victim"), workers=2)
    before = set(two.processes())
    assert run(two) == inline
    victim = int((tmp_path / "victim").read_text())
    assert before - set(two.processes()) == {victim}
    two.close()
    one = Ray(build_noisy, workers=1, chunk=3)
    assert run(one) == inline
    one.close()


def test_questions_are_shared_among_the_workers(tmp_path: Path) -> None:
    executor = Ray(partial(Sociable, tmp_path), workers=2)
    answers = executor.run(jobs("a", "bb", "ccc", "dddd"), go_on)
    assert [list(one.contents) for one in answers] == [[size] * 4 for size in (1, 2, 3, 4)]
    executor.close()


def test_prompts_on_the_same_rows_go_together() -> None:
    asked = [*jobs("a", "b", "c"), *jobs("d", "e", rows=(1,)), *jobs("f", "g")]
    assert chunks(asked, 2) == [[0, 1], [2, 5], [3, 4], [6]]
    assert chunks(asked, 1) == [[number] for number in range(7)]


def test_answers_come_in_order_whatever_goes_together() -> None:
    task = Toy()
    asked = [*jobs("a", "bb"), *jobs("ccc", rows=(1,)), *jobs("dddd"), *jobs("eeeee", rows=(1,))]
    answers = list(Inline(task, chunk=3).run(asked, go_on))
    assert [(one.rows, one.contents[0]) for one in answers] == [
        (ROWS, 1), (ROWS, 2), ((1,), 3), (ROWS, 4), ((1,), 5)
    ]  # fmt: skip
    assert [text for text, _, _ in task.asked] == ["a", "bb", "dddd", "ccc", "eeeee"]


def test_failures_come_home_as_what_they_were() -> None:
    executor = Ray(build_broken, workers=1)
    with pytest.raises(SettingError, match="no such label"):
        list(executor.run(jobs("a"), go_on))
    executor.close()
    foreign = _as_error(("ZeroDivisionError", "division by zero"))
    assert isinstance(foreign, TaskError)
    assert "ZeroDivisionError: division by zero" in str(foreign)
    assert isinstance(_as_error(("MissingExtra", "pip install")), MissingExtra)


class Fragile(Toy):
    """Cannot be asked about the third prompt at all."""

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        if prompts[0].text == "ccc":
            raise ValueError("no c")
        return super().ask(prompts, rows, draws)


def test_answers_before_a_failure_are_given_first() -> None:
    """They are paid for."""
    executor = Ray(Fragile, workers=1)
    answers = executor.run(jobs("a", "bb", "ccc", "dddd"), go_on)
    assert [next(answers).contents[0], next(answers).contents[0]] == [1, 2]
    with pytest.raises(TaskError, match="ValueError: no c"):
        next(answers)
    executor.close()


def test_stop_gives_back_what_was_sent() -> None:
    executor = Ray(build_noisy, workers=1)
    asked = iter([False, False, True])
    assert len(list(executor.run(jobs("a", "b", "c", "d"), lambda: next(asked)))) == 2
    executor.close()


def test_a_prompt_that_kills_every_worker_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "DEATHS", 2)  # hiring takes long
    executor = Ray(Deadly, workers=1)
    with pytest.raises(ServerDown, match="2 workers died"):
        list(executor.run(jobs("a"), go_on))
    executor.close()


def test_what_a_worker_does_is_what_the_task_does() -> None:
    """The same class here as in an actor: the task is built once, at the first question."""
    import ray.cloudpickle

    worker = Worker(ray.cloudpickle.dumps(Toy), os.getcwd(), ["/nowhere/to/be/found"], threads=1)
    try:
        assert worker.task is None
        (answers,), failure = worker.ask(jobs("abc"))
        assert (answers.contents.tolist(), failure) == ([3.0] * 4, None)
        built = worker.task
        worker.ask(jobs("abc", rows=(5,)))
        assert worker.task is built
        assert worker.process() == os.getpid()
        assert sys.path[-1] == "/nowhere/to/be/found"
    finally:
        sys.path.remove("/nowhere/to/be/found")
    broken = Worker(ray.cloudpickle.dumps(build_broken), os.getcwd(), [], threads=1)
    assert broken.ask(jobs("a")) == ([], ("SettingError", "no such label"))


def test_without_ray_there_is_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[ray\]"):
        Ray(build_noisy)
