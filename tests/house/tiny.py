"""A tiny real language model in a folder, and a task that can be solved: for tests of whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from pinprompt.recipe import recipe as recipes
from pinprompt.recipe.recipe import Recipe
from pinprompt.tasks.protocol import Draft, TaskInfo
from pinprompt.values import Answers, Draw, Evaluation, Floats, Prompt, Row

WORDS = [
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "bird",
    "tree",
    "house",
    "river",
    "stone",
    "cloud",
    "rain",
    "sun",
    "moon",
    "star",
    "fish",
    "book",
    "door",
    "hand",
    "song",
]
TARGET = ("blue", "cat", "moon")
FOLDER = "tiny-gpt2"


def make_lm(folder: Path) -> Path:
    """A GPT-2 of the real class and format whose tokens are mostly whole words; made once per folder."""
    path = folder / FOLDER
    if (path / "config.json").exists():
        return path
    torch.manual_seed(0)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=64, n_layer=1, n_head=4, n_positions=64))
    # A head with rows far apart, so that one state can tell the tokens from each other.
    model.lm_head.weight.data = torch.randn(len(tokenizer), 64) * 0.5
    model.transformer.wte.weight = model.lm_head.weight
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class FindTheWords:
    """A prompt is worth as many points as it has target words in their places; each split is one row."""

    info = TaskInfo("find-the-words", "find-the-words-1")
    rows: tuple[Row, ...] = (Row("train", 0, key="train"),)

    def ask(self, prompts: Sequence[Prompt], rows: Sequence[int], draws: Sequence[Draw]) -> list[Answers]:
        return [Answers(tuple(rows), [self.value(prompt.text)] * len(rows)) for prompt in prompts]

    def value(self, text: str) -> float:
        words = text.split()
        return sum(1.0 for place, word in enumerate(TARGET) if place < len(words) and words[place] == word)

    def values(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = ()) -> Floats:
        return np.array(answers.on(rows), dtype=np.float64)

    def metrics(self, answers: Answers, rows: Sequence[int], fit: Sequence[int] = (), seed: int = 0) -> Evaluation:
        return Evaluation(self.rows[rows[0]].split, {"score": float(answers.on(rows)[0])}, len(rows))

    def context(self) -> str:
        return ""

    def drafts(self) -> list[Draft]:
        return []


def recipe(folder: Path, **over: Any) -> Recipe:
    """A recipe for that task; `over` holds further settings by section."""
    raw: dict[str, Any] = {
        "method": "pin",
        "task": {"kind": "custom", "function": "tests:none"},
        "policy": {
            "model": str(make_lm(folder)),
            "length": len(TARGET),
            "k": None,
            "hidden": 64,
            "constraints": {"whole_words": True},
        },
        "q_learning": {
            "steps": 60, "prompts": 16, "batch": 64, "updates": 4, "learning_rate": 3e-3, "rho": 0.9,
            "normalise": "none", "alpha": 0.3, "eval_every": 10,
        },
        "scoring": {"memo": False, "finalists": 4},
    }  # fmt: skip
    return recipes.resolve(recipes.merge(raw, over))
