"""Draws the twenty pictures on which captions are judged by hand (docs/notebook.md): `python tools/drawings.py FOLDER`.

They are no training data, and nothing is tuned on them. They were drawn by lot from 57 things that people draw, and
fixed before a caption of any was seen.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

THINGS = """apple banana book bus butterfly cactus cake camera candle carrot cat clock cloud crown cup diamond door ear
    envelope eye fish flower grapes guitar hammer hat ice-cream ladder leaf lightning lollipop moon mountain mushroom
    octopus pencil pizza rainbow rocket sailboat scissors smiley-face snake snail snowman sock spider strawberry t-shirt
    telephone tent traffic-light tree train watermelon windmill wine-glass"""
CHOSEN = sorted(random.Random(37).sample(THINGS.split(), 20))
SIDE = 256
Pen = ImageDraw.ImageDraw
BLACK, WHITE, GREEN, RED, BROWN, GREY = "#222222", "white", "#3a9d4a", "#d8343a", "#8b5a2b", "#9aa3ab"
YELLOW, BLUE, DARK, SNOW = "#f7c631", "#3c7dd9", "#5b3a1c", "#dbe6f2"


def book(pen: Pen) -> None:
    """An open book with lines of text."""
    pen.polygon([(20, 76), (124, 92), (124, 204), (20, 188)], fill="#f4ecd8", outline=BLACK, width=5)
    pen.polygon([(236, 76), (132, 92), (132, 204), (236, 188)], fill="#f4ecd8", outline=BLACK, width=5)
    pen.polygon([(14, 192), (128, 210), (242, 192), (242, 204), (128, 222), (14, 204)], fill=RED)
    for y in range(104, 176, 18):
        pen.line([(36, y - 6), (110, y + 6)], fill=GREY, width=4)
        pen.line([(220, y - 6), (146, y + 6)], fill=GREY, width=4)


def cactus(pen: Pen) -> None:
    """A cactus with two arms, in a pot."""
    pen.rounded_rectangle([104, 30, 152, 196], 24, fill=GREEN)
    pen.rounded_rectangle([48, 76, 78, 142], 15, fill=GREEN)
    pen.rectangle([62, 118, 112, 142], fill=GREEN)
    pen.rounded_rectangle([178, 56, 208, 118], 15, fill=GREEN)
    pen.rectangle([146, 96, 194, 118], fill=GREEN)
    pen.polygon([(76, 190), (180, 190), (166, 242), (90, 242)], fill="#c8693c")


def cake(pen: Pen) -> None:
    """A cake of two layers with three candles."""
    pen.rectangle([40, 150, 216, 226], fill="#f3b8c8")
    pen.rectangle([70, 92, 186, 150], fill="#f7d9a8")
    pen.rectangle([40, 150, 216, 164], fill=WHITE, outline=GREY, width=2)
    for x in (94, 128, 162):
        pen.rectangle([x - 5, 54, x + 5, 92], fill=BLUE)
        pen.ellipse([x - 7, 30, x + 7, 54], fill=YELLOW)
    pen.rectangle([26, 226, 230, 236], fill=GREY)


def envelope(pen: Pen) -> None:
    """A closed envelope."""
    pen.rectangle([24, 64, 232, 196], fill="#f4ecd8", outline=BLACK, width=6)
    pen.line([(24, 64), (128, 144), (232, 64)], fill=BLACK, width=6, joint="curve")


def guitar(pen: Pen) -> None:
    """A guitar, upright."""
    pen.ellipse([72, 138, 184, 246], fill="#c77f3a")
    pen.ellipse([84, 94, 172, 170], fill="#c77f3a")
    pen.ellipse([106, 132, 150, 176], fill=DARK)
    pen.rectangle([120, 24, 136, 150], fill=DARK)
    pen.rectangle([112, 8, 144, 36], fill=DARK)
    pen.rectangle([104, 204, 152, 214], fill=DARK)


def hammer(pen: Pen) -> None:
    """A hammer with a wooden handle."""
    pen.rounded_rectangle([116, 80, 142, 244], 8, fill=BROWN)
    pen.rectangle([64, 36, 168, 88], fill=GREY)
    pen.polygon([(168, 36), (226, 70), (218, 84), (168, 84)], fill=GREY)


def ladder(pen: Pen) -> None:
    """A ladder of seven rungs."""
    for x in (76, 166):
        pen.rectangle([x, 12, x + 14, 244], fill=BROWN)
    for y in range(34, 236, 32):
        pen.rectangle([76, y, 180, y + 10], fill=BROWN)


def leaf(pen: Pen) -> None:
    """A green leaf with its veins."""
    rim = [(128 + 78 * math.sin(math.pi * t / 40) ** 1.3, 16 + t * 4.6) for t in range(41)]
    rim += [(256 - x, y) for x, y in reversed(rim)]
    pen.polygon(rim, fill=GREEN)
    pen.line([(128, 30), (128, 246)], fill="#1f6b2d", width=6)
    for y in (80, 112, 144):
        pen.line([(84, y - 22), (128, y + 10), (172, y - 22)], fill="#1f6b2d", width=4)


def lightning(pen: Pen) -> None:
    """A yellow bolt."""
    bolt = [(150, 10), (62, 142), (118, 142), (92, 246), (196, 104), (136, 104), (176, 10)]
    pen.polygon(bolt, fill=YELLOW, outline="#d99a12", width=4)


def mountain(pen: Pen) -> None:
    """Two mountains with snow."""
    pen.polygon([(120, 226), (184, 84), (250, 226)], fill="#6f7f8f")
    pen.polygon([(6, 226), (104, 36), (200, 226)], fill="#55636f")
    pen.polygon([(104, 36), (74, 94), (92, 86), (104, 102), (118, 86), (133, 94)], fill=SNOW)
    pen.polygon([(184, 84), (166, 124), (184, 116), (203, 124)], fill=SNOW)


def mushroom(pen: Pen) -> None:
    """A red mushroom with white spots."""
    pen.rounded_rectangle([96, 130, 160, 240], 20, fill="#f1e6d2")
    pen.pieslice([24, 24, 232, 260], 180, 360, fill=RED)
    for x, y, r in ((80, 100, 16), (130, 64, 18), (178, 106, 15), (128, 118, 11)):
        pen.ellipse([x - r, y - r, x + r, y + r], fill=WHITE)


def rocket(pen: Pen) -> None:
    """A rocket with a window and a flame."""
    pen.ellipse([88, 14, 168, 250], fill="#d5dbe1")
    pen.rectangle([60, 202, 196, 252], fill=WHITE)
    pen.polygon([(104, 204), (152, 204), (128, 250)], fill="#f08a24")
    pen.polygon([(92, 150), (56, 202), (94, 198)], fill=RED)
    pen.polygon([(164, 150), (200, 202), (162, 198)], fill=RED)
    pen.pieslice([88, 14, 168, 250], 236, 304, fill=RED)
    pen.ellipse([108, 92, 148, 132], fill=BLUE, outline=BLACK, width=5)


def sailboat(pen: Pen) -> None:
    """A boat with two sails, on the water."""
    pen.rectangle([124, 24, 131, 176], fill=BROWN)
    pen.polygon([(134, 30), (220, 164), (134, 164)], fill=WHITE, outline=BLACK, width=4)
    pen.polygon([(120, 52), (52, 164), (120, 164)], fill=RED)
    pen.polygon([(30, 176), (226, 176), (194, 222), (64, 222)], fill=BROWN)
    pen.rectangle([0, 218, 256, 246], fill=BLUE)


def scissors(pen: Pen) -> None:
    """Open scissors with red handles."""
    pen.polygon([(70, 12), (86, 16), (156, 168), (138, 172)], fill=GREY)
    pen.polygon([(186, 12), (170, 16), (100, 168), (118, 172)], fill=GREY)
    pen.ellipse([48, 160, 118, 240], outline=RED, width=16)
    pen.ellipse([138, 160, 208, 240], outline=RED, width=16)
    pen.ellipse([121, 112, 135, 126], fill=BLACK)


def snail(pen: Pen) -> None:
    """A snail with a round shell."""
    pen.rounded_rectangle([24, 186, 226, 216], 15, fill="#d9b36c")
    pen.rounded_rectangle([190, 112, 222, 212], 16, fill="#d9b36c")
    for x in (196, 216):
        pen.line([(206, 120), (x + (x - 206), 78)], fill="#d9b36c", width=6)
        pen.ellipse([x + (x - 206) - 6, 68, x + (x - 206) + 6, 80], fill=BLACK)
    pen.ellipse([50, 80, 178, 208], fill="#a8612e")
    for r in (46, 28, 12):
        pen.arc([114 - r, 144 - r, 114 + r, 144 + r], 0, 320, fill=DARK, width=7)


def snake(pen: Pen) -> None:
    """A green snake in waves, with its tongue."""
    way = [(24 + t * 4.4, 150 + 44 * math.sin(t / 5.2)) for t in range(42)]
    for x, y in way:
        pen.ellipse([x - 16, y - 16, x + 16, y + 16], fill=GREEN)
    x, y = way[-1]
    pen.ellipse([x - 18, y - 26, x + 34, y + 18], fill=GREEN)
    pen.ellipse([x + 8, y - 16, x + 18, y - 6], fill=BLACK)
    pen.line([(x + 32, y - 2), (x + 44, y - 8)], fill=RED, width=4)
    pen.line([(x + 32, y - 2), (x + 44, y + 6)], fill=RED, width=4)


def sock(pen: Pen) -> None:
    """A striped sock."""
    pen.rectangle([84, 16, 156, 170], fill=BLUE)
    pen.rounded_rectangle([84, 140, 224, 220], 38, fill=BLUE)
    pen.rectangle([84, 16, 156, 42], fill=WHITE, outline=BLUE, width=5)
    for y in (66, 100):
        pen.rectangle([84, y, 156, y + 14], fill=YELLOW)
    pen.pieslice([148, 140, 226, 220], 270, 90, fill=YELLOW)


def strawberry(pen: Pen) -> None:
    """A strawberry with its leaves."""
    pen.polygon([(44, 92), (128, 246), (212, 92)], fill=RED)
    pen.ellipse([40, 56, 132, 148], fill=RED)
    pen.ellipse([124, 56, 216, 148], fill=RED)
    pen.polygon([(128, 92), (84, 40), (116, 52), (128, 16), (140, 52), (172, 40)], fill=GREEN)
    for x, y in ((84, 104), (128, 116), (172, 104), (104, 146), (152, 146), (128, 180)):
        pen.ellipse([x - 4, y - 7, x + 4, y + 7], fill=YELLOW)


def tent(pen: Pen) -> None:
    """A tent with an open entrance, on grass."""
    pen.rectangle([0, 206, 256, 236], fill=GREEN)
    pen.polygon([(128, 36), (20, 212), (236, 212)], fill="#f08a24")
    pen.polygon([(128, 96), (88, 212), (168, 212)], fill=DARK)
    pen.line([(128, 40), (118, 20)], fill=BLACK, width=5)
    pen.line([(128, 40), (138, 20)], fill=BLACK, width=5)


def windmill(pen: Pen) -> None:
    """A windmill with four sails."""
    pen.polygon([(96, 104), (160, 104), (184, 246), (72, 246)], fill="#d9c7a3")
    pen.pieslice([92, 66, 164, 138], 180, 360, fill=RED)
    pen.rectangle([114, 198, 142, 246], fill=BROWN)
    for turn in range(4):
        angle = math.pi / 4 + turn * math.pi / 2
        way, side = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))
        corners = [(14, 0), (98, 0), (98, 24), (26, 24)]
        pen.polygon(
            [(128 + a * way[0] + b * side[0], 100 + a * way[1] + b * side[1]) for a, b in corners], fill="#f4ecd8",
            outline=BLACK, width=4,
        )  # fmt: skip
        pen.line([(128, 100), (128 + 100 * way[0], 100 + 100 * way[1])], fill=BLACK, width=5)


def main(folder: Path) -> None:
    """Write NAME.png of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in CHOSEN:
        image = Image.new("RGB", (SIDE, SIDE), WHITE)
        draw: Callable[[Pen], None] = globals()[name]
        draw(ImageDraw.Draw(image))
        image.save(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
