"""Download openly licensed emoji drawings and their captions, and rasterise them for tools/emoji_clip/train.py.

    python -m venv /tmp/emoji-venv && /tmp/emoji-venv/bin/pip install resvg_py numpy pillow
    /tmp/emoji-venv/bin/python tools/emoji_clip/pictures.py /tmp/emoji-data

Needs `npm`, but only for `npm pack`, which downloads packages without running them. The script writes to the folder:
`pictures.npz` (for each set an array [n, 72, 72, 4] of RGBA drawings and the row of each drawing's concept),
`concepts.json` (name, keywords and group of each concept), and `noto/` with the test drawings as PNG files. None of
this is shipped with the package.

    /tmp/emoji-venv/bin/python tools/emoji_clip/pictures.py runs/pictures --only octopus pizza rocket

downloads only what is needed for `concepts.json` and these test drawings in `noto/`: pictures for inversion that were
not used to train emoji-clip (recipes/small/inversion-*.toml). Drawings are named by their Unicode name, with hyphens
for spaces.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import re
import subprocess
import tarfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import resvg_py
from PIL import Image
from PIL.Image import Resampling

SIZE = 72
TEST_SET = "noto"
SETS = {  # npm package, exact version; the drawings' licence
    "twemoji": ("@iconify-json/twemoji", "1.2.5"),  # CC-BY-4.0, Twitter and contributors
    "fluent-emoji-flat": ("@iconify-json/fluent-emoji-flat", "1.2.6"),  # MIT, Microsoft Corporation
    "fluent-emoji": ("@iconify-json/fluent-emoji", "1.2.7"),  # MIT, Microsoft Corporation
    "fluent-3d": ("@lobehub/fluent-emoji-3d", "1.1.0"),  # MIT, Microsoft Corporation; rendered, packed by LobeHub
    "emojione": ("@iconify-json/emojione", "1.2.3"),  # CC-BY-4.0, Emoji One 2.3 / EmojiTwo
    "fxemoji": ("@iconify-json/fxemoji", "1.2.2"),  # Apache-2.0, Mozilla
    "streamline": ("@iconify-json/streamline-emojis", "1.2.4"),  # CC-BY-4.0, Streamline
    "fluent-contrast": ("@iconify-json/fluent-emoji-high-contrast", "1.2.6"),  # MIT, Microsoft Corporation
    "emojione-monotone": ("@iconify-json/emojione-monotone", "1.2.1"),  # CC-BY-4.0, Emoji One / EmojiTwo
    "game-icons": ("@iconify-json/game-icons", "1.2.4"),  # CC-BY-3.0, game-icons.net and its artists
    "mdi": ("@iconify-json/mdi", "1.2.3"),  # Apache-2.0, Pictogrammers
    "hugeicons": ("@iconify-json/hugeicons", "1.2.35"),  # MIT, Hugeicons
    "icon-park": ("@iconify-json/icon-park", "1.2.4"),  # Apache-2.0, ByteDance
    "ph": ("@iconify-json/ph", "1.2.2"),  # MIT, Phosphor Icons
    "mingcute": ("@iconify-json/mingcute", "1.2.8"),  # Apache-2.0, MingCute Design
    "tabler": ("@iconify-json/tabler", "1.2.41"),  # MIT, Pawel Kuna
    "fa6-solid": ("@iconify-json/fa6-solid", "1.2.4"),  # CC-BY-4.0, Dave Gandy
    TEST_SET: ("@iconify-json/noto", "1.2.9"),  # Apache-2.0, Google
}
# Icons: only those with the name of an emoji are used.
ICONS = ("game-icons", "mdi", "hugeicons", "icon-park", "ph", "mingcute", "tabler", "fa6-solid")
MONOCHROME = ("fluent-contrast", "emojione-monotone", *(name for name in ICONS if name != "icon-park"))
VARIANT = re.compile(r"-(fill|filled|duotone|\d)$")
CAPTIONS = {"emojibase-data": "17.0.0", "emojilib": "4.0.3"}  # both MIT


def fetch(package: str, version: str, folder: Path) -> Path:
    """The unpacked npm package; downloaded once."""
    target = folder / "packages" / package.replace("/", "-").lstrip("@")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", f"{package}@{version}"], cwd=target.parent, check=True, capture_output=True, text=True
        )
        with tarfile.open(target.parent / done.stdout.strip().splitlines()[-1]) as archive:
            archive.extractall(target, filter="data")
    return target / "package"


def squeeze(name: str) -> str:
    """A name in lower case, with only letters and digits and no accents, to match sets with different spellings."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]", "", plain.replace("flag-for-flag-", "flag").replace("flag-for-", "flag"))


