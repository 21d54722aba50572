"""One training run in a process of its own, killed where the arguments say.

    python killed_run.py FOLDER [--relaxed] [--resume] [--kill KIND:NUMBER]

KIND is ``line`` (half of that row of metrics is written), ``checkpoint`` (that save has
just begun), ``update`` (before that update) or ``seconds`` (after so many, at any
place). Trains harness and weights of the tiny space, with --relaxed also through the
gate; the comparison at the end is left out.
"""

import dataclasses
import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tiny_space import TEMPLATES, make_model, make_tasks

from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.model.lora_config import LoraConfig
from metaharness.runlog import metrics
from metaharness.train import checkpoint, loop
from metaharness.train import run as run_module
from metaharness.train.config import EvalConfig, TrainConfig
from metaharness.train.search_config import SearchConfig
from metaharness.train.stage_config import (
    CheckpointConfig,
    GuardConfig,
    ScheduleConfig,
    WeightsConfig,
)

QUICK_SEED = 1
CONFIG = TrainConfig(
    schedule=ScheduleConfig(kind="two-stage", steps=6, weights_block=1),
    search=SearchConfig(
        warmup_steps=2,
        relaxed_steps=2,
        measured_steps=1,
        trust=-1,
        samples=4,
        relaxed_samples=2,
        pack_width=64,
        window=16,
        chunk=4,
    ),
    weights=WeightsConfig(samples=2, learning_rate=0.02),
    lora=LoraConfig(rank=2, targets=("q_proj", "down_proj"), dropout=0.1),
    guards=GuardConfig(
        mask_rate=0.2, validate_every=3, validation_packs=1, rollback=0.05
    ),
    checkpoint=CheckpointConfig(every=2, keep=2),
    evaluation=EvalConfig(train_items=8, validation_items=4),
    quiet=True,
)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def counted(real, number, at_that_time):
    """``real``, but its call of this number goes to ``at_that_time`` instead."""
    calls = 0

    def call(*arguments):
        nonlocal calls
        calls += 1
        return (at_that_time if calls == number else real)(*arguments)

    return call


def arm(kind: str, number: float) -> None:
    if kind == "seconds":
        threading.Timer(number, kill).start()
        return
    place, name = {
        "line": (metrics.MetricsLog, "append"),
        "checkpoint": (checkpoint.Checkpoints, "save"),
        "update": (loop._Loop, "_update"),
    }[kind]
    real = getattr(place, name)

    def half_a_line(self, row):
        line = metrics.jsonfile.dumps(row).encode()
        self._file.write(line[: len(line) // 2])
        self._file.flush()
        kill()

    def begin_saving(*arguments):
        real(*arguments)  # returns while the files are being written
        kill()

    then = {
        "line": half_a_line,
        "checkpoint": begin_saving,
        "update": lambda *_: kill(),
    }
    setattr(place, name, counted(real, number, then[kind]))


def main(folder: str, *options: str) -> None:
    if "--kill" in options:
        kind, number = options[options.index("--kill") + 1].split(":")
        arm(kind, float(number))
    run_module.measure_results = lambda *_: True
    tasks = make_tasks()
    slot = Exemplars.from_tasks(tasks, pool=4, k=2, share_right=0.5)
    harness = Harness(slot, Templates(TEMPLATES[:2]))
    if "--resume" in options:
        run_module.train(make_model(), tasks, harness, resume=folder)
    else:
        config = dataclasses.replace(CONFIG, out=Path(folder))
        if "--relaxed" not in options:
            search = dataclasses.replace(config.search, relaxed_steps=0)
            # of this seed the best validated state has trained weights
            config = dataclasses.replace(config, search=search, seed=QUICK_SEED)
        run_module.train(make_model(), tasks, harness, config)


if __name__ == "__main__":
    main(*sys.argv[1:])
