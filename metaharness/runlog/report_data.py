"""What a report page shows, as plain frozen data.

Every part but the title may be left out; the page then has no such section. NaN and
None are "not known" and shown as a dash. `Report` goes to JSON through
`jsonfile.json_safe` and comes back through `from_json`.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable
from typing import Any

from metaharness.errors import RunError
from metaharness.runlog.budget import BudgetCounter, Counts
from metaharness.stats import Interval

OVERALL = "overall"  # as a row's task: all tasks together

# id -> label, in the order of the table; other ids are shown as they are
METHODS = types.MappingProxyType(
    {
        "zero_shot": "Zero-shot",
        "default": "Default harness",
        "random": "Random",
        "best_random": "Best random",
        "mode": "Learned",
        "sampled": "Learned, sampled",
        "expected": "Learned, expected",
    }
)

# id -> label, in the order of the table: what a change brings, below 0 where better
EFFECTS = types.MappingProxyType(
    {
        "harness_at_base": "Harness alone",
        "weights_at_seed": "Weights alone",
        "harness_against_weights": "Harness alone minus weights alone",
        "harness_at_adapted": "Harness, with adapted weights",
        "weights_at_learned": "Weights, with the learned harness",
        "total": "Both together",
        "interaction": "Both, beyond the sum of each alone",
    }
)


@dataclasses.dataclass(frozen=True)
class ScoreRow:
    """Score of one method on one task, on items that no training step saw."""

    method: str  # an id in METHODS, or any name
    task: str  # its name, or OVERALL
    num_items: int
    loss: Interval  # of the gold answer under the sequential prompt, nats per answer
    loss_per_token: Interval | None = None  # nats per answer token
    exact_match: Interval | None = None  # share of items, 0 to 1
    difference: Interval | None = None  # loss minus the random harnesses' mean, paired
    spread: float | None = None  # sd of the loss over the harnesses, nats
    num_harnesses: int = 1  # the row is a mean over these (best_random: a minimum)
    prompt_tokens: float | None = None  # mean per item
    seconds: float | None = None  # to evaluate the row
    reward: Interval | None = None  # mean of graded episodes, 0 to 1
    episode_tokens: float | None = None  # mean of an episode, prompt and written


@dataclasses.dataclass(frozen=True)
class CellScore:
    """Score of one pair of weights and harness."""

    weights: str  # base or adapted
    harness: str  # seed or learned
    loss: Interval  # of the gold answer under the sequential prompt, nats per answer
    exact_match: Interval | None = None  # share of items, 0 to 1


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a change brings, paired by item: below 0 the loss falls."""

    name: str  # an id in EFFECTS
    loss: Interval  # difference of losses, nats per answer
    exact_match: Interval | None = None  # difference of shares, -1 to 1


@dataclasses.dataclass(frozen=True)
class SlotEffect:
    """What one slot's learned choice brings, where all else is learned and adapted."""

    slot: str
    same_choice: bool  # the seed harness has it too: the effect is 0, not measured
    loss: Interval  # learned harness minus the one with the seed's choice, nats
    exact_match: Interval | None = None  # difference of shares, -1 to 1
    reward: Interval | None = None  # difference of episodes' rewards, -1 to 1
    tokens: Interval | None = None  # difference of episodes' tokens


@dataclasses.dataclass(frozen=True)
class Divergence:
    """How far the adapted weights' next-token distributions moved, on gold answers."""

    kl: Interval  # KL(adapted || base), nats per answer token
    num_items: int  # validation items
    num_tokens: int  # their answers' tokens


@dataclasses.dataclass(frozen=True)
class Attribution:
    """Which part of a two-stage run brought the gain on one task.

    Without trained weights the parts that need them are left out.
    """

    task: str  # its name, or OVERALL
    num_items: int
    cells: tuple[CellScore, ...]
    effects: tuple[Effect, ...]
    slots: tuple[SlotEffect, ...] = ()
    divergence: Divergence | None = None

    def cell(self, weights: str, harness: str) -> CellScore | None:
        """The score of one pair, None where it is not known."""
        found = (c for c in self.cells if (c.weights, c.harness) == (weights, harness))
        return next(found, None)

    def effect(self, name: str) -> Effect | None:
        """The effect of that id, None where it is not known."""
        return next((e for e in self.effects if e.name == name), None)


@dataclasses.dataclass(frozen=True)
class TrustRow:
    """How well the cheap signals follow the sequential loss on one task."""

    task: str
    spearman: float | None  # gated against sequential loss, over random harnesses
    num_harnesses: int
    slope_fit: float | None = None  # held-out R^2 of the gate's slope, at most 1
    ridge_fit: float | None = None  # held-out R^2 of the ridge fit, at most 1


@dataclasses.dataclass(frozen=True)
class Series:
    """One line of a chart; x and y have the same length, NaN leaves a gap."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None  # a band around the line
    high: tuple[float, ...] | None = None

    def __post_init__(self):
        sides = (self.y, self.low, self.high)
        if any(side is not None and len(side) != len(self.x) for side in sides):
            raise ValueError(
                f"series {self.name!r}: expected {len(self.x)} values for each x; pass"
                " y, low and high of that length."
            )


@dataclasses.dataclass(frozen=True)
class Span:
    """A named stretch of the x axis: a stage of the schedule."""

    name: str
    start: float
    stop: float


@dataclasses.dataclass(frozen=True)
class Curve:
    """One chart of lines."""

    title: str
    y_label: str  # with its unit
    series: tuple[Series, ...]
    x_label: str = "update"
    spans: tuple[Span, ...] = ()


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One entry of a pool."""

    name: str
    kind: str = ""  # quality or origin: right, wrong_answer, ...; "" where all are one
    text: str = ""


