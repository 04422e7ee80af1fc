"""Small language models of the real classes with a real byte-level BPE, for the writer's tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

from pinprompt.policy.backbone import Backbone

torch.set_num_threads(1)
os.environ["TOKENIZERS_PARALLELISM"] = "false"

SENTENCES = [
    "The film was great and the acting was wonderful, a great story told with care.",
    "A terrible movie with a terrible plot; the worst film of the year 2019.",
    "It was a bad word and a good word, the cat sat on the mat with another cat.",
    "New York is a category of its own. new york, New Delhi and old York!",
    "This review is absolutely positive: 10 out of 10, would watch again.",
    "Überraschend schön, café naïve résumé, ein Film über Größe.",
    "Summarize the review in one word. Answer honestly: was it great or terrible?",
] * 3


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def _size(tokenizer: Any) -> int:
    return len(tokenizer) + 7  # a head with more rows than the tokenizer has tokens, as OPT's


def _opt(v: int) -> Any:
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 16, "ffn_dim": 64, "num_hidden_layers": 2}
    return OPTForCausalLM(
        OPTConfig(vocab_size=v, num_attention_heads=4, max_position_embeddings=256, do_layer_norm_before=False, **sizes)
    )


def _gpt2(v: int) -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=v, n_embd=32, n_layer=2, n_head=4, n_positions=256))


def _neo(v: int) -> Any:
    config = GPTNeoConfig(
        vocab_size=v, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=4, max_position_embeddings=256,
    )  # fmt: skip
    return GPTNeoForCausalLM(config)


def _gptj(v: int) -> Any:
    model = GPTJForCausalLM(GPTJConfig(vocab_size=v, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=256))
    torch.nn.init.normal_(model.lm_head.bias)
    return model


_LLAMA: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip


def _llama(v: int) -> Any:
    return LlamaForCausalLM(LlamaConfig(vocab_size=v, tie_word_embeddings=False, **_LLAMA))


def _gemma2(v: int) -> Any:
    config = Gemma2Config(vocab_size=v, head_dim=8, sliding_window=4, final_logit_softcapping=2.0, **_LLAMA)
    return Gemma2ForCausalLM(config)


def _gemma3(v: int) -> Any:
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=v, head_dim=8, sliding_window=4, layer_types=kinds, **_LLAMA))


MAKERS: dict[str, Callable[[int], Any]] = {
    "opt": _opt, "gpt2": _gpt2, "neo": _neo, "gptj": _gptj, "llama": _llama, "gemma2": _gemma2, "gemma3": _gemma3,
}  # fmt: skip


@pytest.fixture(scope="session")
def make(tokenizer: Any) -> Callable[[str], Backbone]:
    """A backbone by the name of its class; made once."""
    known: dict[str, Backbone] = {}

    def _make(name: str) -> Backbone:
        if name not in known:
            torch.manual_seed(0)
            model = MAKERS[name](_size(tokenizer))
            # The usual initial weights are so small that every state looks alike.
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.3)
            known[name] = Backbone(model, tokenizer)
        return known[name]

    return _make


@pytest.fixture(params=sorted(MAKERS))
def backbone(request: Any, make: Callable[[str], Backbone]) -> Backbone:
    return make(request.param)


@pytest.fixture(scope="session")
def smollm2() -> Backbone:
    """The real thing, for what small models cannot show."""
    return Backbone.load("smollm2")
