"""Turn events: what the runner follows. Numbers are assigned in commit order, by the one writer, and never again.

The outcomes of turns, in `turn_events`: STARTED, INTERRUPTED, RESUMED, HELD, RELEASED and how a turn ended. Between
them, for who asks for details, what became of what a turn wrote: PROPOSED, CONTRADICTED, REVIEWED.

What happens inside turns, in `bridged_events`, for tasks that an event triggers; only the names that a reader wants:

    turn_start, turn_end                        a turn begins; it is over, however it ended
    agent_start, agent_end                      its graph begins or goes on after an answer; it ends, asks or pauses
    message_end                                 the agent said something, or called tools
    tool_execution_start, tool_execution_end    a tool that the guard let through begins to run; it gave an answer

Each is on disk with what it reports, or before that can have consequences, and once: a graph that runs a step again
after a crash reports it again under the same key. While nobody reads them, nothing is written and nothing waits. An
event holds names and ids, never what was said or what a tool was given.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from agent_runtime.model.decide import FINISHED, UNFINISHED
from agent_runtime.model.signal import Signal
from agent_runtime.model.trigger import Trigger, TriggerHeader
from agent_runtime.model.turn import LONGEST_SUMMARY, KeyRecord, Said, TurnRecord
from agent_runtime.store.database import get_meta, set_meta
from agent_runtime.store.schema import bridged_events, turn_events, turns
from turnkeeper.storage.server.handover import announce
from turnkeeper.storage.statements import Statement, among, last_number, listed, of_server, storable, upsert
from turnkeeper.times import from_us, to_us

REVIEWS = ("PROPOSED", "CONTRADICTED", "REVIEWED")  # events of candidates and deviations: no state of a turn
Subject = TurnRecord | Trigger | TriggerHeader | KeyRecord
OF_TOOLS = ("tool_execution_start", "tool_execution_end")
NAMES = ("turn_start", "turn_end", "agent_start", "agent_end", "message_end", *OF_TOOLS)
LARGEST_PAGE = 500
_SUBJECT = [turns.c[name] for name in ("turn_id", "fire_id", "attempt", "thread_id")]
MOST_SENT = 10_000  # events of one stream; the next call acknowledges them
MOST_KEPT = 100_000
SWEEP_EVERY = 1_000  # events between two looks at how many are kept
_WANTED = "bridged"  # in `meta`: a JSON array of names
_STARTS = {"STARTED": "start", "RESUMED": "resume"}
_HALTS = {"INTERRUPTED": "interrupted", "PAUSED": "paused"}


def add_event(
    connection: Connection,
    subject: Subject,
    state: str,
    at: datetime,
    *,
    trigger: str,
    summary: str = "",
    error: str = "",
    held_by: tuple[str, ...] = (),
    turn: TurnRecord | None = None,
) -> None:
    """Append an outcome.

    Args:
        subject: the turn, or the fire that has none.
        state: what became of it.
        trigger: what started the turn's newest interval: fire, author, agent or answer.
        summary: one line of what was said.
        error: one sentence.
        held_by: the interrupts that a held fire waits for, or that a turn asks.
        turn: the turn whose tokens are reported, and after a good end when it wants to be woken.
    """
    wakes = turn is not None and state in {"SUCCEEDED", "SILENT", "PAUSED"}
    left = {"taken": False} if announce(connection) else {}
    _ADD_OUTCOME.run(
        connection,
        **left,
        turn_id=subject.turn_id,
        fire_id=subject.fire_id,
        attempt=subject.attempt,
        thread_id=subject.thread_id,
        trigger=trigger,
        state=state,
        at_us=to_us(at),
        summary=storable(summary),
        error=storable(error),
        held_by_json=json.dumps(held_by) if held_by else "",
        tokens_in=turn.tokens_in if turn else 0,
        tokens_out=turn.tokens_out if turn else 0,
        wake_after_s=turn.wake_after_s if turn and wakes else None,
    )


def add_review(
    connection: Connection, turn_id: str, state: str, at: datetime, *, about: Sequence[str], summary: str
) -> None:
    """Append what became of a candidate or a deviation of a turn: one of `REVIEWS`; nothing without its turn."""
    row = connection.execute(select(*_SUBJECT, turns.c.trigger).where(turns.c.turn_id == turn_id)).mappings().first()
    if row is not None:
        announce(connection)
        tokens = {"tokens_in": 0, "tokens_out": 0, "wake_after_s": None}
        said = {"summary": storable(summary)[:LONGEST_SUMMARY], "error": "", "held_by_json": json.dumps(about)}
        _ADD_OUTCOME.run(connection, **row, state=state, at_us=to_us(at), **said, **tokens)


@dataclass(frozen=True, kw_only=True)
class BridgedRecord:
    """An event from inside a turn, with what the turn's row says. Names are those of the columns."""

    sequence: int
    name: str
    turn_id: str
    at: datetime
    tool: str
    data_json: str
    thread_id: str
    fire_id: str
    task_id: str
    task_name: str
    channel: str
    category: str
    agent: str


