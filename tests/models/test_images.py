"""Pictures from files in every form, hostile ones refused; and pictures painted by tiny pipelines of diffusers."""

from __future__ import annotations

import builtins
import contextlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pinprompt.errors import DataError, MissingExtra, ModelError
from pinprompt.models import images
from pinprompt.models.images import Painter, framed, load_painter


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def pixel(path: Path, x: int = 0, y: int = 0) -> tuple[int, ...]:
    found = images.load_picture(path).image
    assert found.mode == "RGB"
    value = found.getpixel((x, y))
    assert isinstance(value, tuple)
    return value


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_common_formats(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a.{suffix}", Image.new("RGB", (20, 10), (200, 30, 30)))
    assert images.load_picture(path).image.size == (20, 10)
    assert np.allclose(pixel(path), (200, 30, 30), atol=6)


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert np.allclose(pixel(save(tmp_path / "a.png", half)), (127, 127, 127), atol=1)
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert pixel(save(tmp_path / "b.png", clear)) == (255, 255, 255)
    grey = Image.new("LA", (4, 4), (0, 0))
    assert pixel(save(tmp_path / "c.png", grey)) == (255, 255, 255)


def test_transparent_colour_of_a_palette_and_of_rgb(tmp_path: Path) -> None:
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    assert pixel(save(tmp_path / "p.png", palette, transparency=0)) == (255, 255, 255)
    assert pixel(save(tmp_path / "q.png", palette)) == (255, 0, 0)
    key = Image.new("RGB", (4, 4), (1, 2, 3))
    assert pixel(save(tmp_path / "r.png", key, transparency=(1, 2, 3))) == (255, 255, 255)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    lying = Image.new("RGB", (40, 20), "white")
    lying.paste((0, 0, 255), (0, 0, 20, 20))  # left half blue
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise: what is left comes to the top
    path = save(tmp_path / "a.jpg", lying, exif=exif, quality=95)
    assert images.load_picture(path).image.size == (20, 40)
    assert pixel(path, 10, 5)[2] > 200 > 60 > pixel(path, 10, 5)[0]
    assert min(pixel(path, 10, 35)) > 200


def test_greyscale_and_bilevel(tmp_path: Path) -> None:
    assert pixel(save(tmp_path / "l.png", Image.new("L", (4, 4), 77))) == (77, 77, 77)
    assert pixel(save(tmp_path / "1.png", Image.new("1", (4, 4), 1))) == (255, 255, 255)
    assert np.allclose(pixel(save(tmp_path / "c.jpg", Image.new("CMYK", (8, 8), (0, 0, 0, 0)))), 255, atol=3)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (65535, 255), (32896, 128), (257, 1)])
def test_sixteen_bits_are_scaled_and_not_cut(tmp_path: Path, value: int, expected: int) -> None:
    deep = Image.fromarray(np.full((4, 4), value, dtype=np.uint16))
    assert np.allclose(pixel(save(tmp_path / "a.png", deep)), expected, atol=1)


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_first_frame_of_an_animation(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    path = tmp_path / f"a.{suffix}"
    frames[0].save(path, save_all=True, append_images=frames[1:], **({"lossless": True} if suffix == "webp" else {}))
    assert pixel(path) == (255, 0, 0)


def png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size without holding the pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("side", [10_001, 13_000, 60_000])
def test_a_decompression_bomb_is_refused_unread(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of(side, side))
    with pytest.raises(DataError, match="decompression bomb") as raised:
        images.load_picture(path)
    assert str(path) in str(raised.value)


def test_a_line_of_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is too narrow"):
        images.load_picture(save(tmp_path / "a.png", Image.new("RGB", (5000, 2))))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_a_truncated_file(tmp_path: Path, suffix: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    path = save(tmp_path / f"a.{suffix}", noise)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"truncated|damaged"):
        images.load_picture(path)


def test_a_text_named_jpg_and_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_text("this is not a picture")
    with pytest.raises(DataError, match="not a picture"):
        images.load_picture(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        images.load_picture(path)


def test_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("b.PNG", "a.jpg", ".hidden.png"):
        Image.new("RGB", (4, 4)).save(folder / name)
    (folder / "notes.txt").write_text("x")
    single = save(tmp_path / "z.png", Image.new("RGB", (4, 4)))
    found = images.find_pictures([str(single), str(folder)])
    assert [path.name for path in found] == ["z.png", "a.jpg", "b.PNG"]
    assert len(images.load_pictures([str(folder)])) == 2


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no such picture"):
        images.find_pictures([str(tmp_path / "missing.jpg")])
    with pytest.raises(DataError, match="contains no pictures"):
        images.find_pictures([str(tmp_path / "empty")])
    with pytest.raises(DataError, match="no picture was given"):
        images.find_pictures([])


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"pip install .*\[image\]"):
        images.decode(b"x")


_SEEDS = []
for _form in ("PNG", "JPEG", "GIF", "WEBP"):
    _out = io.BytesIO()
    Image.new("RGB", (6, 6), "teal").save(_out, _form)
    _SEEDS.append(_out.getvalue())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(_SEEDS), st.integers(0, 400), st.binary(max_size=12), st.integers(0, 400))
