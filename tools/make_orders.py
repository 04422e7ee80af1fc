"""Writes examples/data/orders.csv: messages to a shop, each with an order number (docs/howto/answers.md)."""

from __future__ import annotations

import csv
import random
from pathlib import Path

NAMES = ("Anna", "Bob", "Chen", "Dina", "Emil", "Fatima", "Gus", "Hana")
MESSAGES = (
    "Hello, this is {name}. My order {order} has not arrived yet, I paid {amount} euros on {day} May.",
    "Order {order} came broken! I want my {amount} euros back. {name}",
    "Hi, could you change the address of {order}? Thanks, {name} ({amount} items)",
    "{name} here again. I called on {day} May about order number {order} and waited {amount} minutes.",
)


def main() -> None:
    """Write the file, the same one each time."""
    chance = random.Random(1)
    path = Path(__file__).parents[1] / "examples" / "data" / "orders.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["message", "order_number"])
        for _ in range(60):
            order = f"{chance.choice('ABCDEF')}{chance.randint(10_000, 99_999)}"
            numbers = {"amount": chance.randint(5, 90), "day": chance.randint(1, 28)}
            rows.writerow([chance.choice(MESSAGES).format(name=chance.choice(NAMES), order=order, **numbers), order])


if __name__ == "__main__":
    main()
