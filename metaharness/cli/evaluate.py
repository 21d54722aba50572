"""`metaharness evaluate`: score a harness beside zero-shot and random ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from metaharness.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metaharness.harness.slots import Harness
    from metaharness.model.load import Model
    from metaharness.tasks.task import Task


@dataclass(frozen=True)
class Evaluate:
    """Score a harness on items that it was not trained on.

    Give a run directory; or a task, and with it a model and a harness if you like.

    A harness file has no learned choice: its candidates are then drawn at random.
    """

    run: Annotated[Path | None, Positional, arg(metavar="RUN")] = None
    """run directory: its tasks, model, seed and learned harness"""
    task: tuple[str, ...] = ()
    """names of tasks, or .jsonl files; the run's by default"""
    model: str | None = None
    """name, folder, .gguf file or hub id; the run's by default"""
    harness: Path | None = None
    """run directory, harness.json or harness file (TOML)"""
    data_dir: Path | None = None
    """folder with local copies of data sets"""
    split: Literal["test", "validation"] = "test"
    """which items"""
    limit: int = 64
    """items of each task, the first ones of the split"""
    random_harnesses: int = 4
    """random harnesses of the same pools to compare with"""
    no_generate: bool = False
    """likelihood only; otherwise answers are also written and graded"""
    generate_tokens: int = 128
    """tasks whose answers may take more tokens are scored by likelihood alone"""
    seed: int | None = None
    """decides the splits and the random harnesses; the run's by default, else 0"""
    no_adapter: bool = False
    """read the base weights, where the run trained an adapter"""
    dtype: str = "float32"
    """of the weights: float32 or bfloat16"""
    out: Path | None = None
    """also write the scores as JSON to this file"""
    quiet: bool = False
    """no progress, only the result"""

    def execute(self) -> int:
        """Print the table, and write the scores where asked."""
        from metaharness.harness.learned import load_learned
        from metaharness.model.adapter import has_adapter, with_adapter
        from metaharness.model.load import load_model
        from metaharness.runlog.table import wide_console
        from metaharness.tasks.registry import load_task
        from metaharness.train.evaluate import evaluate

        settings = self._settings()
        learned = None
        source = self.harness or self.run
        if source and source.suffix != ".toml":
            learned = load_learned(source)
        tasks = [
            load_task(name, data_dir=settings["data_dir"], seed=settings["seed"])
            for name in settings["task"]
        ]
        for task in tasks if learned else ():
            learned.choice(task.name)  # refused before the model is loaded
        harness = learned or self._slots(tasks, settings["seed"])
        model = load_model(settings["model"], dtype=self.dtype)
        if self.run and has_adapter(self.run) and not self.no_adapter:
            model = with_adapter(model, self.run)
        console = wide_console()
        if learned and model.digest != learned.theta_digest:
            console.print(
                f"The harness was learned for other weights ({learned.model}, sha256 "
                f"{learned.theta_digest[:12]}…).",
                style="yellow",
                highlight=False,
            )
        result = evaluate(
            model,
            tasks,
            harness,
            split=self.split,
            limit=self.limit,
            random_harnesses=self.random_harnesses,
            generate=not self.no_generate,
            generate_tokens=self.generate_tokens,
            seed=settings["seed"],
            quiet=self.quiet,
        )
        console.print(result.table())
        spent = result.counts
        console.print(
            f"{self.split} split; {spent.token_forwards:,} tokens read and written, "
            f"{spent.seconds:.1f} s",
            highlight=False,
        )
        if self.out:
            self._write(result.scores, settings, model)
        return 0

    def _settings(self) -> dict[str, Any]:
        """Tasks, data, seed and model: the run's, unless given."""
        found: dict[str, Any] = {}
        if self.run:
            from metaharness.runlog.rundir import RunDirectory

            found = RunDirectory.open(self.run).config
        names = list(self.task) or found.get("task", [])
        if not names:
            raise InputError(
                "evaluate: expected a run directory or --task, got neither; name one"
            )
        data_dir = self.data_dir or found.get("data_dir")
        return {
            "task": names,
            "data_dir": Path(data_dir) if data_dir else None,
            "seed": found.get("seed", 0) if self.seed is None else self.seed,
            "model": self.model or found.get("model", "smollm2-135m"),
        }

    def _slots(self, tasks: "Sequence[Task]", seed: int) -> "Harness":
        if self.harness is None:
            from metaharness.train.evaluate import bare_harness

            return bare_harness()
        from metaharness.harness.from_file import harness_from_file

        return harness_from_file(self.harness, tasks, seed=seed)

    def _write(self, scores: Any, settings: dict[str, Any], model: "Model") -> None:
        from metaharness.runlog.jsonfile import json_safe, write_json

        write_json(
            self.out,
            {
                **json_safe(settings),
                "digest": model.digest,
                "split": self.split,
                "limit": self.limit,
                "scores": json_safe(scores),
            },
        )
