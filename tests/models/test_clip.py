"""Image-text models of the real classes with random weights, and the small one that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    Siglip2Config,
    Siglip2ImageProcessorPil,
    Siglip2Model,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
)

from pinprompt.errors import ModelError, SettingError
from pinprompt.models.clip import EMOJI_CLIP, Clip, folder_of, load_clip

WORDS = ["a", "red", "dog", "on", "the", "green", "hill", "under", "blue", "sky", "two", "cats", "run", "fast"]
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXTS = ["red dog", "a red dog on the green hill", "", "two cats run fast under the blue sky on a hill", "dog", "sky"]


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def make_clip(folder: Path, legacy_end: bool = False) -> Path:
    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocab = {token: index for index, token in enumerate(names)}
    end = vocab["<|endoftext|>"]
    text = SMALL | {
        "vocab_size": len(vocab),
        "max_position_embeddings": 48,
        "bos_token_id": 0 if legacy_end else end - 1,
        "eos_token_id": 2 if legacy_end else end,
        "pad_token_id": 1 if legacy_end else end,
    }
    vision = SMALL | {"image_size": 32, "patch_size": 16}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).save_pretrained(folder)
    CLIPTokenizer(vocab=vocab, merges=[]).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size).save_pretrained(folder)
    return folder


def word_tokenizer(folder: Path) -> int:
    vocab = {word: index for index, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_input_names=["input_ids"]
    ).save_pretrained(folder)
    return len(vocab)


def make_siglip(folder: Path) -> Path:
    torch.manual_seed(0)
    text = SMALL | {"vocab_size": word_tokenizer(folder), "max_position_embeddings": 16, "projection_size": 32}
    vision = SMALL | {"image_size": 32, "patch_size": 16}
    SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def make_siglip2(folder: Path) -> Path:
    torch.manual_seed(0)
    text = SMALL | {"vocab_size": word_tokenizer(folder), "max_position_embeddings": 16, "projection_size": 32}
    vision = SMALL | {"num_patches": 16, "patch_size": 16}
    Siglip2Model(Siglip2Config(text_config=text, vision_config=vision)).save_pretrained(folder)
    Siglip2ImageProcessorPil(patch_size=16, max_num_patches=16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    return load_clip(str(make_clip(tmp_path_factory.mktemp("clip"))))


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    return load_clip(str(make_siglip(tmp_path_factory.mktemp("siglip"))))


@pytest.fixture(scope="module")
def emoji() -> Clip:
    return load_clip(EMOJI_CLIP)


def straight(clip: Clip, text: str, **options: Any) -> torch.Tensor:
    """What transformers itself gives for one text, without any of our batching."""
    inputs = clip.tokenizer([text], return_tensors="pt", **options)
    with torch.no_grad():
        out = clip.model.get_text_features(input_ids=inputs["input_ids"]).pooler_output[0]
    return out / out.norm()


def test_text_vectors_are_those_of_transformers(clip: Clip) -> None:
    got = clip.text_features(TEXTS)
    expected = torch.stack([straight(clip, text, padding="max_length", max_length=48) for text in TEXTS])
    assert torch.allclose(got, expected, atol=1e-6)
    assert torch.allclose(got.norm(dim=-1), torch.ones(len(TEXTS)), atol=1e-6)


def test_trimmed_is_padded(clip: Clip) -> None:
    assert clip.trims
    assert torch.allclose(clip.text_features(TEXTS), clip.text_features(TEXTS, trim=False), atol=1e-6)


def test_configs_with_the_old_end_token_read_the_greatest_id(tmp_path: Path) -> None:
    old = load_clip(str(make_clip(tmp_path, legacy_end=True)))
    expected = torch.stack([straight(old, text) for text in TEXTS])
    assert torch.allclose(old.text_features(TEXTS), expected, atol=1e-6)


def test_siglip_is_padded_to_its_window_and_never_trimmed(siglip: Clip) -> None:
    assert not siglip.trims
    expected = torch.stack([straight(siglip, text, padding="max_length", max_length=16) for text in TEXTS])
    assert torch.allclose(siglip.text_features(TEXTS), expected, atol=1e-6)
    # Trimming would not be exact there: this is why it is off.
    assert not torch.allclose(straight(siglip, "red dog"), expected[0], atol=1e-3)


def test_siglip2_with_its_own_patches(tmp_path: Path) -> None:
    model = load_clip(str(make_siglip2(tmp_path)))
    vectors = model.image_features([picture(1), picture(2, (64, 20))])
    assert vectors.shape == (2, 32)
    assert model.text_features(["red dog"]).shape == (1, 32)


@pytest.mark.parametrize("name", ["clip", "siglip", "emoji"])
def test_a_text_does_not_depend_on_its_batch(name: str, request: pytest.FixtureRequest) -> None:
    model: Clip = request.getfixturevalue(name)
    texts = [f"{a} {b} {c}"[: 3 + at] for at, (a, b, c) in enumerate(zip(WORDS, WORDS[3:], WORDS[5:], strict=False))]
    together = model.text_features(texts + TEXTS)
    backwards = model.text_features((texts + TEXTS)[::-1]).flip(0)
    alone = torch.cat([model.text_features([text]) for text in texts + TEXTS])
    assert torch.equal(together, backwards)
    assert torch.equal(together, alone)


def test_equal_texts_are_run_once(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    real = clip._pass

    def count(rows: list[list[int]], length: int) -> torch.Tensor:
        passes.append(len(rows))
        return real(rows, length)

    monkeypatch.setattr(clip, "_pass", count)
    vectors = clip.text_features(["red dog"] * 50)
    assert passes == [clip.batch]
    assert vectors.shape[0] == 50
    assert torch.equal(vectors[0], vectors[49])


def test_no_text_at_all(clip: Clip) -> None:
    assert len(clip.text_features([])) == 0


def test_picture_vectors_are_those_of_transformers(clip: Clip) -> None:
    pictures = [picture(1), picture(2, (32, 64))]
    pixels = [clip.processor(images=one, return_tensors="pt")["pixel_values"] for one in pictures]
    with torch.no_grad():
        expected = clip.model.get_image_features(pixel_values=torch.cat(pixels)).pooler_output
    expected = expected / expected.norm(dim=-1, keepdim=True)
    assert torch.allclose(clip.image_features(pictures), expected, atol=1e-5)
    mean = expected.mean(0)
    assert torch.allclose(clip.target(pictures), mean / mean.norm(), atol=1e-5)


def test_the_processor_is_the_pil_one(clip: Clip) -> None:
    assert type(clip.processor).__name__ == "CLIPImageProcessorPil"
    assert clip.image_features([Image.new("RGB", (1, 1)), Image.new("RGB", (3, 200))]).isfinite().all()


def test_long_prompts_give_a_note(clip: Clip) -> None:
    # One token a letter in this vocabulary, and two for start and end: 46 letters fit into 48 tokens.
    assert clip.too_long(["a" * 46]) == {}
    assert "49 tokens" in clip.too_long(["a" * 46, "a" * 47])["a" * 47]
    clip.check_length(46)
    with pytest.raises(SettingError, match="holds 46"):
        clip.check_length(47)


def test_a_cut_text_keeps_its_end_token(clip: Clip) -> None:
    long = "a" * 80
    expected = straight(clip, long, truncation=True, max_length=48)
    assert torch.allclose(clip.text_features([long])[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_vectors_of_tokens_are_the_text_itself(name: str, request: pytest.FixtureRequest) -> None:
    model: Clip = request.getfixturevalue(name)
    text = "red dog"
    ids = [token for token in model.tokens(text) if token not in model.tokenizer.all_special_ids]
    vectors = model.embeddings()[ids]
    assert torch.allclose(model.vector_features(vectors), model.text_features([text])[0], atol=1e-5)
    with pytest.raises(SettingError, match="do not fit"):
        model.vector_features(vectors[:1].repeat(60, 1))


def test_the_gradient_of_vectors_is_that_of_finite_differences(clip: Clip) -> None:
    double = Clip("x", "", load_clip(clip.name).model.double(), clip.tokenizer, clip.processor)
    torch.manual_seed(1)
    vectors = torch.randn(3, 32, dtype=torch.float64).mul(0.05).requires_grad_()
    goal, way = torch.randn(24), torch.randn(3, 32, dtype=torch.float64)
    (double.vector_features(vectors) * goal).sum().backward()
    assert vectors.grad is not None
    with torch.no_grad():  # a large step, since the features come out in single precision
        ahead, behind = (double.vector_features(vectors + step * way) @ goal for step in (2e-3, -2e-3))
    assert float((vectors.grad * way).sum()) == pytest.approx(float(ahead - behind) / 4e-3, rel=0.02)
    assert not any(p.requires_grad for p in double.model.parameters())
    assert not double._embedding()._forward_hooks, "the tower is left as it was"


def test_a_model_without_pictures_is_refused(tmp_path: Path) -> None:
    size = word_tokenizer(tmp_path)
    BertModel(BertConfig(vocab_size=size, **SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="does not embed both"):
        load_clip(str(tmp_path))


def test_the_small_model_is_small_and_of_the_real_format(emoji: Clip) -> None:
    folder = Path(folder_of(EMOJI_CLIP))
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000
    assert {"config.json", "tokenizer.json", "preprocessor_config.json", "MODEL_CARD.md"} <= {
        file.name for file in folder.iterdir()
    }
    assert isinstance(emoji.model, CLIPModel)
    assert all(p.dtype == torch.float32 for p in emoji.model.parameters())


def test_the_small_model_can_read_any_text(emoji: Clip) -> None:
    for text in ("ZEBRA", "日本語", "\x00\x7f", "🙂", "don't", "   "):
        assert emoji.text_features([text]).isfinite().all()
    assert emoji.tokens("Red DOG") == emoji.tokens(" red  dog ")
    unknown = emoji.tokenizer.unk_token_id
    assert unknown not in emoji.tokenizer("red dog")["input_ids"]
    # Words of no caption are all one token, so that no search can tell them apart and play with them.
    assert emoji.tokens("Ĝĵ 日本 ☃ qzx")[1:-1] == [unknown] * 4
    assert torch.equal(*emoji.text_features(["qzx dog", "bureaucratic dog"]))


def drawn(shape: str, colour: str) -> Image.Image:
    from PIL import ImageDraw

    image = Image.new("RGB", (96, 96), "white")
    pen = ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse((8, 8, 88, 88), fill=colour)
    else:
        pen.rectangle((10, 10, 86, 86), fill=colour)
    return image


def test_the_small_model_recognises_drawn_shapes(emoji: Clip) -> None:
    """Shapes drawn here, by no vendor: the right name of each, among all of them, for most."""
    colours = {"red": "#dd2e44", "blue": "#2277dd", "green": "#44aa44", "yellow": "#ffcc33", "purple": "#8855cc"}
    cases = [(shape, name) for shape in ("circle", "square") for name in colours]
    names = emoji.text_features([f"{name} {shape}" for shape, name in cases])
    pictures = emoji.image_features([drawn(shape, colours[name]) for shape, name in cases])
    right = (pictures @ names.T).argmax(1) == torch.arange(len(cases))
    assert int(right.sum()) >= 7, f"{int(right.sum())} of {len(cases)}"
