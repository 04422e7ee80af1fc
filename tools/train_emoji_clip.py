"""Train emoji-clip: a small CLIPModel of emoji drawings, shipped in src/pinprompt/models/emoji_clip.

    python tools/train_emoji_clip.py /tmp/emoji-data OUT --minutes 30 --words /path/to/smollm2/tokenizer.json

The folder comes from tools/emoji_pictures.py. One drawing set (Noto) is never trained on and is the test: which of all
names does the model rank first for a drawing? `--words` is a tokenizer.json whose word-like tokens (SmolLM2's,
Apache-2.0) serve as unrelated words: captions are mixed with them, and captions made of nothing else are extra
negatives, so that a word the model has no picture for does not win by noise. The learning rate follows the clock, so
that the run ends well in whatever time it is given. The last (averaged) weights are the model; nothing is selected on
the test set.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

TEST_SET = "noto"
IMAGE, PATCH, WINDOW, VOCAB = 60, 12, 48, 6144
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
TEMPLATES = (
    "{}", "{}", "{}", "a {}", "a picture of {}", "a picture of a {}", "an emoji of a {}", "a drawing of a {}", "the {}",
    "{} emoji", "a photo of a {}", "this is a {}", "an image of {}", "icon of {}", "{} , drawn in flat colours",
)  # fmt: skip
FIXED = re.compile(r"left|right|arrow|clock|thirty|flag|button|keycap|input|letters|abc|symbol|sign|mark|back|soon|end")


def make_tokenizer(concepts: list[dict[str, Any]], words: list[str]) -> CLIPTokenizer:
    """A byte-level BPE in CLIP's own format, learnt from the captions and from common words."""
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.normalizer = normalizers.Lowercase()
    pattern = Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = [concept["name"] for concept in concepts for _ in range(6)]
    texts += [keyword for concept in concepts for keyword in concept["keywords"] for _ in range(3)]
    texts += [word for rank, word in enumerate(words) for _ in range(4 if rank < 2000 else 1)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 300, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    # CLIP's order: the bytes, the bytes that end a word, the merges, the two special tokens.
    tokens = [*alphabet, *(letter + "</w>" for letter in alphabet), *("".join(merge) for merge in merges)]
    tokens = list(dict.fromkeys(tokens))[: VOCAB - 2]
    kept = set(tokens)
    merges = [merge for merge in merges if "".join(merge) in kept]
    vocab = {token: index for index, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=WINDOW)


def make_model(tokenizer: CLIPTokenizer) -> CLIPModel:
    """The real class at a size that stays under 8 MB in half precision."""
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 160, "intermediate_size": 640, "num_hidden_layers": 2,
        "num_attention_heads": 5, "max_position_embeddings": WINDOW, "projection_dim": 128,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    vision = {
        "hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 6,
        "image_size": IMAGE, "patch_size": PATCH, "projection_dim": 128,
    }  # fmt: skip
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=128))


class Captions:
    """Draws a new caption for a concept each time: its name, some keywords, their words shuffled, noise between."""

    def __init__(self, concepts: list[dict[str, Any]], words: list[str], seed: int) -> None:
        self.concepts, self.random = concepts, random.Random(seed)
        used = {word for concept in concepts for text in [concept["name"], *concept["keywords"]] for word in text.split()}
        self.noise = [word for word in words if word not in used]
        self.common = self.noise[:3000]

    def noise_words(self, count: int) -> list[str]:
        """Unrelated words, common ones more often."""
        return [self.random.choice(self.common if self.random.random() < 0.5 else self.noise) for _ in range(count)]

    def junk(self) -> str:
        """A caption that fits no picture."""
        return " ".join(self.noise_words(self.random.randint(1, 10)))

    def draw(self, concept: dict[str, Any], long: bool) -> str:
        """One caption; `long` ones fill most of the text window."""
        draw, name, keywords = self.random, concept["name"], concept["keywords"]
        some = draw.sample(keywords, min(len(keywords), draw.randint(1, 5)))
        kind = draw.random()
        if kind < 0.40:
            words = draw.choice(TEMPLATES).format(name).split()
        elif kind < 0.60:
            words = [*name.split(), *" ".join(some).split()]
        elif kind < 0.80:
            words = [*draw.sample(name.split(), draw.randint(1, len(name.split()))), *" ".join(some).split()]
            draw.shuffle(words)
        else:
            words = " ".join(some or [name]).split()
            draw.shuffle(words)
        if long or draw.random() < 0.45:
            for word in self.noise_words(draw.randint(10, 30) if long else draw.randint(1, 6)):
                words.insert(draw.randint(0, len(words)), word)
        return " ".join(words)


