"""A harness space: one model, the harness's slots and the tasks, ready to evaluate."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import jax.numpy as jnp
import numpy as np

from components.templates import Template
from estimators import Family
from metaharness.errors import HarnessError
from metaharness.harness.packing import Packs, pack_items
from metaharness.harness.relaxed import PoolCache, encode_pools, task_keys
from metaharness.harness.render import Renderer
from metaharness.harness.slots import Choice, Harness
from metaharness.harness.tables import (
    PromptTable,
    build_prompt_table,
    prefix_width,
)
from metaharness.model.load import Model
from metaharness.tasks.leak import check_leaks
from metaharness.tasks.task import Item, Task

EXEMPLARS, TEMPLATE = "exemplars", "template"


@dataclasses.dataclass(frozen=True)
class Space:
    """Everything that is fixed while a harness is searched.

    Build with ``build_space``. Arrays are indexed by task number, template id and
    candidate id, in the order of ``tasks``, ``harness.template.pool`` and
    ``harness.candidates``.
    """

    model: Model
    harness: Harness
    tasks: tuple[Task, ...]
    renderer: Renderer
    table: PromptTable
    implementation: str = "xla"

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @cached_property
    def width(self) -> int:
        """Tokens of the longest prefix that a harness of this space can have."""
        return prefix_width(self.table, self.harness.k)

    @cached_property
    def families(self) -> dict[str, Family]:
        """Slot -> family of its choice."""
        out = {TEMPLATE: Family("categorical", len(self.harness.template.pool))}
        if self.harness.exemplars:
            out[EXEMPLARS] = Family(
                "subset", len(self.harness.candidates), self.harness.k
            )
        for slot in self.harness.policy_slots:
            out[slot] = Family("categorical", len(self.harness.pool(slot)))
        return out

    @cached_property
    def masks(self) -> dict[str, np.ndarray]:
        """Slot -> bool ``[task, pool]``, True where a candidate may be chosen."""
        num = len(self.harness.template.pool)
        out = {TEMPLATE: np.ones((self.num_tasks, num), bool)}
        if self.harness.exemplars:
            out[EXEMPLARS] = self.harness.exemplars.allowed_mask(self.num_tasks)
        for slot in self.harness.policy_slots:
            out[slot] = np.ones((self.num_tasks, len(self.harness.pool(slot))), bool)
        return out

    def pack(self, split: str, *, width: int, limit: int | None = None) -> Packs:
        """The first ``limit`` items of a split of every task, packed."""
        items = [task.splits()[split][:limit] for task in self.tasks]
        return pack_items(items, self.harness.template.pool, self.renderer, width=width)

    def encode_pool(self) -> PoolCache:
        """Encode the pool for the relaxed objective, once for each (theta, style)."""
        pool = encode_pools(
            self.model.decoder, self.table, implementation=self.implementation
        )
        keys = task_keys(self.table, self.masks[EXEMPLARS])
        return PoolCache(pool, jnp.asarray(keys))

    @property
    def pool_tokens(self) -> int:
        """Tokens that ``encode_pool`` runs through the model."""
        # NumPy: a number, also while a step is traced
        lengths = (self.table.head_lengths, self.table.shot_lengths)
        return sum(int(np.asarray(each).sum()) for each in lengths)

    def prefix_tokens(self, choice: Choice) -> list[int]:
        """Head and exemplars of one harness."""
        template = self.harness.template.pool[choice.template]
        return list(self.prefix_of(template, choice.exemplars))

    @cached_property
    def prefix_of(self) -> Callable[[Template, tuple[int, ...]], tuple[int, ...]]:
        """(template, exemplars in prompt order) -> tokens of head and exemplars; what
        was made once is kept."""

        @lru_cache(maxsize=4096)
        def prefix(template: Template, exemplars: tuple[int, ...]) -> tuple[int, ...]:
            ids = self.renderer.head(template)
            for place in exemplars:
                shot = self.renderer.shot(template, self.harness.candidates[place])
                ids = ids + shot
            return tuple(ids)

        return prefix

    @cached_property
    def question_of(self) -> Callable[[Template, str], tuple[int, ...]]:
        """(template, question) -> tokens of the question turn; episodes ask for the
        same ones again and again."""

        @lru_cache(maxsize=1 << 16)
        def question(template: Template, text: str) -> tuple[int, ...]:
            return tuple(self.renderer.question(template, text))

        return question

    def prompt_text(self, choice: Choice, item: Item) -> str:
        """The whole prompt of a harness for one item, as a person reads it."""
        template, exemplars = self.harness.parts(choice)
        self.renderer.prompt(template, exemplars, item.question)  # checks the pieces
        return self.renderer.prompt_text(template, exemplars, item.question)


def shot_limit(model: Model, k: int) -> int:
    """Most tokens of one exemplar: with ``k`` of them, two shares are left over."""
    return model.config.max_positions // (k + 2)


def build_space(
    model: Model,
    harness: Harness,
    tasks: Sequence[Task],
    *,
    implementation: str = "xla",
    max_shot_tokens: int | None = None,
    guard_leaks: bool = True,
) -> Space:
    """Tokenise a harness's pools for a model and check them against the tasks.

    ``guard_leaks``: whether to look for test and validation items in the pool.

    Raises:
        TaskError: a candidate is, or nearly is, an item that results are reported on.
        HarnessError: an exemplar is too long, or a prompt exceeds the model's context.
    """
    for task in tasks if guard_leaks else ():
        for split in ("validation", "test"):
            check_leaks(harness.candidates, task.splits()[split], split=split)
    renderer = Renderer(model.tokenizer)
    limit = max_shot_tokens or shot_limit(model, harness.k)
    table = build_prompt_table(harness, renderer, max_shot_tokens=limit)
    width = prefix_width(table, harness.k)
    if width >= model.config.max_positions:
        raise HarnessError(
            f"prompt: expected fewer than {model.config.max_positions} tokens, got "
            f"{width} for {harness.k} exemplars; lower k or shorten the exemplars"
        )
    return Space(
        model, harness, tuple(tasks), renderer, table, implementation=implementation
    )
