"""The writer: draws as its policy says, greedy as a brute-force search, always the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprompt.errors import SettingError
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import Constraints, PolicySettings
from pinprompt.values import Prompt


@pytest.fixture(autouse=True)
def _no_ban_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))


def writer_of(backbone: Backbone, spread: float = 0.3, tree: bool = True, **given: Any) -> Writer:
    """A writer whose psi has learnt something: weights large enough for Q to differ from state to state."""
    given = {"length": 4, "k": 30, "hidden": 8, "batch": 4, **given}
    writer = Writer.build(PolicySettings(**given), "It was", backbone=backbone, tree=tree)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in writer.psi.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return writer


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_seed_writes_the_same(backbone: Backbone) -> None:
    one, two = writer_of(backbone), writer_of(backbone, tree=False)
    for seed in range(2):
        first, second = one.sample(10, draw(seed)), two.sample(10, draw(seed))
        assert first == second
    assert one.sample(10, draw(0)).prompts != one.sample(10, draw(1)).prompts
    # Fewer prompts are the first ones of more: nothing that is drawn depends on the rest of the batch.
    assert one.sample(3, draw(1)).prompts == first.prompts[:3]


def test_memory_changes_nothing(make: Callable[[str], Backbone]) -> None:
    roomy, tight = writer_of(make("llama")), writer_of(make("llama"))
    tight.sample(1, draw(5))
    tight.tree.limit = 5 * tight.tree._node_bytes
    for seed in range(3):
        assert roomy.sample(24, draw(seed)) == tight.sample(24, draw(seed))
    assert tight.tree.misses > roomy.tree.misses


@pytest.mark.parametrize("entropy", ["tsallis", "shannon"])
def test_frequencies_are_the_policys(make: Callable[[str], Backbone], entropy: Any) -> None:
    writer = writer_of(make("gpt2"), spread=0.15, length=1)
    q = writer.q(writer.states([()]))[0].double()
    kept = writer.tree.kept([()])[0]
    z = q[kept].numpy()
    if entropy == "shannon":
        expected = np.exp(z) / np.exp(z).sum()
    else:  # the threshold by bisection, which shares nothing with the code under test
        low, high = z.min() - 1, z.max()
        for _ in range(200):
            tau = (low + high) / 2
            low, high = (tau, high) if np.clip(z - tau, 0, None).sum() > 1 else (low, tau)
        expected = np.clip(z - low, 0, None)
    count = 4000
    written = writer.sample(count, draw(1), entropy)
    tokens = [int(t) for t in kept.nonzero()[:, 0]]
    seen = np.array([sum(p.ids == (t,) for p in written.prompts) for t in tokens]) / count
    assert np.abs(seen - expected).max() < 4 * np.sqrt(0.25 / count)
    assert seen[expected == 0].sum() == 0
    assert written.support == [float((expected > 1e-9).sum())]


def test_top_q_bias_and_filter(make: Callable[[str], Backbone]) -> None:
    writer = writer_of(make("gpt2"), length=1)
    q, kept = writer.q(writer.states([()]))[0], writer.tree.kept([()])[0]
    best = q.masked_fill(~kept, -torch.inf).topk(3).indices.tolist()
    written = writer.sample(200, draw(0), "shannon", top_q=3)
    assert {p.ids[0] for p in written.prompts} <= set(best)
    assert written.support == [3.0]
    assert writer.sample(50, draw(0)) == writer.sample(50, draw(0), logit_bias=-10.0)  # the same to every token
    free = writer.sample(400, draw(0), "shannon", filtered=False)
    assert free.support == [float(writer.allowed([()]).sum())]
    assert any(not kept[p.ids[0]] for p in free.prompts)


def test_exploring_draws_evenly_from_what_is_kept(make: Callable[[str], Backbone]) -> None:
    writer = writer_of(make("llama"), length=1, k=10)
    kept = set(writer.tree.kept([()])[0].nonzero().flatten().tolist())
    alone = {prompt.ids[0] for prompt in writer.sample(500, draw(3), top_q=1).prompts}
    assert len(alone) == 1, "without exploring only the largest Q is written"
    drawn = [prompt.ids[0] for prompt in writer.sample(3000, draw(3), top_q=1, explore=0.4).prompts]
    assert set(drawn) == kept, "nothing else, and nothing left out"
    # Of 10 kept tokens each has 0.04, the one of the largest Q 0.6 more; five standard deviations around.
    shares = {token: drawn.count(token) / len(drawn) for token in kept}
    (best,) = alone
    assert shares.pop(best) == pytest.approx(0.64, abs=0.045)
    assert all(share == pytest.approx(0.04, abs=0.018) for share in shares.values())
    assert writer.sample(50, draw(3), explore=0.0) == writer.sample(50, draw(3))
    assert writer.sample(50, draw(3), top_q=1, explore=0.4).support == [1.0], "support is the policy's, not chance's"


def test_without_the_filter_everything_allowed_is_kept(make: Callable[[str], Backbone]) -> None:
    writer = writer_of(make("gpt2"), k=None)
    assert torch.equal(writer.tree.kept([(), (40,)]), writer.allowed([(), (40,)]))


def test_greedy_is_the_largest_q_at_each_place(backbone: Backbone) -> None:
    writer = writer_of(backbone)
    ids: tuple[int, ...] = ()
    for _ in range(writer.length):
        with torch.no_grad():
            full = torch.tensor([[*backbone.start("It was"), *ids]])
            state = backbone.body(input_ids=full, use_cache=False).last_hidden_state[0, -1]
            logits = backbone.logits(state)
            q = (backbone.head @ writer.psi(state)).tolist()
        allowed = writer.vocabulary.allowed(ids)
        kept = [i for i in logits.argsort(descending=True).tolist() if allowed[i]][:30]
        ids = (*ids, max(kept, key=lambda token: q[token]))
    assert writer.greedy() == Prompt(writer.vocabulary.text(ids), ids)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    banned=st.sampled_from([(), ("the", "a"), ("great film", "cat")]),
    required=st.sampled_from([(), ("great",), ("York", "film")]),
    charset=st.sampled_from(["any", "letters"]),
    max_chars=st.sampled_from([None, 20]),
    no_repeats=st.sampled_from(["off", "tokens"]),
    seed=st.integers(0, 99),
)
def test_every_written_prompt_satisfies_the_constraints(
    make: Any, banned: Any, required: Any, charset: Any, max_chars: Any, no_repeats: str, seed: int
) -> None:
    constraints = Constraints(
        banned=banned, required=required, charset=charset, max_chars=max_chars, no_repeats=no_repeats
    )
    writer = writer_of(make("llama"), length=5, k=10, constraints=constraints)
    prompts = [*writer.sample(6, draw(seed)).prompts, writer.greedy(), *writer.lm_sample(4, draw(seed))]
    prompts += writer.sample(4, draw(seed), "shannon", filtered=False).prompts
    for prompt in prompts:
        assert len(prompt.ids) == 5
        assert prompt.text == writer.backbone.tokenizer.decode(list(prompt.ids)).strip() != ""
        words = prompt.text.lower()
        assert all(word.lower() in words for word in required)
        assert not any(f" {word} " in f" {words} " for word in banned)
        assert max_chars is None or len(prompt.text) <= max_chars
        assert no_repeats == "off" or len(set(prompt.ids)) == 5
        assert writer.vocabulary.obeys(prompt.ids)


def test_the_writer_leaves_a_dead_end(make: Callable[[str], Backbone], monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(make("gpt2"), length=3, k=None)
    allowed = writer.vocabulary.allowed
    shut = writer.sample(8, draw(2)).prompts[3].ids[:2]
    monkeypatch.setattr(writer.vocabulary, "allowed", lambda p: allowed(p) & (p != shut))
    writer.tree.clear()
    before, after = writer_of(make("gpt2"), length=3, k=None).sample(8, draw(2)), writer.sample(8, draw(2))
    assert all(len(p.ids) == 3 and p.ids[:2] != shut for p in after.prompts)
    for old, new in zip(before.prompts, after.prompts, strict=True):
        assert old == new or old.ids[:2] == shut
    monkeypatch.setattr(writer.vocabulary, "allowed", lambda p: allowed(p) & (len(p) < 1))
    writer.tree.clear()
    with pytest.raises(SettingError, match="loosen"):
        writer.greedy()


def test_lm_sample_follows_the_language_model(make: Callable[[str], Backbone]) -> None:
    writer = writer_of(make("gemma2"), length=1, k=5)
    backbone = writer.backbone
    with torch.no_grad():
        logits = backbone.model(input_ids=torch.tensor([backbone.start("It was")])).logits[0, -1]
    kept = writer.tree.kept([()])[0]
    expected = torch.softmax(logits.masked_fill(~kept, -torch.inf) / 0.7, -1)
    prompts = writer.lm_sample(3000, draw(0), temperature=0.7)
    seen = torch.bincount(torch.tensor([p.ids[0] for p in prompts]), minlength=len(expected)) / 3000
    assert (seen - expected).abs().max() < 0.04
    logprobs = writer.lm_logprobs([(), ()])
    torch.testing.assert_close(logprobs[1][kept], torch.log_softmax(logits, -1)[kept], atol=1e-4, rtol=1e-4)
    assert torch.isinf(logprobs[0][~kept]).all()
    with pytest.raises(SettingError, match="temperature"):
        writer.lm_sample(1, draw(0), temperature=0)


def test_explain_says_what_greedy_saw(make: Callable[[str], Backbone]) -> None:
    writer = writer_of(make("llama"))
    prompt = writer.greedy()
    rows = writer.explain(prompt)
    assert "".join(row["token"] for row in rows).strip() == prompt.text
    for place, row in enumerate(rows):
        q = writer.q(writer.states([prompt.ids[:place]]))[0]
        kept = q[writer.tree.kept([prompt.ids[:place]])[0]].sort(descending=True).values
        assert row["rank"] == 1
        assert row["q"] == pytest.approx(float(kept[0]))
        assert [value for _, value in row["runners_up"]] == pytest.approx(kept[1:6].tolist())
        assert 0 < row["probability"] <= 1
        assert row["q"] <= row["v"] <= row["q"] + 0.5
    with pytest.raises(SettingError, match="explained"):
        writer.explain(Prompt("by hand"))


def test_nothing_but_psi_has_a_gradient(make: Callable[[str], Backbone]) -> None:
    writer = writer_of(make("gpt2"))
    assert all(parameter.requires_grad for parameter in writer.psi.parameters())
    assert not any(parameter.requires_grad for parameter in writer.backbone.model.parameters())
    assert not writer.q(writer.states([()])).requires_grad


def test_psi_is_seeded_by_the_runs_seed(make: Callable[[str], Backbone]) -> None:
    build = lambda seed: Writer.build(PolicySettings(k=5, hidden=4), seed=seed, backbone=make("gpt2"))  # noqa: E731
    assert torch.equal(build(0).psi.inner.weight, build(0).psi.inner.weight)
    assert not torch.equal(build(0).psi.inner.weight, build(1).psi.inner.weight)


def test_long_prompts(make: Callable[[str], Backbone]) -> None:
    writer = writer_of(make("llama"), length=128, spread=0.5)
    prompts = writer.sample(3, draw(0)).prompts
    assert all(len(prompt.ids) == 128 for prompt in prompts)
    # Rows go on from what they hold: a level costs one pass, however deep.
    assert writer.tree.misses <= 3 * 128 + 1


@pytest.mark.parametrize("count", [0, -3])
def test_fewer_than_one_prompt_is_refused(make: Callable[[str], Backbone], count: int) -> None:
    with pytest.raises(SettingError, match=f"at least 1, but is {count}"):
        writer_of(make("gpt2")).sample(count, draw(0))


def test_a_prompt_cannot_end_before_its_beginning(make: Callable[[str], Backbone]) -> None:
    writer = Writer.build(PolicySettings(length=4, k=30, hidden=8, batch=4), backbone=make("gpt2"))
    for start, end in (((5, 6), 2), ((5,), 9)):
        with pytest.raises(SettingError, match=f"cannot have {end}"):
            writer.lm_continue([start], [end], torch.Generator().manual_seed(0))
