"""Data: file readers, few-shot splits, and built-in datasets."""
