"""Values that cross the wall: plain data, exact types, bounded; never pickled.

Loaded on both sides of the wall, so it imports nothing but the standard library.
"""

from collections import Counter, OrderedDict, defaultdict
from typing import TypeAlias

Json: TypeAlias = "None | bool | int | float | str | list[Json]"
Plain: TypeAlias = (
    "None | bool | int | float | str | bytes | list[Plain] | tuple[Plain, ...]"
    " | dict[Plain, Plain] | set[Plain] | frozenset[Plain]"
)

MAX_DEPTH = 200
MAX_NODES = 1 << 20
# Numbers, unlike strings, can be chosen to collide in a hash table: n of them cost
# n * n steps to read back. 4,096 cost a quarter of a second at worst.
MAX_HASHED = 4096
_TEXT_INT_BITS = 256
_SERIES = {list: "l", tuple: "t", set: "s", frozenset: "f"}
# They compare equal to the dict with their items, which is what arrives.
_DICTS = (dict, Counter, OrderedDict, defaultdict)


class NotPlain(ValueError):
    """A value that cannot cross the wall, or a message that is no value."""


def encode(value: object, *, max_nodes: int = MAX_NODES) -> Json:
    """The value as a JSON tree of lists and scalars from which `decode` rebuilds it.

    None, bool, int, float (also nan and inf), str, bytes, list, tuple, dict, set and
    frozenset keep their exact types; Counter, OrderedDict and defaultdict arrive as
    dict. Raises NotPlain on any other type, subclasses included, on a value nested
    deeper than `MAX_DEPTH` (so on one that contains itself) or of more than max_nodes
    parts: shared parts count each time they are met.
    """
    left = [max_nodes]
    return _encode(value, MAX_DEPTH, left)


def decode(tree: object) -> Plain:
    """The value behind a JSON tree; raises NotPlain where `encode` makes no such tree.

    Safe on hostile trees: depth and the number of hashed numbers are bounded.
    """
    left = [MAX_HASHED]
    return _decode(tree, MAX_DEPTH, left)


def _encode(value: object, depth: int, left: list[int]) -> Json:
    left[0] -= 1
    if left[0] < 0:
        raise NotPlain("expected a smaller value, got one with too many parts")
    kind = type(value)
    if value is None or kind is str or kind is bool or kind is float:
        return value  # type: ignore[return-value]
    if kind is int:
        small = value.bit_length() <= _TEXT_INT_BITS  # type: ignore[attr-defined]
        return value if small else ["i", hex(value)]  # type: ignore[arg-type, return-value]
    if kind is bytes:
        return ["b", value.hex()]  # type: ignore[attr-defined]
    if depth <= 0:
        raise NotPlain(f"expected at most {MAX_DEPTH} levels of nesting, got more")
    if kind in _SERIES:
        parts = [_encode(part, depth - 1, left) for part in value]  # type: ignore[attr-defined]
        return [_SERIES[kind], *parts]
    if kind in _DICTS:
        tree: list[Json] = ["d"]
        for key, part in dict.items(value):  # type: ignore[arg-type]
            tree.append(_encode(key, depth - 1, left))
            tree.append(_encode(part, depth - 1, left))
        return tree
    raise NotPlain(f"expected plain data, got a value of type {kind.__name__[:80]}")


def _decode(tree: object, depth: int, left: list[int]) -> Plain:
    kind = type(tree)
    if kind is not list:
        if tree is None or kind in (bool, int, float, str):
            return tree  # type: ignore[return-value]
        raise NotPlain(f"expected a scalar or a list, got {kind.__name__}")
    tag, *rest = tree or [None]  # type: ignore[misc]
    if tag in ("i", "b"):
        if len(rest) != 1 or type(rest[0]) is not str:
            raise NotPlain(f"expected one text after {tag!r}")
        try:
            return int(rest[0], 16) if tag == "i" else bytes.fromhex(rest[0])
        except ValueError as error:
            raise NotPlain("expected hexadecimal digits") from error
    if depth <= 0:
        raise NotPlain(f"expected at most {MAX_DEPTH} levels of nesting, got more")
    parts = [_decode(part, depth - 1, left) for part in rest]
    if tag == "l":
        return parts
    if tag == "t":
        return tuple(parts)
    if tag not in ("d", "s", "f"):
        raise NotPlain("expected a list that starts with a known tag")
    if tag == "d" and len(parts) % 2:
        raise NotPlain("expected a value for each key")
    keys = parts[::2] if tag == "d" else parts
    left[0] -= sum(type(key) not in (str, bytes) for key in keys)
    if left[0] < 0:
        raise NotPlain(f"expected at most {MAX_HASHED} keys that are not text")
    try:
        if tag == "d":
            return dict(zip(keys, parts[1::2], strict=True))
        return set(parts) if tag == "s" else frozenset(parts)
    except TypeError as error:
        raise NotPlain("expected hashable keys") from error
