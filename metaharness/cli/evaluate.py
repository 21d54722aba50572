"""`metaharness evaluate`: score a harness beside zero-shot and random ones."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from metaharness.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from metaharness.harness.slots import Harness
    from metaharness.tasks.task import Task
    from metaharness.train.evaluate import Evaluation


@dataclass(frozen=True)
class Evaluate:
    """Score a harness on items that it was not trained on.

    Give a run directory; or a task, and with it a model and a harness if you like.

    A harness file has no learned choice: the first candidates of its slots are scored,
    and others drawn at random.

    Every graded episode is kept in a run directory; the same command with the same
    --out goes on where it was stopped.
    """

    run: Annotated[Path | None, Positional, arg(metavar="RUN")] = None
    """run directory: its tasks, model, seed and learned harness"""
    task: tuple[str, ...] = ()
    """names of tasks, or .jsonl files; the run's by default"""
    model: str | None = None
    """name, folder, .gguf file or hub id; the run's by default"""
    harness: Path | None = None
    """run directory, harness.json or harness file (TOML); "default" is the file that
    comes with the task"""
    data_dir: Path | None = None
    """folder with local copies of data sets"""
    split: Literal["test", "validation"] = "test"
    """which items"""
    limit: int = 64
    """items of each task, the first ones of the split"""
    samples: int = 1
    """episodes of each harness and item; several need a temperature"""
    temperature: float = 0.0
    """of the written answers; 0 is greedy"""
    random_harnesses: int = 4
    """random harnesses of the same pools to compare with"""
    no_generate: bool = False
    """likelihood only; otherwise answers are also written and graded"""
    seed: int | None = None
    """decides the splits, the samples and the random harnesses; the run's by default,
    else 0"""
    max_calls: int | None = None
    """stop cleanly after this many calls of the model"""
    dry_run: bool = False
    """only say what it will cost"""
    pilot: int = 0
    """with --dry-run: items of each task to run first, for an estimate of what will be
    written; they are kept"""
    tokens_at_once: int = 16384
    """tokens of one batch of generation, padding included; memory grows with it"""
    no_adapter: bool = False
    """read the base weights, where the run trained an adapter"""
    dtype: str = "float32"
    """of the weights: float32 or bfloat16"""
    out: Path | None = None
    """run directory; a new one under runs/ by default"""
    quiet: bool = False
    """no progress, only the result"""

    def execute(self) -> int:
        """Print the table and where episodes ended; leave a run directory."""
        from metaharness.harness.grading import Sampling
        from metaharness.harness.learned import load_learned
        from metaharness.model.adapter import has_adapter, with_adapter
        from metaharness.model.load import load_model
        from metaharness.runlog.budget import Budget, BudgetCounter
        from metaharness.runlog.rundir import new_path
        from metaharness.runlog.table import wide_console
        from metaharness.tasks.registry import load_task
        from metaharness.train.evaluate import plan_evaluation, run_evaluation
        from metaharness.train.evaluate_run import EvaluationRun
        from metaharness.train.resume import data_digests

        settings = self._settings()
        self._check()
        learned = None
        source = self._source(settings["task"])
        if source and source.suffix != ".toml":
            learned = load_learned(source)
        tasks = [
            load_task(name, data_dir=settings["data_dir"], seed=settings["seed"])
            for name in settings["task"]
        ]
        for task in tasks if learned else ():
            learned.choice(task.name)  # refused before the model is loaded
        harness = learned or self._slots(source, tasks, settings["seed"])
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
        plans = plan_evaluation(
            model,
            tasks,
            harness,
            split=self.split,
            limit=self.limit,
            random_harnesses=self.random_harnesses,
            seed=settings["seed"],
        )
        sampling = Sampling(self.samples, self.temperature, settings["seed"])
        if self.dry_run and not self.pilot:
            from metaharness.cli.forecast import print_forecast

            print_forecast(console, plans, sampling, generate=not self.no_generate)
            return 0
        counter = BudgetCounter({"": Budget(max_calls=self.max_calls)})
        slots = learned.harness if learned else harness
        asked = {
            **settings,
            "split": self.split,
            "limit": self.limit,
            "samples": self.samples,
            "temperature": self.temperature,
            "random_harnesses": self.random_harnesses,
            "generate": not self.no_generate,
            "dtype": self.dtype,
        }
        with EvaluationRun(
            self.out or new_path(Path("runs"), "evaluate"),
            asked,
            data_digests(model, tasks, slots),
        ) as run:
            if run.num_done and not self.quiet:
                print(f"{run.num_done} episodes were done before", file=sys.stderr)
            if self.dry_run:
                from metaharness.cli.forecast import run_pilot

                run_pilot(
                    console,
                    plans,
                    sampling,
                    self.pilot,
                    run,
                    counter,
                    tokens_at_once=self.tokens_at_once,
                    quiet=self.quiet,
                )
                return 0
            result = run_evaluation(
                plans,
                counter=counter,
                generate=not self.no_generate,
                sampling=sampling,
                cache=run.cache,
                done=run.done,
                on_finish=run.keep,
                tokens_at_once=self.tokens_at_once,
                quiet=self.quiet,
            )
            run.write(plans, result)
            self._print(console, result, run.path)
        return 0

    def _print(self, console: "Console", result: "Evaluation", path: Path) -> None:
        from metaharness.runlog.table import reached_table
        from metaharness.train.evaluate_run import passes, reached

        if result.scores:
            console.print(result.table())
        for compared in result.compared:
            found = reached(compared)
            if found:
                console.print(f"{compared.task}: where episodes ended", markup=False)
                console.print(reached_table(found))
            for method, own in passes(compared).items():
                said = ", ".join(f"{k} {share:.1%}" for k, share in own.items())
                console.print(f"{compared.task}, {method}: {said}", markup=False)
        spent = result.counts
        cached = f", {spent.cached_calls:,} more from the cache"
        console.print(
            f"{self.split} split; {spent.lm_calls:,} calls"
            f"{cached if spent.cached_calls else ''}; {spent.token_forwards:,} tokens "
            f"read and written, {spent.generated_tokens:,} of them written; "
            f"{spent.seconds:.1f} s",
            highlight=False,
        )
        if result.stopped:
            console.print(
                f"Stopped early: {result.stopped}. Rewards are of the items that every "
                f"harness has answered; go on with the same command and --out {path}",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
        console.print(f"run: {path}", markup=False, soft_wrap=True)

    def _check(self) -> None:
        for name, least in (("samples", 1), ("pilot", 0), ("tokens_at_once", 1)):
            if getattr(self, name) < least:
                raise InputError(
                    f"{name.replace('_', '-')}: expected {least} or more, got "
                    f"{getattr(self, name)}; raise it"
                )
        if self.pilot and not self.dry_run:
            raise InputError(
                f"pilot: expected it only with --dry-run, got {self.pilot}; add "
                "--dry-run or leave it out"
            )
        if not 0 <= self.temperature <= 10:
            raise InputError(
                f"temperature: expected 0 to 10, got {self.temperature}; correct it"
            )

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

    def _source(self, task_names: "Sequence[str]") -> Path | None:
        """Where the harness comes from, None for a bare one."""
        if self.harness is None:
            return self.run
        from metaharness.harness.defaults import harness_path

        return harness_path(self.harness, task_names)

    def _slots(
        self, source: Path | None, tasks: "Sequence[Task]", seed: int
    ) -> "Harness":
        if source is None:
            from metaharness.train.evaluate import bare_harness

            return bare_harness(tasks)
        from metaharness.harness.from_file import harness_from_file

        return harness_from_file(source, tasks, seed=seed)
