"""The measurement of writing measures what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from benchmarks import step
from benchmarks.write import SUPPORT, measure, plain, random_backbone, sparsified
from pinprompt.policy import vocabulary
from pinprompt.policy.backbone import BLOCK, CACHED_FROM, Backbone
from pinprompt.recipe.sections import Constraints, PolicySettings


def test_the_policy_has_begun_to_sparsify() -> None:
    writer = sparsified(random_backbone(2000), PolicySettings(k=500, hidden=16))
    support = writer.sample(32, torch.Generator().manual_seed(0)).support
    assert 1 < support[0] <= SUPPORT


def test_the_plain_way_writes_from_the_same_policy() -> None:
    writer = sparsified(random_backbone(500), PolicySettings(k=100, hidden=16, length=1))
    with_tree = [p.ids for p in writer.sample(3000, torch.Generator().manual_seed(0)).prompts]
    without = plain(writer, 3000, torch.Generator().manual_seed(1), 100)
    for token in set(with_tree) | set(without):
        assert abs(with_tree.count(token) - without.count(token)) / 3000 < 0.06


@pytest.mark.parametrize("length", [4, 64])
def test_blocks_and_partition_change_no_token(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the whole product and the selection of all k, over a vocabulary of more than two blocks."""

    def written() -> tuple[list[tuple[int, ...]], list[float]]:
        settings = PolicySettings(k=1000, hidden=16, length=length, constraints=Constraints(stable=False))
        made = sparsified(backbone, settings).sample(4, torch.Generator().manual_seed(3))
        return [prompt.ids for prompt in made.prompts], made.support

    backbone = random_backbone(2 * BLOCK + 500)
    quick = written()
    assert len(set(quick[0])) > 1
    monkeypatch.setattr(Backbone, "over_vocabulary", lambda self, states: states @ self.head.T)
    monkeypatch.setattr(vocabulary, "_kth_largest", lambda z, k: z.topk(k, -1).values.amin(-1, keepdim=True))
    assert written() == quick


def test_the_report_has_its_rows(tmp_path: Path) -> None:
    backbone = random_backbone(300)
    backbone.model.save_pretrained(tmp_path)
    backbone.tokenizer.save_pretrained(tmp_path)
    report = measure(str(tmp_path), batches=(4,), steps=2, lengths=(2, 4), vocabularies=(300,), long=8, k=50)
    assert [row["batch"] for row in report["batches"]] == [4]
    row = report["batches"][0]
    assert row["with_tree"] > 0
    assert row["without_tree"] > 0
    assert 0 < row["read"] <= row["prefixes"]
    assert [(cost["vocabulary"], cost["length"]) for cost in report["cost"]] == [(300, 2), (300, 4)]
    assert report["long"]["peak_mb"] > 0


def test_made_up_words_stay_out_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = random_backbone(300)
    backbone.model.save_pretrained(tmp_path / "lm")
    backbone.tokenizer.save_pretrained(tmp_path / "lm")
    monkeypatch.setenv("PINPROMPT_HOME", str(tmp_path / "home"))
    large = random_backbone(CACHED_FROM, dim=16, layers=1)
    measure(str(tmp_path / "lm"), batches=(2,), steps=1, lengths=(2,), vocabularies=(CACHED_FROM,), long=2, k=50)
    step.measure(steps=1, model=(large.model, large.tokenizer), k=50)
    assert not (tmp_path / "home" / "tokens").exists()
    assert os.environ["PINPROMPT_HOME"] == str(tmp_path / "home")
    assert Backbone(large.model, large.tokenizer).texts.size == CACHED_FROM
    assert (tmp_path / "home" / "tokens").exists()  # so large a vocabulary would be kept
