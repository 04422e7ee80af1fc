"""States in the tree: right, and the same bits whatever the tree knows, drops or shares."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pinprompt.errors import ModelError, SettingError
from pinprompt.maths.state_values import pack
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.prefix_tree import BOOKKEEPING, PrefixTree
from pinprompt.policy.reader import Prefix, Reader
from pinprompt.policy.vocabulary import Ignorable, Vocabulary
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import Constraints, PolicySettings

LENGTH = 8
CONTEXT = "The film was great and"


def tree_of(
    backbone: Backbone, enabled: bool = True, k: int | None = 20, rows: int = 4, context: str = CONTEXT
) -> PrefixTree:
    vocabulary = Vocabulary(backbone.tokenizer, backbone.vocabulary_size, LENGTH, Constraints())
    reader = Reader(backbone, backbone.start(context), LENGTH, rows)
    return PrefixTree(reader, Ignorable(backbone, vocabulary, k).kept, backbone.vocabulary_size, 64, enabled)


def some_prefixes(count: int = 30, seed: int = 1) -> list[Prefix]:
    draw = random.Random(seed)
    paths = [tuple(draw.choice((40, 50, 300)) for _ in range(LENGTH)) for _ in range(count)]
    return [path[: draw.randrange(LENGTH)] for path in paths]


def plain_states(backbone: Backbone, prefixes: list[Prefix]) -> Any:
    """The reference: the head's own input in a full forward pass of the model, one prefix at a time."""
    seen: list[Any] = []
    hook = backbone.model.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for prefix in prefixes:
        with torch.no_grad():
            backbone.model(input_ids=torch.tensor([[*backbone.start(CONTEXT), *prefix]]), use_cache=False)
    hook.remove()
    return torch.stack([given[0, -1] for given in seen])


def test_states_are_those_of_a_full_pass(backbone: Backbone) -> None:
    prefixes = some_prefixes()
    states = tree_of(backbone).states(prefixes)
    assert states.shape == (len(prefixes), backbone.head.shape[1])
    assert not states.requires_grad
    torch.testing.assert_close(states, plain_states(backbone, prefixes), atol=1e-5, rtol=1e-5)


def test_a_context_longer_than_a_sliding_window(make: Callable[[str], Backbone]) -> None:
    backbone = make("gemma3")
    assert len(backbone.start(CONTEXT)) > backbone.config.sliding_window
    prefixes = [(40, 41, 42, 43, 44, 45, 46)]
    torch.testing.assert_close(
        tree_of(backbone).states(prefixes), plain_states(backbone, prefixes), atol=1e-5, rtol=1e-5
    )


def test_logits_and_logprobs_are_the_models_own(backbone: Backbone) -> None:
    prefixes = some_prefixes(6)
    states = tree_of(backbone).states(prefixes)
    for prefix, logprobs in zip(prefixes, backbone.logprobs(states), strict=True):
        with torch.no_grad():
            own = backbone.model(input_ids=torch.tensor([[*backbone.start(CONTEXT), *prefix]])).logits[0, -1]
        torch.testing.assert_close(logprobs, torch.log_softmax(own, -1), atol=1e-4, rtol=1e-4)


def test_the_filter_is_computed_only_when_it_is_asked_for(backbone: Backbone) -> None:
    tree, asked = tree_of(backbone), []
    keep = tree.keep
    tree.keep = lambda prefixes, states: (asked.extend(prefixes), keep(prefixes, states))[1]
    prefixes = list(dict.fromkeys(some_prefixes(12)))
    tree.states(prefixes)
    assert asked == [()], "the root's filter says how large a node is; no other was needed"
    bare = tree.used
    kept = tree.kept(prefixes)
    assert sorted(asked) == sorted({(), *prefixes}), "each once, and no ancestor that was not asked about"
    assert tree.used > bare
    assert tree.used == sum(node.bytes for node in tree._nodes.values())
    assert torch.equal(kept, tree_of(backbone).kept(prefixes)), "the same bits as when both came at once"


