"""Small models of the real classes with random weights, saved in the real formats, on a vocabulary of whole words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = ["the", "food", "was", "is", "place", "good", "bad", "love", "hate"]
WORDS += ["very", "nice", "awful", "we", "they", "it", "a"]
MARKS = ['"', ".", "!", "?"]
SPECIAL = ["[UNK]", "[PAD]", "[BOS]", "[EOS]"]
VOCABULARY = [*SPECIAL, *MARKS, *WORDS]
SOURCE = [
    f"the {thing} was {how} {word}"
    for thing in ("food", "place")
    for how in ("very", "a", "is")
    for word in ("bad", "awful", "hate")
]
TARGET = [text.replace("bad", "good").replace("awful", "nice").replace("hate", "love") for text in SOURCE]


def tokenizer(wrap: bool = False, vocabulary: list[str] = VOCABULARY) -> Any:
    """Whole words and single marks; with `wrap` special tokens stand around every text, as in an encoder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    if wrap:
        made.post_processor = processors.TemplateProcessing(
            single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", 3)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]"
    )


def causal_lm(kind: str = "llama", size: int = len(VOCABULARY), seed: int = 0, places: int = 96) -> Any:
    """A decoder of a few thousand weights; they are large enough that what it says depends on what it read."""
    import transformers as t

    torch.manual_seed(seed)
    shared = {"vocab_size": size, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
    if kind == "llama":
        config: Any = t.LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=places, initializer_range=0.4, **shared,
        )  # fmt: skip
        return t.LlamaForCausalLM(config).eval()
    if kind == "gpt2":
        config = t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=places, initializer_range=0.3, **shared)
        return t.GPT2LMHeadModel(config).eval()
    if kind == "opt":
        config = t.OPTConfig(
            hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=16,
            max_position_embeddings=places, init_std=0.3, **shared,
        )  # fmt: skip
        return t.OPTForCausalLM(config).eval()
    config = t.MambaConfig(hidden_size=16, num_hidden_layers=1, state_size=4, **shared)
    return t.MambaForCausalLM(config).eval()


def encoder(labels: list[str] | None = None, seed: int = 0) -> Any:
    """A BERT: without a head, or with one for these labels."""
    import transformers as t

    torch.manual_seed(seed)
    named = (
        {}
        if labels is None
        else {"id2label": dict(enumerate(labels)), "label2id": {w: i for i, w in enumerate(labels)}}
    )
    config = t.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=1, initializer_range=0.3, **named,
    )  # fmt: skip
    return (t.BertModel(config) if labels is None else t.BertForSequenceClassification(config)).eval()


def save(folder: Path, model: Any, wrap: bool = False) -> str:
    """A model and its tokenizer as a folder in transformers' format."""
    model.save_pretrained(folder)
    tokenizer(wrap).save_pretrained(folder)
    return str(folder)
