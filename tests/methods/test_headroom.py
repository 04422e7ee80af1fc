"""What a search is expected to add, against simulated searches; and a race that has nothing to gain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from label_toys import WORDS, save

from pinprompt.api import tune
from pinprompt.methods.headroom import Headroom, expected_gain, expected_maximum


def test_expected_maximum_of_normal_numbers() -> None:
    """Known values, and a simulation."""
    assert expected_maximum(1) == pytest.approx(0.0, abs=1e-6)
    assert expected_maximum(2) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-3)
    drawn = np.random.default_rng(0).normal(size=(20_000, 50)).max(axis=1).mean()
    assert expected_maximum(50) == pytest.approx(drawn, abs=0.02)


@pytest.mark.parametrize("spread", [0.02, 0.08])
def test_the_expected_gain_is_that_of_simulated_searches(spread: float) -> None:
    """Prompts with a true accuracy around 0.6; the best of 40 on 64 rows, guessed from 12 on 32 rows, on average."""
    random = np.random.default_rng(1)
    guessed, gained = [], []
    for _ in range(300):
        true = np.clip(random.normal(0.6, spread, size=40), 0, 1)
        seen = (random.random((12, 32)) < true[:12, None]).astype(float)
        guessed.append(expected_gain(seen, float(seen[0].mean()), 40, 64))
        chosen = (random.random((40, 64)) < true[:, None]).mean(axis=1).argmax()
        gained.append(true[chosen] - true[0])
    assert np.mean(guessed) == pytest.approx(np.mean(gained), abs=0.04)


def test_nothing_is_expected_of_prompts_that_are_all_equal() -> None:
    same = np.repeat(np.array([[1.0, 0.0, 1.0, 1.0]]), 8, axis=0)
    assert expected_gain(same, 0.75, 50, 64) == 0.0
    found = Headroom(1.0, 64, None, 0.0)
    assert found.manual >= 1.0
    assert "no search can do better" in found.sentence()


def test_a_race_stops_if_the_hand_written_prompt_is_always_right(tmp_path: Path) -> None:
    """And goes on if it is told to."""
    words = ("film", "story", "plot", "drama", "heart", "task", "news", "world")
    good = [f"a truly wonderful little {one} with a big {other}" for one in words for other in words[:3]]
    bad = [f"dull , slow and awful {one} from the {other}" for one in words for other in words[:3]]
    rows = [f'"{text}",pos' for text in good] + [f'"{text}",neg' for text in bad]
    (tmp_path / "train.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    model = str(save("llama", tmp_path / "llama"))
    task = {"train": str(tmp_path / "train.csv"), "words": WORDS, "model": model, "shots": 8, "embeddings": None}
    settings = {"policy": {"model": model, "k": None}, "race": {"max_perplexity": None}}
    settings["policy"]["constraints"] = {"dictionary": False}
    found = tune({**task, "labels": "learnt"}, calls=800, settings=settings, out=tmp_path / "run")
    assert found.data["stopped"] == "nothing to gain"
    assert found.calls < 100
    assert "no search can do better" in found.report.read_text("utf-8")
    settings["race"]["early_stop"] = False
    longer = tune({**task, "labels": "learnt"}, calls=800, settings=settings, out=tmp_path / "longer")
    assert longer.calls > 4 * found.calls
    assert "sentence" in longer.data["headroom"]
