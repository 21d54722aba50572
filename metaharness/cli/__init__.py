"""The command line: train, evaluate, show, generate, tasks, models."""

from metaharness.cli.entry import main

__all__ = ["main"]