def words_of(text: str) -> list[str]:
    """Lower-case words of a name or keyword."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower().replace("\u2019", "'").replace("_", " "))


def concepts(folder: Path) -> list[dict[str, Any]]:
    """One row per emoji without skin tones: hexcode, name, keywords, group, other names."""
    base = json.loads((fetch("emojibase-data", CAPTIONS["emojibase-data"], folder) / "en/data.json").read_text("utf-8"))
    more = json.loads((fetch("emojilib", CAPTIONS["emojilib"], folder) / "dist/emoji-en-US.json").read_text("utf-8"))
    extra = {emoji.replace("\ufe0f", ""): tags for emoji, tags in more.items()}
    rows = []
    for entry in base:
        if "order" not in entry or "group" not in entry or entry["group"] == 2:
            continue
        emoji = entry["emoji"].replace("\ufe0f", "")
        name = words_of(entry["label"])
        tags = {" ".join(words_of(tag)) for tag in [*entry.get("tags", []), *extra.get(emoji, [])]}
        tags = {tag for tag in tags if tag and len(tag) < 30}
        old = [unicodedata.name(emoji, "")] if len(emoji) == 1 else []
        rows.append(
            {
                "hexcode": entry["hexcode"].lower().replace("-fe0f", ""),
                "name": " ".join(name),
                "keywords": sorted(tags),
                "group": entry["group"],
                "names": sorted({squeeze(entry["label"]), *map(squeeze, old), *(squeeze(tag) for tag in old)} - {""}),
            }
        )
    return rows


def draw(icons: dict[str, Any], name: str) -> np.ndarray | None:
    """The drawing as RGBA, or None if the set has no drawing of that name."""
    flip = False
    icon = icons["icons"].get(name)
    if icon is None:
        alias = icons.get("aliases", {}).get(name)
        if alias is None or set(alias) - {"parent", "hFlip"}:
            return None
        icon, flip = icons["icons"].get(alias["parent"]), bool(alias.get("hFlip"))
    if icon is None:
        return None
    width, height = icon.get("width", icons.get("width", 16)), icon.get("height", icons.get("height", 16))
    box = f"{icon.get('left', 0)} {icon.get('top', 0)} {width} {height}"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" '
        f'width="{SIZE}" height="{SIZE}">{icon["body"]}</svg>'
    )
    data = resvg_py.svg_to_bytes(svg_string=svg, width=SIZE, height=SIZE)
    picture = Image.open(io.BytesIO(bytes(data))).convert("RGBA").resize((SIZE, SIZE))
    pixels = np.asarray(picture)
    return pixels[:, ::-1] if flip else pixels


def names_in(set_name: str, package: Path, folder: Path, icons: dict[str, Any]) -> dict[str, list[str]]:
    """A table from hexcodes and squeezed names to the icon's names in that set; some sets have variants."""
    found: dict[str, list[str]] = {}
    for name in [*icons["icons"], *icons.get("aliases", {})]:
        plain = VARIANT.sub("", name) if set_name in ("streamline", *ICONS) else name
        found.setdefault(squeeze(plain), []).append(name)
    if set_name == "fluent-emoji":  # it has no table; its names are those of the flat set
        package = fetch(*SETS["fluent-emoji-flat"], folder)
    chars = json.loads((package / "chars.json").read_text("utf-8"))
    return found | {"#" + code: [name] for code, name in chars.items()}


