"""`pinprompt draw` from run to report: a tiny pipeline of the real classes draws, a real browser shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from pinprompt.cli import app
from pinprompt.models.clip import load_clip
from pinprompt.models.images import framed
from tests.cli.inversion_runs import invert, picture
from tests.models import test_images

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SMALL = ["--images", "2", "--steps", "2", "--size", "32", "--device", "cpu"]
pipeline = test_images.folder


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, pipeline: str) -> tuple[Path, dict[str, Any]]:
    """A run folder after `draw`, and what the command answered."""
    folder = tmp_path_factory.mktemp("drawn")
    target = picture(folder / "red.png", "red")
    run = invert(folder, folder / "run", [target]).folder
    done = CliRunner().invoke(app, ["draw", str(run), "--model", pipeline, "--seed", "3", "--json", *SMALL])
    assert done.exit_code == 0, done.output
    return run, json.loads(done.stdout)


def test_pictures_lie_in_the_run_folder_with_their_similarity(drawn: tuple[Path, dict[str, Any]]) -> None:
    run, answer = drawn
    assert [path.name for path in sorted((run / "drawings").iterdir())] == ["0.png", "1.png"]
    clip = load_clip("emoji-clip")
    target = clip.image_features([framed(Image.open(run.parent / "red.png").convert("RGB"))])[0]
    for row in answer["drawings"]:
        with Image.open(run / "drawings" / row["name"]) as image:
            assert image.size == (32, 32)
            [vector] = clip.image_features([framed(image.convert("RGB"))])
        assert row["similarity"] == pytest.approx(float(vector @ target), abs=1e-4)
    kept = json.loads((run / "result.json").read_text())
    assert kept["prompt"], "the rest of the result stays"
    assert [row["name"] for row in kept["drawings"]] == ["0.png", "1.png"]


def test_a_seed_draws_the_same_again(drawn: tuple[Path, dict[str, Any]], pipeline: str) -> None:
    run, answer = drawn
    before = (run / "drawings" / "0.png").read_bytes()
    again = CliRunner().invoke(app, ["draw", str(run), "--model", pipeline, "--seed", "3", "--json", *SMALL])
    assert json.loads(again.stdout) == answer
    assert (run / "drawings" / "0.png").read_bytes() == before


def test_nothing_is_drawn_through_a_link(drawn: tuple[Path, dict[str, Any]], pipeline: str, tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(drawn[0], run)
    outside.mkdir()
    (outside / "kept.png").write_bytes(b"kept")
    command = ["draw", str(run), "--model", pipeline, *SMALL]
    (run / "drawings" / "0.png").unlink()
    (run / "drawings" / "0.png").symlink_to(outside / "kept.png")
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (outside / "kept.png").read_bytes() == b"kept"
    shutil.rmtree(run / "drawings")
    (run / "drawings").symlink_to(outside)
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "is a link" in refused.stderr
    assert [path.name for path in outside.iterdir()] == ["kept.png"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")
def test_the_opened_report_shows_target_and_drawings_side_by_side(
    drawn: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    assert BROWSER is not None
    run, answer = drawn
    # A page around the report cannot look into it; so a copy without its policy measures itself, in the same browser.
    page = (run / "report.html").read_text("utf-8")
    probe = """<script>addEventListener("load", () => { const rows = [...document.querySelectorAll(".pictures figure")];
      document.documentElement.setAttribute("data-seen", JSON.stringify(rows.map(one => { const image =
      one.querySelector("img"), box = one.getBoundingClientRect(); return {wide: image.naturalWidth, top: box.top,
      left: box.left, said: one.innerText}; }))); });</script>"""
    copy = tmp_path / "probe.html"
    copy.write_text(re.sub(r"<meta http-equiv[^>]*>", probe, page, count=1), "utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--window-size=1200,900", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
    shown = subprocess.run([*command, "--dump-dom", copy.as_uri()], capture_output=True, check=True)
    found = re.search(r'data-seen="([^"]*)"', shown.stdout.decode("utf-8", "replace"))
    assert found is not None
    target, *drawings = json.loads(unescape(found[1]))
    assert (target["wide"], [row["wide"] for row in drawings]) == (48, [32, 32]), "all are decoded"
    assert "red.png" in target["said"]
    for row, told in zip(drawings, answer["drawings"], strict=True):
        assert f"similarity {told['similarity']:.3f}" in row["said"]
        assert row["top"] == target["top"]
        assert row["left"] > target["left"]


def test_a_failed_drawing_gives_an_error_message(drawn: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run, _ = drawn
    missing = CliRunner().invoke(app, ["draw", str(run), "--model", str(tmp_path / "none"), "--device", "cpu"])
    assert missing.exit_code == 2
    assert "cannot be loaded" in missing.stderr
    assert len(missing.stderr.strip().splitlines()[-1]) < 600
