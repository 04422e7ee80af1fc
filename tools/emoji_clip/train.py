"""Train emoji-clip: a small CLIPModel of emoji drawings, shipped in src/pinprompt/models/emoji_clip.

    python tools/emoji_clip/train.py /tmp/emoji-data OUT --minutes 30 --words /path/to/smollm2/tokenizer.json

The folder comes from tools/emoji_clip/pictures.py. One drawing set (Noto) is not used for training but for the test:
which of all names does the model rank first for a drawing? `--words` is a tokenizer.json whose word-like tokens
(SmolLM2's, Apache-2.0) are used as unrelated words. Captions are mixed with them, and captions of unrelated words only
are extra negatives, so that a word without a picture does not get a high score by chance. Captions of words from many
concepts are negatives, too, since a search would combine words in this way. The learning rate depends on the elapsed
time, so that its schedule is complete for any given duration. The saved model has the last (averaged) weights, not
those that are best on the test set.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from captions import WINDOW, Captions, make_tokenizer, prototypes
from measure import TEST_SET, finish, many_texts, recall, save, texts_to_features
from muon import Muon
from transformers import AutoTokenizer, CLIPConfig, CLIPModel, PreTrainedTokenizerFast

FIXED = re.compile(r"left|right|arrow|clock|thirty|flag|button|keycap|input|letters|abc|symbol|sign|mark|back|soon|end")

FULL_COLOUR = {"twemoji", "fluent-emoji-flat", "fluent-emoji", "fluent-3d", "emojione", "fxemoji", "streamline"}
BEND, CROSSED, COLOURED = 0.06, 0.25, 0.65  # strength of warping; shares of combined drawings and of full-colour ones


def make_model(tokenizer: PreTrainedTokenizerFast, size: int, patch: int, width: int, layers: int) -> CLIPModel:
    """A CLIPModel that takes less than 8 MB in half precision."""
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 160, "intermediate_size": 640, "num_hidden_layers": 2,
        "num_attention_heads": 5, "max_position_embeddings": WINDOW, "projection_dim": 128,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    vision = {
        "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
        "num_attention_heads": width // 32, "image_size": size, "patch_size": patch, "projection_dim": 128,
    }  # fmt: skip
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=128))


@torch.no_grad()
def whiten(model: CLIPModel, pixels: torch.Tensor) -> None:
    """Initialise the patch layer with the whitened principal components of real patches, whose pixels correlate."""
    patch = model.config.vision_config.patch_size
    patches = F.unfold(pixels, patch, stride=patch).transpose(1, 2).flatten(0, 1)
    patches = patches[patches.std(1) > 0.02]
    values, directions = torch.linalg.eigh((patches - patches.mean(0)).T.cov())
    width = model.config.vision_config.hidden_size
    kept = directions[:, -width:] / (values[-width:] + 1e-2 * values[-1]).sqrt()
    turn, _ = torch.linalg.qr(torch.randn(width, width))  # so that no channel dominates
    weight = model.vision_model.embeddings.patch_embedding.weight
    weight.copy_((kept @ turn).T.reshape(weight.shape) * 0.3)


def make_optimizers(model: CLIPModel, anchors: torch.nn.Parameter) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside both towers, AdamW for the rest."""
    inner = [p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2]
    known = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in known]
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": 0.05},
        {"params": [*(p for p in rest if p.ndim <= 1), anchors], "weight_decay": 0.0},
    ]
    return [Muon(inner), torch.optim.AdamW(groups, betas=(0.9, 0.98))]


