"""Models in use are loaded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from label_toys import save

from pinprompt.models.loading import load_causal_lm


def test_a_model_in_use_is_loaded_once_and_in_each_precision(tmp_path: Path) -> None:
    save("llama", tmp_path / "toy")
    name = str(tmp_path / "toy")
    one, tokenizer = load_causal_lm(name)
    two, _ = load_causal_lm(name, precision="float32")
    half, _ = load_causal_lm(name, precision="bf16")
    assert one is two
    assert load_causal_lm(name)[1] is tokenizer
    assert {half.dtype, one.dtype} == {torch.bfloat16, torch.float32}
    first: Any = id(one)
    del one, two
    import gc

    gc.collect()
    again, _ = load_causal_lm(name)
    assert again.pinprompt_tokenizer is not tokenizer, f"{first} was kept alive"
