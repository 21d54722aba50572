"""Settings of both stages: what step trains what, theta, guards, checkpoints."""

from dataclasses import dataclass

from metaharness.errors import InputError
from metaharness.train.ranges import check_name, check_range

SCHEDULES = ("harness", "weights", "joint", "alternate", "two-stage")
CACHES = ("exact", "stopped", "stale")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """What each update trains.

    harness: phi alone, by the steps of ``search``; the weights stay frozen.

    weights: theta alone, on harnesses drawn from phi as it is.

    joint: phi and theta by one backward pass.

    alternate: blocks of phi, then of theta, and again.

    two-stage: harness, then alternate.
    """

    kind: str = "harness"
    """harness, weights, joint, alternate or two-stage"""
    steps: int = 12
    """updates of weights, joint or alternate; harness takes those of search"""
    harness_block: int = 1
    """updates of phi in a turn of alternate"""
    weights_block: int = 2
    """updates of theta in a turn of alternate"""

    def __post_init__(self) -> None:
        check_name("schedule.kind", self.kind, SCHEDULES)
        for name in ("steps", "harness_block", "weights_block"):
            check_range(f"schedule.{name}", getattr(self, name), 1)

    @property
    def trains_weights(self) -> bool:
        """Whether theta is ever trained."""
        return self.kind != "harness"

    @property
    def trains_harness(self) -> bool:
        """Whether phi is ever trained."""
        return self.kind != "weights"


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """How theta, the LoRA weights, are trained.

    Its loss is the sequential likelihood of drawn harnesses, which is what is deployed.

    Through the gate (``through = "gate"``) three caches of the pool are on offer.

    exact: the pool is encoded inside the step and differentiated.

    stopped: encoded anew each step, keys held fixed; right value, incomplete gradient.

    stale: encoded every ``refresh`` updates; value and gradient belong to old keys.
    """

    samples: int = 4
    """harnesses of each task in an update of theta alone"""
    through: str = "sequential"
    """loss of theta in joint updates: sequential, or gate (relaxed, phi and theta by
    one backward pass through the gated pool)"""
    cache: str = "exact"
    """of the pool where theta learns through the gate: exact, stopped or stale"""
    refresh: int = 8
    """updates between two encodings of a stale cache"""
    learning_rate: float = 1e-3
    """of AdamW on theta"""
    warmup_updates: int = 2
    """updates of theta over which the learning rate rises to its value"""
    decay: str = "cosine"
    """of the learning rate after that: constant, or cosine (to 0 at the last update)"""
    weight_decay: float = 0.0
    """of AdamW"""
    clip: float = 1.0
    """largest norm of the gradient"""

    def __post_init__(self) -> None:
        check_range("weights.samples", self.samples, 1)
        check_name("weights.through", self.through, ("sequential", "gate"))
        check_name("weights.cache", self.cache, CACHES)
        if self.through == "sequential" and self.cache != "exact":
            raise InputError(
                f"weights.cache: expected exact where theta learns from sequential "
                f"prompts, got {self.cache}; set weights.through to gate"
            )
        check_range("weights.refresh", self.refresh, 1)
        check_range("weights.learning_rate", self.learning_rate, 1e-9)
        check_range("weights.warmup_updates", self.warmup_updates, 0)
        check_name("weights.decay", self.decay, ("constant", "cosine"))
        check_range("weights.weight_decay", self.weight_decay, 0)
        check_range("weights.clip", self.clip, 1e-9)


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What keeps a run honest; each has its own switch."""

    entropy_bonus: float = 0.0
    """nats of loss bought by one nat of entropy of each slot; 0 is off"""
    mask_rate: float = 0.0
    """share of the exemplar candidates left out of each update at random; 0 is off"""
    validate_every: int = 0
    """updates between two validations of the likeliest harness; 0 is off"""
    validation_packs: int = 4
    """rows of packed validation items that a validation reads"""
    rollback: float | None = 0.5
    """nats by which validation may worsen before the last good state returns; None
    never goes back"""
    patience: int = 0
    """validations without a better one before the run stops; 0 never stops"""
    finalists: int = 4
    """harnesses of a task that are measured on validation items before one is deployed:
    the likeliest, the one to start with, the best drawn; 1 deploys the likeliest"""
    retries: bool = True
    """deploy a retry policy only if it earns more than it costs on validation items"""
    leaks: bool = True
    """refuse candidates that are, or nearly are, items that results are reported on"""

    def __post_init__(self) -> None:
        check_range("guards.entropy_bonus", self.entropy_bonus, 0)
        check_range("guards.mask_rate", self.mask_rate, 0, 0.9)
        check_range("guards.validate_every", self.validate_every, 0)
        check_range("guards.validation_packs", self.validation_packs, 1)
        if self.rollback is not None:
            check_range("guards.rollback", self.rollback, 0)
        check_range("guards.patience", self.patience, 0)
        check_range("guards.finalists", self.finalists, 1)
        if self.patience and not self.validate_every:
            raise InputError(
                f"guards.patience: expected validations to count, got "
                f"{self.patience} with guards.validate_every 0; set both"
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the whole state is saved, so that a killed run can be resumed."""

    every: int = 10
    """updates between two checkpoints; the last update always has one"""
    keep: int = 2
    """newest checkpoints that are kept"""

    def __post_init__(self) -> None:
        check_range("checkpoint.every", self.every, 1)
        check_range("checkpoint.keep", self.keep, 1)
