"""`pinprompt invert` as people call it: odd and broken pictures, folders, bans, words on the progress line."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pinprompt.cli import app
from pinprompt.models.clip import load_clip
from pinprompt.models.images import framed
from tests.cli.inversion_runs import picture
from tests.house.tiny import make_lm

SHORT = ("policy.k=none", "policy.length=3", "policy.hidden=16", "q_learning.steps=2", "q_learning.prompts=8",
         "q_learning.batch=8", "scoring.finalists=12", "policy.context=A picture of")  # fmt: skip


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_lm(tmp_path_factory.mktemp("models"))


def words(writer: Path, out: Path, *given: object, steps: int = 2) -> list[str]:
    settings = [f"policy.model={writer}", *SHORT, f"q_learning.steps={steps}"]
    options = [part for setting in settings for part in ("--set", setting)]
    return [
        "invert",
        *map(str, given),
        "--method",
        "pin",
        "--out",
        str(out),
        "--threads",
        "1",
        "--device",
        "cpu",
        "--no-memo",
        *options,
    ]


def call(*arguments: object, **more: Any) -> Any:
    return CliRunner().invoke(app, words(*arguments, **more))  # type: ignore[arg-type]


def jpeg_turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20), "red").save(path, exif=exif)


def animation(path: Path) -> None:
    frames = [Image.new("RGB", (24, 24), colour) for colour in ("red", "blue")]
    frames[0].save(path, save_all=True, append_images=frames[1:])


ODD: dict[str, Callable[[Path], None]] = {
    "a.jpg": lambda path: Image.new("RGB", (24, 24), "red").save(path),
    "a.png": lambda path: Image.new("RGB", (24, 24), "red").save(path),
    "a.webp": lambda path: Image.new("RGB", (24, 24), "red").save(path),
    "alpha.png": lambda path: Image.new("RGBA", (24, 24), (255, 0, 0, 90)).save(path),
    "turned.jpg": jpeg_turned,
    "grey.png": lambda path: Image.new("L", (24, 24), 90).save(path),
    "deep.png": lambda path: Image.fromarray(np.full((24, 24), 30_000, dtype=np.uint16)).save(path),
    "moving.gif": animation,
}


@pytest.mark.parametrize("name", ODD)
def test_every_kind_of_picture_gets_words(writer: Path, tmp_path: Path, name: str) -> None:
    ODD[name](tmp_path / name)
    done = call(writer, tmp_path / "run", tmp_path / name, "--json", "--quiet")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["prompt"]
    assert -1 <= answer["train"]["similarity"] <= 1
    assert [one["name"] for one in answer["images"]] == [name]


def bomb(path: Path) -> None:
    """A PNG that claims 60,000 x 60,000 pixels and holds none."""
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def cut_off(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "bomb.png": (bomb, "decompression bomb"),
    "cut.jpg": (cut_off, "truncated"),
    "text.jpg": (lambda path: path.write_text("not a picture"), "not a picture"),
    "empty.png": (lambda path: path.write_bytes(b""), "is empty"),
    "missing.png": (lambda path: None, "no such picture"),
    "folder": (lambda path: path.mkdir(), "contains no pictures"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_gives_a_one_line_error(writer: Path, tmp_path: Path, name: str) -> None:
    make, said = BAD[name]
    make(tmp_path / name)
    done = call(writer, tmp_path / "run", tmp_path / name, "--quiet")
    assert done.exit_code == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("pinprompt: ")
    assert name in line
    assert said in line
    assert "Traceback" not in done.output
    assert not (tmp_path / "run" / "recipe.toml").exists(), "nothing was begun"


def test_a_folder_is_its_mean_and_a_ban_holds_for_everything(writer: Path, tmp_path: Path) -> None:
    files = [picture(tmp_path / "set" / f"{name}.png", name, seed) for seed, name in enumerate(("red", "blue", "lime"))]
    ban = tmp_path / "artist names.txt"
    ban.write_text("Moon\nblue cat\nred\n")
    done = call(writer, tmp_path / "run", tmp_path / "set", "--ban", ban, "--json", "--quiet", steps=12)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    with (tmp_path / "run" / "prompts.csv").open(newline="") as file:
        explored = [row["prompt"] for row in csv.DictReader(file)]
    assert len(explored) > 40
    assert not [text for text in explored if re.search(r"\b(moon|red|blue cat)\b", text, re.IGNORECASE)]
    clip = load_clip("emoji-clip")
    each = clip.image_features([framed(Image.open(file).convert("RGB")) for file in sorted(files)])
    centre = torch.nn.functional.normalize(each.mean(0), dim=0)
    [vector] = clip.text_features([answer["prompt"]])
    assert answer["train"]["similarity"] == pytest.approx(float(vector @ centre), abs=1e-5)
    rows = {Path(row["file"]).name: row["similarity"] for row in answer["tables"]["pictures"]}
    assert list(rows) == ["blue.png", "lime.png", "red.png"]
    assert list(rows.values()) == pytest.approx([float(vector @ one) for one in each], abs=1e-5)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_the_progress_line_has_the_best_words_and_their_score(writer: Path, tmp_path: Path) -> None:
    target = picture(tmp_path / "red.png", "red")
    code = "from pinprompt.cli import main; main()"
    command = [sys.executable, "-c", code, *words(writer, tmp_path / "run", target, steps=30)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS="80", LINES="24", TERM="xterm", OMP_NUM_THREADS="1")
        os.execv(sys.executable, command)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown.decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode("utf-8", "replace"))
    lines = [line for line in re.split(r"[\r\n]+", plain) if line.startswith("step ")]
    told = [re.search(r"\d:\d\d:\d\d best ([\d.e-]+), '([^']*)'", line) for line in lines if "best" in line]
    assert told, plain[-2000:]
    assert all(told), "the clock, the score and the words are whole on 80 columns"
    steps = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    known = {(f"{one['score_best']:.4g}", one["best_prompt"]) for one in steps if one["event"] == "step"}
    assert {(one[1], one[2]) for one in told if one} <= known
    assert all(len(line) <= 80 for line in lines)


def test_the_report_explains_the_answer(writer: Path, tmp_path: Path) -> None:
    target = picture(tmp_path / "red.png", "red")
    done = call(writer, tmp_path / "run", target, "--json", "--quiet", steps=6)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert len(answer["top"]) >= 10
    assert all(row["perplexity"] > 0 and isinstance(row["in_text"], float) for row in answer["top"])
    assert answer["readability"]["in_text"] == answer["top"][0]["in_text"]
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "perplexity in a text" in page
    assert f'src="{answer["images"][0]["data_uri"]}"' in page
    plain = re.sub(r"<[^>]*>", " ", page)
    for row in answer["top"][:10]:
        assert f">{row['prompt'].strip()}</td>" in page
    assert "Score against readability" in plain
    front = page.split("Score against readability")[1].split("</figure>")[0]
    assert front.count("<circle") >= 2, "the prompts are drawn as points"
    clip = load_clip("emoji-clip")
    [vector] = clip.image_features([framed(Image.open(target).convert("RGB"))])
    words_found = answer["prompt"].split()
    assert len(answer["tokens"]) == 3
    for place, token in enumerate(answer["tokens"]):
        shorter = " ".join(words_found[:place] + words_found[place + 1 :])
        if len(words_found) == 3:
            [text] = clip.text_features([shorter])
            assert token["score_without"] == pytest.approx(float(text @ vector), abs=1e-5)
    assert plain.count("score without it") == 3
    without_pictures = re.sub(r"data:image/[^\"]*", "", page)
    assert len(without_pictures.encode()) < 2_000_000


def test_the_default_writes_captions_and_shows_how_they_came_about(writer: Path, tmp_path: Path) -> None:
    target = picture(tmp_path / "red.png", "red")
    settings = [f"policy.model={writer}", "policy.k=none", "policy.length=4", "guided.tokens=6", "guided.beams=2"]
    settings.append("policy.context=A picture:")  # the tiny writer reads 64 tokens
    options = [part for setting in settings for part in ("--set", setting)]
    given = ["invert", target, "--out", str(tmp_path / "run"), "--threads", "1", "--device", "cpu", "--no-memo"]
    done = CliRunner().invoke(app, [*given, *options])
    assert done.exit_code == 0, done.output
    answer = json.loads((tmp_path / "run" / "result.json").read_text())
    assert answer["method"] == "guided"
    assert answer["prompt"]
    assert answer["readability"]["perplexity"] > 0
    assert isinstance(answer["readability"]["in_text"], float)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    improved = [(one["best_prompt"], f"{one['score_best']:.3f}") for one in events if one["event"] == "step"]
    for words_, score in improved:
        assert f"{score}  {words_}" in done.stderr
    words_known = [row["word"] for row in answer["known_words"]]
    assert len(words_known) == 12
    assert f"{words_known[0]} (" in done.stdout
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    beside = page.split("nearest known words")[1].split("</table>")[0]
    assert answer["prompt"].strip() in beside
    assert all(word in beside for word in words_known)
    if len(set(improved)) > 1:
        assert "How the best score rose" in page


@pytest.mark.parametrize("style", ["caption", "tags", "words"])
def test_the_style_is_what_the_writer_reads(writer: Path, tmp_path: Path, style: str) -> None:
    given = ["invert", picture(tmp_path / "red.png", "red"), "--style", style, "--out", str(tmp_path / "run"), "--json"]
    settings = [f"policy.model={writer}", "policy.k=none", "policy.length=3", "guided.tokens=4", "guided.beams=1"]
    settings.append("policy.context=A picture:")  # the tiny writer reads 64 tokens
    options = [part for setting in settings for part in ("--set", setting)]
    done = CliRunner().invoke(app, [*given, *options, "--quiet", "--no-memo", "--threads", "1", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert f'style = "{style}"' in recipe
    assert ('charset = "tags"' in recipe) == (style == "tags")


def test_a_photograph_gives_a_note_before_the_search(writer: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png")
    done = call(writer, tmp_path / "run", tmp_path / "photo.png")
    assert done.exit_code == 0, done.output
    said = done.stderr.splitlines()
    [told] = [place for place, line in enumerate(said) if line.startswith("photo.png looks like a photograph")]
    first = next(place for place, line in enumerate(said) if "on inversion, seed" in line)
    assert told < first
    knows = [place for place, line in enumerate(said) if line.startswith("emoji-clip scores the words")]
    assert knows == [0]
    assert "photo.png looks like a photograph" in (tmp_path / "run" / "report.html").read_text("utf-8")