@dataclasses.dataclass(frozen=True)
class SlotReport:
    """What one slot learned for one task."""

    task: str
    slot: str
    k: int  # how many are chosen
    candidates: tuple[Candidate, ...]
    steps: tuple[int, ...]  # updates at which the probabilities were written down
    probabilities: tuple[tuple[float, ...], ...]  # [time, candidate], of being chosen
    chosen: tuple[int, ...]  # indices of the deployed candidates, in prompt order

    def __post_init__(self):
        size = len(self.candidates)
        where = f"slot {self.slot!r} of task {self.task!r}"
        if len(self.steps) != len(self.probabilities) or not self.steps:
            raise ValueError(
                f"{where}: {len(self.steps)} steps for {len(self.probabilities)} rows"
                " of probabilities; pass at least one row, and one step each."
            )
        if any(len(row) != size for row in self.probabilities):
            raise ValueError(
                f"{where}: expected rows of {size} probabilities, one a candidate."
            )
        if any(not 0 <= index < size for index in self.chosen):
            raise ValueError(
                f"{where}: chosen {list(self.chosen)} is not within {size} candidates."
            )


@dataclasses.dataclass(frozen=True)
class Prompt:
    """The deployed prompt of one task, with one question."""

    task: str
    text: str  # in full, as the model reads it
    num_tokens: int | None = None
    answer: str = ""  # the question's gold answer


@dataclasses.dataclass(frozen=True)
class BudgetRow:
    """What one phase spent; see `budget_rows`."""

    phase: str  # "" is the whole run
    counts: Counts


@dataclasses.dataclass(frozen=True)
class Note:
    """One sentence for the reader."""

    text: str
    kind: str = "warning"  # or "info"


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything on the page, top to bottom."""

    title: str
    model: str = ""
    command: str = ""
    seconds: float | None = None  # wall clock of the run
    notes: tuple[Note, ...] = ()
    scores: tuple[ScoreRow, ...] = ()
    attribution: tuple[Attribution, ...] = ()
    trust: tuple[TrustRow, ...] = ()
    curves: tuple[Curve, ...] = ()
    slots: tuple[SlotReport, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    budget: tuple[BudgetRow, ...] = ()
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    complete: bool = True  # False: stopped early, there is more to do


def scores_by_task(rows: Iterable[ScoreRow]) -> dict[str, list[ScoreRow]]:
    """Rows by task, OVERALL first; methods in the order of METHODS, others last."""
    order = list(METHODS)
    by_task: dict[str, list[ScoreRow]] = {OVERALL: []}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    return {
        task: sorted(
            group,
            key=lambda row: (
                order.index(row.method) if row.method in METHODS else len(order)
            ),
        )
        for task, group in by_task.items()
        if group
    }


def overall_first(rows: Iterable[Attribution]) -> list[Attribution]:
    """All tasks together, then each in its order."""
    return sorted(rows, key=lambda row: row.task != OVERALL)


def budget_rows(counter: BudgetCounter) -> tuple[BudgetRow, ...]:
    """One row a phase in the order of opening, the whole run last."""
    _, *phases = counter.phases()
    return tuple(BudgetRow(phase, counter.counts(phase)) for phase in [*phases, ""])


def from_json(value: Any) -> Report:
    """The report that `jsonfile.json_safe` took apart; null numbers become NaN.

    Raises:
      RunError: a part is missing, of another kind, or not known; named by its path.
    """
    return _build(Report, value, "report")


def _build(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if value is None:
            return None
        return _build(arguments[0], value, where)
    if origin is tuple:
        _expect(isinstance(value, list), where, "a list", value)
        return tuple(
            _build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)
        )
    if origin is dict:
        _expect(isinstance(value, dict), where, "an object", value)
        return value
    if dataclasses.is_dataclass(kind) or kind is Interval:
        return _build_fields(kind, value, where)
    if kind is float:
        if value is None:
            return math.nan
        _expect(isinstance(value, int | float), where, "a number", value)
        return float(value)
    _expect(isinstance(value, kind), where, f"a value of type {kind.__name__}", value)
    return value


def _build_fields(kind: Any, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    types_by_name = typing.get_type_hints(kind)
    unknown = value.keys() - types_by_name.keys()
    _expect(not unknown, where, f"only {', '.join(types_by_name)}", sorted(unknown))
    parts = {
        name: _build(types_by_name[name], item, f"{where}.{name}")
        for name, item in value.items()
    }
    try:
        return kind(**parts)
    except (TypeError, ValueError) as error:
        raise RunError(f"{where}: {error}") from error


def _expect(condition: bool, where: str, expected: str, got: Any) -> None:
    if not condition:
        raise RunError(
            f"{where}: expected {expected}, got {got!r:.80}; write the report again"
            " with this version."
        )
