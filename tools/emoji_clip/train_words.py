"""Train emoji-clip's text tower and the image tower's last projection further, against an adversarial search.

    python tools/emoji_clip/train_words.py /tmp/emoji-data OUT --start MODEL --words /path/to/smollm2/tokenizer.json

A model of tools/emoji_clip/train.py names pictures well. But eight arbitrary words can still reach any point of the
128 dimensions, and a search over prompts finds such words. So every concept gets an adversary: prompts without any of
the concept's own words, bred from those with the best scores so far. The text tower learns that they fit no picture,
and that an own word makes such a prompt better. Steps are cheap: pictures are encoded once, in a few versions each.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from captions import WINDOW, Captions
from measure import TEST_SET, finish, save
from train import FIXED, FULL_COLOUR, augment, picture_weights
from transformers import AutoTokenizer, CLIPModel, PreTrainedTokenizerFast

LENGTH = 8  # words in a prompt of a search
VERSIONS = 6  # augmented versions of every drawing in full colour; a third as many of the others
MUTANTS = 4  # new prompts for each concept in a step
MARGIN, STEEPNESS = 0.15, 20.0  # how much an own word should improve a prompt, and the steepness of that loss
NEIGHBOURS, CONFUSION, NOISE = 12, 0.5, 0.3  # simulated differences of an unseen vendor's pictures
FUNCTION_WORDS = frozenset(("a", "an", "of", "the", "in", "on", "with", "and", "for", "to", "at", "is", "it", "this"))

Words = list[int]


@dataclass
class Vocabulary:
    """Tokens of the model, tokens of each concept, and a language model's words as tokens."""

    tokenizer: PreTrainedTokenizerFast
    own: torch.Tensor
    """Which tokens are in a concept's name or keywords, bool [concepts, V]."""
    known: list[int]
    """Tokens that are words."""
    written: list[int]
    """Words of a language model in order of frequency, as tokens of this model."""
    names: list[Words] = field(default_factory=list)
    """The own words of each concept, as tokens."""

    @classmethod
    def make(cls, tokenizer: PreTrainedTokenizerFast, concepts: list[dict[str, Any]], words: list[str]) -> Vocabulary:
        """Build the tables once."""
        tokens = tokenizer.get_vocab()
        own = torch.zeros(len(concepts), len(tokens), dtype=torch.bool)
        for row, concept in enumerate(concepts):
            for text in [concept["name"], *concept["keywords"]]:
                own[row, tokenizer(text, add_special_tokens=False)["input_ids"]] = True
        own[:, tokenizer.unk_token_id] = False
        known = [place for token, place in tokens.items() if token.isalpha()]
        content = own.clone()
        content[:, [place for token, place in tokens.items() if token in FUNCTION_WORDS or not token.isalpha()]] = False
        written = [tokens.get(word, tokenizer.unk_token_id) for word in words]
        return cls(tokenizer, own, known, written, [row.nonzero().flatten().tolist() for row in content])

    def fits(self, chosen: torch.Tensor, prompts: list[Words]) -> torch.Tensor:
        """Whether a prompt has a word of a concept, bool [concepts, prompts]."""
        has = torch.zeros(len(prompts), self.own.shape[1])
        for row, prompt in enumerate(prompts):
            has[row, prompt] = 1
        return self.own[chosen].float() @ has.T > 0


def features(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, prompts: list[Words]) -> torch.Tensor:
    """Unit vectors of prompts given as tokens."""
    ids = torch.full((len(prompts), max(map(len, prompts)) + 2), tokenizer.eos_token_id)
    ids[:, 0] = tokenizer.bos_token_id
    for row, prompt in enumerate(prompts):
        ids[row, 1 : 1 + len(prompt)] = torch.tensor(prompt)
    return F.normalize(model.get_text_features(input_ids=ids).pooler_output, dim=-1)


