"""Matrix products of a few rows with frozen weights, packed once into oneDNN's own layout.

On a CPU a product of 16 or 64 rows with a large matrix spends up to half of its time on packing that matrix. Keeping
the packed weights doubles their memory, and a pass takes about two thirds of the time. The order of summation differs
from a plain layer's (and so do the last bits), so a kind of pass uses packed weights either always or never.
"""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch import Tensor, nn

LIMIT = 2 * 2**30
"""Maximum bytes of a model's weights for packing: a second copy may not fit in memory."""

_Packed = tuple[tuple[int, int], Tensor]
_known: weakref.WeakKeyDictionary[nn.Module, _Packed] = weakref.WeakKeyDictionary()


def packable(model: nn.Module) -> list[nn.Linear]:
    """The linear layers of a model (or the layer itself) that are faster when packed; none for a large model."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return []
    # Subclasses do more than a product, and a replaced forward must not be overwritten.
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and "forward" not in layer.__dict__]
    weights = [layer.weight for layer in layers]
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return []
    return layers if sum(weight.nbytes for weight in weights) <= LIMIT else []


def product(layer: nn.Linear, states: Tensor) -> Tensor:
    """The rows [n, d] times a packable layer's weights, without its bias and without a gradient: [n, V]."""
    return _linear(_weights(layer), None, states)


class PackedLayers:
    """In this context, a frozen model's linear layers use packed weights if possible, without gradients.

    Afterwards the model is restored: it may be shared, and results must not depend on what ran before.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = packable(model)

    def __enter__(self) -> None:
        for layer in self._layers:
            # An instance attribute hides the class's forward; set without Module.__setattr__, which is slow.
            layer.__dict__["forward"] = partial(_linear, _weights(layer), layer.bias)

    def __exit__(self, *error: object) -> None:
        for layer in self._layers:
            layer.__dict__.pop("forward", None)


def _linear(weights: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    answer: Tensor = torch.ops.mkldnn._linear_pointwise(states, weights, bias, "none", [], "")
    return answer


def _weights(layer: nn.Linear) -> Tensor:
    """A layer's packed weights, created once and again if the weights have changed."""
    now = layer.weight.data_ptr(), layer.weight._version
    known = _known.get(layer)
    if known is None or known[0] != now:
        known = _known[layer] = now, torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
    return known[1]