def augment(pictures: torch.Tensor, may_flip: torch.Tensor) -> torch.Tensor:
    """RGBA drawings [n, 4, 72, 72] to RGB [n, 3, 60, 60]: moved, turned, on some ground, with other colours."""
    count = len(pictures)
    angle = (torch.rand(count) - 0.5) * 0.4
    zoom, stretch = 1 / torch.empty(count).uniform_(0.75, 1.1), torch.empty(count).uniform_(0.9, 1.1)
    side = torch.where(may_flip & (torch.rand(count) < 0.5), -1.0, 1.0)
    shift = (torch.rand(count, 2) - 0.5) * 0.2
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    theta = torch.stack([cos * side * stretch, -sin, shift[:, 0], sin * side * stretch, cos, shift[:, 1]], 1)
    grid = F.affine_grid(theta.view(count, 2, 3), [count, 4, IMAGE, IMAGE], align_corners=False)
    alpha_first = pictures.clone()
    alpha_first[:, :3] *= pictures[:, 3:]  # premultiplied, so that clear pixels do not bleed colour
    moved = F.grid_sample(alpha_first, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    ground = torch.rand(count, 3, 1, 1)
    ground[torch.rand(count) < 0.6] = 1.0
    colour, alpha = moved[:, :3], moved[:, 3:]
    grey = colour.mean(1, keepdim=True)
    colour = grey + (colour - grey) * torch.empty(count, 1, 1, 1).uniform_(0.4, 1.5)
    mixing = torch.eye(3) + torch.randn(count, 3, 3) * 0.06
    colour = torch.einsum("nij,njhw->nihw", mixing, colour) * torch.empty(count, 1, 1, 1).uniform_(0.75, 1.2)
    image = colour.clamp(0, 1) + (1 - alpha) * ground
    hole = torch.randint(0, IMAGE - 14, (count, 2))
    for row in (torch.rand(count) < 0.1).nonzero().flatten().tolist():
        top, left = hole[row].tolist()
        image[row, :, top : top + 14, left : left + 14] = torch.rand(3, 1, 1)
    return (image.clamp(0, 1) - 0.5) / 0.5


def prototypes(concepts: list[dict[str, Any]]) -> torch.Tensor:
    """A start for one vector per concept: their words, weighted by rarity, pressed into 128 directions (LSA)."""
    bags = [[word for text in [concept["name"]] * 3 + concept["keywords"] for word in text.split()] for concept in concepts]
    words = {word: at for at, word in enumerate(sorted({word for bag in bags for word in bag}))}
    counts = torch.zeros(len(bags), len(words))
    for row, bag in enumerate(bags):
        for word in bag:
            counts[row, words[word]] += 1
    rarity = (len(bags) / (counts > 0).sum(0)).log()
    left, sizes, _ = torch.svd_lowrank(F.normalize(counts.sqrt() * rarity, dim=-1), q=128, niter=4)
    return F.normalize(left * sizes.sqrt(), dim=-1)


def texts_to_features(model: CLIPModel, tokenizer: CLIPTokenizer, texts: list[str]) -> torch.Tensor:
    """Normalised text features."""
    ids = tokenizer(texts, padding=True, truncation=True, max_length=WINDOW, return_tensors="pt")["input_ids"]
    return F.normalize(model.get_text_features(input_ids=ids).pooler_output, dim=-1)


@torch.no_grad()
def recall(model: CLIPModel, tokenizer: CLIPTokenizer, data: Any, concepts: list[dict[str, Any]]) -> dict[str, float]:
    """Recall at 1 and 5 over all names, for drawings of the unseen set on white, prepared by the shipped processor."""
    from PIL import Image

    model.eval()
    processor, pixels = make_processor(), []
    for picture in data[TEST_SET]:
        drawing = Image.fromarray(picture)
        white = Image.new("RGBA", drawing.size, "white")
        white.alpha_composite(drawing)
        pixels.append(processor(images=white.convert("RGB"), return_tensors="pt")["pixel_values"])
    images = torch.cat([model.get_image_features(pixel_values=part).pooler_output for part in torch.cat(pixels).split(128)])
    names = [concept["name"] for concept in concepts]
    texts = torch.cat([texts_to_features(model, tokenizer, names[at : at + 128]) for at in range(0, len(names), 128)])
    order = (F.normalize(images, dim=-1) @ texts.T).topk(5).indices
    hits = order == torch.from_numpy(data[f"{TEST_SET}/concepts"])[:, None]
    model.train()
    return {
        "recall_at_1": float(hits[:, 0].float().mean()),
        "recall_at_5": float(hits.any(1).float().mean()),
        "pictures": float(len(hits)),
        "names": float(len(names)),
    }


def make_processor() -> CLIPImageProcessorPil:
    """What turns a picture into the model's pixels."""
    return CLIPImageProcessorPil(
        size={"shortest_edge": IMAGE}, crop_size={"height": IMAGE, "width": IMAGE}, image_mean=MEAN, image_std=STD
    )


def save(model: CLIPModel, tokenizer: CLIPTokenizer, out: Path) -> None:
    """Weights in half precision, tokenizer and image processor, as transformers saves them."""
    half = CLIPModel(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    make_processor().save_pretrained(out)


def main() -> None:
    """Train for the given time, then save and measure."""
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--words", type=Path, required=True)
    options.add_argument("--minutes", type=float, default=30)
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    concepts = json.loads((given.data / "concepts.json").read_text("utf-8"))
    vocabulary = json.loads(given.words.read_text("utf-8"))["model"]["vocab"]
    words = [token[1:] for token in sorted(vocabulary, key=vocabulary.get) if re.fullmatch("Ġ[a-z]{2,}", token)]
    data = dict(np.load(given.data / "pictures.npz"))
    tokenizer = make_tokenizer(concepts, words)
    model = make_model(tokenizer)
    slow = make_model(tokenizer)
    slow.load_state_dict(model.state_dict())
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)

    sets = [name for name in data if "/" not in name and name != TEST_SET]
    shown: list[list[tuple[str, int]]] = [[] for _ in concepts]
    for name in sets:
        for at, owner in enumerate(data[f"{name}/concepts"]):
            shown[owner].append((name, at))
    # Flags and the many men and women of each profession would otherwise be half of all that is seen.
    weights = torch.tensor(
        [
            0.0 if not places else 0.3 if concept["group"] == 9 else 0.6 if concept["group"] == 1 else 1.0
            for concept, places in zip(concepts, shown, strict=True)
        ]
    )
    fixed = torch.tensor([bool(FIXED.search(concept["name"])) for concept in concepts])
    captions, draw = Captions(concepts, words, given.seed), random.Random(given.seed + 1)
    anchors = torch.nn.Parameter(prototypes(concepts))
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": [*others, anchors], "weight_decay": 0.0}], betas=(0.9, 0.98)
    )
    began, saved, step, peak = time.monotonic(), time.monotonic(), 0, 1e-3
    model.train()
    while (spent := (time.monotonic() - began) / (given.minutes * 60)) < 1:
        rate = peak * min(1.0, (step + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * spent)) + 1e-6
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = torch.multinomial(weights, given.batch)  # distinct concepts: no caption fits another's picture exactly
        places = [draw.choice(shown[row]) for row in chosen.tolist()]
        pictures = torch.from_numpy(np.stack([data[name][at] for name, at in places])).permute(0, 3, 1, 2).float() / 255
        pixels = augment(pictures, ~fixed[chosen])
        long = draw.random() < 0.08
        texts = [captions.draw(concepts[row], long) for row in chosen.tolist()]
        texts += [captions.junk() for _ in range(given.batch // 4)]
        images = F.normalize(model.get_image_features(pixel_values=pixels).pooler_output, dim=-1)
        written = texts_to_features(model, tokenizer, texts)
        logits = model.logit_scale.exp() * images @ written.T
        truth = torch.arange(given.batch)
        loss = (F.cross_entropy(logits, truth) + F.cross_entropy(logits[:, : given.batch].T, truth)) / 2
        # Both towers also name the concept among all of them, over vectors they share. In so short a training this is
        # what brings them together; only the towers are kept.
        named = model.logit_scale.exp() * F.normalize(anchors, dim=-1).T
        by_picture = F.cross_entropy(images @ named, chosen)
        by_text = F.cross_entropy(written[: given.batch] @ named, chosen)
        optimizer.zero_grad()
        (loss + by_picture + by_text).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
            keep = min(0.995, (step + 1) / (step + 10))
            for average, value in zip(slow.parameters(), model.parameters(), strict=True):
                average.lerp_(value, 1 - keep)
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} {by_picture.item():.3f} {by_text.item():.3f} rate {rate:.1e} {(time.monotonic() - began) / step:.2f} s/step", flush=True)
        if time.monotonic() - saved > 240:
            save(slow, tokenizer, given.out)
            saved = time.monotonic()
            print(json.dumps(recall(slow, tokenizer, data, concepts)), flush=True)
    save(slow, tokenizer, given.out)
    shipped = CLIPModel.from_pretrained(given.out, dtype=torch.float32)
    result = recall(shipped, tokenizer, data, concepts) | {"steps": step, "batch": given.batch, "minutes": given.minutes}
    print(json.dumps(result), flush=True)
    (given.out / "retrieval.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
