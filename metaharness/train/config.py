"""Settings of a training run."""

from dataclasses import dataclass, field
from pathlib import Path

from metaharness.errors import InputError

DEFAULT_TASKS = (
    "number_sequence",
    "prime_factorization",
    "family_relationships",
    "isomorphic_strings",
)


def _check(name: str, value: float, low: float, high: float = float("inf")) -> None:
    if not low <= value <= high:
        bound = f"between {low} and {high}" if high < float("inf") else f">= {low}"
        raise InputError(f"{name}: expected a value {bound}, got {value}")


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
        _check("slots.pool", self.pool, 1)
        _check("slots.k", self.k, 1, self.pool)
        if self.share_right is not None:
            _check("slots.share_right", self.share_right, 0, 1)


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How phi is trained: measured warm-up, relaxed where trusted, measured again.

    A measured step runs sequential prompts and learns by linear_proxy.

    A relaxed step learns through the gated pool by perturbed_marginals.
    """

    warmup_steps: int = 1
    """measured steps before the relaxed ones: they show where a gate is trusted"""
    relaxed_steps: int = 4
    """relaxed steps, for tasks whose gate ranks harnesses as sequential prompts do"""
    measured_steps: int = 1
    """measured steps after them"""
    trust: float = 0.3
    """rank correlation of gated and sequential loss that it takes; -1 trusts all"""
    samples: int = 6
    """harnesses of each task in a measured step; at least two for each template"""
    relaxed_samples: int = 3
    """soft harnesses of each task in a relaxed step; at least one for each template"""
    packs: int = 1
    """rows of packed items that each harness reads in a step"""
    pack_width: int = 128
    """tokens of a row of packed items"""
    optimizer: str = "slot_adam"
    """of the logits: slot_adam (one scale a slot, for few steps) or adam"""
    learning_rate: float = 0.5
    """of the optimiser"""
    tau: float = 0.5
    """temperature of the relaxed samples, at least 0.1"""
    residual: float = 0.0
    """share of the leave-one-out residual in linear_proxy: 0 plug-in, 1 unbiased"""
    window: int = 96
    """measured harnesses of each task that the linear fit remembers"""
    ridge: float = 0.01
    """penalty of the linear fit for each remembered harness"""
    entropy_bonus: float = 0.0
    """nats of loss bought by one nat of entropy of each slot"""
    chunk: int = 3
    """harnesses run at once; memory grows with it"""

    def __post_init__(self) -> None:
        for name in ("warmup_steps", "relaxed_steps", "measured_steps"):
            _check(f"search.{name}", getattr(self, name), 0)
        if self.warmup_steps + self.relaxed_steps + self.measured_steps < 1:
            raise InputError(
                "search: expected at least one step, got 0 of every kind; set "
                "search.measured_steps to 1 or more"
            )
        _check("search.trust", self.trust, -1, 1)
        for name in ("samples", "relaxed_samples", "packs", "chunk"):
            _check(f"search.{name}", getattr(self, name), 1)
        _check("search.pack_width", self.pack_width, 16)
        if self.optimizer not in ("slot_adam", "adam"):
            raise InputError(
                f"search.optimizer: expected slot_adam or adam, got "
                f"{self.optimizer!r}; use one"
            )
        _check("search.learning_rate", self.learning_rate, 1e-6)
        _check("search.tau", self.tau, 0.1)
        _check("search.residual", self.residual, 0, 1)
        _check("search.ridge", self.ridge, 1e-9)
        _check("search.entropy_bonus", self.entropy_bonus, 0)

    @property
    def num_steps(self) -> int:
        """Updates in all."""
        return self.warmup_steps + self.relaxed_steps + self.measured_steps


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
            _check(f"evaluation.{name}", getattr(self, name), 1)
        _check("evaluation.validation_packs", self.validation_packs, 1)
        _check("evaluation.random_harnesses", self.random_harnesses, 0)
        _check("evaluation.sampled_harnesses", self.sampled_harnesses, 0)
        _check("evaluation.generate_tokens", self.generate_tokens, 1)
        _check("evaluation.harnesses_at_once", self.harnesses_at_once, 1)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run: first stage, the harness alone (theta frozen)."""

    task: tuple[str, ...] = DEFAULT_TASKS
    """names of tasks, or .jsonl files; several are trained together"""
    model: str = "smollm2-135m"
    """name, folder, .gguf file or hub id"""
    harness: Path | None = None
    """harness file (TOML) with the slots and their pools"""
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
    """stop the search cleanly after this time"""
    max_tokens: int | None = None
    """stop the search cleanly after this many tokens, forward and backward"""
    quiet: bool = False
    """no progress, only the result"""
    slots: SlotConfig = field(default_factory=SlotConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)

    def __post_init__(self) -> None:
        if not self.task:
            raise InputError("task: expected at least one task, got none; name one")
        if len(set(self.task)) != len(self.task):
            raise InputError(
                f"task: expected different tasks, got {', '.join(self.task)}; "
                "name each once"
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
