"""Data: readers of files, few-shot splits, and the catalogue of known datasets."""
