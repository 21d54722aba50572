"""A harness file and its tasks become a harness."""

from collections.abc import Sequence
from pathlib import Path

from metaharness.harness.file import (
    HarnessFile,
    check_file_leaks,
    check_lengths,
    load_harness_file,
)
from metaharness.harness.render import Renderer
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import shot_limit
from metaharness.model.load import Model
from metaharness.tasks.task import Task


def harness_from_file(
    path: str | Path, tasks: Sequence[Task] | Task, *, seed: int = 0
) -> Harness:
    """The slots that a harness file (TOML) describes, for these tasks.

    Candidates that the file lists may be used by every task; with ``from_task`` each
    task has its own, drawn with ``seed``. A slot that the file leaves out is the
    default: no exemplars, the "short" templates.

    Raises HarnessError or TaskError that name the file, the line and the remedy.
    """
    tasks = (tasks,) if isinstance(tasks, Task) else tuple(tasks)
    return build_harness(load_harness_file(path), tasks, seed=seed)


def build_harness(
    file: HarnessFile, tasks: Sequence[Task], *, seed: int = 0
) -> Harness:
    """The harness of a file that has been read; see ``harness_from_file``."""
    templates = Templates(file.templates) if file.templates else Templates()
    spec = file.exemplars
    if spec is None:
        return Harness(None, templates, **file.policies)
    if spec.pool:
        for task in tasks:
            check_file_leaks(spec, task)
        return Harness(Exemplars(spec.pool, spec.k), templates, **file.policies)
    drawn = Exemplars.from_tasks(
        tasks,
        pool=spec.from_task,
        k=spec.k,
        share_right=spec.share_right,
        seed=seed,
    )
    return Harness(drawn, templates, **file.policies)


def check_file_lengths(file: HarnessFile, harness: Harness, model: Model) -> None:
    """Refuse a listed exemplar that takes too much of the model's context.

    Raises HarnessError that names its line.
    """
    spec = file.exemplars
    if spec is None or not spec.pool:
        return
    renderer = Renderer(model.tokenizer)
    styles = {t.cache_key: t for t in harness.template.pool}.values()
    check_lengths(
        spec,
        lambda exemplar: max(len(renderer.shot(t, exemplar)) for t in styles),
        shot_limit(model, harness.k),
    )