def test_any_bytes_give_a_picture_or_our_error(seed: bytes, at: int, junk: bytes, end: int) -> None:
    data = (seed[:at] + junk + seed[at + len(junk) :])[: max(end, 1)]
    with contextlib.suppress(DataError):
        assert images.decode(data).mode == "RGB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    from pinprompt.models.clip import EMOJI_CLIP, load_clip

    torch.manual_seed(0)
    tokenizer = load_clip(EMOJI_CLIP).tokenizer
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=48, eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    unet = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=4,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=(8, 8), norm_num_groups=4, latent_channels=4, sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    place = tmp_path_factory.mktemp("pipeline")
    StableDiffusionPipeline(
        vae, text, tokenizer, unet, PNDMScheduler(skip_prk_steps=True), None, None, requires_safety_checker=False
    ).save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def painter(folder: str) -> Painter:
    return load_painter(folder)


def pixels(images: list[Image.Image]) -> list[np.ndarray]:
    return [np.asarray(image) for image in images]


def test_the_published_sampler_is_the_default(folder: str, painter: Painter) -> None:
    assert type(painter.pipeline.scheduler).__name__ == "DPMSolverMultistepScheduler"
    assert type(load_painter(folder, scheduler="own").pipeline.scheduler).__name__ == "PNDMScheduler"


def test_pictures_of_the_asked_size_and_number(painter: Painter) -> None:
    drawn = painter.draw("a red dog", images=2, steps=2, size=32)
    assert [image.size for image in drawn] == [(32, 32)] * 2
    assert all(image.mode == "RGB" for image in drawn)
    assert [image.size for image in painter.draw("a", images=1, steps=1, size=None)] == [(16, 16)]


def test_the_same_seed_draws_the_same_and_more_change_none(painter: Painter) -> None:
    two = pixels(painter.draw("a red dog", images=2, steps=2, size=16, seed=5))
    three = pixels(painter.draw("a red dog", images=3, steps=2, size=16, seed=5))
    assert all((a == b).all() for a, b in zip(two, three, strict=False))
    assert (three[0] != three[1]).any()
    assert (two[0] != pixels(painter.draw("a red dog", images=1, steps=2, size=16, seed=6))[0]).any()


def test_prompt_steps_and_guidance_reach_the_pipeline(painter: Painter) -> None:
    asked: list[dict[str, Any]] = []
    real = painter.pipeline

    class Listening:
        def __call__(self, **given: Any) -> Any:
            asked.append(given)
            return real(**given)

    Painter("x", Listening()).draw("two cats", images=1, steps=3, size=16)
    assert asked[0]["prompt"] == "two cats"
    assert asked[0]["num_inference_steps"] == 3
    assert asked[0]["guidance_scale"] == 9.0


def test_a_folder_that_is_no_pipeline(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_painter(str(tmp_path))


def test_a_pipeline_that_takes_no_text() -> None:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    unet = UNet2DModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    with pytest.raises(ModelError, match="cannot draw from a text"):
        Painter("plain", DDPMPipeline(unet, DDPMScheduler())).draw("a dog", images=1, steps=1)


def test_without_diffusers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "diffusers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"pip install .*\[diffusion\]"):
        load_painter("anything")


def test_a_drawing_on_a_plain_ground_is_framed_in_a_square_that_it_fills() -> None:
    wide = Image.new("RGB", (400, 200), (250, 250, 250))
    wide.paste((200, 0, 0), (20, 80, 100, 120))
    square = framed(wide)
    assert square.size == (88, 88)
    assert square.getpixel((0, 0)) == (250, 250, 250)
    red = np.argwhere(np.asarray(square)[..., 1] == 0)
    assert (red.min(0).tolist(), red.max(0).tolist()) == ([24, 4], [63, 83])
    assert framed(square) is square


def test_a_picture_without_a_plain_ground_or_without_anything_is_left_as_it_is() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=np.uint8))
    blank = Image.new("RGB", (60, 40), "white")
    assert framed(noise) is noise
    assert framed(blank) is blank