def augment(pictures: torch.Tensor, may_flip: torch.Tensor, size: int) -> torch.Tensor:
    """RGBA drawings [n, 4, 72, 72] to RGB [n, 3, size, size]: shifted, rotated, warped, recoloured, on a background."""
    count = len(pictures)
    angle = (torch.rand(count) - 0.5) * 0.4
    zoom, stretch = 1 / torch.empty(count).uniform_(0.75, 1.1), torch.empty(count).uniform_(0.9, 1.1)
    mirror = torch.where(may_flip & (torch.rand(count) < 0.5), -1.0, 1.0)
    shift = (torch.rand(count, 2) - 0.5) * 0.2
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    theta = torch.stack([cos * mirror * stretch, -sin, shift[:, 0], sin * mirror * stretch, cos, shift[:, 1]], 1)
    grid = F.affine_grid(theta.view(count, 2, 3), [count, 4, size, size], align_corners=False)
    # Slightly warped, since vendors draw the same thing in different proportions.
    grid = grid + F.interpolate(torch.randn(count, 2, 4, 4) * BEND, size, mode="bicubic").permute(0, 2, 3, 1)
    alpha_first = pictures.clone()
    alpha_first[:, :3] *= pictures[:, 3:]  # premultiplied, so that transparent pixels do not bleed colour
    moved = F.grid_sample(alpha_first, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    ground = torch.rand(count, 3, 1, 1)
    ground[torch.rand(count) < 0.6] = 1.0
    colour, alpha = moved[:, :3], moved[:, 3:]
    grey = colour.mean(1, keepdim=True)
    colour = grey + (colour - grey) * torch.empty(count, 1, 1, 1).uniform_(0.4, 1.5)
    mixing = torch.eye(3) + torch.randn(count, 3, 3) * 0.06
    colour = torch.einsum("nij,njhw->nihw", mixing, colour) * torch.empty(count, 1, 1, 1).uniform_(0.75, 1.2)
    image = colour.clamp(0, 1) + (1 - alpha) * ground
    side = size // 4
    hole = torch.randint(0, size - side, (count, 2))
    for row in (torch.rand(count) < 0.1).nonzero().flatten().tolist():
        top, left = hole[row].tolist()
        image[row, :, top : top + side, left : left + side] = torch.rand(3, 1, 1)
    return (image.clamp(0, 1) - 0.5) / 0.5


def crossed(pictures: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Replace one side of some drawings with another vendor's drawing of the concept, so that parts vary separately."""
    count, size = len(pictures), pictures.shape[-1]
    along = torch.linspace(-1, 1, size)
    turn, offset = torch.rand(count, 1, 1) * 2 * math.pi, torch.empty(count, 1, 1).uniform_(-0.5, 0.5)
    beyond = turn.cos() * along[:, None] + turn.sin() * along > offset
    beyond &= (torch.rand(count) < CROSSED)[:, None, None]
    return torch.where(beyond[:, None], others, pictures)


def picture_weights(concepts: list[dict[str, Any]], shown: list[bool]) -> torch.Tensor:
    """How often each concept is sampled: flags and people of each profession would otherwise be half of all."""
    return torch.tensor(
        [
            0.0 if not there else 0.3 if concept["group"] == 9 else 0.6 if concept["group"] == 1 else 1.0
            for concept, there in zip(concepts, shown, strict=True)
        ]
    )


class Drawings:
    """Samples drawings of each concept, mostly from the sets in full colour."""

    def __init__(self, sets: dict[str, np.ndarray], owners: dict[str, np.ndarray], seed: int) -> None:
        self.sets, self.random = sets, random.Random(seed + 2)
        self.places: dict[tuple[int, bool], list[tuple[str, int]]] = defaultdict(list)
        for name in sets:
            for at, owner in enumerate(owners[name].tolist()):
                self.places[owner, name in FULL_COLOUR].append((name, at))

    def has(self, concept: int) -> bool:
        """Whether there is a drawing of the concept."""
        return (concept, True) in self.places or (concept, False) in self.places

    def of(self, concepts: list[int]) -> torch.Tensor:
        """One drawing for each concept, RGBA [n, 4, 72, 72]."""
        chosen = []
        for concept in concepts:
            coloured = self.random.random() < COLOURED
            some = self.places.get((concept, coloured)) or self.places[concept, not coloured]
            name, at = self.random.choice(some)
            chosen.append(self.sets[name][at])
        return torch.from_numpy(np.stack(chosen)).permute(0, 3, 1, 2).float() / 255


def go_on(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, start: Path, names: list[str]) -> torch.Tensor:
    """Load an earlier model's weights, the text tower only if the tokens are the same; returns its vectors of names."""
    earlier = CLIPModel.from_pretrained(start, dtype=torch.float32).eval()
    words = AutoTokenizer.from_pretrained(start)
    same = words.get_vocab() == tokenizer.get_vocab()
    kept = {name: value for name, value in earlier.state_dict().items() if same or not name.startswith("text_")}
    model.load_state_dict(kept, strict=False)
    return many_texts(earlier, words, names)


def main() -> None:
    """Train for the given time, then save and evaluate."""
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--words", type=Path, required=True)
    options.add_argument("--minutes", type=float, default=30)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--image", type=int, default=48)
    options.add_argument("--patch", type=int, default=12)
    options.add_argument("--width", type=int, default=160)
    options.add_argument("--layers", type=int, default=3)
    options.add_argument("--start", type=Path, help="continue from a model of an earlier run")
    options.add_argument(
        "--before", type=float, nargs=2, default=(0, 0), help="steps and minutes of that run, for the card"
    )
    options.add_argument("--new-words", action="store_true", help="with --start: new tokens and a new text tower")
    options.add_argument("--peak", type=float, default=1.0, help="share of the full learning rates to begin with")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    concepts = json.loads((given.data / "concepts.json").read_text("utf-8"))
    vocabulary = json.loads(given.words.read_text("utf-8"))["model"]["vocab"]
    words = [token[1:] for token in sorted(vocabulary, key=vocabulary.get) if re.fullmatch("Ġ[a-z]{2,}", token)]
    data = dict(np.load(given.data / "pictures.npz"))
    # A new tokenizer may order its tokens differently, so a run that continues an earlier one keeps its tokenizer.
    keep_words = given.start is not None and not given.new_words
    tokenizer = AutoTokenizer.from_pretrained(given.start) if keep_words else make_tokenizer(concepts)
    shape = (given.image, given.patch, given.width, given.layers)
    model, slow = make_model(tokenizer, *shape), make_model(tokenizer, *shape)
    slow.load_state_dict(model.state_dict())
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)

    sets = [name for name in data if "/" not in name and name != TEST_SET]
    drawings = Drawings(
        {name: data[name] for name in sets}, {name: data[f"{name}/concepts"] for name in sets}, given.seed
    )
    weights = picture_weights(concepts, [drawings.has(row) for row in range(len(concepts))])
    fixed = torch.tensor([bool(FIXED.search(concept["name"])) for concept in concepts])
    captions, draw = Captions(concepts, words, given.seed), random.Random(given.seed + 1)
    anchors = torch.nn.Parameter(prototypes(concepts))
    if given.start is not None:
        with torch.no_grad():
            anchors.copy_(go_on(model, tokenizer, given.start, [concept["name"] for concept in concepts]))
    optimizers = make_optimizers(model, anchors)
    with torch.no_grad():
        some = np.concatenate([data[name][::7] for name in sets])
        if given.start is None:
            seen = torch.from_numpy(some).permute(0, 3, 1, 2).float() / 255
            whiten(model, augment(seen, torch.zeros(len(some)).bool(), given.image))
        slow.load_state_dict(model.state_dict())
    began, saved, step, peaks = time.monotonic(), time.monotonic(), 0, (given.peak * 0.02, given.peak * 2e-3)
    model.train()
    while (spent := (time.monotonic() - began) / (given.minutes * 60)) < 1:
        rate = min(1.0, (step + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * spent)) + 1e-3
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * peak
        chosen = torch.multinomial(weights, given.batch)  # distinct concepts: no caption fits another's picture exactly
        pictures = crossed(drawings.of(chosen.tolist()), drawings.of(chosen.tolist()))
        pixels = augment(pictures, ~fixed[chosen], given.image)
        images = F.normalize(model.get_image_features(pixel_values=pixels).pooler_output, dim=-1)
        # Both towers classify the concept among all concepts, with shared concept vectors. So each picture is compared
        # with every name, not only with those of its batch. The concept vectors are not saved.
        named = model.logit_scale.exp() * F.normalize(anchors, dim=-1).T
        loss = F.cross_entropy(images @ named, chosen)
        parts = [loss.item()]
        if step < 100 or step % 3 == 0:  # text is learnt much faster than pictures
            long = draw.random() < 0.08
            texts = [captions.draw(concepts[row], long) for row in chosen.tolist()]
            texts += [captions.junk() for _ in range(given.batch // 8)]
            texts += [captions.mixed() for _ in range(given.batch // 2)]
            written = texts_to_features(model, tokenizer, texts)
            logits = model.logit_scale.exp() * images @ written.T
            truth = torch.arange(given.batch)
            pairs = (F.cross_entropy(logits, truth) + F.cross_entropy(logits[:, : given.batch].T, truth)) / 2
            by_text = F.cross_entropy(written[: given.batch] @ named, chosen)
            loss = loss + pairs + by_text
            parts += [pairs.item(), by_text.item()]
        model.zero_grad()
        anchors.grad = None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
            keep = min(0.995, (step + 1) / (step + 10))
            for average, value in zip(slow.parameters(), model.parameters(), strict=True):
                average.lerp_(value, 1 - keep)
        step += 1
        if step % 30 == 1:
            pace = (time.monotonic() - began) / step
            print(
                f"step {step} losses {[round(part, 2) for part in parts]} rate {rate:.2f} {pace:.2f} s/step", flush=True
            )
        if time.monotonic() - saved > 240:
            save(slow, tokenizer, given.out)
            saved = time.monotonic()
            print(json.dumps(recall(slow, tokenizer, data, concepts)), flush=True)
    finish(slow, tokenizer, given, step, data, concepts, words)


if __name__ == "__main__":
    main()
