"""`metaharness train`: learn a harness, weights or both; leave a run directory."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metaharness.errors import InputError
from metaharness.train.config import TrainConfig

if TYPE_CHECKING:
    from metaharness.harness.slots import Harness
    from metaharness.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Train(TrainConfig):
    """Learn a harness for one or several tasks, and compare it with random ones.

    Without options: four generated tasks on the embedded model, minutes on two cores.

    It leaves a run directory with the learned harness and report.html.

    With --schedule.kind two-stage LoRA weights are trained beside the harness.
    """

    resume: Path | None = None
    """run directory to go on with; it keeps its own options"""

    def execute(self) -> int:
        """Train, print the table; 130 when Ctrl-C cut it short."""
        from metaharness.harness.defaults import harness_path
        from metaharness.harness.file import load_harness_file
        from metaharness.harness.from_file import build_harness, check_file_lengths
        from metaharness.model.load import load_model
        from metaharness.tasks.registry import load_task
        from metaharness.train.run import check_names, print_run, train

        # What is cheap to refuse comes first; the model is slow to load.
        file = None
        if self.harness:
            file = load_harness_file(harness_path(self.harness, self.task))
        tasks = [
            load_task(name, data_dir=self.data_dir, seed=self.seed)
            for name in self.task
        ]
        check_names(tasks)
        if file:
            harness = build_harness(file, tasks, seed=self.seed)
        else:
            harness = self._default_harness(tasks)
        model = load_model(self.model, dtype=self.dtype)
        if file:
            check_file_lengths(file, harness, model)
        run = train(model, tasks, harness, self, resume=self.resume)
        print_run(run)
        return 130 if run.interrupted else 0

    @classmethod
    def resumed(cls, run: str) -> "Train":
        """The options of a run that was stopped, as the defaults of its going on.

        Raises RunError: there is no such run.
        """
        from metaharness.train.resume import stored_config

        stored = stored_config(Path(run))
        fields = {
            field.name: getattr(stored, field.name)
            for field in dataclasses.fields(stored)
        }
        return cls(**fields, resume=Path(run))

    def _default_harness(self, tasks: "Sequence[Task]") -> "Harness":
        from metaharness.harness.slots import Exemplars, Harness, Templates

        slots = self.slots
        for task in tasks:
            if len(task.pool) < slots.pool:
                raise InputError(
                    f"task {task.name}: expected at least {slots.pool} items in its "
                    f"pool split, got {len(task.pool)}; pass --slots.pool "
                    f"{len(task.pool)} or give the task more items"
                )
        exemplars = Exemplars.from_tasks(
            tasks,
            pool=slots.pool,
            k=slots.k,
            share_right=self.share_right,
            seed=self.seed,
        )
        return Harness(exemplars, Templates.named(slots.templates))
