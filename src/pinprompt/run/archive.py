"""A run folder that was zipped: recipe, result and judges are taken out into a temporary folder, nothing else is."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pinprompt.errors import RunError
from pinprompt.records.reading import LIMITS

_NEEDED = ("recipe.toml", "result.json", "judges.json")
_MOST_MEMBERS = 100_000


@contextmanager
def opened(run: Path | str) -> Iterator[Path]:
    """The folder of a run, or of a zipped one for as long as it is needed."""
    path = Path(run)
    if path.suffix.lower() != ".zip" or not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="pinprompt-") as place:
        folder = Path(place) / "run"
        folder.mkdir()
        for name, content in _contents(path).items():
            (folder / name).write_bytes(content)
        yield folder


def _contents(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > _MOST_MEMBERS:
                raise RunError(f"{path} has more than {_MOST_MEMBERS:,} files; zip one run folder")
            recipes = [one.filename for one in members if one.filename.split("/")[-1] == "recipe.toml"]
            if len(recipes) != 1:
                raise RunError(f"{path} holds {len(recipes)} recipe.toml files; zip one run folder")
            base = recipes[0].removesuffix("recipe.toml")
            names = {one.filename for one in members}
            # Names are only looked up, never used as paths, so that no file can be written elsewhere.
            return {name: _read(archive, base + name, name, path) for name in _NEEDED if base + name in names}
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise RunError(f"{path} is no zip file that can be read: {error}") from None


def _read(archive: zipfile.ZipFile, member: str, name: str, path: Path) -> bytes:
    with archive.open(member) as file:
        content = file.read(LIMITS[name] + 1)
    if len(content) > LIMITS[name]:
        raise RunError(f"{name} in {path} is larger than {LIMITS[name] >> 20} MiB")
    return content
