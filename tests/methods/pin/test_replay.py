"""The replay: a ring, sampled uniformly, with rewards as written or measured again."""

from __future__ import annotations

import pytest
import torch

from pinprompt.methods.pin.replay import Replay
from pinprompt.values import Episode


def episodes(*scores: float) -> list[Episode]:
    return [Episode((int(score), int(score) + 1), score, -score) for score in scores]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_it_holds_what_was_added_with_its_own_reward() -> None:
    replay = Replay(10, 2)
    replay.add(episodes(1, 2, 3))
    assert len(replay) == 3
    ids, rewards = replay.sample(200, stream())
    assert ids.shape == (200, 2)
    assert rewards.dtype == torch.float32
    assert {(*row, reward) for row, reward in zip(ids.tolist(), rewards.tolist(), strict=True)} == {
        (1, 2, -1.0), (2, 3, -2.0), (3, 4, -3.0)
    }  # fmt: skip


def test_the_oldest_go_first() -> None:
    replay = Replay(3, 2)
    replay.add(episodes(1, 2, 3, 4))
    assert len(replay) == 3
    assert set(replay.sample(200, stream())[0][:, 0].tolist()) == {2, 3, 4}
    replay.add(episodes(5, 6))
    assert set(replay.sample(200, stream())[0][:, 0].tolist()) == {4, 5, 6}


def test_the_best_may_stay_when_their_time_is_over() -> None:
    replay = Replay(3, 2, best=2)
    replay.add(episodes(9, 1, 7, 8, 9, 2, 3, 4, 5))
    # In the ring are 3, 4 and 5; of those that went, 9 (twice written, kept once) and 8 were the best.
    ids, rewards = replay.sample(400, stream())
    assert set(ids[:, 0].tolist()) == {3, 4, 5, 8, 9}
    assert torch.equal(rewards, -ids[:, 0].float())
    counts = torch.bincount(replay.sample(40_000, stream())[0][:, 0])[[3, 4, 5, 8, 9]]
    assert (counts - 8_000).abs().max() < 400, "each is as likely as any other"
    # Renormalised by all that can be drawn: mean 5.8, population deviation sqrt(26.8 / 5).
    ids, rewards = replay.sample(100, stream(), renormalise=True)
    assert torch.allclose(rewards.double(), (ids[:, 0].double() - 5.8) / (5.36**0.5 + 1e-4), atol=1e-6)


@pytest.mark.parametrize("count", [255, 256, 257, 600])
def test_it_grows_without_losing_anything(count: int) -> None:
    replay = Replay(10_000, 2)
    replay.add(episodes(*range(count)))
    assert len(replay) == count
    ids, rewards = replay.sample(20_000, stream())
    assert set(ids[:, 0].tolist()) == set(range(count))
    assert torch.equal(rewards, -ids[:, 0].float())


def test_sampling_is_uniform_with_replacement_and_repeatable() -> None:
    replay = Replay(10, 2)
    replay.add(episodes(0, 1, 2, 3))
    counts = torch.bincount(replay.sample(40_000, stream())[0][:, 0])
    assert (counts - 10_000).abs().max() < 400
    assert torch.equal(replay.sample(50, stream(7))[0], replay.sample(50, stream(7))[0])
    assert not torch.equal(replay.sample(50, stream(7))[0], replay.sample(50, stream(8))[0])


def test_renormalised_rewards_are_z_scores_of_raw_scores_over_the_whole_replay() -> None:
    replay = Replay(10, 2)
    replay.add(episodes(1, 2, 3, 6))
    ids, rewards = replay.sample(100, stream(), renormalise=True)
    # mean 3, population deviation sqrt((4 + 1 + 0 + 9) / 4) = sqrt(3.5)
    expected = (ids[:, 0].double() - 3) / (3.5**0.5 + 1e-4)
    assert torch.allclose(rewards.double(), expected, atol=1e-6)


def test_renormalising_looks_at_held_episodes_only() -> None:
    replay = Replay(2, 2)
    replay.add(episodes(1000, 1, 3))
    ids, rewards = replay.sample(50, stream(), renormalise=True)
    assert torch.allclose(rewards.double(), (ids[:, 0].double() - 2) / (1 + 1e-4), atol=1e-6)


def test_renormalising_keeps_the_digits_of_close_scores() -> None:
    # In float32 these would all be 1e7: no deviation, and every reward 0.
    replay = Replay(10, 2)
    replay.add([Episode((n, n), 1e7 + n / 8, 0.0) for n in range(3)])
    ids, rewards = replay.sample(50, stream(), renormalise=True)
    deviation = (2 / 3) ** 0.5 / 8
    expected = (ids[:, 0].double() - 1) / 8 / (deviation + 1e-4)
    assert torch.allclose(rewards.double(), expected, atol=1e-6)


