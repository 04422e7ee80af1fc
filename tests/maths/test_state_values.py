"""Values of many states in parts, and masks as packed bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pinprompt.errors import PinpromptError
from pinprompt.maths import entropy
from pinprompt.maths.state_values import AT_ONCE, kept_value, pack, taken, unpack

torch.set_num_threads(1)


def made(n: int = 11, v: int = 203, d: int = 8, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """States, head and masks of kept tokens, at random."""
    chance = torch.Generator().manual_seed(0)
    mask = torch.rand(n, v, generator=chance) > 0.6
    hat_e, head = torch.randn(n, d, generator=chance, dtype=dtype), torch.randn(v, d, generator=chance, dtype=dtype)
    return hat_e, head, mask


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=19, max_size=19), min_size=1, max_size=4), st.integers(1, 19))
def test_packing_is_numpys_and_comes_back(rows: list[list[bool]], size: int) -> None:
    mask = torch.tensor(rows)[:, :size]
    bits = pack(mask)
    assert bits.dtype == torch.uint8
    assert np.array_equal(bits.numpy(), np.packbits(mask.numpy(), axis=-1, bitorder="little"))
    back = unpack(bits, size)
    assert back.dtype == torch.bool
    assert torch.equal(back, mask)


def test_packing_one_row_and_many_dimensions() -> None:
    assert pack(torch.tensor([True, False, False, True, False, False, False, False, True])).tolist() == [9, 1]
    mask = torch.rand(2, 3, 17, generator=torch.Generator().manual_seed(0)) > 0.5
    assert pack(mask).shape == (2, 3, 3)
    assert torch.equal(unpack(pack(mask), 17), mask)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((4, 2), torch.uint8, "2 of torch.uint8"),
        ((5, 3, 2), torch.uint8, "2 of torch.uint8"),
        ((2, 3), torch.int16, "3 of torch.int16"),
    ],
)
def test_bits_of_another_size_or_type_are_refused(shape: tuple[int, ...], dtype: torch.dtype, said: str) -> None:
    with pytest.raises(PinpromptError) as error:
        unpack(torch.zeros(shape, dtype=dtype), 17)
    assert str(error.value) == f"17 tokens pack into 3 bytes (uint8): got {said}."


def test_packing_stays_on_the_device_of_what_is_packed() -> None:
    mask = torch.ones(2, 17, dtype=torch.bool, device="meta")
    bits = pack(mask)
    assert (bits.device.type, tuple(bits.shape)) == ("meta", (2, 3))
    back = unpack(bits, 17)
    assert (back.device.type, tuple(back.shape)) == ("meta", (2, 17))


@pytest.mark.parametrize("kind", ["tsallis", "shannon"])
@pytest.mark.parametrize("batch", [1, 4, 11, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_do_not_depend_on_the_block_size(kind: entropy.Entropy, batch: int, dtype: torch.dtype) -> None:
    hat_e, head, mask = made(dtype=dtype)
    close = {"rel": 1e-5} if dtype == torch.float32 else {"rel": 1e-12}
    whole = entropy.value(hat_e @ head.T, kind, mask)
    for masks in (mask, pack(mask), list(mask), list(pack(mask))):
        values = kept_value(hat_e, head, masks, kind, batch=batch)
        assert values.dtype == dtype
        assert values.numpy() == pytest.approx(whole.numpy(), **close)
    everything = entropy.value(hat_e @ head.T, kind)
    assert kept_value(hat_e, head, None, kind, batch=batch).numpy() == pytest.approx(everything.numpy(), **close)


@pytest.mark.parametrize("kind", ["tsallis", "shannon"])
def test_a_bias_on_every_token_moves_the_value(kind: entropy.Entropy) -> None:
    hat_e, head, mask = made()
    whole = entropy.value(hat_e @ head.T - 10, kind, mask)
    assert kept_value(hat_e, head, mask, kind, bias=-10.0).numpy() == pytest.approx(whole.numpy(), rel=1e-12)


def test_a_value_does_not_depend_on_its_batch() -> None:
    hat_e, head, mask = made(n=40, v=3001, d=64, dtype=torch.float32)
    together = kept_value(hat_e, head, pack(mask), "tsallis", batch=16)
    alone = torch.cat(
        [kept_value(hat_e[n : n + 1], head, pack(mask)[n : n + 1], "tsallis", batch=16) for n in range(40)]
    )
    assert torch.equal(together, alone)


def test_no_gradient_and_no_change_of_what_is_given() -> None:
    hat_e, head, mask = made()
    before = hat_e.clone(), head.clone(), mask.clone()
    values = kept_value(hat_e.requires_grad_(), head, mask, "tsallis")
    assert not values.requires_grad
    assert all(torch.equal(now, then) for now, then in zip((hat_e, head, mask), before, strict=True))


def test_no_states_have_no_values() -> None:
    _, head, _ = made()
    assert kept_value(torch.empty(0, 8, dtype=torch.float64), head, [], "tsallis").shape == (0,)


def test_another_product_and_another_order_of_blocks_change_nothing() -> None:
    hat_e, head, mask = made()

    def backwards(work: Any, blocks: Sequence[Any]) -> list[Tensor]:
        return [work(block) for block in reversed(blocks)][::-1]

    plain = kept_value(hat_e, head, mask, "tsallis", batch=4)
    found = kept_value(hat_e, head, mask, "tsallis", batch=4, product=lambda part: part @ head.T, each=backwards)
    assert torch.equal(found, plain)


def test_masks_of_many_states_are_loaded_a_few_blocks_at_a_time() -> None:
    hat_e, head, mask = made(n=40)
    loaded: list[int] = []

    class Lazy(Sequence[Tensor]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: Any) -> Any:
            loaded.append(index.start)
            return mask[index]

    def watched(work: Any, blocks: Sequence[Any]) -> list[Tensor]:
        assert len(blocks) <= AT_ONCE
        assert len(loaded) * 2 <= blocks[-1][1], "no block is loaded before its turn"
        return [work(block) for block in blocks]

    found = kept_value(hat_e, head, Lazy(), "tsallis", batch=2, each=watched)
    assert torch.equal(found, kept_value(hat_e, head, mask, "tsallis", batch=2))
    assert loaded == list(range(0, 40, 2))


def test_a_mask_for_every_state() -> None:
    hat_e, head, mask = made()
    with pytest.raises(PinpromptError, match=r"^11 states need 11 masks of kept tokens: got 10\.$"):
        kept_value(hat_e, head, mask[:10], "tsallis")


def test_q_of_taken_tokens_is_gathered_from_all() -> None:
    chance = torch.Generator().manual_seed(1)
    hat_e = torch.randn(3, 4, 8, generator=chance, dtype=torch.float64).requires_grad_()
    head, actions = torch.randn(50, 8, generator=chance, dtype=torch.float64), torch.randint(50, (3, 4))
    everything = (hat_e @ head.T).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    q_t = taken(hat_e, head, actions)
    assert q_t.detach().numpy() == pytest.approx(everything.detach().numpy())
    ours, theirs = torch.autograd.grad(q_t.sum(), hat_e), torch.autograd.grad(everything.sum(), hat_e)
    assert ours[0].numpy() == pytest.approx(theirs[0].numpy())
