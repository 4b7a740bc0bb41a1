"""The records of the timeline, and how they are merged; pure.

A source yields records in order of time. :func:`merge` puts all records into one order, and drops a store's record of a
step that a trail also reports. :class:`Known` adds to each record its task, thread, channel and agent. This module
keeps only a bounded part of the timeline in memory.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

TRAIL = "trail"
TWIN_WINDOW_US = 60_000_000  # the longest time between the records of one step in a trail and in a store
MOST_HELD = 20_000  # records that wait for their twins; if there are more, a step can appear twice
MOST_KNOWN = 10_000
LONGEST_STORY = 10_000

# By the first part of a kind: the id of its subject, then the fields that distinguish its steps.
_STEPS = {
    "fire": ("fire_id", "task_id", "attempt", "first_nominal_at"),
    "turn": ("turn_id", "mode", "state"),
    "interrupt": ("interrupt_id",),
    "tool": ("turn_id", "call_id"),
    "restart": ("id", "phase"),
}
_LINKS = ("fire_id", "turn_id", "interrupt_id")
# More ids that link records of some kinds: the name of an envelope, the id of a restart or a start.
_ALSO = {"name": ("fire.received", "message.accepted", "envelope."), "id": ("restart.", "revive.")}
_ACTS = {"act.asked", "act.done"}
LIFECYCLE = ("daemon.", "process.", "runtime.up", "revive.", "hang.", "restart.", "crashloop.", "machine.", "store.")


class Record(NamedTuple):
    """A step in the timeline.

    Attributes:
        at_us: microseconds since 1970 in UTC.
        source: `trail`, `acks`, `marker`, `restart-status`, or the name of a store.
        kind: the kind of event, such as `fire.sent`.
        fields: ids, states and counts, but never a prompt, a message or an argument.
    """

    at_us: int
    source: str
    kind: str
    process: str
    fields: Mapping[str, Any]


def step_of(record: Record) -> Hashable:
    """Return a key that is equal for the records of one step from two sources. None if only one source has the step."""
    names = _STEPS.get(record.kind.partition(".")[0])
    if names is None:
        return None
    if record.kind != "fire.skipped" and names[0] == "fire_id":
        names = ("fire_id", "attempt")
    return (record.kind, *(str(record.fields.get(name) or "") for name in names))


def merge(sources: Iterable[Iterable[Record]]) -> Iterator[Record]:
    """Yield the records of all sources in order of time, and each step only once."""
    return _without_twins(heapq.merge(*sources, key=lambda record: record.at_us))


def _without_twins(records: Iterable[Record]) -> Iterator[Record]:
    """Drop a store's record if a trail reports the same step at nearly the same time."""
    held: deque[_Held] = deque()
    lonely: dict[tuple[bool, Hashable], deque[_Held]] = {}  # records without a twin so far
    for record in records:
        while held and (held[0].record.at_us < record.at_us - TWIN_WINDOW_US or len(held) >= MOST_HELD):
            yield from _release(held.popleft(), lonely)
        item = _Held(record)
        held.append(item)
        twin = _take(lonely, item.twin)
        if twin is not None:
            (twin if record.source == TRAIL else item).wanted = False
        elif item.step is not None:
            lonely.setdefault(item.own, deque()).append(item)
    while held:
        yield from _release(held.popleft(), lonely)


class _Held:
    """A record that waits for its twin. `own` and `twin` are the keys of both."""

    __slots__ = ("own", "record", "step", "twin", "wanted")

    def __init__(self, record: Record) -> None:
        self.record, self.step, self.wanted = record, step_of(record), True
        of_trail = record.source == TRAIL
        self.own, self.twin = (of_trail, self.step), (not of_trail, self.step)


def _take(lonely: dict[tuple[bool, Hashable], deque[_Held]], key: tuple[bool, Hashable]) -> _Held | None:
    """Remove and return the oldest record with a key. Return None if there is none."""
    waiting = lonely.get(key)
    if not waiting:
        return None
    item = waiting.popleft()
    if not waiting:
        del lonely[key]
    return item


def _release(item: _Held, lonely: dict[tuple[bool, Hashable], deque[_Held]]) -> Iterator[Record]:
    if (waiting := lonely.get(item.own)) and waiting[0] is item:
        _take(lonely, item.own)
    if item.wanted:
        yield item.record


