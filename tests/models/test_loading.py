"""Lower precision: what 8 bits make of a layer, of a model's answers, and of the promise about batch mates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from label_toys import TEXTS, WORDS, make, save

from pinprompt.errors import ModelError
from pinprompt.models.label_text import Frame
from pinprompt.models.labels import CausalLabels
from pinprompt.models.loading import Int8Linear, load_causal_lm, lowered

FRAMES = [Frame("", prompt) for prompt in (" It was", " the answer is", " It felt truly")]


def test_a_layer_matches_hand_worked_values() -> None:
    linear = torch.nn.Linear(2, 1)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.27, -0.64]]))
        linear.bias.copy_(torch.tensor([0.5]))
    # Scales 0.01 and 0.1: the weights are 127 and -64, the input 127 and 10.
    expected = (127 * 127 - 64 * 10) * 0.01 * 0.1 + 0.5
    found = Int8Linear(linear)(torch.tensor([[[12.7, 1.0]]]))
    assert found.shape == (1, 1, 1)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_rows_of_a_layer_are_near_and_do_not_depend_on_each_other() -> None:
    torch.manual_seed(0)
    linear, rows = torch.nn.Linear(64, 48), torch.randn(20, 64) * torch.logspace(-3, 3, 20)[:, None]
    rows[4] = 0.0
    low = Int8Linear(linear)
    together, exact = low(rows), linear(rows).detach()
    error = (together - exact).norm(dim=1) / (exact - linear.bias).norm(dim=1).clamp_min(1e-9)
    assert bool((error[torch.arange(20) != 4] < 0.03).all())
    assert torch.equal(together[4], linear.bias.detach())
    for row in range(20):
        assert torch.equal(low(rows[row : row + 1])[0], together[row])


def test_int8_answers_are_close_and_do_not_depend_on_the_batch() -> None:
    exact_model, tokenizer = make("llama")
    low_model = lowered(make("llama")[0], "int8")
    assert type(low_model.get_output_embeddings()) is torch.nn.Linear
    assert any(isinstance(part, Int8Linear) for part in low_model.modules())
    low, exact = (CausalLabels(m, tokenizer, WORDS, FRAMES[0]) for m in (low_model, exact_model))
    kept = low.prepare(TEXTS, keep=True)
    answers = low.log_probs(FRAMES, kept)
    for frame, answer, other in zip(FRAMES, answers, exact.log_probs(FRAMES, exact.prepare(TEXTS)), strict=True):
        assert 0 < float((answer.exp() - other.exp()).abs().max()) < 0.1
        assert torch.equal(low.log_probs([frame], kept)[0], answer)


def test_models_without_linear_layers_are_refused() -> None:
    with pytest.raises(ModelError, match="no plain linear layers"):
        lowered(make("gpt2")[0], "int8")


def test_a_model_in_use_is_loaded_once_and_in_each_precision(tmp_path: Path) -> None:
    save("llama", tmp_path / "toy")
    name = str(tmp_path / "toy")
    one, tokenizer = load_causal_lm(name)
    two, _ = load_causal_lm(name, precision="float32")
    low, _ = load_causal_lm(name, precision="int8")
    half, _ = load_causal_lm(name, precision="bf16")
    assert one is two
    assert load_causal_lm(name)[1] is tokenizer
    assert low is not one
    assert {half.dtype, one.dtype} == {torch.bfloat16, torch.float32}
    first: Any = id(one)
    del one, two
    import gc

    gc.collect()
    again, _ = load_causal_lm(name)
    assert again.pinprompt_tokenizer is not tokenizer, f"{first} was kept alive"
