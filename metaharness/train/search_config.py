"""Settings of the search for a harness: how its logits phi are trained."""

from dataclasses import dataclass

from metaharness.errors import InputError
from metaharness.train.ranges import check_name, check_range

MEASURED = ("linear_proxy", "proxy", "reinforce", "relax")
"""Estimators of the exemplars from measured losses, by name."""
RELAXED = ("perturbed_marginals", "simple", "imle")
"""Estimators of the exemplars through the gated pool, by name."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How phi is trained: measured warm-up, relaxed where trusted, measured again.

    A measured step runs sequential prompts and learns by linear_proxy.

    A relaxed step learns through the gated pool by perturbed_marginals.

    Logits of task t are shared + delta[t]: see ``conditioning``.
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
    accumulate: int = 1
    """parts that the items of an update are read in, each of ``packs`` rows"""
    estimator: str = "linear_proxy"
    """of the exemplars in measured steps: linear_proxy, proxy, reinforce or relax"""
    template_estimator: str = "exact"
    """of the template in measured steps: exact (each in turn) or reinforce (drawn)"""
    relaxed_estimator: str = "perturbed_marginals"
    """of the exemplars in relaxed steps: perturbed_marginals, simple or imle"""
    conditioning: str = "independent"
    """logits of tasks: independent (each its own), shared (one for all) or task (a
    shared part and a difference, which shrinks)"""
    shrinkage: float = 0.01
    """penalty of half the squared difference, in nats, where conditioning is task"""
    optimizer: str = "slot_adam"
    """of the logits: slot_adam (one scale a slot, for few steps) or adam"""
    learning_rate: float = 0.5
    """of the optimiser"""
    warmup_updates: int = 0
    """updates of phi over which the learning rate rises to its value"""
    decay: str = "constant"
    """of the learning rate after that: constant, or cosine (to 0 at the last update)"""
    tau: float = 0.5
    """temperature of the relaxed samples, at least 0.1"""
    residual: float = 0.0
    """share of the leave-one-out residual in linear_proxy: 0 plug-in, 1 unbiased"""
    window: int = 96
    """measured harnesses of each task that the linear fit remembers"""
    ridge: float = 0.01
    """penalty of the linear fit for each remembered harness"""
    chunk: int = 3
    """harnesses run at once; memory grows with it"""

    def __post_init__(self) -> None:
        for name in ("warmup_steps", "relaxed_steps", "measured_steps"):
            check_range(f"search.{name}", getattr(self, name), 0)
        if self.warmup_steps + self.relaxed_steps + self.measured_steps < 1:
            raise InputError(
                "search: expected at least one step, got 0 of every kind; set "
                "search.measured_steps to 1 or more"
            )
        check_range("search.trust", self.trust, -1, 1)
        for name in ("samples", "relaxed_samples", "packs", "accumulate", "chunk"):
            check_range(f"search.{name}", getattr(self, name), 1)
        check_range("search.pack_width", self.pack_width, 16)
        check_name("search.estimator", self.estimator, MEASURED)
        check_name(
            "search.template_estimator",
            self.template_estimator,
            ("exact", "reinforce"),
        )
        check_name("search.relaxed_estimator", self.relaxed_estimator, RELAXED)
        check_name(
            "search.conditioning",
            self.conditioning,
            ("independent", "shared", "task"),
        )
        check_range("search.shrinkage", self.shrinkage, 0)
        check_name("search.optimizer", self.optimizer, ("slot_adam", "adam"))
        check_range("search.warmup_updates", self.warmup_updates, 0)
        check_name("search.decay", self.decay, ("constant", "cosine"))
        check_range("search.learning_rate", self.learning_rate, 1e-6)
        check_range("search.tau", self.tau, 0.1)
        check_range("search.residual", self.residual, 0, 1)
        check_range("search.ridge", self.ridge, 1e-9)

    @property
    def num_steps(self) -> int:
        """Updates in all."""
        return self.warmup_steps + self.relaxed_steps + self.measured_steps
