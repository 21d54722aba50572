"""Numbers as a reader of tables expects them; a dash for what is not known."""

import math

from metaharness.stats import Interval

UNKNOWN = "–"
_MINUS = "−"


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Fixed digits with thousands separators, a true minus and, if asked, a plus."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = f"{abs(value):,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        return text
    return (_MINUS if value < 0 else "+" if sign else "") + text


def bounds(interval: Interval | None, digits: int = 2, *, sign: bool = False) -> str:
    """Interval as "low to high", or "" where it is not known."""
    if interval is None or not (
        math.isfinite(interval.low) and math.isfinite(interval.high)
    ):
        return ""
    low = number(interval.low, digits, sign=sign)
    return f"{low} to {number(interval.high, digits, sign=sign)}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share in [0, 1] as a percentage."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{number(100 * value, digits)}%"


def percent_bounds(interval: Interval | None, digits: int = 0) -> str:
    """Interval of a share as "low to high %", or ""."""
    if interval is None:
        return ""
    text = bounds(Interval(*(100 * part for part in interval)), digits)
    return f"{text}%" if text else ""


def points(value: float | None) -> str:
    """A difference of two shares in percentage points, with its sign."""
    return number(None if value is None else 100 * value, 0, sign=True)


def points_bounds(interval: Interval | None) -> str:
    """Interval of a difference of shares as "low to high", in points, or ""."""
    if interval is None:
        return ""
    return bounds(Interval(*(100 * part for part in interval)), 0, sign=True)


def probability(value: float | None) -> str:
    """Two digits, with the ends kept apart from what merely rounds to them."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.005:
        return "<0.01"
    if 0.995 <= value < 1:
        return ">0.99"
    return f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """Seconds, or minutes and seconds, or hours."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{seconds / 3600:.1f} h"
