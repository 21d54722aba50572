"""What a finished training is measured by: baselines, comparison, attribution."""

import dataclasses
from dataclasses import dataclass

from metaharness.harness.space import Space
from metaharness.model.adapter import adapted_model
from metaharness.model.complete import Completer
from metaharness.model.load import Model
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import Attribution, Note
from metaharness.train.attribution import attribute, seed_choice
from metaharness.train.baselines import (
    RANDOM_SEARCH,
    Selected,
    episode_items,
    episode_search,
    random_search,
)
from metaharness.train.compare import Compared, compare, deployed_key, generates
from metaharness.train.config import TrainConfig
from metaharness.train.deploy import sampled_choices
from metaharness.train.finalists import DEPLOYMENT
from metaharness.train.fitted import Fitted
from metaharness.train.loop import PHASE


@dataclass
class Results:
    """What was measured after training, as far as it came.

    searched: the random search of each task.
    """

    searched: list[Selected] = dataclasses.field(default_factory=list)
    compared: list[Compared] = dataclasses.field(default_factory=list)
    attribution: list[Attribution] = dataclasses.field(default_factory=list)
    notes: list[Note] = dataclasses.field(default_factory=list)


def deployed_model(space: Space, config: TrainConfig, fitted: Fitted) -> Model:
    """The model with the weights that training left."""
    if fitted.state.theta is None:
        return space.model
    return adapted_model(space.model, fitted.state.theta, config.lora)


def writer_of(model: Model, config: TrainConfig) -> Completer:
    """What writes the answers of the finished run."""
    return Completer(
        model,
        tokens_at_once=config.episodes.tokens_at_once,
        implementation=config.attention,
    )


def measure_results(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    counter: BudgetCounter,
    results: Results,
) -> bool:
    """Comparison and attribution, into ``results``; False when Ctrl-C cut it short.

    Where weights were trained, every harness of the comparison reads the trained ones,
    so that it compares harnesses; what the weights bring is the attribution's.
    """
    theta = fitted.state.theta
    model, adapted = deployed_model(space, config, fitted), None
    if theta is not None:
        adapted = model.decoder
        results.notes.append(
            Note(
                "Every row of the score table reads the trained weights; what the "
                "weights brought is under “What brought the gain”.",
                "info",
            )
        )
    deployed = dataclasses.replace(space, model=model)
    writer = writer_of(model, config)
    whole = _compare(deployed, config, fitted, writer, counter, results)
    if whole and (theta is not None or space.harness.policy_slots):
        results.attribution += attribute(
            space,
            adapted,
            seed_choices=[seed_choice(space, i) for i in range(space.num_tasks)],
            learned=fitted.choices(space),
            config=config.evaluation,
            seed=config.seed,
            counter=counter,
            # with weights each cell of the table has a model of its own
            writer=None if theta is not None else writer,
            quiet=config.quiet,
        )
    return whole


def _compare(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    writer: Completer,
    counter: BudgetCounter,
    results: Results,
) -> bool:
    """Random search at the tokens of training, then all methods on test items."""
    notes = results.notes
    spent = counter.counts(PHASE) + counter.counts(DEPLOYMENT)
    num_items = config.evaluation.validation_items
    if space.harness.policy_slots:
        num_items = episode_items(config)
        tried = episode_search(
            space,
            config,
            writer,
            max_tokens=max(spent.token_passes, 1),
            counter=counter,
            cache=None,
        )
    else:
        tried = random_search(
            space,
            items=config.evaluation.validation_items,
            num_packs=config.evaluation.validation_packs,
            pack_width=config.search.pack_width,
            max_tokens=max(spent.token_passes, 1),
            chunk=config.search.chunk,
            seed=config.seed,
            counter=counter,
            quiet=config.quiet,
        )
    results.searched = tried
    numbers = sorted({len(one.choices) for one in tried})
    numbers = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    notes.append(
        Note(
            f"Best random harness: the best of {numbers} a task on "
            f"up to {num_items} validation items, for "
            f"{counter.counts(RANDOM_SEARCH).token_passes:,} tokens; training and the "
            f"choice of what to deploy used {spent.token_passes:,} "
            f"({spent.token_forwards:,} forward, {spent.backward_tokens:,} backward).",
            "info",
        )
    )
    evaluation = config.evaluation
    long = [
        task.name
        for task in space.tasks
        if evaluation.generate and task.scorer and not generates(evaluation, task)
    ]
    if long:
        notes.append(
            Note(
                f"No exact match for {', '.join(long)}: answers may take more than "
                f"{evaluation.generate_tokens} tokens; to have them written, raise "
                "evaluation.generate_tokens.",
                "info",
            )
        )
    results.compared = compare(
        space,
        evaluation,
        learned=fitted.choices(space),
        sampled=sampled_choices(
            space,
            fitted.state,
            config.evaluation.sampled_harnesses,
            deployed_key(config.seed),
        ),
        best_random=tried,
        seed=config.seed,
        counter=counter,
        writer=writer,
        quiet=config.quiet,
    )
    return len(results.compared) == space.num_tasks