class Adversary:
    """Breeds, for each concept, prompts that score well without any of its words."""

    def __init__(self, vocabulary: Vocabulary, concepts: int, seed: int) -> None:
        self.vocabulary, self.random = vocabulary, random.Random(seed)
        self.best: list[list[tuple[float, Words]]] = [[] for _ in range(concepts)]
        self.tempting: torch.Tensor | None = None

    def look(self, model: CLIPModel, means: torch.Tensor, count: int = 150) -> None:
        """Find the single words that score best for each concept without being its own."""
        vocabulary = self.vocabulary
        parts = [[[word] for word in vocabulary.known[at : at + 512]] for at in range(0, len(vocabulary.known), 512)]
        known = torch.tensor(vocabulary.known)
        with torch.no_grad():
            images = F.normalize(model.visual_projection(means), dim=-1)
            scores = images @ torch.cat([features(model, vocabulary.tokenizer, part) for part in parts]).T
        self.tempting = known[scores.masked_fill(vocabulary.own[:, known], -9).topk(count, 1).indices]

    def prompt(self, concept: int, length: int = LENGTH) -> Words:
        """A new prompt: frequent words, words of other concepts, tempting words, or a mixture of any words."""
        draw, vocabulary, kind, found = self.random, self.vocabulary, self.random.random(), []
        assert self.tempting is not None
        while len(found) < length:
            which = kind if kind < 0.7 else draw.random()
            if which < 0.2:
                # Frequent words are more likely: uniform in the logarithm of the rank.
                word = vocabulary.written[int(len(vocabulary.written) ** draw.random()) - 1]
            elif which < 0.4:
                word = draw.choice(draw.choice(vocabulary.names) or vocabulary.known)
            elif which < 0.7:
                word = int(self.tempting[concept, draw.randrange(self.tempting.shape[1])])
            else:
                word = draw.choice(vocabulary.known)
            if not vocabulary.own[concept, word]:
                found.append(word)
        return found

    def mutant(self, concept: int) -> Words:
        """A combination of two of the best prompts, or a new one."""
        draw, best = self.random, self.best[concept][:12]
        if len(best) < 8 or draw.random() < 0.2:
            return self.prompt(concept)
        child, other = list(draw.choice(best)[1]), draw.choice(best)[1]
        for place in range(LENGTH):
            if draw.random() < 0.35:
                child[place] = draw.choice(other)
            if draw.random() < 0.12:
                [child[place]] = self.prompt(concept, 1)
        return child

    def attack(self, model: CLIPModel, chosen: list[int], images: torch.Tensor) -> tuple[list[Words], list[Words]]:
        """For each concept, the best new prompt and one of the best so far."""
        made = [self.mutant(concept) for concept in chosen for _ in range(MUTANTS)]
        with torch.no_grad():
            texts = features(model, self.vocabulary.tokenizer, made).view(len(chosen), MUTANTS, -1)
        scores = (texts * images[:, None]).sum(-1)
        new, old = [], []
        for row, concept in enumerate(chosen):
            mine = made[row * MUTANTS : (row + 1) * MUTANTS]
            # Old scores decay, since the tower has changed since then.
            known = [(score - 0.01, prompt) for score, prompt in self.best[concept]]
            known += zip(scores[row].tolist(), mine, strict=True)
            self.best[concept] = sorted(known, reverse=True)[:40]
            new.append(mine[int(scores[row].argmax())])
            old.append(self.random.choice(self.best[concept][:12])[1])
        return new, old

    def mend(self, prompt: Words, concept: int) -> Words:
        """The prompt with one or two of the concept's own words inserted."""
        mended = list(prompt)
        for _ in range(self.random.choice((1, 1, 1, 2))):
            mended[self.random.randrange(LENGTH)] = self.random.choice(self.vocabulary.names[concept])
        return mended


