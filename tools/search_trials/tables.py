"""Label log-probabilities of many prompts on many rows of one dataset, to simulate variants of the search.

Run it from the project's root; one core needs about 20 minutes for a dataset:
    .venv/bin/python tools/search_trials/tables.py rotten-tomatoes build/trials/rotten-tomatoes.npz
    .venv/bin/python tools/search_trials/simulate.py build/trials/rotten-tomatoes.npz
A table has the prompts of every source (see `sources`), what the writer knows about them without a call (states, label
mass, perplexity), and their label log-probabilities on balanced rows. Rows of the writer's contexts are not used. The
task model runs in bfloat16, which is twice as fast on a CPU that supports it and accurate enough for trials.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from pinprompt.data import datasets
from pinprompt.data.examples import Example
from pinprompt.policy.backbone import Backbone
from pinprompt.policy.writer import Writer
from pinprompt.recipe.sections import Constraints, PolicySettings
from pinprompt.run.readability import dictionary_words
from pinprompt.tasks.prompts import context_text, parse
from pinprompt.values import derive

ROWS = 256  # rows in a table, all classes together
SPARE = 64  # rows of each class reserved for the writer's contexts
CONTEXTS = (13, 21, 42)  # seeds of the contexts
GROUP = 64  # rows in a pass
HAND = [
    "It was",
    "It is",
    "This is",
    "That was",
    "All in all, it was",
    "Overall, it was",
    "In short,",
    "My verdict:",
    "In one word:",
    "What a",
    "The whole thing is",
    "The result is",
    "The tone is",
    "The mood is",
    "The message here is",
    "Everything about it is",
    "This makes me feel",
    "That sounds",
    "I would call it",
    "Overall, the sentiment is",
    "In summary, the review is",
    "Sentiment:",
    "The answer is",
    "Label:",
    "Category:",
    "Topic:",
    "The topic is",
    "This is about",
    "The subject is",
    "Subject:",
    "Filed under",
]
HEADS = [
    "It",
    "It is",
    "It was",
    "This",
    "This is",
    "This is about",
    "That",
    "The",
    "The topic",
    "The whole thing",
    "I",
    "I think",
    "Overall, it",
    "In short, it",
    "All in all,",
    "In other words, it is",
    "What a",
    "To me, this",
    "There is",
    "A",
]
OPENERS = [
    "All in all,",
    "In other words,",
    "To be honest,",
    "If you ask me,",
    "As far as I can tell,",
    "At the end of the day,",
    "In my opinion,",
]
CORES = [
    "this is",
    "it is",
    "it was",
    "that was",
    "the whole thing is",
    "everything about it is",
    "the tone is",
    "the mood is",
    "the sentiment is",
    "the result is",
    "the message is",
    "it makes me feel",
    "it sounds",
    "I would call it",
    "what a",
    "the answer is",
    "the topic is",
    "this is about",
    "the subject is",
    "the category is",
    "it belongs under",
    "it is all about",
    "the theme is",
]


class Cell:
    """One dataset: rows, contexts, the writer, and what the writer knows about a prompt without a call."""

    def __init__(self, name: str) -> None:
        card = datasets.lookup(name)
        self.words, self.template = card.words, parse(card.template("causal"), "causal")
        found = datasets.load(name)
        pile = [e for e in (*found.train, *found.dev, *(found.test or [])) if 5 <= len(e.text.split()) <= 60]
        classes = [sorted((e for e in pile if e.label == label), key=_order) for label in self.words]
        per_class = ROWS // len(classes)
        self.rows: list[Example] = [members[row] for row in range(per_class) for members in classes]
        self.targets = np.array([list(self.words).index(e.label) for e in self.rows])
        spare = [e for members in classes for e in members[per_class : per_class + SPARE]]
        manual = card.manual("causal")[0]
        self.contexts = {
            seed: context_text(
                sorted(spare, key=lambda e, seed=seed: derive(seed, "context", e.text)),  # type: ignore[misc]
                self.words,
                manual,
                self.template,
                2,
                derive(seed, "order"),
            ).rstrip(" ")
            for seed in CONTEXTS
        }
        self.backbone = Backbone.load("smollm2")
        self.labels = [self.ids(word)[0] for word in self.words.values()]
        self._read: tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]] | None = None

    def ids(self, text: str) -> list[int]:
        return list(self.backbone.tokenizer(" " + text, add_special_tokens=False)["input_ids"])

    def written(self, seed: int, head: str, length: int, count: int, dictionary: bool = True) -> list[str]:
        """Prompts that begin with `head` and continue with `length` words by the LM."""
        constraints = Constraints(whole_words=True, dictionary=dictionary, no_repeats="tokens")
        settings = PolicySettings(model="smollm2", length=length, k=64, constraints=constraints)
        context = f"{self.contexts[seed]} {head}".rstrip(" ")
        writer = Writer.build(settings, context, backbone=self.backbone)
        chance = torch.Generator().manual_seed(derive(seed, head, length) % 2**31)
        return [f"{head} {prompt.text}".strip() for prompt in writer.lm_sample(count, chance)]

    @torch.no_grad()
    def seen(self, text: str) -> dict[str, Any]:
        """What the writer knows about a prompt after the first context, which is read once."""
        body = self.backbone.body
        if self._read is None:
            cache, start = DynamicCache(), torch.tensor([self.backbone.start(self.contexts[CONTEXTS[0]])])
            state = body(input_ids=start, past_key_values=cache, use_cache=True).last_hidden_state[0, -1:]
            self._read = state, [(layer.keys, layer.values) for layer in cache.layers]
        first, past = self._read
        ids, cache = self.ids(text), _cache(past)
        states = body(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True).last_hidden_state[0]
        logprobs = self.backbone.logprobs(torch.cat([first, states]))
        return {
            "likelihood": float(sum(logprobs[place, token] for place, token in enumerate(ids))),
            "label_mass": float(torch.logsumexp(logprobs[-1, self.labels], 0)),
            "mean_state": states.mean(0).numpy(),
            "last_state": states[-1].numpy(),
            "perplexity": self.backbone.perplexities([text])[0],
            "dictionary": dictionary_words(text),
        }


def sources(cell: Cell) -> Iterator[tuple[str, list[str]]]:
    """The prompts of each source; for the LM, some as drawn and some with the largest label mass."""
    yield "hand", HAND
    stock = [f"{opener} {core}" for opener in OPENERS for core in CORES]
    yield "stock", random.Random(0).sample(stock, 80)
    yield "lm5", [text for seed in CONTEXTS for text in cell.written(seed, "", 5, 24, dictionary=False)]
    drawn = {
        "plain": [text for length in range(2, 8) for seed in CONTEXTS for text in cell.written(seed, "", length, 16)],
        "head": [
            text
            for n, head in enumerate(HEADS)
            for k in (1, 3, 5)
            for text in cell.written(CONTEXTS[n % 3], head, k, 5)
        ],
        "opener": [
            text
            for n, head in enumerate(OPENERS)
            for k in (2, 4)
            for text in cell.written(CONTEXTS[n % 3], head, k, 16)
        ],
    }
    for name, texts in drawn.items():
        texts = list(dict.fromkeys(texts))
        random.Random(0).shuffle(texts)
        yield name, texts[:40]
        yield f"{name}-top", sorted(texts[40:], key=lambda text: -cell.seen(text)["label_mass"])[:40]


class Rows:
    """The task model with the texts of all rows read once, in groups padded on the left."""

    @torch.no_grad()
    def __init__(self, cell: Cell, texts: Sequence[str]) -> None:
        self.model = cell.backbone.model.to(torch.bfloat16)
        self.head = cell.backbone.head[cell.labels].to(torch.float32)
        self.size = len(texts)
        ids = [list(cell.backbone.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        self.groups = []
        for start in range(0, len(order), GROUP):
            chosen = order[start : start + GROUP]
            longest = max(len(ids[row]) for row in chosen)
            given = torch.tensor([[0] * (longest - len(ids[row])) + ids[row] for row in chosen])
            mask = torch.tensor([[0] * (longest - len(ids[row])) + [1] * len(ids[row]) for row in chosen])
            cache = DynamicCache()
            places = (mask.cumsum(1) - 1).clamp(min=0)
            self.model.base_model(
                input_ids=given, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
            )
            self.groups.append((chosen, mask, [(layer.keys, layer.values) for layer in cache.layers]))

    @torch.no_grad()
    def log_probs(self, ids: Sequence[int]) -> Any:
        """Label log-probabilities [rows, C] of one prompt."""
        found = np.zeros((self.size, len(self.head)), np.float32)
        for chosen, mask, past in self.groups:
            given = torch.tensor([list(ids)] * len(chosen))
            states = self.model.base_model(
                input_ids=given,
                attention_mask=torch.cat([mask, torch.ones_like(given)], 1),
                position_ids=mask.sum(1, keepdim=True) + torch.arange(len(ids)),
                past_key_values=_cache(past),
                use_cache=True,
            ).last_hidden_state[:, -1]
            found[chosen] = torch.log_softmax(states.float() @ self.head.T, -1).numpy()
        return found


def _cache(past: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(past):
        cache.update(keys, values, layer)
    return cache


def _order(example: Example) -> int:
    return derive(0, "trial rows", example.text)


def main() -> None:
    name, out = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    cell = Cell(name)
    prompts: dict[str, str] = {}
    for source, texts in sources(cell):
        for text in texts:
            prompts.setdefault(text, source)
    known = [cell.seen(text) for text in prompts]
    print(f"{len(prompts)} prompts on {len(cell.rows)} rows")
    content_free = ("N/A", "[MASK]", "<|endoftext|>")
    rows = Rows(cell, [*(e.text for e in cell.rows), *content_free])
    logs = []
    for text in prompts:
        logs.append(rows.log_probs(cell.ids(text)))
        if len(logs) % 20 == 0:
            print(len(logs), flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        out,
        texts=np.array(list(prompts)),
        source=np.array(list(prompts.values())),
        targets=cell.targets,
        log_probs=np.stack(logs)[:, : len(cell.rows)],
        content_free=np.stack(logs)[:, len(cell.rows) :],
        **{key: np.array([one[key] for one in known]) for key in known[0]},
    )


if __name__ == "__main__":
    main()
