"""The arena's tasks: rows that every contestant gets, how an answer is read, and whether it is correct."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TEST_ROWS = 100
SHOTS = 16
MARKERS = ("<final_answer>", "[[ ## answer ## ]]", "[[ ## label ## ]]")
"""What peers make the model write before its answer."""
ENDS = ("</final_answer>", "[[ ## completed ## ]]", "[[ ##")


@dataclass(frozen=True)
class Task:
    """What a contestant may know: an instruction to start from, labels (none: free answers), and labelled rows."""

    name: str
    instruction: str
    labels: tuple[str, ...]
    rows: dict[str, list[dict[str, str]]]
    """`input` and `target` of the rows of train, dev and test."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What pinprompt's own card of the dataset says: label words and hand-written prompts."""

    def labelled(self) -> list[dict[str, str]]:
        """The rows that a search may use."""
        return self.rows["train"] + self.rows["dev"]

    def correct(self, answer: str, target: str) -> bool:
        """Whether an answer is the row's target: the same reading for every contestant."""
        read = read_answer(answer, self.labels)
        return read is not None and read.lower() == target.lower()


def read_answer(answer: str, labels: Sequence[str] = ()) -> str | None:
    """What an answer says after its last marker, if it has one: the first label, or the text without quotes."""
    for marker in MARKERS:
        answer = answer.rpartition(marker)[2]
    for end in ENDS:
        answer = answer.partition(end)[0]
    if not labels:
        return answer.strip().strip("\"'`*.").strip()
    found = re.search(r"\b(" + "|".join(map(re.escape, labels)) + r")\b", answer, re.IGNORECASE)
    return None if found is None else found[1].lower()


CARDS: dict[str, tuple[tuple[str, ...], str]] = {
    "vader-products": (
        ("negative", "positive"),
        'Classify the sentiment of the customer review as "negative" or "positive". Reply with one of these '
        "words only.",
    ),
    "vader-sources": (
        ("film", "product", "news", "twitter"),
        'Say where the sentence comes from: a review of a "film", a review of a "product", a "news" editorial, or '
        '"twitter". Reply with one of these words only.',
    ),
}
ORDERS = "Reply with the order number in the message."
TASKS = (*CARDS, "orders")


def open_task(name: str, split: int, test_rows: int = TEST_ROWS) -> Task:
    """A task with the rows of a split, and the first of its test rows."""
    if name == "orders":
        return _orders(split, test_rows)
    from pinprompt.data.datasets import load, lookup

    labels, instruction = CARDS[name]
    splits, card = load(name, split=split, shots=SHOTS), lookup(name)
    names = dict(zip(card.words, labels, strict=True))
    test = list(splits.test or [])
    random.Random(35).shuffle(test)
    parts = {"train": splits.train, "dev": splits.dev, "test": test[:test_rows]}
    rows = {
        part: [{"input": one.text.strip(), "target": names[one.label]} for one in examples]
        for part, examples in parts.items()
    }
    words = {names[label]: word for label, word in card.words.items()}
    hand_written = {"manual": card.hand_written, "instruction": instruction}
    return Task(name, instruction, labels, rows, {"words": words, **hand_written})


def _orders(split: int, test_rows: int) -> Task:
    """Messages to a shop; the answer is the order number as the shop's own system writes it, such as A-12345.

    No instruction says how it is written: a search has to learn that from the labelled rows.
    """
    from tools.make_orders import MESSAGES, NAMES

    chance = random.Random(35)
    rows = []
    for _ in range(2 * SHOTS + TEST_ROWS):
        letter, digits = chance.choice("ABCDEF"), chance.randint(10_000, 99_999)
        numbers = {"amount": chance.randint(5, 90), "day": chance.randint(1, 28)}
        message = chance.choice(MESSAGES).format(name=chance.choice(NAMES), order=f"{letter}{digits}", **numbers)
        rows.append({"input": message, "target": f"{letter}-{digits}"})
    test, rest = rows[:TEST_ROWS], rows[TEST_ROWS:]
    random.Random(split).shuffle(rest)
    return Task("orders", ORDERS, (), {"train": rest[:SHOTS], "dev": rest[SHOTS:], "test": test[:test_rows]})