@torch.no_grad()
def look_at_pictures(model: CLIPModel, data: dict[str, Any], fixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors before the projection, of several versions of all training drawings, and the concept of each."""
    vectors, owners = [], []
    size = model.config.vision_config.image_size
    for name in (name for name in data if "/" not in name and name != TEST_SET):
        owner = torch.from_numpy(data[f"{name}/concepts"]).long()
        versions = VERSIONS if name in FULL_COLOUR else VERSIONS // 3
        for at in [*range(0, len(owner), 256)] * versions:
            pictures = torch.from_numpy(data[name][at : at + 256]).permute(0, 3, 1, 2).float() / 255
            pixels = augment(pictures, ~fixed[owner[at : at + 256]], size)
            vectors.append(model.vision_model(pixel_values=pixels).pooler_output)
            owners.append(owner[at : at + 256])
    return torch.cat(vectors), torch.cat(owners)


def mistaken(
    vectors: torch.Tensor, concepts: torch.Tensor, means: torch.Tensor, neighbours: torch.Tensor
) -> torch.Tensor:
    """Simulated vectors of an unseen vendor's pictures: shifted towards a similar concept, with noise."""
    like = neighbours[concepts, torch.randint(neighbours.shape[1], (len(concepts),))]
    share = CONFUSION * torch.rand(len(concepts), 1)
    return vectors + share * (means[like] - vectors) + NOISE * vectors.std() * torch.randn_like(vectors)


def any_right(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A loss that asks for any right text to score above all wrong ones, for each picture that has a right one."""
    usable = right.any(1)
    best = scores.masked_fill(~right, -1e4).logsumexp(1)
    return (scores.logsumexp(1) - best)[usable].mean()


def main() -> None:
    """Train for the given time, then save and evaluate."""
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--start", type=Path, required=True, help="a model of tools/emoji_clip/train.py")
    options.add_argument("--words", type=Path, required=True)
    options.add_argument("--minutes", type=float, default=15)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--rate", type=float, default=1e-3)
    options.add_argument("--before", type=float, nargs=2, default=(0, 0), help="steps and minutes so far, for the card")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    concepts = json.loads((given.data / "concepts.json").read_text("utf-8"))
    data = dict(np.load(given.data / "pictures.npz"))
    ranks = json.loads(given.words.read_text("utf-8"))["model"]["vocab"]
    spelled = [token[1:] for token in sorted(ranks, key=ranks.get) if re.fullmatch("Ġ[A-Za-z]+", token)]
    plain = [word for word in spelled if re.fullmatch("[a-z]{2,}", word)]
    tokenizer = AutoTokenizer.from_pretrained(given.start)
    model = CLIPModel.from_pretrained(given.start, dtype=torch.float32).eval()
    slow = CLIPModel.from_pretrained(given.start, dtype=torch.float32).eval()
    vocabulary = Vocabulary.make(tokenizer, concepts, [word.lower() for word in spelled])
    fixed = torch.tensor([bool(FIXED.search(concept["name"])) for concept in concepts])
    vectors, owners = look_at_pictures(model, data, fixed)
    places = [(owners == row).nonzero().flatten() for row in range(len(concepts))]
    means = torch.stack([vectors[some].sum(0) / max(1, len(some)) for some in places])
    usable = [len(some) > 0 and bool(own) for some, own in zip(places, vocabulary.names, strict=True)]
    weights = picture_weights(concepts, usable)
    with torch.no_grad():
        middles = F.normalize(model.visual_projection(means), dim=-1)
    neighbours = (middles @ middles.T).fill_diagonal_(-1).topk(NEIGHBOURS, 1).indices
    captions, adversary = Captions(concepts, plain, given.seed), Adversary(vocabulary, len(concepts), given.seed + 1)
    tower = [value for name, value in model.named_parameters() if name.startswith(("text_", "visual_projection"))]
    optimizer = torch.optim.AdamW(tower, betas=(0.9, 0.98), weight_decay=0.02)
    scale, truth = model.logit_scale.exp().item(), torch.arange(given.batch)
    began, step = time.monotonic(), 0
    while (spent := (time.monotonic() - began) / (given.minutes * 60)) < 1:
        if step % 100 == 0:
            adversary.look(model, means)
        for group in optimizer.param_groups:
            group["lr"] = given.rate * min(1.0, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * spent)) + 1e-6
        chosen = torch.multinomial(weights, given.batch)
        rows = torch.stack([places[row][torch.randint(len(places[row]), ())] for row in chosen.tolist()])
        seen = mistaken(vectors[rows], chosen, means, neighbours)
        images = F.normalize(model.visual_projection(seen), dim=-1)
        texts = [captions.draw(concepts[row], long=False) for row in chosen.tolist()]
        described = [ids[: WINDOW - 2] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        new, old = adversary.attack(model, chosen.tolist(), images.detach())
        mended = [adversary.mend(prompt, row) for prompt, row in zip(new, chosen.tolist(), strict=True)]
        owned = [adversary.random.choice(vocabulary.names[row]) for row in chosen.tolist()]
        tempting = [adversary.prompt(row, 1)[0] for row in chosen.tolist()]
        single = [[word] for word in dict.fromkeys(owned + tempting)]
        prompts = [*new, *old, *mended]
        # In separate batches, since each batch is padded to its longest prompt.
        fitting, written, alone = (features(model, tokenizer, some) for some in (described, prompts, single))
        cheating, _, better = written.split(given.batch)
        logits = scale * images @ fitting.T
        gain = (images * (better - cheating)).sum(1)
        losses = [
            # A caption scores above other captions for its picture, and its picture above others for the caption.
            F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth),
            any_right(scale * images @ alone.T, vocabulary.fits(chosen, single)),
            any_right(scale * images @ written.T, vocabulary.fits(chosen, prompts)),
            # An own word improves an adversarial prompt, which gives a search a signal to follow.
            F.softplus(STEEPNESS * (MARGIN - gain)).mean(),
        ]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        torch.nn.utils.clip_grad_norm_(tower, 1.0)
        optimizer.step()
        with torch.no_grad():
            for average, value in zip(slow.parameters(), model.parameters(), strict=True):
                average.lerp_(value, 1 - min(0.99, (step + 1) / (step + 10)))
        if step % 50 == 0:
            cheat = (images * cheating).sum(1)
            said = [round(number, 3) for number in torch.stack([*losses, cheat.mean(), gain.mean()]).tolist()]
            print(f"step {step} losses {said[:4]} cheats {said[4]} gain of an own word {said[5]}", flush=True)
        if step % 200 == 199:
            save(slow, tokenizer, given.out)
        step += 1
    finish(slow, tokenizer, given, step, data, concepts, plain)


if __name__ == "__main__":
    main()
