"""The numbers of style transfer, worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pinprompt.tasks.rewriting import (
    Rewriter,
    best_of_blocks,
    corpus,
    corpus_intervals,
    gain,
    joint,
    mean_intervals,
    sentence_bleu,
    unchanged,
)


def test_an_output_is_worth_the_mean_of_content_and_style() -> None:
    assert joint(0.4, 0.8) == pytest.approx(60)
    assert joint(1, 1) == 100


def test_the_mean_of_the_best_of_each_block() -> None:
    value, places = best_of_blocks([1, 5, 2, 7, 3, 3], 2)
    assert value == pytest.approx((5 + 7) / 2)
    assert places == [1, 3]
    assert best_of_blocks([1, 5, 2, 7, 3, 3], 1)[0] == 7
    assert best_of_blocks([1, 5, 2, 7, 3, 3], 6)[0] == pytest.approx(3.5)


@pytest.mark.parametrize(("values", "blocks"), [([1, 2, 3], 2), ([], 1)])
def test_blocks_are_equal(values: list[float], blocks: int) -> None:
    with pytest.raises(ValueError, match="equal blocks"):
        best_of_blocks(values, blocks)


@pytest.mark.parametrize(
    ("text", "rewrite", "same"),
    [
        ("It was great.", "it was great", True),
        ('Well, it\'s "fine" !', "well it's fine.", True),
        ("It was great.", "It was not great.", False),
        ("It was great.", "", False),
        ("!!!", "!!!", True),
        ("!!!", "...", False),
        ("Это хорошо.", "это хорошо", True),
    ],
)
def test_the_words_decide_whether_a_rewrite_is_a_copy(text: str, rewrite: str, same: bool) -> None:
    assert unchanged(text, rewrite) is same


def test_a_copy_gains_nothing_and_a_change_of_style_alone_keeps_nothing() -> None:
    for before in (0.0, 0.4, 1.0):
        assert gain(1.0, before, before) == 0
        assert gain(1.0, 0.0, before) == 0, "a style that gets worse is no gain"
    assert gain(0.0, 1.0, 0.0) == 0
    assert gain(0.5, 0.9, 0.1) == pytest.approx(40)
    assert gain(1.0, 1.0, 0.0) == 100
    # As published, the copy of a text that the judge finds right already has all of it.
    assert joint(1.0, 1.0) == 100


def test_corpus_scores_by_hand() -> None:
    # Sentence by sentence 0.5, 0, 0: J is a sixth. Corpus: 60, 66.67, 66.67 per cent.
    found = corpus([0.5, 0.3, 1.0], [1, 1, 0], [1, 0, 1])
    assert found["content"] == pytest.approx(60)
    assert found["style"] == pytest.approx(200 / 3)
    assert found["fluency"] == pytest.approx(200 / 3)
    assert found["j"] == pytest.approx(50 / 3)
    assert found["gm"] == pytest.approx((60 * (200 / 3) ** 2) ** (1 / 3))


def test_one_score_of_nothing_makes_the_geometric_mean_nothing() -> None:
    assert corpus([0.0, 0.0], [1, 1], [1, 1])["gm"] == 0


def test_published_rows_agree_with_gm() -> None:
    # PIN with OPT-125M in the paper: 55.6, 95.4, 89.4 give GM 77.6 over runs; from the means themselves it is near.
    assert corpus([0.556], [0.954], [0.894])["gm"] == pytest.approx(77.6, abs=0.5)


def test_intervals_hold_the_value_and_are_a_function_of_the_seed() -> None:
    content, style, fluent = (
        [0.1 * (n % 10) for n in range(40)],
        [n % 2 for n in range(40)],
        [n % 3 > 0 for n in range(40)],
    )
    metrics, intervals = corpus(content, style, fluent), corpus_intervals(content, style, fluent, 3)
    for name, (low, high) in intervals.items():
        assert low < metrics[name] < high
    assert intervals == corpus_intervals(content, style, fluent, 3)
    assert intervals != corpus_intervals(content, style, fluent, 4)
    # The standard error of 40 coins is 7.9 per cent, so 1.96 of them each way.
    low, high = mean_intervals({"style": [100.0 * one for one in style]}, 0)["style"]
    assert high - low == pytest.approx(2 * 1.96 * 7.9, rel=0.15)


def test_bleu_is_a_hundred_for_the_reference_itself() -> None:
    pytest.importorskip("sacrebleu")
    same, other = sentence_bleu(["the food was good .", "x"], ["the food was good .", "the food was good ."]) or (0, 0)
    assert same == pytest.approx(100)
    assert other < 5


def test_meaning_counts_before_style() -> None:
    text = "Please ensure that your seat belt is fastened."
    outputs = {
        "You may not wear a seat belt.": (0.8, 1.0),
        "I regret": (0.2, 1.0),
        "Buckle up!": (0.7, 0.6),
        text: (1.0, 0.0),
    }

    class Writes:
        def sample(self, requests: Any) -> Any:
            return [SimpleNamespace(texts=list(outputs), failure=None)]

    rewriter = Rewriter(
        cast(Any, Writes()),
        lambda sources, rewrites: [outputs[one][0] for one in rewrites],
        lambda rewrites: [outputs[one][1] for one in rewrites],
        4,
    )
    assert [one.text for one in rewriter.rewrite("", text, 4)][:1] == ["Buckle up!"]
    assert rewriter.rewrite("", text, 4)[-1].text == text
