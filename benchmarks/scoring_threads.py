"""How close scoring is to the matrix-product limit: `python -m benchmarks.scoring_threads THREADS TEXTS [TOKENS ...]`.

Reads 24 prompts of 5 to 8 tokens after random texts with `smollm2`, in passes of at least TOKENS tokens (default: 64),
and prints the useful GFLOP/s next to those of a product of 512 rows with the same number of threads.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.search import product_limit, weights
from pinprompt.models.continuations import WholePrompts
from pinprompt.models.loading import load_causal_lm


def main() -> None:
    """Print a line for each pass size."""
    threads, count, *sizes = (int(one) for one in sys.argv[1:])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, _ = load_causal_lm("smollm2", "cpu")
    texts = [torch.randint(5, 40000, (n,)).tolist() for n in torch.randint(15, 45, (count,)).tolist()]
    paths = [tuple(torch.randint(5, 40000, (n,)).tolist()) for n in [5, 6, 7, 8] * 6]
    limit = product_limit(model)
    for tokens in sizes or [64]:
        behind = WholePrompts(model, texts, 32, tokens=tokens, limit=1 << 30)
        behind.logits(paths[:4], [5, 6])
        began = time.perf_counter()
        behind.logits(paths, [5, 6])
        work = 2 * weights(model) * count * sum(map(len, paths))
        useful = work / (time.perf_counter() - began) / 1e9
        print(f"{threads} threads, {count} texts, {tokens} tokens: {useful:.1f} of {limit:.1f} GFLOP/s")


if __name__ == "__main__":
    main()
