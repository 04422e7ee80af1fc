"""Measurements for `pinprompt bench`: ratios within one run on one machine, never a timed test."""
