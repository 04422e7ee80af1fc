"""The learner against the same losses written out in full, vocabulary-wide and with autograd all the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.house.tiny import make_lm

from pinprompt.errors import TaskError
from pinprompt.maths.state_values import kept_value
from pinprompt.methods.pin.learner import ActionSets, Learner, distinct_prefixes
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import PolicySettings, QLearningSettings

LENGTH, BATCH = 3, 12
GAMMA = 0.9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_lm(tmp_path_factory.mktemp("lm"))


def made(folder: Path, k: int | None = 50, **settings: Any) -> tuple[Writer, Learner, torch.Tensor, torch.Tensor]:
    writer = Writer.build(PolicySettings(model=str(folder), length=LENGTH, k=k, hidden=32), seed=3)
    for parameter in writer.psi.parameters():
        torch.nn.init.normal_(parameter, std=0.12, generator=torch.Generator().manual_seed(parameter.numel()))
    learner = Learner(writer, QLearningSettings.model_validate(settings))
    for parameter in learner.slow.parameters():
        parameter.mul_(0.7)
    prompts = writer.sample(BATCH - 4, torch.Generator().manual_seed(1)).prompts
    ids = torch.tensor([prompt.ids for prompt in [*prompts, *prompts[:4]]])
    rewards = torch.randn(BATCH, generator=torch.Generator().manual_seed(2))
    return writer, learner, ids, rewards


def brute_value(z: torch.Tensor, entropy: str) -> torch.Tensor:
    """V of one row of kept values, by the definition: sort everything."""
    if entropy == "shannon":
        return torch.logsumexp(z, 0)
    ordered = z.sort(descending=True).values
    sums = ordered.cumsum(0)
    count = torch.arange(1, len(z) + 1)
    size = int((1 + count * ordered > sums).sum())
    tau = (sums[size - 1] - 1) / size
    return (1 + (ordered[:size] ** 2 - tau**2).sum()) / 2


def plain_loss(writer: Writer, learner: Learner, ids: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
    """Every loss of the family as its formula stands, one episode and one position at a time."""
    settings, head = learner.settings, writer.backbone.head
    loss = torch.zeros(())
    for row, reward in zip(ids.tolist(), rewards, strict=True):
        prefixes = [tuple(row[:t]) for t in range(LENGTH)]
        e = writer.states(prefixes)
        sets = writer.tree.kept(prefixes) if settings.filter == "values" else writer.allowed(prefixes)
        q = writer.psi(e) @ head.T + settings.logit_bias
        slow = learner.slow(e) @ head.T + settings.logit_bias
        q_t = [q[t, row[t]] for t in range(LENGTH)]
        v = [brute_value(q[t][sets[t]], settings.entropy) for t in range(LENGTH)]
        v_slow = [brute_value(slow[t][sets[t]], settings.entropy).detach() for t in range(LENGTH)]
        single, multi, boot, mc = 0.0, 0.0, 0.0, 0.0
        for t in range(LENGTH):
            after = reward if t == LENGTH - 1 else GAMMA * v_slow[t + 1]
            boot = boot + (q_t[t] - after) ** 2
            mc = mc + (q_t[t] - GAMMA ** (LENGTH - 1 - t) * reward) ** 2
            single = single + (q_t[t] - v[t] - (after - v_slow[t])) ** 2
            rest = sum(q_t[u] - v[u] for u in range(t, LENGTH))
            multi = multi + (rest - (reward - v_slow[t])) ** 2
        table = {"bootstrap": boot, "monte-carlo": mc, "path-single": single, "path-multi": multi}
        loss = loss + (table[settings.target] if settings.target in table else (single + multi) / 2)
    return loss / len(ids)


@pytest.mark.parametrize("target", ["bootstrap", "monte-carlo", "path-single", "path-multi", "path-mean"])
@pytest.mark.parametrize(("entropy", "where"), [("tsallis", "values"), ("shannon", "sampling"), ("shannon", "values")])
def test_loss_and_gradient_are_those_of_the_formula(
    folder: Path, target: str, entropy: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinprompt.methods.pin.learner.GAMMA", GAMMA)
    writer, learner, ids, rewards = made(folder, target=target, entropy=entropy, filter=where, logit_bias=0.25)
    expected = plain_loss(writer, learner, ids, rewards)
    expected.backward()
    wanted = [parameter.grad.clone() for parameter in writer.psi.parameters()]
    writer.psi.zero_grad()
    seen: list[torch.Tensor] = []

    def look(*_: Any) -> None:
        seen.extend(parameter.grad.clone() for parameter in writer.psi.parameters())

    learner.optimiser.register_step_pre_hook(look)
    monkeypatch.setattr("pinprompt.methods.pin.learner.MAX_NORM", 1e9)
    update = learner.update(ids, rewards)
    assert update.loss == pytest.approx(expected.item(), rel=1e-4)
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    assert largest > 1e-3
    for ours, theirs in zip(seen, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * largest)


def test_the_slow_copy_follows_after_the_update(folder: Path) -> None:
    writer, learner, ids, rewards = made(folder, rho=0.75, target="monte-carlo")
    before = [parameter.clone() for parameter in learner.slow.parameters()]
    learner.update(ids, rewards)
    for old, slow, fast in zip(before, learner.slow.parameters(), writer.psi.parameters(), strict=True):
        assert torch.allclose(slow, 0.75 * old + 0.25 * fast, atol=1e-6)


def test_values_have_the_same_bits_with_any_number_of_threads(folder: Path) -> None:
    writer, _, ids, _ = made(folder)
    prefixes, _ = distinct_prefixes(ids)
    states, packed, backbone = writer.tree.states(prefixes), writer.tree.packed(prefixes), writer.backbone
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            how: Any = {"batch": 2, "product": backbone.over_vocabulary, "each": backbone.side_by_side}
            found.append(kept_value(states, backbone.head, packed, "tsallis", **how))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_gradients_are_clipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinprompt.methods.pin.learner.MAX_NORM", 1e-3)
    writer, learner, ids, rewards = made(folder, target="monte-carlo")
    norms: list[float] = []
    learner.optimiser.register_step_pre_hook(
        lambda *_: norms.append(float(torch.stack([p.grad.norm() for p in writer.psi.parameters()]).norm()))
    )
    learner.update(ids, 100 * rewards)
    assert norms[0] == pytest.approx(1e-3, rel=1e-3)


def test_distinct_prefixes_are_found_and_placed() -> None:
    prefixes, place = distinct_prefixes(torch.tensor([[5, 6, 7], [5, 6, 9], [8, 6, 7]]))
    assert prefixes == [(), (5,), (5, 6), (8,), (8, 6)]
    assert place.tolist() == [[0, 1, 2], [0, 1, 2], [0, 3, 4]]


def test_the_state_of_a_learner_survives_a_checkpoint(folder: Path) -> None:
    _, first, ids, rewards = made(folder)
    first.update(ids, rewards)
    _, second, _, _ = made(folder)
    second.restore({name: tensor.clone() for name, tensor in first.state().items()})
    assert first.update(ids, rewards) == second.update(ids, rewards)
    for ours, theirs in zip(first.writer.psi.parameters(), second.writer.psi.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_loss_that_explodes_gives_a_clear_error(folder: Path) -> None:
    _, learner, ids, _ = made(folder, target="monte-carlo")
    with pytest.raises(TaskError, match="learning_rate"):
        learner.update(ids, torch.full((BATCH,), 1e30))


def test_prompts_of_one_token_have_no_next_state(folder: Path) -> None:
    writer = Writer.build(PolicySettings(model=str(folder), length=1, k=50, hidden=32), seed=3)
    learner = Learner(writer, QLearningSettings(target="bootstrap"))
    ids = torch.tensor([prompt.ids for prompt in writer.sample(4, torch.Generator().manual_seed(1)).prompts])
    rewards = torch.tensor([1.0, -1.0, 0.5, 2.0])
    with torch.no_grad():
        q = (writer.psi(writer.states([()])) @ writer.backbone.head.T + learner.settings.logit_bias)[0]
    update = learner.update(ids, rewards)
    assert update.loss == pytest.approx(float((q[ids[:, 0]] - rewards).square().mean()), rel=1e-4)


def test_action_sets_are_unpacked_only_when_asked_for() -> None:
    asked: list[list[tuple[int, ...]]] = []

    def sets(prefixes: list[tuple[int, ...]]) -> torch.Tensor:
        asked.append(prefixes)
        return torch.tensor([[len(prefix) == length for length in range(3)] for prefix in prefixes])

    masks = ActionSets([(), (5,), (5, 6)], sets)
    assert len(masks) == 3
    assert asked == []
    assert masks[1].tolist() == [False, True, False]
    assert masks[1:].tolist() == [[False, True, False], [False, False, True]]
    assert [mask.tolist().index(True) for mask in masks] == [0, 1, 2]
    assert asked[1] == [(5,), (5, 6)]
