"""JSON that every reader reads alike: no duplicate keys, no NaN, no infinity, bounded depth and numbers, UTF-8 only.

Source: RFC 7493 (I-JSON) for the rules; the bounds are ours.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from turnkeeper.errors import InvalidInput

DEEPEST = 32
LONGEST_NUMBER = 64  # digits, sign and exponent included
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_LARGEST_PLAIN = 1 << 62
_TOO_LARGE = 10 ** (LONGEST_NUMBER - 1)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_object(data: bytes, *, where: str) -> dict[str, Any]:
    """Read one JSON object. Raises InvalidInput naming `where`, for any other bytes."""
    if _nesting(data) > DEEPEST:
        raise InvalidInput(f"is nested deeper than {DEEPEST} levels", where=where)
    try:
        fields = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON as the bus writes it: {error}", where=where) from error
    if not isinstance(fields, dict):
        raise InvalidInput("is not a JSON object", where=where)
    if b"\\u" in data:  # only an escape can still bring in what has no UTF-8 form; the rest was refused above
        check_value(fields, where=where)
    return fields


def check_value(value: object, *, where: str) -> None:
    """Raise InvalidInput for a value that would not read back as it is, or that :func:`parse_object` refuses.

    A tuple is taken as the list that it becomes.
    """
    if _is_plain(value, DEEPEST):
        return
    level: list[object] = [value]
    for _ in range(DEEPEST):
        level = _inside(level, where)
        if not level:
            return
    if any(isinstance(item, dict | list | tuple) for item in level):
        raise InvalidInput(f"is nested deeper than {DEEPEST} levels", where=where)
    _inside(level, where)


def _is_plain(value: object, deepest: int) -> bool:
    """Tell whether a value is one of those, by far the most, that nothing can be wrong with; quickly."""
    if type(value) is dict:
        if not all(type(key) is str and key.isascii() for key in value):
            return False
        inside: Iterable[object] = value.values()
    elif type(value) is list:
        inside = value
    else:
        return False
    for item in inside:
        kind = type(item)
        if kind is str:
            if not item.isascii():  # type: ignore[attr-defined]
                return False
        elif kind is int:
            if not -_LARGEST_PLAIN < item < _LARGEST_PLAIN:  # type: ignore[operator]
                return False
        elif not (kind is bool or item is None or (deepest > 1 and _is_plain(item, deepest - 1))):
            return False
    return True


def _inside(level: list[object], where: str) -> list[object]:
    """Check the values of one level; return those of the next."""
    inside: list[object] = []
    for item in level:
        kind = type(item)
        if (kind is str and item.isascii()) or kind is bool or item is None:  # type: ignore[attr-defined]
            continue  # by far the most, and nothing can be wrong with them
        _check_scalar(item, where)
        if isinstance(item, dict | list | tuple):
            inside += _children(item, where)
    return inside


def _children(item: object, where: str) -> list[object]:
    if isinstance(item, dict):
        if not all(isinstance(key, str) for key in item):
            raise InvalidInput("has a key that is not a string", where=where)
        return [*item.keys(), *item.values()]
    return list(item) if isinstance(item, list | tuple) else []


def _check_scalar(item: object, where: str) -> None:
    if isinstance(item, str):
        if _SURROGATE.search(item):
            raise InvalidInput("contains a lone surrogate", where=where)
    elif isinstance(item, float):
        if not math.isfinite(item):
            raise InvalidInput("contains a number that is not finite", where=where)
    elif isinstance(item, int):
        if abs(item) >= _TOO_LARGE:
            raise InvalidInput(f"contains a number of more than {LONGEST_NUMBER} digits", where=where)
    elif item is not None and not isinstance(item, dict | list | tuple):
        raise InvalidInput(f"contains a {type(item).__name__}, which JSON does not have", where=where)


def _nesting(data: bytes) -> int:
    deepest = depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", data)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _bounded_int(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number has {len(digits)} digits")
    value = int(digits)
    if abs(value) >= _TOO_LARGE:
        raise ValueError(f"a number has {len(digits)} digits")
    return value


def _finite_float(digits: str) -> float:
    value = float(digits) if len(digits) <= LONGEST_NUMBER else math.inf
    if not math.isfinite(value):
        raise ValueError("a number is too large or too long")
    return value
