"""Drawing with a tiny pipeline of the real classes, saved and loaded."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pinprompt.errors import MissingExtra, ModelError
from pinprompt.models.diffusion import Painter, load_painter


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


def test_the_published_sampler_takes_the_place_of_its_own(folder: str, painter: Painter) -> None:
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
