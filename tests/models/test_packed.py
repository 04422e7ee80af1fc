"""Packed weights: the model's own answers up to the last bits, row by row, and a model that is left as it was."""

from __future__ import annotations

import pytest
import torch
from style_toys import causal_lm
from torch import nn

from pinprompt.models import packed
from pinprompt.models.packed import PackedLayers, packable, product

pytestmark = pytest.mark.skipif(not packable(nn.Linear(2, 2)), reason="torch was built without oneDNN")


def _layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, 1000, bias=bias)


@torch.no_grad()
def test_a_product_is_that_of_the_weights_and_a_row_has_the_same_bits_at_any_place() -> None:
    layer, states = _layer(), torch.randn(16, 96)
    found = product(layer, states)
    assert torch.allclose(found, states @ layer.weight.T, atol=1e-5)
    order = torch.randperm(16)
    assert torch.equal(product(layer, states[order]), found[order])
    others = torch.cat([states[:3], torch.randn(13, 96)])
    assert torch.equal(product(layer, others)[:3], found[:3])


@torch.no_grad()
def test_packed_layers_give_close_answers_and_are_undone() -> None:
    model, ids = causal_lm("llama"), torch.tensor([[4, 9, 12, 8], [5, 5, 6, 7]])
    before = model(ids).logits
    layers = PackedLayers(model)
    with layers:
        assert any("forward" in layer.__dict__ for layer in _linears(model))
        within = model(ids).logits
    assert torch.allclose(within, before, atol=1e-5)
    assert torch.equal(model(ids).logits, before)
    with pytest.raises(KeyError), layers:
        raise KeyError
    assert torch.equal(model(ids).logits, before)


def _linears(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if type(layer) is nn.Linear]


@torch.no_grad()
def test_weights_that_change_are_packed_again() -> None:
    layer, states = _layer(bias=False), torch.randn(8, 96)
    once = product(layer, states)
    layer.weight.mul_(2)
    assert torch.allclose(product(layer, states), 2 * once, atol=1e-5)
    layer.weight = nn.Parameter(torch.ones(1000, 96))
    assert torch.allclose(product(layer, states), states.sum(-1, keepdim=True).expand(-1, 1000), atol=1e-4)


def test_large_models_other_precisions_and_replaced_layers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packable(_layer().bfloat16()) == []
    replaced = _layer()
    replaced.forward = lambda states: states  # type: ignore[method-assign, assignment]
    assert packable(replaced) == []
    monkeypatch.setattr(packed, "LIMIT", 1000)
    assert packable(_layer()) == []
