"""How fast rewrites are sampled: `pinprompt bench generate`."""

from __future__ import annotations

import time

from pinprompt.models.generator import Generator, Request, tidy
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


def measure(samples: int = 32, model: str = "smollm2") -> dict[str, float]:
    """Samples per second for 4 prompts x 2 sources, against the model's own `generate`, prompt by prompt.

    Both draw among the 10 likeliest tokens up to the same length, and cut the outputs the same way.
    """
    lm, tokenizer = load_causal_lm(model)
    generator = Generator(lm, tokenizer)
    asked = [
        Request(prompt, source, samples, seed)
        for seed, (prompt, source) in enumerate((prompt, source) for prompt in _PROMPTS for source in _SOURCES)
    ]
    _plain(generator, asked[0], 2)  # the first pass allocates
    began = time.perf_counter()
    for request in asked:
        _plain(generator, request, samples)
    theirs = time.perf_counter() - began
    began = time.perf_counter()
    made = generator.sample(asked)
    ours = time.perf_counter() - began
    total = samples * len(asked)
    return {
        "samples": float(total),
        "samples_per_second": total / ours,
        "generate_samples_per_second": total / theirs,
        "speedup": theirs / ours,
        "filled": sum(bool(text) for one in made for text in one.texts) / total,
    }


def _plain(generator: Generator, request: Request, samples: int) -> list[str]:
    """What the model's own `generate` makes of a request."""
    import torch

    tokenizer, lm = generator.tokenizer, generator.model
    inputs = tokenizer(generator.fill(request.prompt, request.text), return_tensors="pt").to(lm.device)
    torch.manual_seed(request.seed)
    with torch.no_grad():
        rows = lm.generate(
            **inputs,
            do_sample=True,
            top_k=generator.top_k,
            temperature=generator.temperature,
            max_new_tokens=generator.limit(request.text),
            num_return_sequences=samples,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        )
    ends = rows[:, inputs["input_ids"].shape[1] :]
    return [tidy(text, generator.lower) for text in tokenizer.batch_decode(ends, skip_special_tokens=True)]
