"""The backbone where models and tokenizers are not as usual: scaled logits, no special tokens, an odd head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    ByT5Tokenizer,
    CohereConfig,
    CohereForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    PreTrainedTokenizerFast,
)

from pinprompt.errors import ModelError, SettingError
from pinprompt.models import cache
from pinprompt.policy import backbone as policy_backbone
from pinprompt.policy.backbone import BLOCK, Backbone, Tokens

SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def bare() -> PreTrainedTokenizerFast:
    """A tokenizer without a single special token."""
    words = Tokenizer(models.WordLevel({"a": 0, "film": 1, "great": 2}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words)


@pytest.mark.parametrize(
    "build",
    [
        lambda v: CohereForCausalLM(CohereConfig(vocab_size=v, logit_scale=0.25, **SMALL)),
        lambda v: GraniteForCausalLM(GraniteConfig(vocab_size=v, logits_scaling=6.0, **SMALL)),
    ],
    ids=["cohere", "granite"],
)
def test_scaled_logits_are_the_models_own(build: Callable[[int], Any], tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = build(len(tokenizer))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    backbone = Backbone(model, tokenizer)
    ids = torch.tensor([backbone.start("The film")])
    with torch.no_grad():
        own = torch.log_softmax(backbone.model(input_ids=ids).logits[:, -1], -1)
    torch.testing.assert_close(backbone.logprobs(backbone.read(ids)), own, atol=1e-4, rtol=1e-4)
    plain = torch.log_softmax(backbone.logits(backbone.read(ids)), -1)
    assert (plain - own).abs().max() > 0.1  # without the scale it would be another distribution


def gpt2(size: int) -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=8, n_layer=1, n_head=2, n_positions=16))


def test_a_tokenizer_without_special_tokens_begins_with_the_context(bare: Any) -> None:
    backbone = Backbone(gpt2(len(bare)), bare)
    assert backbone.start("great film") == [2, 1]
    with pytest.raises(ModelError, match=r"no special token.*give policy\.context some text"):
        backbone.start()


def test_perplexity_without_an_opening_token_needs_two_tokens(bare: Any) -> None:
    backbone = Backbone(gpt2(len(bare)), bare)
    ids = torch.tensor([[0, 2, 1]])
    with torch.no_grad():
        loss = backbone.model(input_ids=ids, labels=ids).loss
    assert backbone.perplexities(["a great film"])[0] == pytest.approx(float(loss.exp()), rel=1e-5)
    for text in ("", "film"):
        with pytest.raises(SettingError, match="no perplexity"):
            backbone.perplexities([text])


def test_a_head_of_another_width_than_the_states_is_refused(bare: Any) -> None:
    model = gpt2(len(bare))
    model.set_output_embeddings(torch.nn.Linear(6, len(bare), bias=False))
    backbone = Backbone(model, bare)
    with pytest.raises(ModelError, match="states of width 8 but a head of width 6"):
        backbone.read(torch.tensor([[0, 1]]))


def test_a_tokenizer_in_python_gives_the_same_texts() -> None:
    """ByT5's has no Rust behind it; its tokens are bytes, so only those of ASCII can be written alone."""
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokens = Tokens(tokenizer, len(tokenizer) + 2)
    whole = {tokens.pieces[token] for token in range(tokens.size) if tokens.whole[token]}
    assert whole == {chr(code) for code in range(128)}
    assert tokens.text(tokens.encode("Great film")) == "Great film"
    (letter,) = tokens.encode("g")
    assert tokens.stable()[letter]
    assert not tokens.stable()[len(tokenizer) :].any()


def test_the_texts_of_tokens_are_kept_and_are_the_same(
    bare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(policy_backbone, "home", lambda: tmp_path)
    monkeypatch.setattr(cache, "home", lambda: tmp_path)
    found = Tokens(bare, len(bare) + 2)
    found.stable()
    monkeypatch.setattr(policy_backbone, "CACHED_FROM", 0)
    made = Tokens(bare, len(bare) + 2)
    monkeypatch.setattr(Tokens, "_find", lambda *_: pytest.fail("they are known"))
    kept = Tokens(bare, len(bare) + 2)
    for other in (made, kept):
        assert (other.pieces, other.alone) == (found.pieces, found.alone)
        assert (other.whole == found.whole).all()
        assert (other.stable() == found.stable()).all()
    with pytest.raises(pytest.fail.Exception):
        Tokens(bare, len(bare) + 3)


def test_texts_that_cannot_be_read_are_found_again(bare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(policy_backbone, "home", lambda: tmp_path)
    monkeypatch.setattr(cache, "home", lambda: tmp_path)
    monkeypatch.setattr(policy_backbone, "CACHED_FROM", 0)
    first = Tokens(bare, len(bare))
    (file,) = tmp_path.glob("tokens/*/tokens.json")
    file.chmod(0o600)
    file.write_text("{", "utf-8")
    again = Tokens(bare, len(bare))
    assert again.pieces == first.pieces
    assert (again.stable() == first.stable()).all()


@pytest.mark.parametrize("vocabulary", [BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_the_head_in_blocks_is_the_head(vocabulary: int) -> None:
    model = gpt2(vocabulary)
    states = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    backbone = Backbone(model, ByT5Tokenizer(extra_ids=0))
    torch.testing.assert_close(backbone.logits(states), states @ model.lm_head.weight.T)


def test_products_without_packed_weights_are_the_same(make: Callable[[str], Backbone]) -> None:
    """As on a processor without oneDNN, or with a model that is too large for a second copy of its weights."""
    backbone = make("gpt2")
    states = torch.randn(5, backbone.dim, generator=torch.Generator().manual_seed(0))
    packed = backbone.over_vocabulary(states)
    backbone._packed_head = None
    expected = (states.double() @ backbone.head.double().T).float()
    for found in (packed, backbone.over_vocabulary(states), backbone.over_vocabulary(states[None])[0]):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_cache_that_transformers_cannot_make_means_reading_from_the_start(
    make: Callable[[str], Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(config: Any) -> Any:
        raise ValueError("this model has no such cache")

    backbone = make("gpt2")
    assert backbone.incremental
    monkeypatch.setattr(policy_backbone, "DynamicCache", refuses)
    assert not Backbone(backbone.model, backbone.tokenizer).incremental