def test_memory_doubles_up_to_the_capacity_and_no_further() -> None:
    replay = Replay(700, 2)
    seen = []
    for score in range(1500):
        replay.add(episodes(score))
        held = {len(part) for part in (replay._ids, replay._scores, replay._rewards)}
        assert len(held) == 1
        seen.append(held.pop())
    assert sorted(set(seen)) == [256, 512, 700]
    assert [seen.index(size) for size in (256, 512, 700)] == [0, 256, 512]


def test_repeats_are_dropped_but_for_the_first_and_the_ring_continues() -> None:
    replay = Replay(6, 2)
    replay.add([Episode((n, n), float(n), n / 10) for n in (0, 1, 2, 3)])
    replay.add([Episode((2, 2), 2.0, 0.0)] * 4)
    # In the ring, oldest first: 2, 3, and four copies of 2 whose reward among themselves is 0.
    replay.drop_repeats()
    assert len(replay) == 2
    ids, rewards = replay.sample(100, stream())
    assert {(*row, round(reward, 6)) for row, reward in zip(ids.tolist(), rewards.tolist(), strict=True)} == {
        (2, 2, 0.2), (3, 3, 0.3)
    }  # fmt: skip
    replay.add([Episode((n, n), float(n), 0.0) for n in (4, 5, 6, 7, 8)])
    assert len(replay) == 6
    assert set(replay.sample(200, stream())[0][:, 0].tolist()) == {3, 4, 5, 6, 7, 8}, "the oldest still go first"


def test_an_empty_replay_says_so() -> None:
    with pytest.raises(ValueError, match=r"^the replay is empty$"):
        Replay(5, 2).sample(1, stream())


def test_with_paths_every_token_has_the_gain_that_it_brought() -> None:
    replay = Replay(2, 2, best=2, paths=True)
    # The first has to leave the ring, and stays as one of the best.
    replay.add([Episode((1, 2), 5.0, 0.0, (1.0, 5.0)), Episode((3, 4), 3.0, 0.0, (4.0, 3.0))])
    replay.add([Episode((5, 6), 1.0, 0.0, (0.5, 1.0))])
    ids, gains = replay.sample(200, stream())
    assert {(*row, *gain) for row, gain in zip(ids.tolist(), gains.tolist(), strict=True)} == {
        (1, 2, 1.0, 4.0), (3, 4, 4.0, -1.0), (5, 6, 0.5, 0.5)
    }  # fmt: skip
    # Renormalised by the scores of whole prompts: mean 3, population deviation sqrt(8 / 3); the empty prompt is 0.
    ids, gains = replay.sample(200, stream(), renormalise=True)
    spread = (8 / 3) ** 0.5 + 1e-4
    by_hand = {1: (-2 / spread, 4 / spread), 3: (1 / spread, -1 / spread), 5: (-2.5 / spread, 0.5 / spread)}
    for row, gain in zip(ids.tolist(), gains.tolist(), strict=True):
        assert gain == pytest.approx(by_hand[row[0]], abs=1e-5)


@pytest.mark.parametrize(
    ("capacity", "added", "left"),
    [
        # (the prompt, its reward): what is left has the reward of the oldest copy that the ring still holds.
        (5, [(1, 0.1), (1, 0.2), (2, 0.3)], {(1, 0.1), (2, 0.3)}),
        (5, [(2, 0.3), (1, 0.1), (1, 0.2), (2, 0.5)], {(2, 0.3), (1, 0.1)}),
        (3, [(1, 0.1), (2, 0.2), (1, 0.3), (1, 0.4)], {(2, 0.2), (1, 0.3)}),
        (3, [(3, 0.1), (1, 0.2), (2, 0.3), (1, 0.4), (2, 0.5)], {(2, 0.3), (1, 0.4)}),
    ],
)
def test_of_repeats_the_oldest_stays_wherever_the_ring_stands(
    capacity: int, added: list[tuple[int, float]], left: set[tuple[int, float]]
) -> None:
    replay = Replay(capacity, 1)
    replay.add([Episode((token,), 0.0, reward) for token, reward in added])
    replay.drop_repeats()
    assert len(replay) == len(left)
    ids, rewards = replay.sample(100, stream())
    assert {
        (token, round(reward, 6)) for token, reward in zip(ids[:, 0].tolist(), rewards.tolist(), strict=True)
    } == left
