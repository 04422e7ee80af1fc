"""Models of real shapes with random weights, for measurements where the real ones cannot be had."""

from __future__ import annotations

from typing import Any


def random_opt_125m() -> tuple[Any, Any]:
    """An OPT of OPT-125M's shape with random weights, and a tokenizer of made-up words: (model, tokenizer)."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    words = {"<s>": 0, "<pad>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, 50_265)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = OPTForCausalLM(OPTConfig())
    special = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<s>"}
    return model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
