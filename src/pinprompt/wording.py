"""Formatting of numbers, untrusted text and costs: shares as percent, invisible characters made visible."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from pinprompt.folder.reading import inside, mapping, number
from pinprompt.values import counted

SHARES = {
    "accuracy", "raw_accuracy", "calibrated_accuracy", "macro_f1", "raw_macro_f1", "calibrated_macro_f1", "correct",
    "dictionary_words", "stable",
}  # fmt: skip
COUNTS = {"repeated_tokens", "rows", "calls"}
NONE = "\N{EN DASH}"
JOINED = "\N{NO-BREAK SPACE}"
LOWER_IS_BETTER = {"perplexity", "in_text", "repeated_tokens", "copies"}
TITLES = {
    "macro_f1": "macro F1", "raw_macro_f1": "raw macro F1", "calibrated_macro_f1": "calibrated macro F1",
    "dictionary_words": "dictionary words",
    "repeated_tokens": "repeated tokens", "stable": "decode-encode stable", "j": "J",
    "copies": "unchanged outputs (%)", "gm": "GM", "in_text": "perplexity in a text",
}  # fmt: skip


def title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def where(split: str, task: object = "", rows: float | None = None) -> str:
    """The words after a metric's name: 'on test (500 rows)', 'to the picture'."""
    if task == "inversion":  # its pictures are not a sample
        return "to the picture" if rows is None or rows == 1 else f"to the {plain(rows)} pictures"
    if task == "custom":  # a function has no rows of its own
        return "by the function"
    said = "on the training examples" if split == "train" else f"on {split}"
    return said + ("" if rows is None else f" ({counted(rows, 'row')})")


def metric(name: str, value: float | None) -> str:
    """A metric's value: shares in percent with one decimal, the rest with three or four digits."""
    if value is None:
        return NONE
    if name in SHARES and -1.0 <= value <= 1.0:
        return f"{100 * value:.1f}{JOINED}%"
    return plain(value) if name in COUNTS else digits(value)


def plain(value: float) -> str:
    """A number with a readable number of digits: 12,288, 61.2, 0.312."""
    return f"{int(value):,}" if abs(value) < 1e15 and value == int(value) else digits(value)


def digits(value: float) -> str:
    """A measured number with a fixed number of decimals, so that columns line up."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    if size >= 1:
        return f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.001 or size == 0 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Seconds as text: 4 min 0 s."""
    if seconds < 60:
        return f"{seconds:.1f}{JOINED}s" if seconds < 10 else f"{seconds:.0f}{JOINED}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{JOINED}min {whole % 60}{JOINED}s"
    return f"{whole // 3600}{JOINED}h {whole % 3600 // 60}{JOINED}min"


def visible(words: str) -> str:
    """A text with invisible and control characters made visible."""
    return words if words.isascii() and words.isprintable() else "".join(map(_visible, words))


def text(value: object, most: int = 600) -> str:
    """Any value as text for display: clipped, with invisible and control characters made visible."""
    raw = value if isinstance(value, str) else str(value)[: 4 * most]
    clipped = raw if len(raw) <= most else raw[: most - 1] + "…"
    return visible(clipped)


_ROLE = re.compile(
    r"<\|im_start\|>(\w+)\s*|<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*|<start_of_turn>(\w+)\s*"
    r"|<\|(system|user|assistant)\|>\s*"
)
_MARK = re.compile(r"<\|(?:im_end|eot_id|end|begin_of_text|endoftext)\|>|<end_of_turn>|</?s>|<bos>")


def by_role(prompt: str) -> str:
    """A prompt in a chat format as people read it: "[user] What is it?", without the template's special tokens."""
    if not _ROLE.search(prompt):
        return prompt
    return _ROLE.sub(lambda found: f"[{found[found.lastindex or 0]}] ", _MARK.sub("", prompt)).strip()


def shown_prompt(value: object, most: int = 600) -> str:
    """A prompt as text for display, without spaces around it."""
    return text(by_role(value) if isinstance(value, str) else value, most).strip(" ")


def token(value: object) -> str:
    """A token with its leading space and line breaks made visible."""
    shown = text(value, 60).replace("\n", "⏎")
    return "␣" + shown[1:] if shown.startswith(" ") else shown or "∅"


def _visible(letter: str) -> str:
    code = ord(letter)
    if letter in "\n\t" or 32 <= code < 127:
        return letter
    if code < 32:
        return chr(0x2400 + code)
    kind = unicodedata.category(letter)
    # Cf includes characters that reverse the reading order; emoji joiners are harmless and kept.
    return "�" if kind in {"Cc", "Cs", "Co", "Cn"} or (kind == "Cf" and letter not in "\u200c\u200d") else letter


# The actual cost of a run, as text for the terminal and the report.


def spending(result: Any) -> list[tuple[str, str]]:
    """Names and values: calls of search and report, what was sent to a server, tokens and money."""
    spent = mapping(mapping(result).get("spent"))
    search, report = _count(spent, "search", "calls"), _count(spent, "report", "calls")
    if search is None or report is None:
        return []
    after = "evaluation of the found prompt" if mapping(result).get("reported") is False else "report"
    found = [("calls", f"{search + report:,} ({search:,} search, {report:,} {after})")]
    sent, lost = _count(spent, "sent", "calls"), _count(spent, "sent", "lost")
    if sent is not None and (sent != search + report or lost):
        found.append(("calls actually sent", f"{sent:,}" + (f", {lost:,} of them lost" if lost else "")))
    tokens = [_count(spent, "sent", name) for name in ("tokens_in", "tokens_out")]
    if tokens[0] is None:
        parts = [
            [_count(spent, part, name) or 0 for part in ("search", "report")] for name in ("tokens_in", "tokens_out")
        ]
        tokens = [sum(both) or None for both in parts]
    if tokens[0] is not None:
        untold = _count(spent, "sent", "untold")
        note = f"; {untold:,} calls counted at their maximum, as the server reports no tokens" if untold else ""
        found.append(("tokens", f"{tokens[0]:,} in, {tokens[1] or 0:,} out{note}"))
    if "money" in spent:
        found.append(("money", money_shown(number(spent.get("money")))))
    return found


def money_shown(amount: float | None) -> str:
    """An amount in the currency of the price table; unknown, not 0, without a price."""
    return "unknown (no budget.prices for this model)" if amount is None else f"{amount:.4g}"


def _count(spent: Any, part: str, name: str) -> int | None:
    value = number(inside(spent, part, name))
    return None if value is None or value < 0 else int(value)
