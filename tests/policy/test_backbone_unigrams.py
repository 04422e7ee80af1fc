"""How common tokens are by themselves, and SLOR made of it: real sentences before shuffled ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from pinprompt.policy import backbone
from pinprompt.policy.backbone import Backbone, estimated, log_unigrams
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import PolicySettings
from pinprompt.run.readability import perplexity, slor

SENTENCES = [
    "The committee postponed its decision until the following week.",
    "She opened the window because the room was too warm.",
    "Most of the passengers had already left the ship.",
    "He wrote a long letter to his brother in Canada.",
    "The price of oil fell sharply after the announcement.",
    "Children learn to speak before they learn to read.",
    "Our neighbour plants tomatoes behind the old garage.",
    "Nobody could explain why the engine had stopped.",
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_estimate_is_a_distribution_and_the_mean_of_what_the_model_says(backbone: Backbone) -> None:
    found = estimated(backbone, rows=3, length=4)
    assert found.shape == (backbone.vocabulary_size,)
    assert float(found.double().exp().sum()) == pytest.approx(1, abs=1e-4)
    # The first distribution is one for all texts: nothing can be rarer than its share of the mean.
    tokens = torch.tensor([[backbone.tokenizer.bos_token_id]])
    first = torch.log_softmax(backbone.model(input_ids=tokens).logits[0, -1].float(), -1)
    assert (found >= first - torch.tensor(4.0).log() - 1e-4).all()


def test_unigrams_of_a_model_without_memory_are_its_distribution(tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=2, n_positions=32))
    body = model.transformer
    torch.nn.init.zeros_(body.ln_f.weight)  # whatever it reads, the state is the bias of its last norm
    torch.nn.init.normal_(body.ln_f.bias, std=3)
    torch.nn.init.normal_(body.wte.weight, std=1)
    said = torch.log_softmax(body.wte.weight.detach() @ body.ln_f.bias.detach(), -1)
    assert estimated(Backbone(model, tokenizer)).numpy() == pytest.approx(said.numpy(), abs=1e-4)


def test_a_tokenizer_without_special_tokens() -> None:
    bare = Tokenizer(models.WordLevel({f"w{n}": n for n in range(9)}, unk_token="w0"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=32))
    found = estimated(Backbone(model, PreTrainedTokenizerFast(tokenizer_object=bare)), rows=2, length=3)
    assert float(found.exp().sum()) == pytest.approx(1, abs=1e-4)


def test_the_estimate_is_kept_and_belongs_to_its_model(
    make: Callable[[str], Backbone], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = log_unigrams(make("gpt2"))
    assert torch.equal(first, estimated(make("gpt2")))
    assert not torch.equal(first, log_unigrams(make("llama")))
    monkeypatch.setattr(backbone, "estimated", lambda backbone: pytest.fail("measured again"))
    assert torch.equal(log_unigrams(make("gpt2")), first)


def test_a_cache_that_cannot_be_written_only_costs_time(
    make: Callable[[str], Backbone], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "file"))
    assert torch.equal(log_unigrams(make("gpt2")), estimated(make("gpt2")))


def test_real_sentences_outrank_shuffled_ones(smollm2: Backbone) -> None:
    writer = Writer.build(PolicySettings(k=5, hidden=4), backbone=smollm2)

    def measured(text: str) -> float:
        return slor(*writer.likelihoods([text])[0])

    chance = random.Random(5)
    gains = []
    for sentence in SENTENCES:
        words = sentence.split()
        shuffled = [" ".join(chance.sample(words, len(words))) for _ in range(3)]
        gains += [measured(sentence) - measured(text) for text in shuffled]
    assert min(gains) > 0
    assert sum(gains) / len(gains) > 1
    # Perplexity holds rare words against a sentence, SLOR does not.
    rare, common = "Oncologists prescribe methotrexate for rheumatoid arthritis.", SENTENCES[1]
    assert perplexity(writer.likelihoods([rare])[0][0]) > perplexity(writer.likelihoods([common])[0][0])
    assert measured(rare) > measured(common)
