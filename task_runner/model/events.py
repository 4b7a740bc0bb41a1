"""Events that trigger tasks: their names, their fields, and the tasks' filters for events. Pure.

An event has a name, the ids of its turn and its fire, and data (a JSON object). A filter tests one field of an event.
An event triggers a task if the name and all filters match.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import re2

from turnkeeper.config.json_text import read_object
from turnkeeper.errors import InvalidInput

# Emitted by the agent runtime, about activity inside turns.
LIFECYCLE = (
    "turn_start",
    "turn_end",
    "agent_start",
    "agent_end",
    "message_end",
    "tool_execution_start",
    "tool_execution_end",
)
SUCCEEDED, FAILED, REJECTED, RELEASED = "task.succeeded", "task.failed", "task.rejected", "thread.released"
AFTER = "after"  # the key of the filter that names the followed tasks, as a,b
OWN = (SUCCEEDED, FAILED, REJECTED, RELEASED)
LARGEST_DATA = 64 << 10  # bytes
DEEPEST_DATA = 32
MOST_FILTERS = 20
LONGEST_FILTER = 300
LONGEST_PATTERN = 200
_NAME = re.compile(r"[a-z][a-z0-9_.:-]{0,63}", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}", re.ASCII)
_RESERVED = ("task.", "thread.")
_FIELDS = {
    "event": "name",
    "task": "task_name",
    "thread": "thread_id",
    "turn": "turn_id",
    "fire": "fire_id",
    **{name: name for name in ("task_name", "thread_id", "turn_id", "fire_id", "task_id")},
    **{name: name for name in ("channel", "category", "agent", "tool")},
}
# The memory limit of a compiled pattern. A larger pattern is refused, because it would be slow.
_MEMORY = 1 << 20
_MISSING = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event.

    Attributes:
        id: stays the same if the same event is emitted again.
        fire_id: the fire that the event reports, or whose turn emitted the event; empty for none.
        turn_id, thread_id, task_id, task_name, channel, category, agent, tool: the event's origin; empty for none.
        data_json: a JSON object with further data; empty for none.
    """

    name: str
    id: str
    at: datetime
    fire_id: str = ""
    turn_id: str = ""
    thread_id: str = ""
    task_id: str = ""
    task_name: str = ""
    channel: str = ""
    category: str = ""
    agent: str = ""
    tool: str = ""
    data_json: str = ""


def id_of(*parts: object) -> str:
    """Return an event's id, 16 hexadecimal digits, derived from the parts that identify the event."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()[:16]


def check_event_name(name: str, *, where: str = "on") -> str:
    """Return the name if a task may wait for an event with this name. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        hint = "use 1 to 64 characters of a-z, 0-9, _, ., : and -; begin with a letter"
        raise InvalidInput(f"{name[:70]!r} is not an event's name", where=where, hint=hint)
    if name.startswith(_RESERVED) and name not in OWN:
        raise InvalidInput(f"{name!r} is reserved, and never emitted", where=where, hint=f"one of {', '.join(OWN)}")
    return name


def check_emitted_name(name: str) -> str:
    """Return the name if an author or an agent may emit it. Raises InvalidInput for a reserved or invalid name."""
    if name in LIFECYCLE or name.startswith(_RESERVED):
        raise InvalidInput(f"{name!r} is reserved: turnkeeper emits it", where="name", hint="choose another name")
    return check_event_name(name, where="name")


def check_data(text: str) -> str:
    """Return an event's data as one line of JSON. Raises InvalidInput if it is too long, too deep or not an object."""
    if not text.strip():
        return ""
    data = read_object(text, where="data", longest=LARGEST_DATA, deepest=DEEPEST_DATA, half_characters=True)
    return json.dumps(data, separators=(",", ":"))


def check_filters(filters: Sequence[str]) -> tuple[str, ...]:
    """Return the filters unchanged. Raises InvalidInput if a filter cannot be parsed or its cost cannot be bounded."""
    if len(filters) > MOST_FILTERS:
        raise InvalidInput(f"there are more than {MOST_FILTERS}", where="filters")
    for text in filters:
        _filter(text)
    return tuple(filters)


def matches(filters: Collection[str], event: Event) -> bool:
    """Return True if all filters match an event."""
    return all(_filter(text)(event) for text in filters)


def prompt_line(event: Event) -> str:
    """Return an event as one line of ASCII JSON for a prompt. Escape `<`, so that the line cannot contain a tag."""
    said: dict[str, Any] = {"event": event.name, "id": event.id, "at": event.at.isoformat()}
    names = ("task", "task_id", "fire_id", "turn_id", "thread_id", "channel", "category", "agent", "tool")
    said |= {name: value for name in names if (value := value_of(event, name))}
    if data := data_of(event):
        said["data"] = data
    return json.dumps(said, separators=(",", ":")).replace("<", "\\u003c")


def data_of(event: Event) -> dict[str, Any]:
    """Return an event's data. Empty if the data cannot be parsed."""
    return _parsed(event.data_json) if event.data_json else {}


def value_of(event: Event, key: str) -> str | None:
    """Return one field of an event as text. None if the event has no such field.

    The event's own fields take precedence over its data. `data.KEY` reads only the data.
    """
    if key in _FIELDS:
        return getattr(event, _FIELDS[key]) or None
    found = _looked_up(data_of(event), key)
    if found is _MISSING and key.startswith("data."):
        found = _looked_up(data_of(event), key.removeprefix("data."))
    return None if found is _MISSING else _text(found)


@lru_cache(maxsize=4096)
def _filter(text: str) -> Callable[[Event], bool]:
    key, equals, wanted = text.partition("=")
    is_pattern = key.endswith("~")
    key = key.removesuffix("~")
    if not equals or not _KEY.fullmatch(key):
        hint = "write key=value, or key~=pattern; a key is a field of the event or of its data"
        raise InvalidInput(f"{text[:60]!r} is not a filter", where="filters", hint=hint)
    if len(text) > LONGEST_FILTER:
        raise InvalidInput(f"the value for {key!r} has more than {LONGEST_FILTER} characters", where="filters")
    if not is_pattern:
        names = wanted.split(",") if key == AFTER else ()
        return lambda event: value_of(event, key) == wanted or (event.name == SUCCEEDED and event.task_name in names)
    pattern = _compiled(wanted)
    return lambda event: (value := value_of(event, key)) is not None and pattern.search(value) is not None


def _compiled(text: str) -> Any:
    """Compile a pattern whose search time is always linear in the length of the text."""
    if len(text) > LONGEST_PATTERN:
        raise InvalidInput(f"the pattern is longer than {LONGEST_PATTERN} characters", where="filters")
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        return re2.compile(text, options)
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        hint = "a pattern must not need backtracking (\\1, (?=…), (?<=…)), because its cost would have no bound"
        raise InvalidInput(f"{text[:60]!r} is not a pattern: {said}", where="filters", hint=hint) from error


@lru_cache(maxsize=64)
def _parsed(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _looked_up(data: Any, key: str) -> Any:
    """Return the value of `key` in `data`, or the nested value under the parts of `key`."""
    if not isinstance(data, dict):
        return _MISSING
    if key in data:
        return data[key]
    head, dot, rest = key.partition(".")
    return _looked_up(data[head], rest) if dot and head in data else _MISSING


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    # JSON can contain a lone surrogate, but a pattern cannot search text with one.
    return text.encode("utf-8", "replace").decode()
