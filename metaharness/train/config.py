"""Settings of a training run."""

from dataclasses import dataclass, field
from pathlib import Path

from metaharness.errors import InputError
from metaharness.model.lora_config import LoraConfig
from metaharness.train.episode_config import EpisodeConfig
from metaharness.train.ranges import check_range
from metaharness.train.search_config import SearchConfig
from metaharness.train.stage_config import (
    CheckpointConfig,
    GuardConfig,
    ScheduleConfig,
    WeightsConfig,
)

DEFAULT_TASKS = (
    "number_sequence",
    "prime_factorization",
    "family_relationships",
    "isomorphic_strings",
)


@dataclass(frozen=True, kw_only=True)
class SlotConfig:
    """Pools of the harness; a harness file (--harness) replaces them."""

    pool: int = 10
    """exemplar candidates for each task, from its pool split"""
    k: int = 2
    """exemplars in a prompt"""
    share_right: float | None = None
    """share of right exemplars, the rest has wrong answers, formats or tasks; by
    default 0.5 in the default job, so that there is something to find, else 1"""
    templates: str = "short"
    """named set of templates"""

    def __post_init__(self) -> None:
        check_range("slots.pool", self.pool, 1)
        check_range("slots.k", self.k, 1, self.pool)
        if self.share_right is not None:
            check_range("slots.share_right", self.share_right, 0, 1)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """What the learned harness is compared with, and on how much."""

    train_items: int = 96
    """items of each task that the search learns from, at most"""
    validation_items: int = 32
    """items of each task that random search may select on"""
    validation_packs: int = 4
    """rows of packed validation items that each random harness reads"""
    test_items: int = 16
    """items of each task that the final table reports, read once, at the end"""
    random_harnesses: int = 4
    """random harnesses scored on the test items (mean and sd)"""
    sampled_harnesses: int = 1
    """harnesses sampled from the learned probabilities, scored on the test items"""
    generate: bool = True
    """also write and grade answers (exact match), where the task has a scorer"""
    generate_tokens: int = 128
    """tasks whose answers may take more tokens are scored by likelihood alone"""
    harnesses_at_once: int = 2
    """harnesses scored at once; memory grows with it"""

    def __post_init__(self) -> None:
        for name in ("train_items", "validation_items", "test_items"):
            check_range(f"evaluation.{name}", getattr(self, name), 1)
        check_range("evaluation.validation_packs", self.validation_packs, 1)
        check_range("evaluation.random_harnesses", self.random_harnesses, 0)
        check_range("evaluation.sampled_harnesses", self.sampled_harnesses, 0)
        check_range("evaluation.generate_tokens", self.generate_tokens, 1)
        check_range("evaluation.harnesses_at_once", self.harnesses_at_once, 1)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run: harness, weights, or both."""

    task: tuple[str, ...] = DEFAULT_TASKS
    """names of tasks, or .jsonl files; several are trained together"""
    model: str = "smollm2-135m"
    """name, folder, .gguf file or hub id"""
    harness: Path | None = None
    """harness file (TOML) with the slots and their pools; "default" is the file that
    comes with the task"""
    data_dir: Path | None = None
    """folder with local copies of data sets"""
    out: Path | None = None
    """run directory; a new one under runs/ by default"""
    seed: int = 0
    """of everything random"""
    dtype: str = "float32"
    """of the weights: float32 or bfloat16"""
    attention: str = "xla"
    """xla anywhere, or cudnn on a GPU with bfloat16"""
    max_seconds: float | None = None
    """stop the training cleanly after this time; choosing what to deploy, baselines and
    tests come after it"""
    max_tokens: int | None = None
    """stop the training cleanly after this many tokens, forward and backward"""
    max_calls: int | None = None
    """stop the training cleanly after this many model calls"""
    sinks: tuple[str, ...] = ()
    """where metrics go beside metrics.jsonl: tensorboard, wandb or trackio"""
    quiet: bool = False
    """no progress, only the result"""
    slots: SlotConfig = field(default_factory=SlotConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    episodes: EpisodeConfig = field(default_factory=EpisodeConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    guards: GuardConfig = field(default_factory=GuardConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)

    def __post_init__(self) -> None:
        if not self.task:
            raise InputError("task: expected at least one task, got none; name one")
        if len(set(self.task)) != len(self.task):
            raise InputError(
                f"task: expected different tasks, got {', '.join(self.task)}; "
                "name each once"
            )
        if self.weights.through == "gate" and self.schedule.kind != "joint":
            raise InputError(
                "weights.through: expected sequential where theta has updates of its "
                f"own (schedule.kind {self.schedule.kind}), got gate; set "
                "schedule.kind to joint"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(
                f"dtype: expected float32 or bfloat16, got {self.dtype!r}; use one"
            )
        if self.attention not in ("xla", "cudnn"):
            raise InputError(
                f"attention: expected xla or cudnn, got {self.attention!r}; use one"
            )

    @property
    def share_right(self) -> float:
        """Share of right exemplars: as set, else 0.5 for the default tasks, 1 for all
        others (nobody's own exemplars are made bad unasked)."""
        if self.slots.share_right is not None:
            return self.slots.share_right
        return 0.5 if self.task == DEFAULT_TASKS else 1.0
