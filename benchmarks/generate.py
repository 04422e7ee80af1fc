"""How fast rewrites are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from transformers import StoppingCriteriaList

from pinprompt.models.generator import Generated, Generator, Request, tidy
from pinprompt.models.loading import load_causal_lm

_PROMPTS = (
    "Change the following sentence from negative sentiment to positive sentiment but keep its semantics.",
    "Rewrite this review to sound happy:",
    "great place wonderful service love",
    "I love it. Positive:",
)
_SOURCES = (
    "ever since we moved here the service has just gotten worse and worse.",
    "there is definitely not enough room in that part of the building.",
)


def measure(samples: int = 32, model: str = "smollm2", turns: int = 3) -> dict[str, float]:
    """Samples per second for 4 prompts x 2 sources, against the model's own `generate` in its fastest form.

    For `generate`, this means all requests in one left-padded batch that stops as soon as each row has a closing quote
    or the end of a sentence. Both draw from the 10 most likely tokens up to the same length, and trim the outputs in
    the same way. They alternate, and the median counts. Times are CPU seconds of this process, which other processes
    hardly change.
    """
    lm, tokenizer = load_causal_lm(model)
    generator = Generator(lm, tokenizer)
    asked = [
        Request(prompt, source, samples, seed)
        for seed, (prompt, source) in enumerate((prompt, source) for prompt in _PROMPTS for source in _SOURCES)
    ]
    batched(generator, asked[:1], 2)  # the first pass allocates
    theirs, ours = [], []
    made: list[Generated] = []
    for _ in range(turns):
        began = time.process_time()
        batched(generator, asked, samples)
        theirs.append(time.process_time() - began)
        began = time.process_time()
        made = generator.sample(asked)
        ours.append(time.process_time() - began)
    total = samples * len(asked)
    return {
        "samples": float(total),
        "samples_per_second": total / median(ours),
        "generate_samples_per_second": total / median(theirs),
        "speedup": median(theirs) / median(ours),
        "filled": sum(bool(text) for one in made for text in one.texts) / total,
    }


def batched(generator: Generator, requests: Sequence[Request], samples: int) -> list[list[str]]:
    """The outputs of the model's own `generate` for the requests, all in one batch."""
    tokenizer, lm = generator.tokenizer, generator.model
    side, pad = tokenizer.padding_side, tokenizer.pad_token
    tokenizer.padding_side, tokenizer.pad_token = "left", pad or tokenizer.eos_token
    try:
        texts = [generator.fill(request.prompt, request.text) for request in requests]
        inputs = tokenizer(texts, return_tensors="pt", padding=True).to(lm.device)
        start = inputs["input_ids"].shape[1]

        def ended(ids: Any, scores: Any, **more: Any) -> Any:
            return torch.tensor([generator.ends(int(token)) for token in ids[:, -1]], device=ids.device)

        torch.manual_seed(requests[0].seed)
        with torch.no_grad():
            rows = lm.generate(
                **inputs,
                do_sample=True,
                top_k=generator.top_k,
                temperature=generator.temperature,
                max_new_tokens=max(generator.limit(request.text) for request in requests),
                num_return_sequences=samples,
                pad_token_id=tokenizer.pad_token_id,
                stopping_criteria=StoppingCriteriaList([ended]),
            )
        raw = tokenizer.batch_decode(rows[:, start:], skip_special_tokens=True)
    finally:
        tokenizer.padding_side, tokenizer.pad_token = side, pad
    found = [tidy(text, generator.lower) for text in raw]
    return [found[place : place + samples] for place in range(0, len(found), samples)]
