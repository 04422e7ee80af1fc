"""The benchmark of one update: ours is the released formulation's equal in loss and gradient, and smaller."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from benchmarks import update
from pinprompt.maths import sparsemax
from pinprompt.methods.pin.learner import distinct_prefixes

torch.set_num_threads(1)

SMALL = update.Shape(batch=6, length=4, vocabulary=301, dim=16, hidden=24, k=60, distinct=0.5)


@pytest.mark.parametrize("distinct", [1.0, 0.4])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("target", ["bootstrap", "monte-carlo"])
def test_the_learner_is_equal_in_loss_and_gradient(
    target: Literal["bootstrap", "monte-carlo"], spread: float, distinct: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinprompt.methods.pin.learner.MAX_NORM", 1e9)
    shape = update.Shape(batch=6, length=4, vocabulary=301, dim=16, hidden=24, k=60, distinct=distinct, spread=spread)
    batch = update.make(shape, target)
    weights = list(batch.learner.writer.psi.parameters())
    reference = update.released_loss(batch)
    gradients = torch.autograd.grad(reference, weights)
    ours = batch.learner.update(batch.ids, batch.rewards)
    assert ours.loss == pytest.approx(reference.item(), rel=1e-5)
    for weight, gradient in zip(weights, gradients, strict=True):
        assert weight.grad is not None
        assert weight.grad.numpy() == pytest.approx(gradient.numpy(), rel=1e-4, abs=1e-6)


def test_both_updates_move_psi_and_its_slow_copy_equally() -> None:
    batches = [update.make(SMALL) for _ in range(2)]
    before = [weight.clone() for weight in batches[0].learner.writer.psi.parameters()]
    update.released_update(batches[0])
    batches[1].learner.update(batches[1].ids, batches[1].rewards)
    for own, other in zip(*(batch.learner.state().values() for batch in batches), strict=True):
        assert own.numpy() == pytest.approx(other.numpy(), rel=1e-4, abs=1e-6)
    after = batches[0].learner.writer.psi.parameters()
    assert all((old - new).abs().max() > 1e-6 for old, new in zip(before, after, strict=True))


def test_the_two_targets_differ() -> None:
    losses = [update.released_loss(update.make(SMALL, target)).item() for target in ("bootstrap", "monte-carlo")]
    assert abs(losses[0] - losses[1]) > 0.1


def test_the_full_sort_gives_the_value() -> None:
    z = torch.tensor([[1, 0.5, -0.2], [2, 0, 0]])
    every = torch.ones_like(z, dtype=torch.bool)
    assert update.sorted_value(z, every).tolist() == pytest.approx([1.0625, 2.0])
    batch = update.make(SMALL)
    q, mask = update.filtered_q(batch.learner.writer.psi, batch.states, batch.learner.writer.backbone.head, SMALL.k)
    assert set(mask.sum(-1).flatten().tolist()) == {SMALL.k}
    ours = sparsemax.value(q, mask).detach().numpy()
    assert update.sorted_value(q, mask).detach().numpy() == pytest.approx(ours, rel=1e-5)


@pytest.mark.parametrize(("distinct", "sequences"), [(1.0, 6), (0.5, 3), (0.4, 3), (0.1, 1)])
def test_the_batch_is_as_distinct_as_asked(distinct: float, sequences: int) -> None:
    shape = update.Shape(batch=6, length=4, vocabulary=50, dim=4, hidden=4, k=9, distinct=distinct)
    prefixes, place = distinct_prefixes(update.make(shape).ids)
    assert len(prefixes) == 1 + 3 * sequences
    assert place.shape == (6, 4)


def test_taken_tokens_are_kept_ones() -> None:
    # A filtered token's Q is -1000 in the released code: it is never taken there, and must not be here.
    for shape in (SMALL, update.Shape(batch=32, length=5, vocabulary=999, dim=64, hidden=8, k=200)):
        batch = update.make(shape)
        for row in batch.ids.tolist():
            kept = batch.learner.writer.tree.kept([tuple(row[:t]) for t in range(len(row))])
            assert kept.sum(-1).tolist() == [shape.k] * shape.length
            assert kept[range(len(row)), row].all()


def test_a_variant_runs_in_a_process_of_its_own() -> None:
    facts = update._alone("monte_carlo", SMALL, 1, 1)
    assert facts["seconds"] > 0
    assert 10 < facts["rest_mb"] <= facts["peak_mb"] < 5000


def test_measure_says_all_it_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_alone", update.variant)  # a process each costs seconds
    facts = update.measure(update.Shape(batch=16, length=3, vocabulary=5003, dim=8, hidden=8, k=50), repeats=1)
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
    shape = update.Shape(batch=64, length=5, vocabulary=2003, dim=8, hidden=8, k=80)
    whole = 64 * 5 * 2003
    assert update.variant("released", shape, 1, 1)["largest_tensor"] >= whole
    assert update.variant("bootstrapped", shape, 1, 1)["largest_tensor"] <= 128 * 2008
    assert update.variant("monte_carlo", shape, 1, 1)["largest_tensor"] <= 64 * 5 * 8
