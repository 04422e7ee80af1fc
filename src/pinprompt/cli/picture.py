"""A picture on a terminal: two pixels to a character, the upper one the letter's colour, the lower one its ground's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pinprompt.models.images import find_pictures, load_picture

COLUMNS = 24
"""Characters in a line of a picture."""
SHOWN = 3
"""Pictures that are shown, of however many."""


def show_pictures(given: Sequence[Path]) -> None:
    """Draw the first pictures on stderr, side by side."""
    from rich.columns import Columns

    files = find_pictures([str(path) for path in given])
    drawn = [drawing(load_picture(path).image) for path in files[:SHOWN]]
    console = Console(stderr=True)
    console.print(Columns(drawn, padding=(0, 2)))
    if len(files) > SHOWN:
        console.print(f"and {len(files) - SHOWN} more", highlight=False)


def drawing(image: object, columns: int = COLUMNS) -> Text:
    """A picture (of Pillow) as text of that many columns, its sides in proportion."""
    from PIL.Image import Image, Resampling

    assert isinstance(image, Image)
    lines = max(1, min(2 * columns, round(columns * image.height / image.width / 2)))
    small = image.convert("RGB").resize((columns, 2 * lines), Resampling.BOX)
    text = Text()
    for line in range(lines):
        for column in range(columns):
            upper, lower = (small.getpixel((column, 2 * line + half)) for half in (0, 1))
            text.append("\N{UPPER HALF BLOCK}", style=f"{_colour(upper)} on {_colour(lower)}")
        if line < lines - 1:
            text.append("\n")
    return text


def _colour(pixel: object) -> str:
    assert isinstance(pixel, tuple)
    return "#" + "".join(f"{int(level):02x}" for level in pixel[:3])
