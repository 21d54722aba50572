"""Settings that do not go together, refused before anything is run."""

from collections.abc import Sequence

from metaharness.errors import InputError
from metaharness.train.config import TrainConfig
from metaharness.train.schedule import EPISODES


def check_policies(
    config: TrainConfig, kinds: Sequence[str], slots: Sequence[str]
) -> None:
    """Refuse a schedule that would leave policies unlearned. Raises InputError."""
    if slots and config.schedule.trains_harness and EPISODES not in kinds:
        raise InputError(
            f"schedule.kind: expected updates from episodes for {', '.join(slots)}, "
            f"got {config.schedule.kind} with none; use harness, alternate or "
            "two-stage, with search.measured_steps of 1 or more"
        )


def check_parts(config: TrainConfig, num_packs: int) -> None:
    """Refuse more parts of an update than the items fill. Raises InputError."""
    search = config.search
    if search.accumulate > 1 and search.accumulate * search.packs > num_packs:
        raise InputError(
            f"search.accumulate: expected at most {num_packs // search.packs} parts of "
            f"{search.packs} rows (the training items fill {num_packs}), got "
            f"{search.accumulate}; lower it, or raise evaluation.train_items"
        )