def test_on_and_off_give_the_same_bits(backbone: Backbone) -> None:
    on, off = tree_of(backbone), tree_of(backbone, enabled=False)
    for seed in range(4):
        prefixes = some_prefixes(12, seed)
        assert torch.equal(on.states(prefixes), off.states(prefixes))
        assert torch.equal(on.kept(prefixes), off.kept(prefixes))
        assert torch.equal(on.packed(prefixes), pack(off.kept(prefixes)))
    assert on.misses < off.misses


def test_batch_mates_and_order_do_not_matter(backbone: Backbone) -> None:
    prefixes = some_prefixes(20, 3)
    together = tree_of(backbone).states(prefixes)
    alone = torch.cat([tree_of(backbone).states([prefix]) for prefix in prefixes])
    backwards = tree_of(backbone).states(prefixes[::-1]).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, backwards)


def test_each_prefix_is_read_once(make: Callable[[str], Backbone]) -> None:
    tree = tree_of(make("llama"))
    prefixes = some_prefixes(30)
    tree.states(prefixes)
    distinct = {prefix[:end] for prefix in prefixes for end in range(len(prefix) + 1)}
    assert tree.misses == len(distinct)
    assert set(tree._nodes) == distinct - {()}
    tree.states(prefixes)
    assert tree.misses == len(distinct)
    assert tree.hits == len(set(prefixes) - {()})


def test_dropped_prefixes_come_back_the_same(backbone: Backbone) -> None:
    whole, small = tree_of(backbone), tree_of(backbone)
    small.states([()])
    small.limit = 6 * small._node_bytes
    first = some_prefixes(30, 5)
    for seed in (5, 6, 7, 5):
        prefixes = some_prefixes(30, seed)
        assert torch.equal(whole.states(prefixes), small.states(prefixes))
        assert torch.equal(whole.kept(prefixes), small.kept(prefixes))
    assert small.misses > whole.misses
    assert small.used <= max(6, 4 * LENGTH) * small._node_bytes
    assert small.used == sum(node.bytes for node in small._nodes.values())
    assert torch.equal(whole.states(first), small.states(first))


def test_states_outlive_their_nodes(make: Callable[[str], Backbone]) -> None:
    backbone = make("llama")
    whole, small = tree_of(backbone), tree_of(backbone)
    small.states([()])
    small.limit = 6 * small._node_bytes
    first = list(dict.fromkeys(some_prefixes(30, 5)))
    kept = small.kept(first)
    for seed in (6, 7):
        small.kept(some_prefixes(30, seed))
    gone, read = set(first) - {(), *small._nodes}, small.misses
    assert gone, "the tree has no room for all of them"
    assert torch.equal(small.states(first), whole.states(first))
    assert small.misses == read, "no state was read again"
    assert torch.equal(small.kept(first), kept)
    assert small.misses > read, "keys and values of dropped nodes are gone, so kept sets are computed again"


def test_the_memory_for_states_of_dropped_nodes_is_limited(make: Callable[[str], Backbone]) -> None:
    backbone = make("llama")
    whole, small = tree_of(backbone), tree_of(backbone)
    one = small.states([()]).nbytes + BOOKKEEPING
    small.limit, small.old_limit = 6 * small._node_bytes, 10 * one
    for seed in (5, 6, 7, 5):
        prefixes = some_prefixes(30, seed)
        assert torch.equal(small.states(prefixes), whole.states(prefixes))
        assert len(small._old) <= 10
    assert len(small._old) == 10
    small.clear()
    assert not small._old


def test_a_child_outlives_its_parent(make: Callable[[str], Backbone]) -> None:
    backbone = make("llama")
    tree, whole = tree_of(backbone), tree_of(backbone)
    tree.states([(40, 50, 300)])
    tree.used -= tree._nodes.pop((40, 50)).bytes
    tree.reader.forget()
    deeper = [(40, 50, 300, 40)]
    assert torch.equal(tree.states(deeper), whole.states(deeper))


