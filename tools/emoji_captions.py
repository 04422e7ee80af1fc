"""Words for tools/train_emoji_clip.py: the tokenizer, captions drawn anew each time, a start for concept vectors."""

from __future__ import annotations

import json
import random
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTokenizer

WINDOW, VOCAB = 48, 12288
TEMPLATES = (
    "{}", "{}", "{}", "a {}", "a picture of {}", "a picture of a {}", "an emoji of a {}", "a drawing of a {}", "the {}",
    "{} emoji", "a photo of a {}", "this is a {}", "an image of {}", "icon of {}", "{} , drawn in flat colours",
)  # fmt: skip


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


class Captions:
    """Draws a new caption for a concept each time: its name, some keywords, their words shuffled, noise between."""

    def __init__(self, concepts: list[dict[str, Any]], words: list[str], seed: int) -> None:
        self.concepts, self.random = concepts, random.Random(seed)
        used = {
            word for concept in concepts for text in [concept["name"], *concept["keywords"]] for word in text.split()
        }
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


def prototypes(concepts: list[dict[str, Any]]) -> torch.Tensor:
    """A start for one vector per concept: their words, weighted by rarity, pressed into 128 directions (LSA)."""
    bags = [
        [word for text in [concept["name"]] * 3 + concept["keywords"] for word in text.split()] for concept in concepts
    ]
    words = {word: at for at, word in enumerate(sorted({word for bag in bags for word in bag}))}
    counts = torch.zeros(len(bags), len(words))
    for row, bag in enumerate(bags):
        for word in bag:
            counts[row, words[word]] += 1
    rarity = (len(bags) / (counts > 0).sum(0)).log()
    left, sizes, _ = torch.svd_lowrank(F.normalize(counts.sqrt() * rarity, dim=-1), q=128, niter=4)
    return F.normalize(left * sizes.sqrt(), dim=-1)