def vector_drawings(set_name: str, package: Path, folder: Path) -> Callable[[dict[str, Any]], list[np.ndarray]]:
    """A function from a concept to a set's drawings of it, at most three."""
    icons = json.loads((package / "icons.json").read_text("utf-8"))
    names = names_in(set_name, package, folder, icons)

    def of(concept: dict[str, Any]) -> list[np.ndarray]:
        keys = ["#" + concept["hexcode"], *concept["names"]]
        keys += [name.removesuffix("face") for name in concept["names"]]
        mine = next((names[key] for key in keys if key in names), [])
        drawn = [draw(icons, name) for name in (mine[:3] if set_name in ("streamline", *ICONS) else mine[:1])]
        return [picture for picture in drawn if picture is not None and picture[..., 3].any()]

    return of


def rendered_drawings(package: Path) -> Callable[[dict[str, Any]], list[np.ndarray]]:
    """The same for a set of image files named by their code points."""
    files = {path.stem.lower().replace("-fe0f", ""): path for path in (package / "assets").glob("*.webp")}

    def of(concept: dict[str, Any]) -> list[np.ndarray]:
        path = files.get(concept["hexcode"])
        return [np.asarray(Image.open(path).convert("RGBA").resize((SIZE, SIZE), Resampling.LANCZOS))] if path else []

    return of


def paint(arrays: dict[str, np.ndarray]) -> None:
    """Colour monochrome drawings with the mean colour of their concept in the coloured sets, to resemble an emoji."""
    sums: dict[int, np.ndarray] = {}
    for name in (name for name in SETS if name not in MONOCHROME and name != TEST_SET):
        for picture, owner in zip(arrays[name].astype(float), arrays[f"{name}/concepts"].tolist(), strict=True):
            weight = picture[..., 3:]
            mean = (picture[..., :3] * weight).sum((0, 1)) / weight.sum()
            sums[owner] = sums.get(owner, np.zeros(4)) + np.append(mean, 1)
    for name in MONOCHROME:
        for picture, owner in zip(arrays[name], arrays[f"{name}/concepts"].tolist(), strict=True):
            if owner in sums:
                picture[..., :3] = sums[owner][:3] / sums[owner][3]


def file_name(concept: dict[str, Any]) -> str:
    """The name of the file with a concept's drawing, without its extension."""
    return str(concept["name"]).replace(" ", "-")


def draw_set(set_name: str, rows: list[dict[str, Any]], folder: Path) -> tuple[list[np.ndarray], list[int]]:
    """The drawings of a set, and the row of each drawing's concept; the test set is also saved as PNG files."""
    package = fetch(*SETS[set_name], folder)
    rendered = (package / "assets").exists()
    drawings = rendered_drawings(package) if rendered else vector_drawings(set_name, package, folder)
    pictures, owners = [], []
    for row, concept in enumerate(rows):
        for picture in drawings(concept):
            pictures.append(picture)
            owners.append(row)
            if set_name == TEST_SET:
                path = folder / TEST_SET / f"{file_name(concept)}.png"
                path.parent.mkdir(exist_ok=True)
                Image.fromarray(picture).save(path)
    print(f"{set_name}: {len(set(owners))} of {len(rows)} concepts drawn, {len(owners)} drawings", flush=True)
    return pictures, owners


def main(folder: Path, only: list[str] | None) -> None:
    """Download, match, draw and save."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = concepts(folder)
    (folder / "concepts.json").write_text(json.dumps(rows, indent=0), encoding="utf-8")
    if only is not None:
        known = {file_name(concept): concept for concept in rows}
        for name in only:
            if name not in known:
                raise SystemExit(f"there is no emoji '{name}'; close: {difflib.get_close_matches(name, known)}")
        draw_set(TEST_SET, [known[name] for name in only], folder)
        return
    arrays: dict[str, np.ndarray] = {}
    for set_name in SETS:
        pictures, owners = draw_set(set_name, rows, folder)
        arrays[set_name], arrays[f"{set_name}/concepts"] = np.stack(pictures), np.array(owners)
    paint(arrays)
    np.savez(folder / "pictures.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Emoji drawings as pictures; see the top of this file.")
    parser.add_argument("folder", type=Path, help="where everything goes")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"only these drawings of {TEST_SET}, as PNG files")
    given = parser.parse_args()
    main(given.folder, given.only)
