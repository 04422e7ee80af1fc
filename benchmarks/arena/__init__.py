"""Prompt optimisers beside each other on one model, the same rows and one meter: `make arena`, docs/arena.md."""
