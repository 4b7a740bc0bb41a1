"""Parsing JSON from a caller: one value of limited length and depth that every store can store."""

import json
import math
import unicodedata
from typing import Any, NoReturn

from turnkeeper.errors import InvalidInput

DEEPEST = 32
# Turnkeeper or LangGraph sets these keys of `configurable`: the position in the thread's record, the turn, and the
# user.
_RESERVED = frozenset({"thread_id", "thread_ts", "turn_id", "grant", "before_turn", "run_id"})
_RESERVED_STARTS = ("__", "checkpoint_", "langgraph_auth_")


def read_object(
    text: str, *, where: str, longest: int, deepest: int = DEEPEST, half_characters: bool = False
) -> dict[str, Any]:
    """Parse one JSON object with :func:`read_value`. Refuse any other value."""
    found = read_value(text, where=where, longest=longest, deepest=deepest, half_characters=half_characters)
    if not isinstance(found, dict):
        raise InvalidInput("is not a JSON object", where=where)
    return found


def read_value(text: str, *, where: str, longest: int, deepest: int = DEEPEST, half_characters: bool = False) -> Any:
    """Parse one JSON value.

    Args:
        where: the field, for errors.
        longest: the most bytes in UTF-8.
        deepest: the most levels of objects and arrays.
        half_characters: accept lone surrogates, which JSON can contain and UTF-8 cannot.

    Raises:
        InvalidInput: the text is too long, too deep or not JSON, or has a lone surrogate.
    """
    if len(text.encode("utf-8", errors="replace")) > longest:
        raise InvalidInput(f"is longer than {longest} bytes", where=where)
    found = _read(text, where)
    if is_deeper(found, deepest):
        raise InvalidInput(f"is nested deeper than {deepest} levels", where=where)
    if not half_characters and "\\u" in text and not _has_utf8(found):
        raise InvalidInput("holds half a character (a lone surrogate)", where=where)
    return found


def as_data(value: Any, longest: int) -> str:
    """Return a value as one line of JSON for a prompt, in which the line opens no wrapper and no variable.

    Text is cut, so that the line has at most `longest` bytes. Any other value that is too long becomes null.
    """
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Two opening braces in a row occur only inside text: in JSON, a quote or a closing brace follows an opening brace.
    line = "".join(map(_plain, line)).replace("{{", "{\\u007b").replace("<", "\\u003c")
    if len(line.encode()) <= longest:
        return line
    if not isinstance(value, str):
        return "null"
    return as_data(value[: len(value) * longest // (len(line.encode()) + 1)], longest)


def is_reserved(name: str) -> bool:
    """Return True if Turnkeeper or LangGraph sets this key of `configurable`. Callers must not set it."""
    return name in _RESERVED or name.startswith(_RESERVED_STARTS)


def check_configurable(found: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a graph's context or `configurable` unchanged. Raise InvalidInput if it contains a reserved key.

    The keys of a context are checked, too, because a graph also finds them in `configurable`.
    """
    if reserved := next(filter(is_reserved, found), ""):
        raise InvalidInput(f"{reserved[:80]!r} is set by Turnkeeper or LangGraph", where=where, hint="leave it out")
    return found


def _plain(character: str) -> str:
    """Escape a character that is invisible to readers, or that is a different spelling of one or more characters."""
    if character.isprintable() and unicodedata.normalize("NFKC", character) == character:
        return character
    return json.dumps(character)[1:-1]


def _read(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", where=where) from error


def _has_utf8(value: object) -> bool:
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


def is_deeper(value: object, levels: int) -> bool:
    """Return True if lists and tables are nested more than `levels` deep in a value.

    >>> is_deeper({"a": [1]}, 2), is_deeper({"a": [[1]]}, 2)
    (False, True)
    """
    inside: list[Any] = [value]
    for _ in range(levels + 1):
        inside = [item for item in inside if isinstance(item, dict | list)]
        if not inside:
            return False
        inside = [child for item in inside for child in (item.values() if isinstance(item, dict) else item)]
    return True


def is_within(wanted: Any, held: Any) -> bool:
    """Return True if `held` contains `wanted`: objects by each wanted key, other values by equality.

    >>> is_within({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3}), is_within({"a": 1}, {"a": True})
    (True, False)
    """
    if isinstance(wanted, dict):
        return isinstance(held, dict) and all(key in held and is_within(wanted[key], held[key]) for key in wanted)
    return len({json.dumps(one, sort_keys=True, default=str) for one in (wanted, held)}) == 1


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refuse(text[:40])


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
