"""README's task and harness file, and the least that a run can do."""

from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
OWN = ("--task", DATA / "cli/task.jsonl", "--harness", DATA / "cli/harness.toml")
LITTLE = (
    "--search.warmup-steps=1",
    "--search.relaxed-steps=1",
    "--search.measured-steps=1",
    "--search.samples=4",
    "--search.relaxed-samples=2",
    "--search.pack-width=64",
    "--evaluation.test-items=3",
    "--evaluation.random-harnesses=2",
    "--evaluation.validation-items=3",
    "--evaluation.validation-packs=1",
)
