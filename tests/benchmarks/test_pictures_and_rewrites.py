"""The benchmarks of pictures and of rewrites compare two ways of doing the same work."""

from __future__ import annotations

from pathlib import Path

import pytest
from style_toys import causal_lm, save

from benchmarks import clip, generate


def test_trimmed_and_padded_texts_have_the_same_features() -> None:
    found = clip.measure(prompts=16, repeats=1)
    assert found["max_difference"] <= 1e-5
    assert found["speedup"] == pytest.approx(found["trimmed_prompts_per_second"] / found["padded_prompts_per_second"])


def test_the_speedup_of_rewriting_is_per_sample(tmp_path: Path) -> None:
    found = generate.measure(samples=2, model=save(tmp_path / "lm", causal_lm(places=200)), turns=1)
    assert found["samples"] == 16
    assert found["speedup"] == pytest.approx(found["samples_per_second"] / found["generate_samples_per_second"])
