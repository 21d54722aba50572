"""An update of phi from graded episodes: draw on the device, grade on the host, learn.

The same harnesses answer the same items in the same update, so that their losses differ
by the harness alone; texts that two of them would ask for alike are written once.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness import keys
from metaharness.harness.call_cache import CallCache
from metaharness.harness.episode import Job
from metaharness.harness.episodes import Writer, run_episodes
from metaharness.harness.objective import Problem
from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.harness.trace import Trace
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Item
from metaharness.train.config import TrainConfig
from metaharness.train.credit import credit_losses
from metaharness.train.state import TrainState
from metaharness.train.steps import Updated, make_episode_phases


class BudgetSpent(Exception):
    """The budget ended inside an update; its reason. The state is as it was before."""


class Graded(NamedTuple):
    """Means over the episodes of an update.

    loss, later: float32 ``[task, row]``, of whole episodes and of what came after the
    first attempt; reward, tokens, attempts, tool_calls: float64 ``[task]``.
    """

    loss: np.ndarray
    later: np.ndarray
    reward: np.ndarray
    tokens: np.ndarray
    attempts: np.ndarray
    tool_calls: np.ndarray


class EpisodeUpdate:
    """Both halves of the update, each traced once; reuse it for other seeds."""

    def __init__(self, space: Space, config: TrainConfig) -> None:
        self._space, self._config = space, config
        phases = make_episode_phases(space, config)
        self._ask = jax.jit(phases.ask)

        def tell(state, problem, active, asked, episode, later):
            losses, effects = credit_losses(
                space,
                config,
                state.effects,
                asked.draw.outcomes,
                asked.total.losses,
                episode,
                later,
            )
            state, out = phases.tell(state, problem, active, asked, losses)
            if config.episodes.prompt_loss == "episode":
                loss = (asked.draw.coef * episode).sum(-1) * space.num_tasks
                out = out._replace(loss=loss, rows=episode)
            return state._replace(effects=effects), out

        self._tell = jax.jit(tell, donate_argnums=0)

    def __call__(
        self,
        state: TrainState,
        problem: Problem,
        active: jax.Array,
        *,
        seed: int,
        writer: Writer,
        counter: BudgetCounter,
        cache: CallCache | None,
    ) -> tuple[TrainState, Updated, Graded]:
        """One update; the state is donated.

        seed: the run's; items and sampled texts follow from it and from the step.

        Raises BudgetSpent.
        """
        asked = self._ask(state, problem, active)
        outcomes = jax.device_get(asked.draw.outcomes)
        graded = self._grade(outcomes, seed, int(state.step), writer, counter, cache)
        state, out = self._tell(
            state,
            problem,
            active,
            asked,
            jnp.asarray(graded.loss),
            jnp.asarray(graded.later),
        )
        return state, out, graded

    def _grade(self, outcomes, seed, step, writer, counter, cache) -> Graded:
        space, episodes = self._space, self._config.episodes
        rng = keys.host_generator(seed, stage="search", step=step, purpose="items")
        sampled = keys.host_generator(
            seed, stage="search", step=step, purpose="generate"
        )
        own_seed = int(sampled.integers(2**32))
        by_task = []
        for index, task in enumerate(space.tasks):
            items = draw_items(task.train, self._config, rng)
            choices = choices_of(space, outcomes, index)
            jobs = [
                Job(choice, item, sample, episodes.temperature, own_seed)
                for choice in choices
                for item in items
                for sample in range(episodes.samples)
            ]
            done = run_episodes(
                space,
                task,
                jobs,
                writer,
                counter=counter,
                cache=cache,
                at_once=episodes.at_once,
            )
            if any(trace is None for trace in done.traces):
                raise BudgetSpent(done.stopped)
            by_task.append(_means(done.traces, len(choices), episodes.token_price))
        return Graded(*map(np.stack, zip(*by_task, strict=True)))


def draw_items(
    items: tuple[Item, ...], config: TrainConfig, rng: np.random.Generator
) -> list[Item]:
    """The items of an update, without replacement, of the first ``train_items``."""
    stock = items[: config.evaluation.train_items]
    num = min(config.episodes.items, len(stock))
    return [stock[i] for i in sorted(rng.choice(len(stock), num, replace=False))]


def choices_of(
    space: Space, outcomes: Mapping[str, np.ndarray], task: int
) -> list[Choice]:
    """The harness of each row of one task's draw."""
    rows = len(outcomes[TEMPLATE][task])
    out = []
    for row in range(rows):
        shots: tuple[int, ...] = ()
        if EXEMPLARS in outcomes:
            shots = tuple(int(i) for i in outcomes[EXEMPLARS][task][row])
        single = {
            slot: int(outcomes[slot][task][row][0])
            for slot in (TEMPLATE, *space.harness.policy_slots)
        }
        out.append(Choice(shots, **single))
    return out


def _means(traces: list[Trace], rows: int, price: float) -> tuple[Any, ...]:
    def by_row(value) -> np.ndarray:
        table = np.array([value(trace) for trace in traces], np.float64)
        return table.reshape(rows, -1).mean(axis=1)

    return (
        by_row(lambda trace: trace.loss(price)).astype(np.float32),
        by_row(lambda trace: trace.loss_after_first(price)).astype(np.float32),
        *(
            by_row(value).mean()
            for value in (
                lambda trace: trace.reward,
                lambda trace: trace.tokens,
                lambda trace: trace.attempts,
                lambda trace: trace.tool_calls,
            )
        ),
    )
