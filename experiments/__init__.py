"""Experiments: one file, one question. Run from a checkout."""
