"""Passes side by side: in order, on their own threads, and an error stops the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from pinprompt.models.passes import WORKERS, side_by_side

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2, WORKERS + 1])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield int(request.param)
    torch.set_num_threads(before)


def test_answers_are_in_order_and_each_has_the_same_number_of_threads(threads: int) -> None:
    answers = side_by_side(lambda item: (item, torch.get_num_threads()), list(range(20)), CPU)
    assert [item for item, _ in answers] == list(range(20))
    assert {count for _, count in answers} == {1}
    assert torch.get_num_threads() == threads
    assert side_by_side(lambda item: item, [], CPU) == []


def test_several_run_at_the_same_time(threads: int) -> None:
    if threads == 1:
        pytest.skip("one at a time")
    both = threading.Barrier(2, timeout=600)
    side_by_side(lambda _: both.wait(), [0, 1], CPU)  # neither returns before the other has begun


def test_an_error_reaches_the_caller(threads: int) -> None:
    def work(item: int) -> int:
        if item == 1:
            raise ValueError("the second")
        return item

    with pytest.raises(ValueError, match="the second"):
        side_by_side(work, [0, 1, 2], CPU)
