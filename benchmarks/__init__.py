"""Sweeps over tasks, and speed side by side with peers. Run from a checkout."""
