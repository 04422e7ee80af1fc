"""Products of a few rows with frozen weights: by oneDNN, with the weights arranged for it once instead of every time.

On a CPU a product of 16 or 64 rows with a large matrix spends up to half of its time on arranging that matrix. Weights
that are kept in oneDNN's own layout take their memory a second time, and a pass takes about two thirds of the time. The
sums run in another order than those of a plain layer (the last bits differ), so a kind of pass always uses it or never.
"""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch import Tensor, nn

LIMIT = 2 * 2**30
"""Bytes of a model's weights above which they are not packed: a second copy may not fit in memory."""

_Packed = tuple[tuple[int, int], Tensor]
_known: weakref.WeakKeyDictionary[nn.Module, _Packed] = weakref.WeakKeyDictionary()


def packable(model: nn.Module) -> list[nn.Linear]:
    """The linear layers of a model (or the one that it is) that work faster when packed; none for a large model."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return []
    # Subclasses do more than a product, and a layer whose forward was replaced is somebody else's.
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and "forward" not in layer.__dict__]
    weights = [layer.weight for layer in layers]
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return []
    return layers if sum(weight.nbytes for weight in weights) <= LIMIT else []


def product(layer: nn.Linear, states: Tensor) -> Tensor:
    """The rows [n, d] times a packable layer's weights, without its bias and without a gradient: [n, V]."""
    return _linear(_weights(layer), None, states)


class PackedLayers:
    """Within this (`with`), a frozen model's linear layers use packed weights where they can, without gradients.

    Afterwards the model is as it was: others share it, and their numbers must not depend on what ran before.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = packable(model)

    def __enter__(self) -> None:
        for layer in self._layers:
            # An instance attribute hides the class's forward; set past Module.__setattr__, which takes a while.
            layer.__dict__["forward"] = partial(_linear, _weights(layer), layer.bias)

    def __exit__(self, *error: object) -> None:
        for layer in self._layers:
            layer.__dict__.pop("forward", None)


def _linear(weights: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    answer: Tensor = torch.ops.mkldnn._linear_pointwise(states, weights, bias, "none", [], "")
    return answer


def _weights(layer: nn.Linear) -> Tensor:
    """A layer's packed weights, made once for all who share the layer, and again where the weights have changed."""
    now = layer.weight.data_ptr(), layer.weight._version
    known = _known.get(layer)
    if known is None or known[0] != now:
        known = _known[layer] = now, torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
    return known[1]
