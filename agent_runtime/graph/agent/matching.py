"""What LangGraph's stores mean by a filter and by conditions on namespaces. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from langgraph.store.base import ListNamespacesOp, MatchCondition

from turnkeeper.errors import InvalidInput

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda held, wanted: bool(held == wanted),
    "$ne": lambda held, wanted: bool(held != wanted),
    "$gt": lambda held, wanted: float(held) > float(wanted),
    "$gte": lambda held, wanted: float(held) >= float(wanted),
    "$lt": lambda held, wanted: float(held) < float(wanted),
    "$lte": lambda held, wanted: float(held) <= float(wanted),
}


def holds(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Return whether a value passes a filter: by field, a value, or operators such as `$gte`.

    Raises:
        InvalidInput: an operator that there is not, or one for numbers on what is no number.
    """
    return all(_fits(value.get(field), want) for field, want in (wanted or {}).items())


def listed(op: ListNamespacesOp, namespaces: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the namespaces that an operation asks for, in their order, cut to its depth."""
    fitting = {one for one in namespaces if all(_matches(condition, one) for condition in op.match_conditions or ())}
    cut = {one[: op.max_depth] for one in fitting} if op.max_depth is not None else fitting
    return sorted(cut)[op.offset : op.offset + op.limit]


def _fits(held: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple):
        same = isinstance(held, list | tuple) and len(held) == len(wanted)
        return same and all(_fits(*pair) for pair in zip(held, wanted, strict=True))
    if not isinstance(wanted, Mapping):
        return bool(held == wanted)
    if any(str(key).startswith("$") for key in wanted):
        return all(_compare(held, str(operator), other) for operator, other in wanted.items())
    return isinstance(held, Mapping) and all(_fits(held.get(key), want) for key, want in wanted.items())


def _compare(held: Any, operator: str, wanted: Any) -> bool:
    if operator not in _COMPARE:
        raise InvalidInput(f"no operator {operator[:20]!r}", where="filter", hint=f"there are {', '.join(_COMPARE)}")
    if held is None and operator not in {"$eq", "$ne"}:
        return False
    try:
        return _COMPARE[operator](held, wanted)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{operator} compares numbers: {error}", where="filter") from error


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(want in {"*", held} for held, want in zip(part, path, strict=True))