def test_kept_sets_are_the_k_likeliest(make: Callable[[str], Backbone]) -> None:
    backbone = make("gptj")  # its head has a bias, which counts
    tree = tree_of(backbone, k=20)
    prefixes = some_prefixes(10)
    kept = tree.kept(prefixes)
    allowed = Vocabulary(backbone.tokenizer, backbone.vocabulary_size, LENGTH, Constraints()).allowed(())
    for prefix, mask in zip(prefixes, kept, strict=True):
        with torch.no_grad():
            logits = backbone.model(input_ids=torch.tensor([[*backbone.start(CONTEXT), *prefix]])).logits[0, -1]
        ranked = [int(i) for i in logits.argsort(descending=True) if allowed[i]]
        assert set(mask.nonzero()[:, 0].tolist()) == set(ranked[:20])
    assert torch.equal(tree_of(backbone, k=None).kept([()])[0], allowed)


def test_ties_at_the_kth_place_are_kept(tokenizer: Any, make: Callable[[str], Backbone]) -> None:
    backbone = make("gpt2")
    vocabulary = Vocabulary(tokenizer, backbone.vocabulary_size, LENGTH, Constraints())
    kept = Ignorable(backbone, vocabulary, 3).kept([()], torch.zeros(4, backbone.dim))
    assert int(kept.sum()) == vocabulary.writable


def test_no_keys_for_what_is_never_extended(make: Callable[[str], Backbone]) -> None:
    tree = tree_of(make("gpt2"))
    tree.states([(40,) * (LENGTH - 1)])
    assert tree._nodes[(40,) * (LENGTH - 1)].own is None
    assert tree._nodes[(40,) * (LENGTH - 2)].own is not None
    with pytest.raises(ValueError, match="no state"):
        tree.states([(40,) * LENGTH])


def test_a_recurrent_body_is_read_from_the_start(tokenizer: Any) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    size = len(tokenizer)
    model = MambaForCausalLM(MambaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=2, state_size=4))
    backbone = Backbone(model, tokenizer)
    assert not backbone.incremental
    prefixes = some_prefixes(5)
    torch.testing.assert_close(
        tree_of(backbone).states(prefixes), plain_states(backbone, prefixes), atol=1e-5, rtol=1e-5
    )


def test_start_is_the_opening_token_and_the_context(tokenizer: Any, make: Callable[[str], Backbone]) -> None:
    backbone = make("gpt2")
    assert backbone.start() == [tokenizer.bos_token_id]
    assert backbone.start("It was") == [
        tokenizer.bos_token_id,
        *tokenizer("It was", add_special_tokens=False).input_ids,
    ]


def test_a_model_without_a_head_is_refused(tokenizer: Any) -> None:
    from transformers import GPT2Config, GPT2Model

    with pytest.raises(ModelError, match="no language-model head"):
        Backbone(GPT2Model(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2)), tokenizer)


def test_more_places_than_positions_are_refused(make: Callable[[str], Backbone]) -> None:
    with pytest.raises(SettingError, match="at most 256"):
        tree_of(make("gpt2"), context="a great film " * 200)


def test_a_k_beyond_the_vocabulary_is_refused(make: Callable[[str], Backbone]) -> None:
    with pytest.raises(SettingError, match="k is 10000"):
        Writer.build(PolicySettings(k=10_000), backbone=make("gpt2"))


def test_smollm2_does_not_depend_on_its_batch(smollm2: Backbone) -> None:
    backbone = smollm2
    draw = random.Random(0)
    prefixes = [tuple(draw.randrange(100, 40_000) for _ in range(2)) for _ in range(20)]

    def states(chosen: list[Prefix]) -> Any:
        reader = Reader(backbone, backbone.start("It was"), 3, 16)
        return PrefixTree(reader, lambda p, s: torch.ones(len(p), 8, dtype=torch.bool), 8).states(chosen)

    together = states(prefixes)
    assert torch.equal(together[7:8], states(prefixes[7:8]))
    assert torch.equal(together[[19, 3, 11]], states([prefixes[i] for i in (19, 3, 11)]))
