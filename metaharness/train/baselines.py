"""Random search, the baseline that a learned harness has to beat at equal budget."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from metaharness import keys
from metaharness.harness.call_cache import CallCache
from metaharness.harness.episodes import Writer
from metaharness.harness.grading import Sampling, grade_harnesses
from metaharness.harness.packing import Packs
from metaharness.harness.sequential import Batch, measure
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.runlog import jsonfile
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.progress import Progress
from metaharness.tasks.task import Task
from metaharness.train.config import TrainConfig

FILE = "baselines.json"

RANDOM_SEARCH = "random search"
"""Phase of the budget counter."""
AT_ONCE = 16
"""Harnesses that a search by episodes grades at once."""
MOST_TRIED = 10_000
"""Harnesses of a task that a search by episodes tries at most: where all are cached,
no tokens are spent."""


read_packs = jax.jit(
    measure, static_argnames=("width", "chunk", "implementation", "with_exact")
)
"""``measure``, compiled once for all that reads packs of one shape."""


class Selected(NamedTuple):
    """Random search of one task.

    choices: harnesses tried, in the order drawn; losses: float64 ``[harness]``, nats an
    item on the validation items (of episodes: 1 - reward + the price of tokens); best:
    the choice with the smallest loss.
    """

    choices: list[Choice]
    losses: np.ndarray
    best: Choice


def selected_json(
    tasks: Sequence[Task], selected: Sequence[Selected]
) -> dict[str, Any]:
    """What ``baselines.json`` of a run keeps: the best harness of each search."""
    return {
        "best_random": {
            task.name: {
                "choice": one.best._asdict(),
                "num_tried": len(one.choices),
                "loss": float(one.losses.min()),
            }
            for task, one in zip(tasks, selected, strict=True)
        }
    }


def read_best_random(run: Path) -> Mapping[str, Choice]:
    """Task name -> the best harness that a run's random search found; empty where it
    did not come so far."""
    path = run / FILE
    if not path.is_file():
        return {}
    found = jsonfile.read_json(path)["best_random"]
    choices = {task: one["choice"] for task, one in found.items()}
    return {
        task: Choice(**{**choice, "exemplars": tuple(choice["exemplars"])})
        for task, choice in choices.items()
    }


def random_search(
    space: Space,
    *,
    items: int,
    num_packs: int,
    pack_width: int,
    max_tokens: int,
    chunk: int,
    seed: int,
    counter: BudgetCounter,
    quiet: bool = False,
) -> list[Selected]:
    """Try random harnesses of every task on validation items; keep the best.

    Every harness reads the first ``num_packs`` packs of the first ``items`` items.
    Spends at most ``max_tokens`` token passes, shared evenly by the tasks, and tries at
    least one harness of each task. Ctrl-C keeps what has been tried.
    """
    packs = space.pack("validation", width=pack_width, limit=items)
    read = jnp.arange(min(num_packs, packs.items.shape[1]), dtype=jnp.int32)
    results = []
    with (
        counter.phase(RANDOM_SEARCH),
        Progress("random search", total=max_tokens, quiet=quiet) as bar,
    ):
        spent = 0
        for task in range(space.num_tasks):
            rng = keys.host_generator(
                seed, stage="validation", step=task, purpose="random_harness"
            )
            share = max_tokens * (task + 1) // space.num_tasks
            choices: list[Choice] = []
            losses: list[float] = []
            try:
                while True:
                    drawn = space.harness.random_choices(
                        chunk, task, space.num_tasks, rng
                    )
                    kept = _affordable(space, packs, read, task, drawn, share - spent)
                    if not kept and choices:
                        break
                    out = read_packs(
                        space.model.decoder,
                        space.table,
                        packs,
                        batch_of(drawn, task, read),
                        width=space.width,
                        chunk=chunk,
                        implementation=space.implementation,
                    )
                    keep = max(kept, 1 if not choices else 0)
                    choices += drawn[:keep]
                    losses += np.asarray(out.loss(), float)[:keep].tolist()
                    tokens = int(np.asarray(out.tokens)[:keep].sum())
                    spent += tokens
                    counter.add(
                        lm_calls=keep * int(np.asarray(out.real[0]).sum()),
                        token_forwards=tokens,
                    )
                    bar.update(min(spent, max_tokens), {"loss": min(losses)})
                    if kept < chunk:
                        break
            except KeyboardInterrupt:
                if not choices:
                    raise
            best = choices[int(np.argmin(losses))]
            results.append(Selected(choices, np.array(losses), best))
    return results


def episode_search(
    space: Space,
    config: TrainConfig,
    writer: Writer,
    *,
    max_tokens: int,
    counter: BudgetCounter,
    cache: CallCache | None,
) -> list[Selected]:
    """As ``random_search``, with graded episodes of ``episodes.items`` validation items
    in the place of likelihoods: what policies are compared at.

    Tries harnesses until about ``max_tokens`` token passes are spent, as many at once
    as those before let expect; at least one of each task.
    """
    results = []
    episodes = config.episodes
    with (
        counter.phase(RANDOM_SEARCH),
        Progress("random search", total=max_tokens, quiet=config.quiet) as bar,
    ):
        for index, task in enumerate(space.tasks):
            rng = keys.host_generator(
                config.seed, stage="validation", step=index, purpose="random_harness"
            )
            share = max_tokens * (index + 1) // space.num_tasks
            items = task.validation[: episode_items(config)]
            choices: list[Choice] = []
            losses: list[float] = []
            before = counter.counts(RANDOM_SEARCH).token_passes
            while True:
                spent = counter.counts(RANDOM_SEARCH).token_passes
                num = _next_number(spent - before, share - spent, len(choices))
                if not num or len(choices) >= MOST_TRIED:
                    break
                drawn = space.harness.random_choices(num, index, space.num_tasks, rng)
                grades = grade_harnesses(
                    space,
                    task,
                    drawn,
                    items,
                    writer,
                    counter=counter,
                    sampling=Sampling(1, episodes.temperature, config.seed),
                    cache=cache,
                    at_once=episodes.at_once,
                )
                loss = grades.table(lambda trace: trace.loss(episodes.token_price))
                choices += drawn
                losses += loss.mean(axis=1).tolist()
                spent = counter.counts(RANDOM_SEARCH).token_passes
                bar.update(min(spent, max_tokens), {"loss": min(losses)})
            best = choices[int(np.argmin(losses))]
            results.append(Selected(choices, np.array(losses), best))
    return results


def episode_items(config: TrainConfig) -> int:
    """Validation items that a search by episodes grades each harness on, at most."""
    episodes = config.episodes
    return min(config.evaluation.validation_items, episodes.items * episodes.samples)


def _next_number(spent: int, left: int, num: int) -> int:
    """How many harnesses to try next, after ``num`` for ``spent`` tokens."""
    if num == 0:
        return 1
    if spent == 0:  # all of them came from the cache
        return AT_ONCE
    return min(AT_ONCE, max(left, 0) * num // spent)


def _affordable(
    space: Space,
    packs: Packs,
    read: jax.Array,
    task: int,
    drawn: list[Choice],
    left: int,
) -> int:
    """How many of the drawn harnesses, in order, the tokens left pay for."""
    for number, choice in enumerate(drawn):
        left -= tokens_read(space, packs, read, task, choice)
        if left < 0:
            return number
    return len(drawn)


def tokens_read(
    space: Space, packs: Packs, read: ArrayLike, task: int, choice: Choice
) -> int:
    """Tokens of a harness that reads the packs of these places, padding apart."""
    own = int(packs.num_tokens[task, choice.template][read].sum())
    return len(space.prefix_tokens(choice)) + own


def batch_of(drawn: Sequence[Choice], task: int, read: jax.Array) -> Batch:
    """These harnesses of a task, each to read the packs of these places."""
    return Batch(
        jnp.full((len(drawn),), task, jnp.int32),
        jnp.asarray([choice.template for choice in drawn], jnp.int32),
        jnp.asarray([choice.exemplars for choice in drawn], jnp.int32).reshape(
            len(drawn), -1
        ),
        jnp.broadcast_to(read, (len(drawn), *read.shape)),
    )
