"""A harness: slots, each with a pool of candidates, and one concrete choice of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from components.context_policy import ContextPolicy
from components.exemplars import Exemplar, as_exemplars
from components.output_policy import OutputPolicy
from components.pools import check_pool
from components.quality import mixed_pool
from components.retry_policy import RetryPolicy
from components.templates import Template, check_templates, named
from components.tool_policy import NO_TOOLS, ToolPolicy
from metaharness.errors import HarnessError
from metaharness.tasks.task import Task


@dataclass(frozen=True)
class Exemplars:
    """Slot: which ``k`` solved questions the prompt shows.

    pool: the union pool, over all tasks; allowed: one row a task, True where the task
    may use a candidate (empty: every task may use every candidate).
    """

    pool: tuple[Exemplar, ...]
    k: int
    allowed: tuple[tuple[bool, ...], ...] = ()

    def __post_init__(self) -> None:
        check_pool("exemplars", [exemplar.uid for exemplar in self.pool])
        contents: dict[tuple[str, str], str] = {}
        for exemplar in self.pool:
            content = (exemplar.question, exemplar.answer)
            if content in contents and not self.allowed:
                raise HarnessError(
                    f"pool 'exemplars': expected distinct candidates, got the same "
                    f"text in {contents[content]!r} and {exemplar.uid!r}; remove one"
                )
            contents[content] = exemplar.uid
        for row in self.allowed or ((True,) * len(self.pool),):
            if len(row) != len(self.pool):
                raise HarnessError(
                    f"exemplars: expected {len(self.pool)} allowed flags a task, "
                    f"got {len(row)}; rebuild the slot after editing its pool"
                )
            if not 1 <= self.k <= sum(row):
                raise HarnessError(
                    f"exemplars: expected k between 1 and {sum(row)} (candidates "
                    f"allowed), got {self.k}; lower k or add candidates"
                )

    @classmethod
    def from_task(
        cls,
        task: Task,
        *,
        pool: int = 48,
        k: int = 4,
        share_right: float = 1.0,
        seed: int = 0,
    ) -> "Exemplars":
        """``pool`` exemplars of a task's pool split; see ``from_tasks``."""
        return cls.from_tasks(
            [task], pool=pool, k=k, share_right=share_right, seed=seed
        )

    @classmethod
    def from_tasks(
        cls,
        tasks: Sequence[Task],
        *,
        pool: int,
        k: int,
        share_right: float = 1.0,
        seed: int = 0,
    ) -> "Exemplars":
        """One union pool of ``pool`` exemplars a task, each task allowed its own.

        With ``share_right`` below 1 the rest of each task's pool is bad on purpose:
        wrong answers, wrong formats and other tasks' items (see ``mixed_pool``).
        """
        solved = {task.name: as_exemplars(task.pool, task.name) for task in tasks}
        union: list[Exemplar] = []
        blocks: list[range] = []
        for index, task in enumerate(tasks):
            others = [e for name in solved if name != task.name for e in solved[name]]
            try:
                mine = mixed_pool(
                    solved[task.name],
                    pool,
                    rng=np.random.default_rng([seed, index]),
                    share_right=share_right,
                    off_task=others,
                )
            except ValueError as error:
                raise HarnessError(f"exemplars of {task.name}: {error}") from error
            blocks.append(range(len(union), len(union) + pool))
            union.extend(
                Exemplar(
                    uid=f"{task.name}:{e.uid}",
                    question=e.question,
                    answer=e.answer,
                    task=e.task,
                    kind=e.kind,
                )
                for e in mine
            )
        allowed = tuple(
            tuple(i in block for i in range(len(union))) for block in blocks
        )
        return cls(tuple(union), k, allowed if len(tasks) > 1 else ())

    def allowed_mask(self, num_tasks: int) -> np.ndarray:
        """Bool ``[task, pool]``."""
        if not self.allowed:
            return np.ones((num_tasks, len(self.pool)), bool)
        if len(self.allowed) != num_tasks:
            raise HarnessError(
                f"exemplars: expected allowed flags for {num_tasks} tasks, got "
                f"{len(self.allowed)}; build the slot from the same tasks"
            )
        return np.array(self.allowed, bool)