Lookup = Callable[[str], Mapping[str, Any] | None]


class Known:
    """Lookup of a record's task, fire, turn and question, from earlier records or a store.

    Args:
        turn: returns thread_id, channel, agent, task_id, task and fire_id of a turn; None if unknown.
        question: returns the turn_id for the id of an approval; None if unknown.
        task: returns the name of a task as `task`; None if unknown.
    """

    def __init__(self, turn: Lookup, question: Lookup, task: Lookup) -> None:
        self._turns, self._questions, self._tasks = _Latest(turn), _Latest(question), _Latest(task)

    def complete(self, record: Record) -> Record:
        """Return the record with all known ids of its subject."""
        fields = dict(record.fields)
        _fill(fields, {"thread_id": fields.get("thread")})
        self._learn(record.kind, fields)
        if asked := fields.get("interrupt_id"):
            _fill(fields, self._questions.get(asked))
        if turn_id := fields.get("turn_id"):
            _fill(fields, self._turns.get(turn_id))
        if not fields.get("task_id") and (fire_id := fields.get("fire_id")):
            fields["task_id"] = str(fire_id).partition("@")[0]
        if task_id := fields.get("task_id"):
            _fill(fields, self._tasks.get(task_id))
        return record._replace(fields=fields)

    def _learn(self, kind: str, fields: Mapping[str, Any]) -> None:
        about = {name: fields[name] for name in ("fire_id", "thread_id", "channel", "agent") if fields.get(name)}
        if (turn_id := fields.get("turn_id")) and about:
            self._turns.add(turn_id, about)
        if turn_id and (asked := fields.get("interrupt_id")):
            self._questions.add(asked, {"turn_id": turn_id})
        if kind == "task.created" and fields.get("name"):
            self._tasks.add(fields["task_id"], {"task": fields["name"]})


class _Latest:
    """A cache of the ids that were used last."""

    def __init__(self, look_up: Lookup) -> None:
        self._look_up = look_up
        self._found: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def get(self, key: str) -> Mapping[str, Any]:
        found = self._found.get(key)
        if found is None or not found.get(""):
            found = dict(self._look_up(key) or {}) | (found or {}) | {"": True}  # marks an id that was looked up
        self._keep(key, found)
        return found

    def add(self, key: str, said: Mapping[str, Any]) -> None:
        self._keep(key, {**self._found.get(key, {}), **said})

    def _keep(self, key: str, found: dict[str, Any]) -> None:
        self._found[key] = found
        self._found.move_to_end(key)
        if len(self._found) > MOST_KNOWN:
            self._found.popitem(last=False)


def _fill(fields: dict[str, Any], found: Mapping[str, Any]) -> None:
    for name, value in found.items():
        if name and value and not fields.get(name):
            fields[name] = value


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The selection of records. An empty field accepts all records.

    Attributes:
        kinds: kinds, or their part before the dot.
        agent, task, thread, channel, turn: the subject of the records; a task is given by its name or id.
    """

    kinds: frozenset[str] = frozenset()
    agent: str = ""
    task: str = ""
    thread: str = ""
    channel: str = ""
    turn: str = ""

    def takes(self, record: Record) -> bool:
        """Return True if a record, completed by :class:`Known`, is selected."""
        fields = record.fields
        if self.kinds and not self.kinds & {record.kind, record.kind.partition(".")[0]}:
            return False
        wanted = ((self.agent, "agent"), (self.thread, "thread_id"), (self.channel, "channel"), (self.turn, "turn_id"))
        if any(value and fields.get(name) != value for value, name in wanted):
            return False
        return not self.task or self.task in {fields.get("task"), fields.get("task_id")}


def linked(record: Record, ids: frozenset[str]) -> frozenset[str]:
    """Return the ids that a record links to `ids`, and `ids` themselves. Empty if the record names none of them."""
    names = (*_LINKS, *(name for name, kinds in _ALSO.items() if record.kind.startswith(kinds)))
    own = frozenset(str(record.fields[name]) for name in names if record.fields.get(name))
    subjects = frozenset(str(record.fields.get("subject") or "").split(", ")) if record.kind in _ACTS else own
    return own | ids if (own | subjects) & ids else frozenset()
