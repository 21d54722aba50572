"""The continuous part of a harness: the label bias of deployed output policies."""

import dataclasses

from metaharness.harness.episodes import Writer
from metaharness.harness.label_bias import learn_label_bias
from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.train.config import TrainConfig
from metaharness.train.fitted import Fitted
from metaharness.train.loop import PHASE


def fit_biases(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    writer: Writer,
    *,
    counter: BudgetCounter,
) -> tuple[Space, Fitted]:
    """The space whose deployed output policies have their bias, and what was done.

    For each task whose deployed policy chooses among labels and has no bias yet, it is
    fitted on the training items under the deployed prompt. Where several tasks deploy
    one policy, the first one's items decide.
    """
    if not config.episodes.label_bias:
        return space, fitted
    pool, notes = list(space.harness.output), list(fitted.notes)
    with counter.phase(PHASE):
        for task, choice in zip(space.tasks, fitted.choices(space), strict=True):
            policy = pool[choice.output] if pool else None
            if policy is None or not policy.constrain or policy.bias:
                continue
            items = task.train[: config.evaluation.train_items]
            learned = learn_label_bias(space, choice, items, writer, counter=counter)
            pool[choice.output] = learned
            said = ", ".join(
                f"{label} {shift:+.2f}"
                for label, shift in zip(learned.labels, learned.bias, strict=True)
            )
            notes.append(
                f"Label bias of {policy.name}, fitted on {len(items)} training items "
                f"of {task.name}, in nats: {said}."
            )
    harness = dataclasses.replace(space.harness, output=tuple(pool))
    return (
        dataclasses.replace(space, harness=harness),
        dataclasses.replace(fitted, notes=tuple(notes)),
    )
