"""Label words from the names of the labels: several for each, and the choice among them on the training rows.

A word is proposed only where the name says something: 'pos', 'billing_issue', '1' to '5' as stars; never for 'A' or 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from pinprompt.data.language import LANGUAGES
from pinprompt.tasks import calibration
from pinprompt.tasks.metrics import Floats, Ints

STARS = {
    "1": ("terrible", "awful"),
    "2": ("bad", "poor"),
    "3": ("okay", "average"),
    "4": ("good", "nice"),
    "5": ("great", "excellent"),
}
_SHORT = {
    "pos": "positive",
    "neg": "negative",
    "neu": "neutral",
    "sci": "science",
    "tech": "technology",
    "biz": "business",
    "sport": "sports",
}
_FILLERS = frozenset((
    "a", "an", "and", "or", "of", "the", "for", "to", "in", "on", "with", "other", "misc", "not", "no", "is", "label",
    "class", "category", "type", "issue", "issues", "problem", "problems", "question", "questions", "request",
    "requests", "inquiry",
))  # fmt: skip
_MOST = 4

FEELINGS = frozenset(
    word for known in LANGUAGES.values() for word in (*known.positive, *known.negative, *known.neutral)
) | frozenset((
    "awful", "poor", "average", "nice", "excellent", "amazing", "wonderful", "horrible", "fine", "happy", "sad",
    "angry", "boring", "funny",
))  # fmt: skip
ANSWERS = frozenset(("yes", "no", "true", "false", "maybe"))
_NAMELESS = frozenset((
    "label", "labels", "class", "classes", "target", "y", "category", "gold", "value", "tag", "answer", "output",
))  # fmt: skip


def proposed(labels: Sequence[str], language: str = "en") -> dict[str, tuple[str, ...]]:
    """Words for each label, the likeliest first; empty where the name of one label says nothing.

    Words of praise and blame are those of the texts' language, where it is known.
    """
    names = [label.strip() for label in labels]
    if set(names) == set(STARS):
        return {label: STARS[label] for label in names}
    found = {label: _words(label, language) for label in names}
    if not all(found.values()):
        return {}
    first: dict[str, tuple[str, ...]] = {}
    for label, words in found.items():
        taken = {own[0] for own in first.values()}
        free = tuple(word for word in words if word not in taken)
        if not free:
            return {}
        first[label] = free
    return first


def _words(label: str, language: str) -> tuple[str, ...]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label)
    parts = [part for part in re.split(r"[\s_\-/.&+,:]+", spaced) if part]
    if not parts or not all(part.isalpha() for part in parts) or len(label) < 2:
        return ()
    lower = [part.lower() for part in parts]
    if len(lower) == 1:
        name = _SHORT.get(lower[0], lower[0])
        known = LANGUAGES.get(language, LANGUAGES["en"])
        opinions = {"positive": known.positive, "negative": known.negative, "neutral": known.neutral}
        return opinions.get(name, (name, parts[0]) if parts[0] != name and parts[0].lower() == name else (name,))
    telling = [part for part in lower if part not in _FILLERS and len(part) > 2]
    if "." in label or "/" in label:
        telling.reverse()  # from the general to the special: the last part says most
    whole = [" ".join(lower)] if len(lower) <= 3 else []
    return tuple(dict.fromkeys([*telling[:2], *whole]))[:_MOST]


def chosen(
    candidates: Mapping[str, Sequence[str]], words: Sequence[str], logs: Floats, targets: Ints
) -> dict[str, str]:
    """One word for each label: those with which the training rows' labels are likeliest, calibrated.

    `logs` [N, W] are the log-probabilities of `words` behind every training row. From the first word of each label on,
    one label's word is changed at a time while that helps; words of different labels stay different.
    """
    place = {word: number for number, word in enumerate(words)}
    labels = list(candidates)
    best = {label: candidates[label][0] for label in labels}

    def worth(choice: Mapping[str, str]) -> float:
        own = logs[:, [place[choice[label]] for label in labels]]
        own = own - np.logaddexp.reduce(own, axis=1, keepdims=True)
        offsets = calibration.batch_offsets(own, targets, np.full(len(labels), 1 / len(labels)))
        chances = calibration.calibrated(own, offsets)[np.arange(len(targets)), targets]
        return float(np.log(np.maximum(chances, np.finfo(np.float64).tiny)).mean())

    value, improved = worth(best), True
    while improved:
        improved = False
        for label in labels:
            for word in candidates[label]:
                if word in best.values():
                    continue
                changed = {**best, label: word}
                if (more := worth(changed)) > value:
                    best, value, improved = changed, more, True
    return best


def fitting_prompt(words: Sequence[str], label_column: str, language: str = "en") -> str:
    """A hand-written prompt for label words: what people would write in front of them, in the texts' language."""
    lower = {word.lower() for word in words}
    known = LANGUAGES.get(language, LANGUAGES["en"])
    if lower <= FEELINGS:
        return known.opinion
    if known is not LANGUAGES["en"]:
        return known.topic
    if lower <= ANSWERS:
        return "The answer is"
    name = re.sub(r"[\s_\-]+", " ", label_column).strip()
    if name.replace(" ", "").isalpha() and len(name) > 2 and name.lower() not in _NAMELESS:
        return f"{name[:1].upper()}{name[1:]}:"
    return known.topic
