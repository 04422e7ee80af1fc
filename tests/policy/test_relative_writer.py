"""The writer with a policy relative to the LM: random search where Q is 0, tilted by Q where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pinprompt.policy.backbone import Backbone
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import Constraints, PolicySettings


@pytest.fixture(autouse=True)
def _no_ban_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))


def relative(backbone: Backbone, spread: float = 0.0, tree: bool = True, **given: Any) -> Writer:
    """A writer relative to the LM; its Q is 0 everywhere, or differs from state to state with `spread`."""
    given = {"length": 4, "k": 30, "hidden": 8, "rows": 4, **given}
    writer = Writer.build(PolicySettings(**given), "It was", backbone=backbone, tree=tree, prior="lm")
    chance = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in writer.psi.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance) * spread)
    return writer


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("entropy", ["tsallis", "shannon"])
def test_without_q_it_is_random_search(backbone: Backbone, entropy: Any) -> None:
    """The same prompts from the same stream, and the same distribution at every prefix on the way."""
    writer = relative(backbone)
    written = writer.sample(40, draw(3), entropy)
    assert written.prompts == writer.lm_sample(40, draw(3))
    prefixes = [prompt.ids[:place] for prompt in written.prompts[:5] for place in range(4)]
    for prefix, prior in zip(prefixes, writer.tree.priors(prefixes), strict=True):
        said = writer.lm_logprobs([prefix])[0].double()
        kept = torch.isfinite(said)
        assert prior.ids.tolist() == kept.nonzero()[:, 0].tolist()
        assert prior.mu.numpy() == pytest.approx((said.exp() / said.exp().sum())[kept].numpy(), rel=1e-4, abs=1e-7)


def test_without_q_the_greedy_prompt_is_the_lms(make: Callable[[str], Backbone]) -> None:
    writer = relative(make("gpt2"))
    (prompt,) = writer.greedy()
    for place, token in enumerate(prompt.ids):
        assert token == int(writer.lm_logprobs([prompt.ids[:place]])[0].argmax())


def expected(writer: Writer, entropy: str) -> tuple[np.ndarray, float]:
    """Policy [V] and value at the empty prefix, written out: tilted by exp(z), or by bisection on the level."""
    z = writer.q(writer.states([()]))[0].double().numpy()
    said = writer.lm_logprobs([()])[0].double().exp().numpy()
    mu = said / said.sum()
    if entropy == "shannon":
        return mu * np.exp(z) / (mu * np.exp(z)).sum(), float(np.log((mu * np.exp(z)).sum()))
    low, high = z.min() - 2, z.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (mu * np.maximum(z - middle, 0)).sum() > 1 else (low, middle)
    pi = mu * np.maximum(z - low, 0)
    kept = mu > 0
    return pi, float(pi @ z - ((pi[kept] ** 2 / mu[kept]).sum() - 1) / 2)


@pytest.mark.parametrize("entropy", ["tsallis", "shannon"])
def test_frequencies_greedy_and_explanation_are_the_policys(make: Callable[[str], Backbone], entropy: Any) -> None:
    writer = relative(make("gpt2"), spread=0.4, length=1)
    pi, v = expected(writer, entropy)
    count = 4000
    written = writer.sample(count, draw(1), entropy)
    seen = np.bincount([prompt.ids[0] for prompt in written.prompts], minlength=len(pi)) / count
    assert np.abs(seen - pi).max() < 4 * np.sqrt(0.25 / count)
    assert not seen[pi == 0].any()
    if entropy == "tsallis":
        assert written.support[0] == (pi > 1e-7).sum() < 30
    (greedy,) = writer.greedy(entropy=entropy)
    assert greedy.ids == (int(pi.argmax()),)
    z = writer.q(writer.states([()]))[0].double().numpy()
    for prompt in {prompt.ids: prompt for prompt in written.prompts}.values():
        (row,) = writer.explain(prompt, entropy)
        assert row["probability"] == pytest.approx(pi[prompt.ids[0]], rel=1e-3, abs=1e-6)
        assert row["q"] == pytest.approx(z[prompt.ids[0]], rel=1e-4, abs=1e-5)
        assert row["v"] == pytest.approx(v, rel=1e-4, abs=1e-4)


def test_the_tree_and_its_memory_change_nothing(backbone: Backbone) -> None:
    roomy, none, tight = relative(backbone, 0.2), relative(backbone, 0.2, tree=False), relative(backbone, 0.2)
    tight.sample(1, draw(5))
    tight.tree.limit = 5 * tight.tree._node_bytes
    for seed in range(2):
        first = roomy.sample(10, draw(seed))
        assert first == none.sample(10, draw(seed)) == tight.sample(10, draw(seed))
    assert roomy.sample(3, draw(1)).prompts == first.prompts[:3]
    assert roomy.greedy() == none.greedy() == tight.greedy()


def test_constraints_hold_and_dead_ends_are_taken_back(make: Callable[[str], Backbone]) -> None:
    constraints = Constraints(banned=("great",), required=("film",), no_repeats=True, charset="letters")
    writer = relative(make("gpt2"), 0.1, constraints=constraints, k=10)
    for prompt in writer.sample(30, draw(0)).prompts:
        assert "film" in prompt.text.split()
        assert "great" not in prompt.text.lower().split()
        assert len(set(prompt.ids)) == len(prompt.ids)


def test_only_the_largest_q_where_asked(make: Callable[[str], Backbone]) -> None:
    writer = relative(make("gpt2"), 0.05, length=1)
    q = writer.q(writer.states([()]))[0].masked_fill(~writer.kept([()])[0], -torch.inf)
    best = set(q.topk(3).indices.tolist())
    assert {prompt.ids[0] for prompt in writer.sample(300, draw(0), top_q=3).prompts} <= best


def test_memory_counts_the_priors(make: Callable[[str], Backbone]) -> None:
    with_prior, without = (
        relative(make("gpt2")),
        Writer.build(PolicySettings(length=4, k=30, hidden=8, rows=4), "It was", backbone=make("gpt2")),
    )
    for writer in (with_prior, without):
        writer.tree.kept([(5,)])
    # Thirty kept tokens, four bytes each (ties aside).
    assert with_prior.tree.used - without.tree.used == 4 * int(with_prior.kept([(5,)]).sum())
