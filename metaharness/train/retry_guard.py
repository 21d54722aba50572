"""A retry must earn more than it costs, or it is not deployed."""

import dataclasses

import numpy as np

from metaharness import keys
from metaharness.harness.call_cache import CallCache
from metaharness.harness.episodes import Writer
from metaharness.harness.grading import Sampling, grade_harnesses
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.stats import Interval, mean_interval
from metaharness.train.config import TrainConfig
from metaharness.train.finalists import DEPLOYMENT
from metaharness.train.fitted import Fitted


def settle_retries(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    writer: Writer,
    *,
    counter: BudgetCounter,
    cache: CallCache | None = None,
) -> Fitted:
    """The harness to deploy of each task, its retries dropped where they do not pay.

    Each is graded on the validation items. What its retries changed, reward less the
    price of their tokens, is known episode by episode: had the first attempt been the
    last, the rest would not have been spent. Where the mean is a loss, the likeliest
    policy of a single attempt takes its place, if the pool has one.
    """
    once = [
        place
        for place, policy in enumerate(space.harness.retry)
        if policy.attempts == 1
    ]
    choices = fitted.choices(space)
    if not (config.guards.retries and once):
        return fitted
    notes = list(fitted.notes)
    chances = np.asarray(fitted.state.logits["retry"])
    with counter.phase(DEPLOYMENT):
        for index, (task, choice) in enumerate(zip(space.tasks, choices, strict=True)):
            if space.harness.retry[choice.retry].attempts == 1:
                continue
            change = _brought(space, config, index, choice, writer, counter, cache)
            name = space.harness.retry[choice.retry].name
            said = f"Retries of {task.name} ({name}) change the loss of an episode by "
            said += f"{change.mean:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
            if change.mean > 0:
                best = max(once, key=lambda place: chances[index][place])
                choices[index] = choice._replace(retry=best)
                said += ": they cost more than they earn, so they are not deployed"
            notes.append(f"{said}.")
    return dataclasses.replace(fitted, notes=tuple(notes), deployed=tuple(choices))


def _brought(
    space: Space,
    config: TrainConfig,
    index: int,
    choice: Choice,
    writer: Writer,
    counter: BudgetCounter,
    cache: CallCache | None,
) -> Interval:
    task, episodes = space.tasks[index], config.episodes
    grades = grade_harnesses(
        space,
        task,
        [choice],
        task.validation[: config.evaluation.validation_items],
        writer,
        counter=counter,
        sampling=Sampling(1, episodes.temperature, config.seed),
        cache=cache,
        at_once=episodes.at_once,
    )
    (changes,) = grades.table(lambda one: one.loss_after_first(episodes.token_price))
    rng = keys.host_generator(
        config.seed, stage="validation", step=index, purpose="bootstrap"
    )
    return mean_interval(changes, rng=rng)
