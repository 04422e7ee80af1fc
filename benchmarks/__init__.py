"""Measurements of speed, as ratios within one run on one machine: `make bench`. No test depends on a time."""

BENCHES = {
    "update": "one update of psi against the released formulation",
    "step": "one whole step at OPT-125M's shape",
    "write": "writing prompts with and without the tree of prefixes",
    "score": "scoring prompts with and without each saving",
    "score_large": "the same with qwen-coder in bfloat16; runs only if it is named, since the model has 1.1 GB",
    "generate": "rewriting texts against the model's own generate",
    "search": "a whole search, with the share of each phase",
    "neighbour": "passes of a model beside a process that keeps one core busy",
    "clip": "scoring prompts against a picture, trimmed against padded",
    "invert": "whole searches for words: prompts scored in a second",
    "scale": "a thousand workers with stragglers, lost nodes and rate limits, simulated",
}
"""Every measurement, by the name of its module in this package."""
ON_REQUEST = ("score_large",)
