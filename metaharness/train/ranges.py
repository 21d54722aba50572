"""Checks of numbers in a configuration."""

from metaharness.errors import InputError


def check_range(
    name: str, value: float, low: float, high: float = float("inf")
) -> None:
    """Raises InputError unless ``low <= value <= high``."""
    if not low <= value <= high:
        bound = f"between {low} and {high}" if high < float("inf") else f">= {low}"
        raise InputError(f"{name}: expected a value {bound}, got {value}")


def check_name(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raises InputError unless ``value`` is one of ``known``."""
    if value not in known:
        raise InputError(
            f"{name}: expected one of {', '.join(known)}, got {value!r}; use one"
        )
