"""Style data: both layouts, directions, and references that must line up."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprompt.data.style import STYLES, ends_of, load_style, lookup_style
from pinprompt.errors import DataError, SettingError


def yelp(folder: Path) -> Path:
    folder.mkdir()
    (folder / "test.negative.txt").write_text("bad food .\nrude staff .\n")
    (folder / "test.positive.txt").write_text("good food .\n")
    (folder / "ref.negative.txt").write_text("fine food .\nkind staff .\n")
    return folder


def test_one_sentence_a_line_with_references(tmp_path: Path) -> None:
    found = load_style("yelp", yelp(tmp_path / "yelp"), "test")
    assert found.texts == {"negative": ["bad food .", "rude staff ."], "positive": ["good food ."]}
    assert found.references == {"negative": ["fine food .", "kind staff ."]}
    assert load_style("yelp", tmp_path, "test") == found
    (tmp_path / "yelp" / "ref.negative.txt").write_text("only one\n")
    with pytest.raises(DataError, match=r"ref.negative.txt: there are 1 references for 2 sources"):
        load_style("yelp", tmp_path, "test")


def test_published_file_names(tmp_path: Path) -> None:
    (tmp_path / "sentiment.dev.0.clean").write_text("bad\n")
    (tmp_path / "sentiment.dev.1.clean").write_text("good\n")
    assert load_style("yelp", tmp_path, "dev").texts == {"negative": ["bad"], "positive": ["good"]}
    with pytest.raises(DataError, match=r"train.negative.txt: there is no such file"):
        load_style("yelp", tmp_path, "train")


def test_few_shot_layout(tmp_path: Path) -> None:
    (tmp_path / "100-13").mkdir()
    (tmp_path / "100-13" / "train.tsv").write_text("text\tlabel\nthou\t0\nyou\t1\n")
    (tmp_path / "100-13" / "dev.tsv").write_text("text\tlabel\nthee\t0\nyours\t1\n")
    assert load_style("shakespeare", tmp_path, "train").texts == {"shakespeare": ["thou"], "modern": ["you"]}
    with pytest.raises(DataError, match="no texts for the split 'test'"):
        load_style("shakespeare", tmp_path, "test")


def test_directions() -> None:
    card = lookup_style("Yelp")
    assert ends_of(card, "positive-to-negative") == ("positive", "negative")
    assert ends_of(card, "negative-to-positive") == ("negative", "positive")
    for each in STYLES.values():
        assert set(each.manual) == set(each.directions)
    with pytest.raises(SettingError, match="did you mean"):
        ends_of(card, "negative-to-postive")
    with pytest.raises(DataError, match="did you mean 'shakespeare'"):
        lookup_style("shakespere")
