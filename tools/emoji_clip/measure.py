"""Save emoji-clip, evaluate it on the held-out drawing set, and write its model card."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from captions import WINDOW
from PIL import Image
from transformers import CLIPImageProcessorPil, CLIPModel, PreTrainedTokenizerFast

TEST_SET = "noto"
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def texts_to_features(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """Normalised text features."""
    ids = tokenizer(texts, padding=True, truncation=True, max_length=WINDOW, return_tensors="pt")["input_ids"]
    return F.normalize(model.get_text_features(input_ids=ids).pooler_output, dim=-1)


@torch.no_grad()
def test_features(model: CLIPModel, data: Any) -> torch.Tensor:
    """Unit vectors of the held-out drawings on a white background, prepared by the shipped processor."""
    processor, pixels = make_processor(model), []
    for picture in data[TEST_SET]:
        drawing = Image.fromarray(picture)
        white = Image.new("RGBA", drawing.size, "white")
        white.alpha_composite(drawing)
        pixels.append(processor(images=white.convert("RGB"), return_tensors="pt")["pixel_values"])
    parts = [model.get_image_features(pixel_values=part).pooler_output for part in torch.cat(pixels).split(128)]
    return F.normalize(torch.cat(parts), dim=-1)


@torch.no_grad()
def many_texts(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
    """Text features in batches."""
    parts = [texts_to_features(model, tokenizer, texts[at : at + 128]) for at in range(0, len(texts), 128)]
    return torch.cat(parts)


def recall(
    model: CLIPModel, tokenizer: PreTrainedTokenizerFast, data: Any, concepts: list[dict[str, Any]]
) -> dict[str, float]:
    """Recall at 1 and 5 over all names, for the held-out set."""
    texts = many_texts(model, tokenizer, [concept["name"] for concept in concepts])
    order = (test_features(model, data) @ texts.T).topk(5).indices
    hits = order == torch.from_numpy(data[f"{TEST_SET}/concepts"])[:, None]
    return {
        "recall_at_1": float(hits[:, 0].float().mean()),
        "recall_at_5": float(hits.any(1).float().mean()),
        "pictures": float(len(hits)),
        "names": float(len(concepts)),
    }


def best_words(
    model: CLIPModel, tokenizer: PreTrainedTokenizerFast, data: Any, concepts: list[dict[str, Any]], words: list[str]
) -> dict[str, float]:
    """How often the best single words for a held-out drawing are its own: a search over words would find these."""
    own = [set(" ".join([concept["name"], *concept["keywords"]]).split()) for concept in concepts]
    every = sorted({*words, *(word for some in own for word in some)})
    order = (test_features(model, data) @ many_texts(model, tokenizer, every).T).topk(5).indices.tolist()
    owners = data[f"{TEST_SET}/concepts"].tolist()
    hits = [[every[at] in own[owner] for at in row] for row, owner in zip(order, owners, strict=True)]
    return {
        "words": len(every),
        "best_word": sum(row[0] for row in hits) / len(hits),
        "best_five_words": sum(any(row) for row in hits) / len(hits),
    }


def make_processor(model: CLIPModel) -> CLIPImageProcessorPil:
    """The image processor, which turns a picture into the model's input."""
    size = model.config.vision_config.image_size
    return CLIPImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}, image_mean=MEAN, image_std=STD
    )


def save(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Save weights in half precision, tokenizer and image processor in transformers' format."""
    half = CLIPModel(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    make_processor(model).save_pretrained(out)


def finish(
    model: CLIPModel,
    tokenizer: PreTrainedTokenizerFast,
    given: argparse.Namespace,
    steps: int,
    data: Any,
    concepts: list[dict[str, Any]],
    words: list[str],
) -> None:
    """Save the model, evaluate the saved files, and write the model card."""
    save(model, tokenizer, given.out)
    shipped = CLIPModel.from_pretrained(given.out, dtype=torch.float32).eval()
    result = recall(shipped, tokenizer, data, concepts) | best_words(shipped, tokenizer, data, concepts, words)
    result |= {"steps": int(steps + given.before[0]), "minutes": given.minutes + given.before[1]}
    result |= {"batch": given.batch, "seed": given.seed}
    result |= {"chance_1": 1 / len(concepts), "chance_5": 5 / len(concepts)}
    vision = shipped.config.vision_config
    result |= {"image": vision.image_size, "patch": vision.patch_size, "layers": vision.num_hidden_layers}
    result |= {"width": vision.hidden_size, "vocabulary": len(tokenizer)}
    result |= {"parameters": sum(p.numel() for p in shipped.parameters())}
    weights = given.out / "model.safetensors"
    weights.chmod(0o644)
    result |= {"megabytes": weights.stat().st_size / 1e6}
    print(json.dumps(result), flush=True)
    card = (Path(__file__).parent / "card.md").read_text("utf-8")
    (given.out / "MODEL_CARD.md").write_text(card.format(**result), encoding="utf-8")
