"""Tiny models of the real classes with real tokenizers, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "this film was great and the story felt good",
    "this film was terrible and the plot felt bad",
    "It was great . It was terrible . news : world sports",
    "a truly wonderful little drama with a big heart",
    "dull , slow and awful from the start to the end",
    "in this task the answer is one word",
] * 4
TEXTS = [
    "a truly wonderful drama",
    "dull , slow and awful from the start to the end of the film",
    "the story felt good",
    "bad",
    "this film was terrible and the plot felt slow and bad",
    "heart",
]
WORDS = {"neg": "terrible", "pos": "great"}


def byte_level(mask: bool) -> Any:
    """A byte-level BPE as RoBERTa (with a mask that eats the space before it) or GPT-2 has."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", *(["<unk>"] if mask else [])]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if mask:
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    else:
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", model_max_length=128
        )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
        model_max_length=64,
    )


def word_piece() -> Any:
    """A WordPiece as BERT has."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_max_length=64,
    )


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def make(name: str) -> tuple[Any, Any]:
    """A model of that architecture with random weights, and its tokenizer."""
    import transformers as t

    torch.manual_seed(0)
    if name == "roberta":
        tok = byte_level(mask=True)
        config = t.RobertaConfig(vocab_size=len(tok), max_position_embeddings=66, pad_token_id=1, **_SMALL)
        model = t.RobertaForMaskedLM(config)
    elif name == "bert":
        tok = word_piece()
        model = t.BertForMaskedLM(t.BertConfig(vocab_size=len(tok), max_position_embeddings=64, **_SMALL))
    elif name == "electra":
        tok = word_piece()
        config = t.ElectraConfig(vocab_size=len(tok), embedding_size=16, max_position_embeddings=64, **_SMALL)
        model = t.ElectraForMaskedLM(config)
    elif name == "distilbert":
        tok = word_piece()
        config = t.DistilBertConfig(
            vocab_size=len(tok), dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=64
        )
        model = t.DistilBertForMaskedLM(config)
    elif name == "gpt2":
        tok = byte_level(mask=False)
        model = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=len(tok), n_positions=128, n_embd=32, n_layer=2, n_head=4))
    elif name == "llama":
        tok = byte_level(mask=False)
        config = t.LlamaConfig(
            vocab_size=len(tok), num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, **_SMALL
        )
        model = t.LlamaForCausalLM(config)
    elif name == "gemma2":  # soft-capped: its attention cannot be read row by row
        tok = byte_level(mask=False)
        config = t.Gemma2Config(
            vocab_size=len(tok),
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=128,
            final_logit_softcapping=2.0,
            **_SMALL,
        )
        model = t.Gemma2ForCausalLM(config)
    else:
        tok = byte_level(mask=False)
        config = t.OPTConfig(
            vocab_size=len(tok),
            hidden_size=32,
            word_embed_proj_dim=16,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
        )
        model = t.OPTForCausalLM(config)
    with torch.no_grad():  # the published initial weights are so small that every answer is nearly uniform
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval().requires_grad_(False), tok


def save(name: str, folder: Path) -> str:
    """The same, saved as transformers saves it."""
    model, tokenizer = make(name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
