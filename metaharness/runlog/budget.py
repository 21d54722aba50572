"""One counter of calls, tokens and seconds for every method, and the limits on it.

Phases nest; what is counted belongs to the innermost open phase and to all around
it. Comparisons at equal budget read the same numbers for every method.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from metaharness.errors import InputError

_NO_LIMITS: Mapping[str, "Budget"] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of a phase; None is no limit."""

    max_tokens: int | None = None  # on `Counts.token_passes`; at least 1
    max_seconds: float | None = None  # above 0
    max_calls: int | None = None  # on `Counts.lm_calls`; at least 1

    def __post_init__(self):
        for field in dataclasses.fields(self):
            limit = getattr(self, field.name)
            if limit is not None and not limit > 0:
                raise InputError(
                    f"budget {field.name}: expected more than 0, got {limit}; leave it"
                    " out for no limit."
                )


@dataclasses.dataclass(frozen=True)
class Counts:
    """What was spent."""

    lm_calls: int = 0  # sequences through the model: a batch of 8 rows is 8
    token_forwards: int = 0  # tokens in forward passes, generated ones too, no padding
    padded_tokens: int = 0  # padding in forward passes
    backward_tokens: int = 0  # tokens in backward passes, no padding
    generated_tokens: int = 0  # tokens the model wrote; also in token_forwards
    cached_calls: int = 0  # served from a cache: nothing was run, not in lm_calls
    seconds: float = 0.0  # wall clock

    @property
    def token_passes(self) -> int:
        """Tokens times passes: the cost that methods are compared at.

        A backward pass through frozen weights needs about the products of one
        forward pass (no gradient to the weights), so it counts once.
        """
        return self.token_forwards + self.backward_tokens

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in dataclasses.fields(self)
            }
        )


class BudgetCounter:
    """Counts by phase. The phase "" is the whole run, open from the start.

    Nested phases have paths: "train/validation" is also counted in "train".
    """

    def __init__(
        self,
        limits: Mapping[str, Budget] = _NO_LIMITS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          limits: by phase path, "" for the whole run.
          clock: seconds that only grow.
        """
        self._limits = dict(limits)
        self._clock = clock
        self._own: dict[str, Counts] = {"": Counts()}  # without nested phases
        self._open = [""]
        self._since = clock()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what happens inside under this name, within the open phase.

        Raises:
          ValueError: an empty name or one with a slash.
        """
        if not name or "/" in name:
            raise ValueError(f"phase: expected a name without '/', got {name!r}.")
        self._book_seconds()
        path = f"{self._open[-1]}/{name}".removeprefix("/")
        self._own.setdefault(path, Counts())
        self._open.append(path)
        try:
            yield
        finally:
            self._book_seconds()
            self._open.pop()

    def add(
        self,
        *,
        lm_calls: int = 0,
        token_forwards: int = 0,
        padded_tokens: int = 0,
        backward_tokens: int = 0,
        generated_tokens: int = 0,
        cached_calls: int = 0,
    ) -> None:
        """Adds to the innermost open phase; fields as in `Counts`."""
        self._own[self._open[-1]] += Counts(
            lm_calls=int(lm_calls),
            token_forwards=int(token_forwards),
            padded_tokens=int(padded_tokens),
            backward_tokens=int(backward_tokens),
            generated_tokens=int(generated_tokens),
            cached_calls=int(cached_calls),
        )

    def counts(self, phase: str = "") -> Counts:
        """Spent in a phase up to now, nested phases included; zero if never open."""
        self._book_seconds()
        own = (c for path, c in self._own.items() if _within(path, phase))
        return sum(own, start=Counts())

    def phases(self) -> tuple[str, ...]:
        """Paths in the order of their first opening, the whole run ("") first."""
        return tuple(self._own)

    def share_used(self, phase: str = "") -> float:
        """Largest used share of a phase's limits, at least 0; 0 without a limit."""
        return max((s for s, _ in self._uses(phase)), default=0.0)

    def exceeded(self, phase: str | None = None) -> str:
        """Why a limit is reached, in words, or "" while none is.

        Args:
          phase: its path. None asks the whole run and every open phase.
        """
        for path in self._open if phase is None else [phase]:
            for share, reason in self._uses(path):
                if share >= 1:
                    return f"{path or 'the run'}: {reason}"
        return ""

    def calls_left(self) -> int | None:
        """Calls that the limits of the whole run and of the open phases still allow;
        None without such a limit."""
        limits = [(path, self._limits.get(path)) for path in self._open]
        left = [
            max(limit.max_calls - self.counts(path).lm_calls, 0)
            for path, limit in limits
            if limit is not None and limit.max_calls is not None
        ]
        return min(left, default=None)

    def state(self) -> dict[str, Any]:
        """What was spent, JSON-safe, for a checkpoint."""
        self._book_seconds()
        return {path: dataclasses.asdict(own) for path, own in self._own.items()}

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        limits: Mapping[str, Budget] = _NO_LIMITS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> "BudgetCounter":
        """A counter that goes on from `state`; no phase but "" is open."""
        counter = cls(limits, clock=clock)
        counter._own |= {path: Counts(**own) for path, own in state.items()}
        return counter

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Add what an earlier part of the run spent; see ``state``."""
        for path, own in state.items():
            self._own[path] = self._own.get(path, Counts()) + Counts(**own)

    def _book_seconds(self) -> None:
        now = self._clock()
        self._own[self._open[-1]] += Counts(seconds=now - self._since)
        self._since = now

    def _uses(self, phase: str) -> list[tuple[float, str]]:
        """Used share and its description, for each limit of a phase."""
        limit = self._limits.get(phase)
        if limit is None:
            return []
        spent = self.counts(phase)
        pairs = (
            (spent.token_passes, limit.max_tokens, "{:,} of {:,} tokens"),
            (spent.seconds, limit.max_seconds, "{:,.1f} of {:,.1f} seconds"),
            (spent.lm_calls, limit.max_calls, "{:,} of {:,} calls"),
        )
        return [(s / m, words.format(s, m)) for s, m, words in pairs if m is not None]


def _within(path: str, phase: str) -> bool:
    return phase == "" or path == phase or path.startswith(phase + "/")
