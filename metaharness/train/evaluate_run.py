"""An evaluation as a run directory: episodes kept as they end, never run twice.

config.json       what was asked for
provenance.json   code, versions, device, data
episodes.jsonl    one finished episode a line
calls.sqlite      texts that were written, for episodes that a kill cut short
scores.json       the table, where episodes ended, tokens, prompts
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from metaharness.errors import InputError
from metaharness.harness.call_cache import FILE as CALLS
from metaharness.harness.call_cache import CallCache
from metaharness.harness.episode_log import FILE as EPISODES
from metaharness.harness.episode_log import EpisodeLog, read_episodes
from metaharness.harness.slots import Choice
from metaharness.harness.trace import Trace
from metaharness.runlog import provenance
from metaharness.runlog.jsonfile import differences, json_safe
from metaharness.runlog.report_data import METHODS
from metaharness.runlog.rundir import RunDirectory
from metaharness.tasks.pass_at_k import pass_at_k
from metaharness.train.compare import Compared
from metaharness.train.evaluate import Evaluation, Plan

SCORES = "scores.json"


class EvaluationRun:
    """An open run directory. A context manager.

    cache: texts that were written; done: task -> its finished episodes by (harness, uid
    of the item, sample).
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], data: Mapping[str, str]
    ) -> None:
        """Make the folder, or go on with the evaluation that it holds.

        settings: what decides the numbers; data: digests by name.

        Raises InputError naming what differs from the evaluation in the folder.
        """
        settings = json_safe({**settings, "digests": dict(data)})
        path = Path(path)
        self.resumed = (path / "config.json").is_file()
        if self.resumed:
            self._run = RunDirectory.open(path)
            _check_same(path, self._run.config, settings)
        else:
            self._run = RunDirectory.create(
                path,
                config=settings,
                provenance=provenance.collect(argv=sys.argv, data=data),
            )
        self.done: dict[str, dict[tuple[Choice, str, int], Trace]] = {}
        if (path / EPISODES).is_file():
            for trace, _, _ in read_episodes(path):
                own = self.done.setdefault(trace.task, {})
                own[trace.choice, trace.uid, trace.sample] = trace
        with ExitStack() as stack:
            self._log = stack.enter_context(EpisodeLog(path))
            self.cache = stack.enter_context(CallCache(path / CALLS))
            self._stack = stack.pop_all()

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def provenance(self) -> dict[str, Any]:
        """Code, versions, device and data of the session that opened it first."""
        return self._run.provenance

    @property
    def num_done(self) -> int:
        """Episodes that were finished when it was opened."""
        return sum(map(len, self.done.values()))

    def keep(self, plan: Plan, trace: Trace) -> None:
        """Write a finished episode at once."""
        item = next(item for item in plan.items if item.uid == trace.uid)
        self._log.append(trace, item)

    def write(self, plans: Sequence[Plan], result: Evaluation) -> None:
        """Write scores.json."""
        self._run.write_json(
            SCORES,
            {
                "scores": json_safe(result.scores),
                "reached": {one.task: reached(one) for one in result.compared},
                "pass_at_k": {one.task: passes(one) for one in result.compared},
                "counts": json_safe(result.counts),
                "stopped": result.stopped,
                "prompts": prompts(plans),
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def prompts(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """What each method's first harness asks of the first item; the template, exemplars
    (ids, in prompt order) and policies that it has."""
    return [
        _prompt(plan, method, choices[0])
        for plan in plans
        for method, choices in plan.methods.items()
    ]


def _prompt(plan: Plan, method: str, choice: Choice) -> dict[str, Any]:
    harness, item = plan.space.harness, plan.items[0]
    template, shown = harness.parts(choice)
    return {
        "task": plan.task.name,
        "method": method,
        "item": item.uid,
        "text": plan.space.prompt_text(choice, item),
        "template": template.name,
        "exemplars": [exemplar.uid for exemplar in shown],
        "max_new_tokens": plan.task.max_new_tokens,
        "stop": list(plan.task.stop),
        "policies": json_safe(harness.policies(choice)._asdict()),
    }


def reached(compared: Compared) -> dict[str, dict[str, int]]:
    """Method -> boundary -> episodes that ended there, most first."""
    if compared.grades is None:
        return {}
    out = {}
    for method, rows in compared.members.items():
        found = Counter(
            trace.reached.value
            for h in rows
            for row in compared.grades.traces[h]
            for trace in row
            if trace is not None
        )
        out[METHODS.get(method, method)] = dict(found.most_common())
    return out


def passes(compared: Compared) -> dict[str, dict[str, float]]:
    """Method -> "pass@k" -> share of items, for k = 1, 2, 4, ... samples (Chen et al.
    2021, equation 1); empty with one sample, or rewards that are not all or nothing."""
    if compared.grades is None:
        return {}
    out: dict[str, dict[str, float]] = {}
    for method, rows in compared.members.items():
        items = [
            [trace.reward for trace in row if trace is not None]
            for h in rows
            for row in compared.grades.traces[h]
        ]
        num = min(map(len, items), default=0)
        if num < 2 or any(r not in (0.0, 1.0) for item in items for r in item):
            continue
        sizes = [1 << i for i in range(num.bit_length()) if 1 << i <= num]
        out[METHODS.get(method, method)] = {
            f"pass@{k}": float(
                np.mean([pass_at_k(len(item), int(sum(item)), k) for item in items])
            )
            for k in sizes
        }
    return out


def _check_same(
    path: Path, stored: Mapping[str, Any], asked: Mapping[str, Any]
) -> None:
    differing = differences(stored, asked)
    if differing:
        raise InputError(
            f"{path}: expected the evaluation that it holds, got {len(differing)} "
            f"other values ({', '.join(differing)}); ask for the same, or name another "
            "folder"
        )
