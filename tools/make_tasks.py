"""Writes five small tasks with free answers, made at random: examples/data/tasks/TASK-{train,dev,test}.csv.

    .venv/bin/python tools/make_tasks.py        # then: pinprompt sweep recipes/small/answers.toml

field: the invoice number in a message. date: a date, written as year-month-day. words: the longer of two words. json:
name, item and quantity of an order. category: what a message is about. Each has 20 rows for training, 20 for choosing
and 60 for the report. How an answer is to be written is shown by the rows only.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

SIZES = {"train": 20, "dev": 20, "test": 60}
FOLDER = Path(__file__).parents[1] / "examples" / "data" / "tasks"

NAMES = ("Ivo", "Lena", "Mehmet", "Nora", "Oleg", "Priya", "Ruth", "Sven", "Tara", "Yusuf")
ITEMS = ("chairs", "lamps", "mugs", "pens", "shelves", "socks", "towels", "umbrellas")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
INVOICES = (
    "Dear team, invoice {number} lists {count} hours, but we agreed on {other}. Regards, {name}",
    "I already paid {count} dollars for {number} on the {day}th, why do I get a reminder? {name}",
    "{name} from accounting: please send a copy of {number}, the one over {count} dollars.",
    "We moved to {other} Park Street. Can {number} be issued again with the new address?",
)
DATES = (
    "The meeting was moved to {day} {month} {year}.",
    "{month} {day}, {year}: the warranty ends.",
    "We signed it on the {day}th of {month} in {year}.",
    "Delivery is planned for {short} {day}, {year}.",
)
ORDERS = (
    "Hi, {name} here, I would like {quantity} {item} please.",
    "Please send {quantity} {item} to {name}.",
    "{name} wants to order {item}, {quantity} of them.",
    "Could you put {quantity} {item} on the list for {name}?",
)
WORDS = ("ant", "bridge", "cloud", "dog", "elephant", "fork", "garden", "house", "island", "jacket", "kettle", "lemon",
         "mountain", "nest", "orange", "pencil", "quilt", "river", "sandwich", "telephone")  # fmt: skip
CATEGORIES = {
    "billing": ("I was charged twice this month.", "Why is there a fee of {count} dollars on my card?",
                "Can I pay by bank transfer instead?", "My discount of {count} percent was not applied."),
    "delivery": ("My parcel is {day} days late.", "The courier left the box at the wrong door.",
                 "Where is my package? It was sent on the {day}th.", "Can you ship to another address?"),
    "technical": ("The app crashes when I press save.", "I can't log in since the update.",
                  "The page shows error {count}.", "Sound stopped working after {day} minutes."),
    "praise": ("Your support team was wonderful, thank you!", "Best shop I have used in {day} years.",
               "I love the new colours.", "Everything arrived early and perfect."),
}  # fmt: skip


def field(chance: random.Random) -> tuple[str, str]:
    """The invoice number in a message, without its prefix."""
    number = chance.randint(1_000, 9_999)
    said = {"name": chance.choice(NAMES), "count": chance.randint(10, 99), "other": chance.randint(10, 99)}
    return chance.choice(INVOICES).format(number=f"INV-{number}", day=chance.randint(4, 20), **said), str(number)


def date(chance: random.Random) -> tuple[str, str]:
    """A date as year-month-day."""
    day, month, year = chance.randint(4, 20), chance.randint(1, 12), chance.randint(2015, 2026)
    name = MONTHS[month - 1]
    text = chance.choice(DATES).format(day=day, month=name, short=name[:3], year=year)
    return text, f"{year}-{month:02}-{day:02}"


def words(chance: random.Random) -> tuple[str, str]:
    """The longer of two words, in capital letters."""
    one, other = chance.sample(WORDS, 2)
    while len(one) == len(other):
        one, other = chance.sample(WORDS, 2)
    return f"{one} or {other}", max(one, other, key=len).upper()


def fields(chance: random.Random) -> tuple[str, str]:
    """An order as JSON."""
    found = {"name": chance.choice(NAMES), "item": chance.choice(ITEMS), "quantity": chance.randint(2, 30)}
    return chance.choice(ORDERS).format(**found), json.dumps(found)


def category(chance: random.Random) -> tuple[str, str]:
    """What a message is about."""
    name = chance.choice(list(CATEGORIES))
    return chance.choice(CATEGORIES[name]).format(count=chance.randint(10, 99), day=chance.randint(2, 30)), name


TASKS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "field": field, "date": date, "words": words, "json": fields, "category": category,
}  # fmt: skip


def rows_of(task: str) -> dict[str, list[tuple[str, str]]]:
    """The rows of a task by split, always the same; no input is in two splits, where there are enough of them."""
    chance, made = random.Random(f"pinprompt {task}"), dict[str, str]()
    wanted = sum(SIZES.values())
    for _ in range(100 * wanted):
        text, answer = TASKS[task](chance)
        made.setdefault(text, answer)
        if len(made) == wanted:
            break
    pairs, found = list(made.items()), dict[str, list[tuple[str, str]]]()
    for split, size in SIZES.items():
        found[split], pairs = pairs[:size], pairs[size:]
    return found


def main() -> None:
    """Write the files, the same ones each time."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        for split, rows in rows_of(task).items():
            with (FOLDER / f"{task}-{split}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([("input", "target"), *rows])


if __name__ == "__main__":
    main()
