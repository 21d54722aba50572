"""Stand-ins for wandb and trackio that take what the real ones take, and no more.

Signatures and refusals are those of wandb 0.31.0 (wandb.init, Run.log, Run.finish,
Settings.validate_run_id) and trackio 0.43.0 (trackio.init, trackio.finish, Run.log,
Run.__init__), as their wheels on PyPI have them.
"""

import importlib.machinery
import types
from typing import Any


class FakeRun:
    """Rows by step, and whether it is open."""

    def __init__(self, **given: Any):
        self.given = given
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def _take(self, data: dict[str, Any], step: int | None) -> None:
        assert not self.finished, "a finished run takes no rows"
        assert isinstance(data, dict) and type(step) is int
        assert all(isinstance(key, str) for key in data)
        assert all(type(value) in (int, float) for value in data.values())
        self.rows.append((step, data))


class WandbRun(FakeRun):
    def log(
        self,
        data: dict[str, Any],
        step: int | None = None,
        commit: bool | None = None,
    ) -> None:
        if self.rows and step is not None and step < self.rows[-1][0]:
            return  # "Steps must be monotonically increasing": dropped
        self._take(data, step)

    def finish(self, exit_code: int | None = None) -> None:
        self.finished += 1


class TrackioRun(FakeRun):
    def log(self, metrics: dict, step: int | None = None) -> None:
        reserved = {"project", "run", "timestamp", "step", "time", "metrics"}
        assert not reserved & set(metrics), "renamed with a warning"
        self._take(metrics, step)


def fake_wandb(printed: str = "") -> types.ModuleType:
    """A module whose runs are kept by id, as the server keeps them."""
    module = _module("wandb")
    module.runs = {}

    def init(
        entity: str | None = None,
        project: str | None = None,
        dir: Any = None,
        id: str | None = None,
        name: str | None = None,
        notes: str | None = None,
        tags: Any = None,
        config: Any = None,
        config_exclude_keys: Any = None,
        config_include_keys: Any = None,
        allow_val_change: bool | None = None,
        group: str | None = None,
        job_type: str | None = None,
        mode: Any = None,
        force: bool | None = None,
        reinit: Any = None,
        resume: Any = None,
        resume_from: str | None = None,
        fork_from: str | None = None,
        save_code: bool | None = None,
        tensorboard: bool | None = None,
        sync_tensorboard: bool | None = None,
        monitor_gym: bool | None = None,
        settings: Any = None,
    ) -> WandbRun:
        print(printed, end="")
        assert id and id == id.strip() and not set(id) & set(":;,#?/'\\%")
        assert resume in ("allow", "never", "must", "auto", None)
        assert reinit in ("return_previous", "finish_previous", "create_new", None)
        assert isinstance(config, dict) and not any("." in key for key in config)
        if id in module.runs:
            assert resume == "allow", "a run of this id exists"
        given = {"project": project, "dir": dir, "name": name, "config": config}
        run = module.runs.setdefault(id, WandbRun(**given, reinit=reinit))
        run.finished = 0
        return run

    module.init = init
    return module


def fake_trackio(printed: str = "") -> types.ModuleType:
    """A module whose runs are kept by name, as its database keeps them."""
    module = _module("trackio")
    module.runs = {}
    module.current = None

    def init(
        project: str,
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        server_url: str | None = None,
        dataset_id: str | None = None,
        bucket_id: str | None = None,
        config: dict | None = None,
        resume: str = "never",
        settings: Any = None,
        private: bool | None = None,
        embed: bool = True,
        auto_log_gpu: bool | None = None,
        gpu_log_interval: float = 10.0,
        auto_log_cpu: bool | None = None,
        cpu_log_interval: float = 10.0,
        webhook_url: str | None = None,
        webhook_min_level: Any = None,
    ) -> TrackioRun:
        print(printed, end="")
        assert resume in ("must", "allow", "never") and settings is None
        assert isinstance(config, dict)
        assert not any(key.startswith("_") for key in config), "reserved"
        run = TrackioRun(project=project, config=config)
        if resume != "never":
            run = module.runs.get(name, run)
        module.runs[name] = module.current = run
        run.finished = 0
        return run

    def finish() -> None:
        if module.current is None:
            raise RuntimeError("Call trackio.init() before trackio.finish().")
        print(printed, end="")
        module.current.finished += 1
        module.current = None

    module.init, module.finish = init, finish
    return module


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    spec = importlib.machinery.ModuleSpec(name, None, origin="memory")
    module.__spec__ = spec
    return module
