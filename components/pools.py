"""What every pool of candidates must satisfy, whatever its slot."""

from collections.abc import Sequence


def check_pool(slot: str, names: Sequence[str]) -> None:
    """Refuse a pool that is empty or names one candidate twice.

    slot: name of the slot, for the message; names: one name per candidate, in pool
    order. Positions in the message count from 0, as outcomes do.

    Raises ValueError.
    """
    if not names:
        raise ValueError(
            f"pool {slot!r}: expected at least 1 candidate, got 0; "
            "add candidates or leave the slot out."
        )
    first: dict[str, int] = {}
    for position, name in enumerate(names):
        if name in first:
            raise ValueError(
                f"pool {slot!r}: expected distinct candidates, got {name!r} at "
                f"positions {first[name]} and {position}; remove or rename one."
            )
        first[name] = position