@dataclass(frozen=True)
class Templates:
    """Slot: how the question is put to the model, one of the pool."""

    pool: tuple[Template, ...] = field(default_factory=lambda: named("short"))

    def __post_init__(self) -> None:
        check_templates(self.pool)

    @classmethod
    def named(cls, name: str) -> "Templates":
        """A ready set: see ``components.templates.NAMED``."""
        return cls(named(name))


class Choice(NamedTuple):
    """One concrete harness: a candidate of each slot.

    exemplars: candidate ids in prompt order (empty: zero-shot); template, output,
    retry, tools, context: their ids (0 where the harness has no such slot).
    """

    exemplars: tuple[int, ...]
    template: int
    output: int = 0
    retry: int = 0
    tools: int = 0
    context: int = 0


class Policies(NamedTuple):
    """What governs an episode besides its prompt."""

    output: OutputPolicy
    retry: RetryPolicy
    tools: ToolPolicy
    context: ContextPolicy


POLICIES = Policies._fields
"""Names of the slots that only an episode can tell apart."""

PLAIN = Policies(
    OutputPolicy("whole text"),
    RetryPolicy("one attempt"),
    NO_TOOLS,
    ContextPolicy("everything"),
)
"""What holds where a harness has no such slot."""


@dataclass(frozen=True)
class Harness:
    """The trainable harness: its slots and their pools.

    ``exemplars`` may be None (zero-shot: only the template is learned). output, retry,
    tools, context: pools of policies, empty for none (``PLAIN`` then holds); they are
    learned from graded episodes, since no likelihood depends on them.

    Raises HarnessError for two policies of one name.
    """

    exemplars: Exemplars | None = None
    template: Templates = field(default_factory=Templates)
    output: tuple[OutputPolicy, ...] = ()
    retry: tuple[RetryPolicy, ...] = ()
    tools: tuple[ToolPolicy, ...] = ()
    context: tuple[ContextPolicy, ...] = ()

    def __post_init__(self) -> None:
        if self.exemplars and not any(t.exemplars for t in self.template.pool):
            raise HarnessError(
                "template: expected one that shows the exemplars, got none; remove the "
                "exemplars, or exemplars = false from a template"
            )
        for slot in POLICIES:
            if self.pool(slot):
                try:
                    check_pool(slot, [policy.name for policy in self.pool(slot)])
                except ValueError as error:
                    raise HarnessError(str(error)) from error

    def pool(self, slot: str) -> tuple[Any, ...]:
        """The policies of a slot of ``POLICIES``."""
        return {
            "output": self.output,
            "retry": self.retry,
            "tools": self.tools,
            "context": self.context,
        }[slot]

    @property
    def policy_slots(self) -> tuple[str, ...]:
        """Names of the policy slots that this harness has."""
        return tuple(slot for slot in POLICIES if self.pool(slot))

    def policies(self, choice: Choice) -> Policies:
        """The policies that a choice names."""
        return Policies(
            *(
                self.pool(slot)[getattr(choice, slot)] if self.pool(slot) else plain
                for slot, plain in zip(POLICIES, PLAIN, strict=True)
            )
        )

    @property
    def k(self) -> int:
        """Exemplars in a prompt."""
        return self.exemplars.k if self.exemplars else 0

    @property
    def candidates(self) -> tuple[Exemplar, ...]:
        """The exemplar pool, empty without that slot."""
        return self.exemplars.pool if self.exemplars else ()

    def parts(self, choice: Choice) -> tuple[Template, tuple[Exemplar, ...]]:
        """The template of a choice, and the exemplars that it shows."""
        template = self.template.pool[choice.template]
        shown = choice.exemplars if template.exemplars else ()
        return template, tuple(self.candidates[i] for i in shown)

    def random_choices(
        self, num: int, task: int, num_tasks: int, rng: np.random.Generator
    ) -> list[Choice]:
        """``num`` harnesses for one task, uniform over candidates, in random order."""
        out = []
        for _ in range(num):
            shots: tuple[int, ...] = ()
            if self.exemplars:
                mask = self.exemplars.allowed_mask(num_tasks)[task]
                drawn = rng.choice(np.flatnonzero(mask), self.k, replace=False)
                shots = tuple(int(i) for i in drawn)
            choice = Choice(shots, int(rng.integers(len(self.template.pool))))
            drawn = {s: int(rng.integers(len(self.pool(s)))) for s in self.policy_slots}
            out.append(choice._replace(**drawn))
        return out
