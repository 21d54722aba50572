"""The final comparison on test items: learned, random, best random, zero-shot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from metaharness import keys
from metaharness.harness.episodes import Writer
from metaharness.harness.grading import (
    Grades,
    needs_episodes,
    score_by_episodes,
)
from metaharness.harness.scoring import Scores, score_harnesses
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.model.complete import Completer
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.progress import Progress
from metaharness.runlog.report_data import ScoreRow
from metaharness.stats import (
    Interval,
    mean_interval,
    paired_difference,
    proportion_interval,
)
from metaharness.tasks.task import Item, Task
from metaharness.train.baselines import Selected
from metaharness.train.config import EvalConfig

ZERO_SHOT, RANDOM, BEST_RANDOM = "zero_shot", "random", "best_random"
MODE, SAMPLED = "mode", "sampled"
_RIGHT = 0.99  # rewards from here on are full ones


@dataclass(frozen=True)
class Compared:
    """Scores of one task's methods.

    members: method -> the rows of ``scores`` that belong to it; choices: one a row;
    num_tried: random harnesses that the best one was chosen from; grades: episodes,
    None where none was run.
    """

    task: str
    choices: list[Choice]
    members: dict[str, list[int]]
    scores: Scores
    seconds: float
    num_tried: int = 1
    grades: Grades | None = None

    @property
    def answered(self) -> np.ndarray:
        """bool ``[item]``: every harness has a reward."""
        return np.isfinite(self.scores.reward).all(axis=0)


def compare(
    space: Space,
    config: EvalConfig,
    *,
    learned: Sequence[Choice],
    sampled: Sequence[Sequence[Choice]],
    best_random: Sequence[Selected],
    seed: int,
    counter: BudgetCounter,
    writer: Writer | None = None,
    quiet: bool = False,
) -> list[Compared]:
    """Score every method on the first ``test_items`` of each task's test split.

    Where policies decide, answers are graded by the episodes that ``writer`` writes
    (the space's model by default). Ctrl-C ends it; the tasks compared so far are
    returned.
    """
    plans = []
    for index in range(space.num_tasks):
        rng = keys.host_generator(
            seed, stage="test", step=index, purpose="random_harness"
        )
        rows = {
            ZERO_SHOT: [Choice((), 0)],
            RANDOM: space.harness.random_choices(
                config.random_harnesses, index, space.num_tasks, rng
            ),
            BEST_RANDOM: [one.best for one in best_random[index : index + 1]],
            MODE: [learned[index]],
            SAMPLED: list(sampled[index]) if sampled else [],
        }
        plans.append({method: own for method, own in rows.items() if own})
    total = sum(
        -(-len({c for own in plan.values() for c in own}) // config.harnesses_at_once)
        for plan in plans
    )
    out: list[Compared] = []
    with counter.phase("test"), Progress("test", total=total, quiet=quiet) as bar:
        before = 0
        try:
            for index, (task, plan) in enumerate(zip(space.tasks, plans, strict=True)):
                started = counter.counts("test").seconds
                unique = list(dict.fromkeys(c for own in plan.values() for c in own))
                own = -(-len(unique) // config.harnesses_at_once)
                show = _shown(bar, before, own)
                scores = score(
                    space,
                    task,
                    unique,
                    task.test[: config.test_items],
                    config,
                    counter=counter,
                    writer=writer,
                    on_progress=show,
                )
                before += own
                place = {choice: row for row, choice in enumerate(unique)}
                members = {m: [place[c] for c in own] for m, own in plan.items()}
                seconds = counter.counts("test").seconds - started
                tried = best_random[index : index + 1]
                num_tried = len(tried[0].choices) if tried else 0
                out.append(
                    Compared(task.name, unique, members, scores, seconds, num_tried)
                )
        except KeyboardInterrupt:
            pass
    return out


def score(
    space: Space,
    task: Task,
    choices: Sequence[Choice],
    items: Sequence[Item],
    config: EvalConfig,
    *,
    counter: BudgetCounter,
    writer: Writer | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Likelihoods, and graded answers where ``config`` asks for them; by whole episodes
    where the harness has policies."""
    if config.generate and needs_episodes(space, task):
        return score_by_episodes(
            space,
            task,
            choices,
            items,
            writer or Completer(space.model, implementation=space.implementation),
            counter=counter,
            harnesses_at_once=config.harnesses_at_once,
            on_progress=on_progress,
        )
    return score_harnesses(
        space,
        task,
        choices,
        items,
        generate=generates(config, task),
        counter=counter,
        harnesses_at_once=config.harnesses_at_once,
        on_progress=on_progress,
    )


def generates(config: EvalConfig, task: Task) -> bool:
    """Whether a task's answers are written and graded, beside their likelihood."""
    short = task.max_new_tokens <= config.generate_tokens
    return config.generate and short and task.scorer is not None


def _shown(bar: Progress, before: int, own: int) -> Callable[[int, int], None]:
    """Blocks of a task's scoring as its share of the bar: ``own`` steps."""
    return lambda done, total: bar.update(before + own * done // total)


def score_rows(compared: Sequence[Compared], *, seed: int) -> list[ScoreRow]:
    """Table rows with 95% intervals: every task, then all tasks together."""
    rng = keys.host_generator(seed, stage="test", step=0, purpose="bootstrap")
    rows = []
    for result in compared:
        for method in result.members:
            rows.append(_row(result, method, rng))
    if len(compared) > 1:
        for method in compared[0].members:
            if all(method in result.members for result in compared):
                rows.append(_overall(compared, method, rng))
    return rows


def _nats(result: Compared, method: str) -> np.ndarray:
    return result.scores.nats[result.members[method]]


def _row(result: Compared, method: str, rng: np.random.Generator) -> ScoreRow:
    nats = _nats(result, method)
    at = result.members[method]
    exact = reward = tokens = None
    if result.scores.reward is not None and result.answered.any():
        rewards = result.scores.reward[at][:, result.answered]
        exact = _proportion(rewards >= _RIGHT, rng)
        reward = mean_interval(rewards, rng=rng)
        if result.scores.tokens is not None:
            tokens = float(result.scores.tokens[at][:, result.answered].mean())
    difference = None
    if RANDOM in result.members and method != RANDOM:
        baseline = _nats(result, RANDOM).mean(axis=0)
        difference = paired_difference(nats.mean(axis=0), baseline, rng=rng)
    per_harness = result.seconds / len(result.choices)
    return ScoreRow(
        method=method,
        task=result.task,
        num_items=nats.shape[1],
        loss=mean_interval(nats, rng=rng),
        loss_per_token=mean_interval(nats / result.scores.num_answer, rng=rng),
        exact_match=exact,
        difference=difference,
        spread=_spread([nats]),
        num_harnesses=result.num_tried if method == BEST_RANDOM else len(at),
        prompt_tokens=float(result.scores.prompt_tokens[at].mean()),
        seconds=per_harness * len(at),
        reward=reward,
        episode_tokens=tokens,
    )


def _overall(
    compared: Sequence[Compared], method: str, rng: np.random.Generator
) -> ScoreRow:
    """Every item of every task counts once; harnesses are averaged first."""
    nats = np.concatenate([_nats(r, method).mean(axis=0) for r in compared])
    tokens = np.concatenate([r.scores.num_answer for r in compared])
    rows = [_row(result, method, rng) for result in compared]
    exact = None
    if all(row.exact_match is not None for row in rows):
        hits = [
            r.scores.reward[r.members[method]][:, r.answered] >= _RIGHT
            for r in compared
        ]
        exact = _proportion(np.concatenate(_same_rows(hits), axis=1), rng)
    reward = episode_tokens = None
    if all(row.reward is not None for row in rows):
        graded = [r.scores.reward[r.members[method]][:, r.answered] for r in compared]
        reward = mean_interval(np.concatenate(_same_rows(graded), axis=1), rng=rng)
        if all(row.episode_tokens is not None for row in rows):
            episode_tokens = float(np.mean([row.episode_tokens for row in rows]))
    difference = None
    if RANDOM in compared[0].members and method != RANDOM:
        baseline = np.concatenate([_nats(r, RANDOM).mean(axis=0) for r in compared])
        difference = paired_difference(nats, baseline, rng=rng)
    return ScoreRow(
        method=method,
        task="overall",
        num_items=len(nats),
        loss=mean_interval(nats, rng=rng),
        loss_per_token=mean_interval(nats / tokens, rng=rng),
        exact_match=exact,
        difference=difference,
        spread=_spread([_nats(r, method) for r in compared]),
        num_harnesses=max(row.num_harnesses for row in rows),
        prompt_tokens=float(np.mean([row.prompt_tokens for row in rows])),
        seconds=sum(row.seconds for row in rows),
        reward=reward,
        episode_tokens=episode_tokens,
    )


def _spread(tables: list[np.ndarray]) -> float | None:
    """Standard deviation over harnesses of the mean loss, None for one harness."""
    side_by_side = np.concatenate(_same_rows(tables), axis=1)
    if len(side_by_side) < 2:
        return None
    return float(side_by_side.mean(axis=1).std(ddof=1))


def _same_rows(tables: list[np.ndarray]) -> list[np.ndarray]:
    """Tables cut to the fewest harnesses of any task, to stand side by side."""
    fewest = min(map(len, tables))
    return [table[:fewest] for table in tables]


def _proportion(hits: np.ndarray, rng: np.random.Generator) -> Interval:
    if len(hits) == 1:
        return proportion_interval(int(hits.sum()), hits.shape[1])
    return mean_interval(hits.astype(float), rng=rng)


def deployed_key(seed: int) -> jax.Array:
    """Key of the harnesses that are sampled for the comparison."""
    return keys.derive(keys.root_key(seed), stage="test", step=0, purpose="draw")
