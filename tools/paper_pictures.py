"""Download the pictures for the paper's textual inversion, ten per set, to pictures/<set>/<n>.jpg.

    python tools/paper_pictures.py coco                   # detection-datasets/coco of the hub (extra `hub`)
    python tools/paper_pictures.py laion                  # laion/relaion400m, after `hf auth login`: it is gated
    python tools/paper_pictures.py lexica --from FOLDER   # target_imgs/lexica of the released code

The paper uses ten random images of each set. The released code lists twenty, and its commands use the first ten. COCO's
images are selected by their ids. LAION's images are links to third-party servers, most of which no longer work, so ten
others are drawn: the rows of the hub's copy are shuffled with seed 13, and the first ten links that still give a
picture are used. `sources.json`, next to the pictures, has the id or link and the hash of each, so that two people can
check whether they have the same pictures.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNT = 10
COCO = "detection-datasets/coco"
COCO_IDS = (125547, 37527, 552584, 490129, 548337, 458160, 212733, 35599, 67548, 147961)
LAION = "laion/relaion400m"
MAX_BYTES = 20_000_000
"""The most bytes to read from a link."""


def coco(seed: int) -> Iterator[tuple[str, bytes]]:
    """The published images, by id; a seed other than 0 draws ten others instead."""
    import datasets

    rows = datasets.load_dataset(COCO, split="train", streaming=True)
    if seed:
        for row in rows.shuffle(seed=seed, buffer_size=1000).take(COUNT):
            yield str(row["image_id"]), jpeg(row["image"])
        return
    wanted: dict[int, bytes] = {}
    for row in rows:
        if row["image_id"] in COCO_IDS:
            wanted[row["image_id"]] = jpeg(row["image"])
        if len(wanted) == COUNT:
            break
    for number in COCO_IDS:
        yield str(number), wanted[number]


def laion(seed: int) -> Iterator[tuple[str, bytes]]:
    """Rows in an order given by the seed; rows whose link is dead or not a picture are skipped."""
    import datasets

    from pinprompt.errors import DataError
    from pinprompt.models.images import decode

    for row in datasets.load_dataset(LAION, split="train", streaming=True).shuffle(seed=seed, buffer_size=10_000):
        link = str(row.get("url") or row.get("URL"))
        try:
            if not link.startswith(("http://", "https://")):
                continue
            with urllib.request.urlopen(link, timeout=10) as answer:
                yield link, jpeg(decode(answer.read(MAX_BYTES)))
        except (OSError, ValueError, DataError):
            continue


def jpeg(image: Any) -> bytes:
    """A picture as a JPEG file."""
    packed = io.BytesIO()
    image.convert("RGB").save(packed, "JPEG", quality=95)
    return packed.getvalue()


def main() -> None:
    """Write the pictures of one set."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("set", choices=["coco", "laion", "lexica"])
    options.add_argument("--out", type=Path, default=Path("pictures"))
    options.add_argument("--seed", type=int, help="coco: 0, the published ids (else a draw); laion: 13")
    options.add_argument("--from", dest="folder", type=Path, help="lexica: the folder that holds 0.jpg to 9.jpg")
    given = options.parse_args()
    place = given.out / given.set
    place.mkdir(parents=True, exist_ok=True)
    if given.set == "lexica":
        if given.folder is None:
            options.error("lexica's pictures are files of the released code: name their folder with --from")
        for number in range(COUNT):
            shutil.copyfile(given.folder / f"{number}.jpg", place / f"{number}.jpg")
        return
    found = coco(given.seed or 0) if given.set == "coco" else laion(13 if given.seed is None else given.seed)
    sources = []
    for number, (name, data) in zip(range(COUNT), found, strict=False):
        (place / f"{number}.jpg").write_bytes(data)
        sources.append({"file": f"{number}.jpg", "source": name, "sha256": hashlib.sha256(data).hexdigest()})
    (place / "sources.json").write_text(json.dumps(sources, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
