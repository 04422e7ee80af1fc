"""Task models in lower precision: faster where the machine has instructions for it, with other scores.

int8 rounds the weights once, each output's by its own scale, and the rows that come in each by its own scale too.
Products of whole numbers are exact, so what a row gets does not depend on the rows beside it, as in float32.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from pinprompt.errors import ModelError, SettingError

Precision = Literal["float32", "bf16", "int8"]


class Int8Linear(torch.nn.Module):
    """A linear layer whose weights and inputs are rounded to 8 bits: y = s_x s_w (q_x q_w^T) + b."""

    scale: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())
        self.out_features, self.in_features = weight.shape

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """[..., in] to [..., out]."""
        rows = given.reshape(-1, self.in_features)
        scale = rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        product = torch._int_mm((rows / scale).round().to(torch.int8), self.weight.t()).float()
        found = product.mul_(scale).mul_(self.scale)
        if self.bias is not None:
            found += self.bias
        return found.view(*given.shape[:-1], self.out_features)


def lowered(model: Any, precision: Precision) -> Any:
    """The model with its linear layers in that precision, the head aside: which label wins must not hang on 8 bits."""
    if precision != "int8":
        return model
    if model.device.type != "cpu":
        raise SettingError("models.precision = 'int8' is for CPUs; on a GPU choose bf16 or float32")
    head = model.get_output_embeddings()
    found = [(name, part) for name, part in model.named_modules() if type(part) is torch.nn.Linear and part is not head]
    if not found:
        raise ModelError(
            f"{type(model).__name__} has no plain linear layers to compute in 8 bits; choose models.precision = float32"
        )
    for name, part in found:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Int8Linear(part))
    return model
