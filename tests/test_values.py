"""Named streams of randomness."""

from __future__ import annotations

from pinprompt.values import derive


def test_streams_differ_by_seed_and_by_name_and_are_the_same_everywhere() -> None:
    seeds = {derive(seed, name) for seed in range(3) for name in ("policy", "replay", "task")}
    assert len(seeds) == 9
    # The first eight bytes of sha256(b"0/policy"), halved: printf '0/policy' | sha256sum.
    assert derive(0, "policy") == 0xFEDA5F2DAC963D12 >> 1
    assert derive(0, "task", 1, 23) != derive(0, "task", 12, 3)
