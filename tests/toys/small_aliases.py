"""Small models of the real classes in the place where the cache has the models that pip brings."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from pinprompt.models.wheels import ALIASES

DATA = Path(__file__).parents[2] / "examples" / "data"


def words_of(texts: list[str], wrap: bool) -> PreTrainedTokenizerFast:
    """A tokenizer for any text, with whole words for the frequent ones."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<s>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    if wrap:
        made.post_processor = processors.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="<s>", pad_token="<pad>")


def make_home(place: Path) -> Path:
    """A cache in which smollm2 and minilm are small; for PINPROMPT_HOME."""
    texts = [line for path in DATA.glob("*.[ct][sx][vt]") for line in path.read_text("utf-8").splitlines()]
    torch.manual_seed(0)
    writer, reader = words_of(texts, wrap=False), words_of(texts, wrap=True)
    size = {"vocab_size": len(writer), "bos_token_id": 0, "eos_token_id": 0}
    causal = GPT2LMHeadModel(GPT2Config(**size, n_embd=32, n_layer=1, n_head=2, n_positions=1024))
    shape = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = BertModel(BertConfig(vocab_size=len(reader), **shape, max_position_embeddings=512, pad_token_id=1))
    for name, model, tokenizer in (("smollm2", causal, writer), ("minilm", encoder, reader)):
        folder = place / "models" / f"{name}-{ALIASES[name].version}"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return place
