"""The bench of one update: ours is the released formulation's equal in loss and gradient, and smaller."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from pinprompt.bench import update
from pinprompt.errors import SettingError
from pinprompt.maths import sparsemax
from pinprompt.maths.state_values import unpack

torch.set_num_threads(1)

SMALL = update.Shape(batch=6, length=4, vocabulary=301, dim=16, hidden=24, k=60, distinct=0.5)


def gradients(loss: torch.Tensor, psi: nn.Module) -> list[torch.Tensor]:
    """The gradient of every weight of psi."""
    return list(torch.autograd.grad(loss, list(psi.parameters())))


@pytest.mark.parametrize("distinct", [1.0, 0.4])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("target", ["bootstrap", "monte-carlo"])
def test_equal_in_loss_and_gradient(
    target: Literal["bootstrap", "monte-carlo"], spread: float, distinct: float
) -> None:
    shape = update.Shape(batch=6, length=4, vocabulary=301, dim=16, hidden=24, k=60, distinct=distinct, spread=spread)
    psi, slow, batch = update.make(shape)
    reference = update.released_loss(psi, slow, batch, target)
    if target == "bootstrap":
        bits = update.kept_bits(batch.states, batch.head, batch.k, rows=5)
        ours = update.bootstrapped_loss(psi, slow, batch, bits)
    else:
        ours = update.monte_carlo_loss(psi, batch)
    assert ours.item() == pytest.approx(reference.item(), rel=1e-5)
    for own, other in zip(gradients(ours, psi), gradients(reference, psi), strict=True):
        assert own.numpy() == pytest.approx(other.numpy(), rel=1e-4, abs=1e-6)


def test_the_two_targets_differ() -> None:
    psi, slow, batch = update.make(SMALL)
    losses = [update.released_loss(psi, slow, batch, target).item() for target in ("bootstrap", "monte-carlo")]
    assert abs(losses[0] - losses[1]) > 0.1


def test_the_full_sort_gives_the_value() -> None:
    z = torch.tensor([[1, 0.5, -0.2], [2, 0, 0]])
    every = torch.ones_like(z, dtype=torch.bool)
    assert update.sorted_value(z, every).tolist() == pytest.approx([1.0625, 2.0])
    psi, _, batch = update.make(SMALL)
    q, mask = update.filtered_q(psi, batch.states, batch.head, SMALL.k)
    assert mask.sum(-1).tolist() == [SMALL.k] * len(batch.states)
    ours = sparsemax.value(q, mask).detach().numpy()
    assert update.sorted_value(q, mask).detach().numpy() == pytest.approx(ours, rel=1e-5)


@pytest.mark.parametrize(("distinct", "states"), [(1.0, 19), (0.5, 10), (0.4, 9)])
def test_the_batch_is_as_distinct_as_asked(distinct: float, states: int) -> None:
    shape = update.Shape(batch=6, length=4, vocabulary=50, dim=4, hidden=4, k=9, distinct=distinct)
    _, _, batch = update.make(shape)
    assert len(batch.states) == states
    assert sorted(set(batch.where.flatten().tolist())) == list(range(states))
    assert (batch.where[:, 0] == 0).all()
    assert (batch.where[:, 1:] > 0).all()


def test_taken_tokens_are_kept_ones() -> None:
    # A filtered token's Q is -1000 in the released code: it is never taken there, and must not be here.
    for shape in (SMALL, update.Shape(batch=32, length=5, vocabulary=999, dim=64, hidden=8, k=200)):
        _, _, batch = update.make(shape)
        kept = update.kept_bits(batch.states, batch.head, batch.k)
        mask = unpack(kept, shape.vocabulary)[batch.where]
        assert mask.gather(-1, batch.actions.unsqueeze(-1)).all()


def test_a_variant_runs_in_a_process_of_its_own() -> None:
    facts = update._alone("monte_carlo", SMALL, 1, 1)
    assert facts["seconds"] > 0
    assert 10 < facts["rest_mb"] <= facts["peak_mb"] < 5000


def test_measure_says_all_it_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_alone", update.variant)  # a process each costs seconds
    facts = update.measure(batch=16, length=3, vocabulary=5003, dim=8, hidden=8, k=50, repeats=1, threads=1)
    for key in ("monte_carlo", "bootstrapped"):
        assert facts[f"{key}_speedup"] == pytest.approx(facts["released_seconds"] / facts[f"{key}_seconds"])
    assert facts["bootstrapped_speedup_40"] > 0
    assert facts["masks_seconds"] > 0
    assert set(facts["peak_mb"]) == {
        "released", "monte_carlo", "bootstrapped", "bootstrapped_40", "bootstrapped_fresh",
    }  # fmt: skip
    assert all(mb >= 0 for mb in facts["update_mb"].values())
    assert facts["released_largest_tensor"] >= facts["batch_by_length_by_vocabulary"] == 16 * 3 * 5003


def test_no_tensor_of_batch_by_length_by_vocabulary_is_made() -> None:
    shape = update.Shape(batch=64, length=5, vocabulary=2003, dim=8, hidden=8, k=50)
    whole = 64 * 5 * 2003
    assert update.variant("released", shape, 1, 1)["largest_tensor"] >= whole
    assert update.variant("bootstrapped", shape, 1, 1)["largest_tensor"] <= 128 * 2008
    assert update.variant("monte_carlo", shape, 1, 1)["largest_tensor"] <= 64 * 5 * 8


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k": 0}, "at least 1"),
        ({"k": 302}, "beyond the vocabulary of 301; lower k"),
        ({"batch": 0}, "at least 1"),
        ({"distinct": 0.0}, r"must lie in \(0, 1\]"),
        ({"distinct": 1.1}, r"must lie in \(0, 1\]"),
    ],
)
def test_bad_shapes_are_refused(change: dict[str, float], sentence: str) -> None:
    sizes: dict[str, float] = {"batch": 6, "length": 4, "vocabulary": 301, "dim": 16, "hidden": 24, "k": 60}
    with pytest.raises(SettingError, match=sentence):
        update.Shape(**{**sizes, **change})  # type: ignore[arg-type]