def after(connection: Connection, sequence: int, names: Collection[str]) -> list[BridgedRecord]:
    """Return the events of these names after a number, in order, at most a page of them."""
    rows = _AFTER.dicts(connection, sequence=sequence, names=listed(sorted(names)), most=LARGEST_PAGE)
    return [BridgedRecord(at=from_us(row.pop("at_us")), **row) for row in rows]


def newest(connection: Connection) -> int:
    """Return the number of the newest event that there ever was; 0 for none."""
    return connection.execute(select(last_number(bridged_events.c.sequence))).scalar() or 0


class EventSource:
    """Writes what happens inside turns, inside the store's own transactions, if its name is wanted.

    All but `news` is touched by the store's one writer thread alone.

    Attributes:
        wanted: the names whose events are kept.
        news: notified when events were added, or when another call of the stream takes the place of this one.
        serving: counts the calls of the stream; the newest is served.
    """

    def __init__(self, connection: Connection) -> None:
        """Read which names are wanted."""
        self.wanted = frozenset[str](json.loads(get_meta(connection, _WANTED) or "[]"))
        self.news = Signal()
        self.serving = 0
        self._added = 0
        self._unread = False

    def want(self, connection: Connection, names: frozenset[str], acknowledged: int) -> None:
        """Keep the events of these names from now on, and drop what was acknowledged.

        The keys of a turn that goes on are kept, for what it may report again.
        """
        set_meta(connection, _WANTED, json.dumps(sorted(names)))
        going_on = select(turns.c.turn_id).where(turns.c.status.in_(UNFINISHED))
        read = bridged_events.c.sequence <= acknowledged
        connection.execute(delete(bridged_events).where(read, bridged_events.c.turn_id.not_in(going_on)))
        self.wanted = names

    def happened(self, connection: Connection, turn_id: str, state: str, at: datetime) -> None:
        """Report that a turn, or its graph, began, or that it waits."""
        self._ask(connection)
        if state == "STARTED":
            self._emit(connection, "turn_start", turn_id, at)
        if state in _STARTS:
            self._emit(connection, "agent_start", turn_id, at, mode=_STARTS[state])
        if state in _HALTS:
            self._emit(connection, "agent_end", turn_id, at, state=_HALTS[state])

    def _ask(self, connection: Connection) -> None:
        if of_server(connection):  # a runner may have said since what is wanted
            self.wanted = frozenset(json.loads(get_meta(connection, _WANTED) or "[]"))

    def ended(self, connection: Connection, turn: TurnRecord, state: str, at: datetime) -> None:
        """Report that a turn is over; `turn` is as it was before that."""
        if turn.status in FINISHED:
            return
        self._ask(connection)
        if turn.status == "running":
            self._emit(connection, "agent_end", turn.turn_id, at, state=state)
        self._emit(connection, "turn_end", turn.turn_id, at, state=state)

    def said(self, connection: Connection, turn_id: str, lines: Sequence[Said], at: datetime) -> None:
        """Report the agent's messages among all that a turn has said; each is kept once."""
        if "message_end" in self.wanted:
            for number, line in enumerate(lines):
                if line.role == "agent":
                    self._emit(connection, "message_end", turn_id, at, key=f"{number}", number=number)

    def used(self, connection: Connection, name: str, turn_id: str, at: datetime, *, call: str, **what: Any) -> None:
        """Report that a tool begins or has ended; `call` is equal whenever the graph makes this call again."""
        key = hashlib.sha256(call.encode("utf-8", "replace")).hexdigest()
        self._emit(connection, name, turn_id, at, key=key, **what)

    def take_news(self) -> bool:
        """Return whether events were added since the last call."""
        unread, self._unread = self._unread, False
        return unread

    def _emit(
        self,
        connection: Connection,
        name: str,
        turn_id: str,
        at: datetime,
        *,
        key: str = "",
        tool: str = "",
        **data: Any,
    ) -> None:
        if name not in self.wanted:
            return
        announce(connection)
        # One whose key is there already is the same event, reported again.
        values = {"key": f"{turn_id}|{name}|{key}" if key else None, "name": name, "turn_id": turn_id}
        data_json = json.dumps(data, sort_keys=True)
        _ADD_BRIDGED.run(connection, **values, at_us=to_us(at), tool=tool[:128], data_json=data_json)
        self._added += 1
        self._unread = True
        if self._added % SWEEP_EVERY == 0:
            last = connection.execute(select(func.max(bridged_events.c.sequence))).scalar() or 0
            connection.execute(delete(bridged_events).where(bridged_events.c.sequence <= last - MOST_KEPT))


_ADD_OUTCOME = Statement(insert(turn_events))
_ADD_BRIDGED = Statement(upsert(bridged_events, [bridged_events.c.key]))
_OWN = [column for column in bridged_events.c if column.name != "key"]
_OF_TURN = [turns.c[name] for name in ("thread_id", "fire_id", "task_id", "task_name", "channel", "category", "agent")]
_AFTER = Statement(
    select(*_OWN, *_OF_TURN)
    .join(turns, turns.c.turn_id == bridged_events.c.turn_id)
    .where(bridged_events.c.sequence > bindparam("sequence"))
    .where(among(bridged_events.c.name, "names"))
    .order_by(bridged_events.c.sequence)
    .limit(bindparam("most"))
)
