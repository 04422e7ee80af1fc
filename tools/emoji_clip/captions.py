"""Text for tools/emoji_clip/train.py: the tokenizer, random captions, initial concept vectors."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WINDOW = 48
UNKNOWN, START, END = "<|unknown|>", "<|startoftext|>", "<|endoftext|>"
TEMPLATES = (
    "{}", "{}", "{}", "a {}", "a picture of {}", "a picture of a {}", "an emoji of a {}", "a drawing of a {}", "the {}",
    "{} emoji", "a photo of a {}", "this is a {}", "an image of {}", "icon of {}", "{} , drawn in flat colours",
)  # fmt: skip


def make_tokenizer(concepts: list[dict[str, Any]]) -> PreTrainedTokenizerFast:
    """One token for each word of the captions, one for all other words.

    A model this small cannot learn words that are in no caption. With subword tokens, a search could combine eight of
    them to reach any point of the embedding space.
    """
    texts = [*TEMPLATES, *(text for concept in concepts for text in [concept["name"], *concept["keywords"]])]
    split = pre_tokenizers.Split(Regex(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True)
    words = sorted({word for text in texts for word, _ in split.pre_tokenize_str(text.lower())})
    vocab = {token: index for index, token in enumerate([*words, UNKNOWN, START, END])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), split
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, vocab[START]), (END, vocab[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=START, eos_token=END, pad_token=END, unk_token=UNKNOWN,
        model_max_length=WINDOW, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


class Captions:
    """Draws random captions for a concept: its name, some keywords, shuffled words, with noise words in between."""

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

    def mixed(self) -> str:
        """Words of several concepts: a caption that a search might find, and that fits no picture."""
        some = [self.random.choice(self.concepts) for _ in range(self.random.randint(3, 10))]
        return " ".join(self.random.choice([one["name"], *one["keywords"]]).split()[0] for one in some)

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
    """Initial vectors, one per concept: its words, weighted by rarity, projected to 128 dimensions (LSA)."""
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
