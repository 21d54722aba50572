"""Trainable harnesses for language models.

    import metaharness as mh

    model = mh.load_model("smollm2-135m")
    task = mh.load_task("number_sequence")
    exemplars = mh.Exemplars.from_task(task, pool=10, k=2)
    harness = mh.Harness(exemplars=exemplars, template=mh.Templates.named("short"))
    run = mh.train(model, task, harness)

A name is loaded when it is first used, so that the command line starts quickly.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Imported before `train` is defined: a folder's first import binds its name here, and
# would otherwise replace the function later.
import metaharness.train  # noqa: F401

if TYPE_CHECKING:
    from metaharness.harness.slots import Harness
    from metaharness.model.load import Model
    from metaharness.tasks.task import Task
    from metaharness.train.config import TrainConfig
    from metaharness.train.run import Run

# Public name -> the module that defines it, and its name there where that differs.
_HOMES = {
    "Choice": "metaharness.harness.slots",
    "EvalConfig": "metaharness.train.config",
    "Evaluation": "metaharness.train.evaluate",
    "Exemplar": "components.exemplars",
    "Exemplars": "metaharness.harness.slots",
    "Harness": "metaharness.harness.slots",
    "GuardConfig": "metaharness.train.stage_config",
    "HarnessError": "metaharness.errors",
    "InputError": "metaharness.errors",
    "Item": "metaharness.tasks.task",
    "LoraConfig": "metaharness.model.lora_config",
    "Learned": "metaharness.harness.learned",
    "Model": "metaharness.model.load",
    "Run": "metaharness.train.run",
    "RunError": "metaharness.errors",
    "ScheduleConfig": "metaharness.train.stage_config",
    "SearchConfig": "metaharness.train.search_config",
    "SlotConfig": "metaharness.train.config",
    "SplitSizes": "metaharness.tasks.task",
    "Task": "metaharness.tasks.task",
    "TaskError": "metaharness.errors",
    "Template": "components.templates",
    "Templates": "metaharness.harness.slots",
    "TrainConfig": "metaharness.train.config",
    "WeightsConfig": "metaharness.train.stage_config",
    "WeightsError": "metaharness.errors",
    "evaluate": "metaharness.train.evaluate",
    "generate": "metaharness.harness.answer",
    "harness_from_file": "metaharness.harness.from_file",
    "load_harness": "metaharness.harness.learned:load_learned",
    "load_model": "metaharness.model.load",
    "load_task": "metaharness.tasks.registry",
    "task_names": "metaharness.tasks.registry",
    "with_adapter": "metaharness.model.adapter",
}

__all__ = [*_HOMES, "train"]


def train(
    model: "Model",
    task: "Task | Sequence[Task]",
    harness: "Harness",
    config: "TrainConfig | None" = None,
    *,
    resume: "str | Path | None" = None,
) -> "Run":
    """Learn a harness, weights or both; see `metaharness.train.run.train`."""
    from metaharness.train.run import train

    return train(model, task, harness, config, resume=resume)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'metaharness' has no attribute {name!r}")
    module, _, other_name = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), other_name or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _check_siblings() -> None:
    """Both packages that this one is built on lie beside it, and nothing hides them."""
    root = Path(__file__).resolve().parent.parent
    for name in ("components", "estimators"):
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or [spec.origin]) if spec else []
        found = Path(places[0]).resolve() if places else None
        if found != root / name:
            raise ImportError(
                f"metaharness: expected its package {name!r} at {root / name}, got "
                f"{found or 'none'}; rename or remove what hides it, or put {root} "
                "first on the path"
            )


_check_siblings()
