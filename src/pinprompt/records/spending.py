"""What a run really spent, in words for the terminal and the report."""

from __future__ import annotations

from typing import Any

from pinprompt.records.reading import inside, mapping, number


def spending(result: Any) -> list[tuple[str, str]]:
    """Names and values: calls of search and report, what was sent to a server, tokens and money."""
    spent = mapping(mapping(result).get("spent"))
    search, report = _count(spent, "search", "calls"), _count(spent, "report", "calls")
    if search is None or report is None:
        return []
    found = [("calls", f"{search + report:,} ({search:,} search, {report:,} report)")]
    sent, lost = _count(spent, "sent", "calls"), _count(spent, "sent", "lost")
    if sent is not None and (sent != search + report or lost):
        found.append(("calls really sent", f"{sent:,}" + (f", {lost:,} of them lost" if lost else "")))
    tokens = [_count(spent, "sent", name) for name in ("tokens_in", "tokens_out")]
    if tokens[0] is None:
        parts = [
            [_count(spent, part, name) or 0 for part in ("search", "report")] for name in ("tokens_in", "tokens_out")
        ]
        tokens = [sum(both) or None for both in parts]
    if tokens[0] is not None:
        untold = _count(spent, "sent", "untold")
        note = f"; {untold:,} calls counted at their most, as the server does not tell" if untold else ""
        found.append(("tokens", f"{tokens[0]:,} in, {tokens[1] or 0:,} out{note}"))
    if "money" in spent:
        found.append(("money", money_shown(number(spent.get("money")), spent.get("currency"))))
    return found


def money_shown(amount: float | None, currency: object) -> str:
    """A sum with its currency; a price that nobody gave makes it unknown, not nothing."""
    if amount is None:
        return "unknown (no budget.prices for this model)"
    return f"{amount:.4g}" + (f" {currency[:20]}" if isinstance(currency, str) and currency else "")


def _count(spent: Any, part: str, name: str) -> int | None:
    value = number(inside(spent, part, name))
    return None if value is None or value < 0 else int(value)
