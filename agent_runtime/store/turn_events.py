"""Turn events, which the runner follows. A file's one writer numbers them in commit order. No number is reused.

The outcomes of turns, in `turn_events`: STARTED, INTERRUPTED, RESUMED, HELD, RELEASED and the final states. Between
them, for readers that ask for details, are the outcomes of a turn's proposals: PROPOSED, CONTRADICTED, REVIEWED.

Events inside turns, in `bridged_events`, for tasks that an event triggers. Only events that a reader wants are kept:

    turn_start, turn_end                        a turn begins; it is over, however it ended
    agent_start, agent_end                      its graph begins or continues after an answer; it ends, asks or pauses
    message_end                                 the agent wrote a message: text, calls of tools, or both
    tool_execution_start, tool_execution_end    a tool begins to run after the guard admitted it; the tool has answered

Each event is committed with the change that it reports, or before that change can have consequences. It is stored once,
because a graph that repeats a step after a crash reports the step under the same key. Without a reader, no event is
written and no turn waits. An event contains names and ids, never texts or arguments of tools.
"""

import asyncio
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from agent_runtime.model.decide import FINISHED, UNFINISHED
from agent_runtime.model.trigger import Trigger, TriggerHeader
from agent_runtime.model.turn import LONGEST_SUMMARY, KeyRecord, Said, TurnRecord
from agent_runtime.store.leases import get_meta, set_meta
from agent_runtime.store.schema import bridged_events, turn_events, turns
from turnkeeper.storage.server.handover import OUTCOMES, STARTED, notify
from turnkeeper.storage.statements import (
    Statement,
    among,
    last_number,
    listed,
    number_after_id,
    of_server,
    storable,
    upsert,
)
from turnkeeper.times import from_us, to_us

REVIEWS = ("PROPOSED", "CONTRADICTED", "REVIEWED")  # events of candidates and deviations, not states of a turn
Subject = TurnRecord | Trigger | TriggerHeader | KeyRecord
OF_TOOLS = ("tool_execution_start", "tool_execution_end")
NAMES = ("turn_start", "turn_end", "agent_start", "agent_end", "message_end", *OF_TOOLS)
LARGEST_PAGE = 500
_SUBJECT = [turns.c[name] for name in ("turn_id", "fire_id", "attempt", "thread_id")]
MOST_SENT = 10_000  # events of one stream, which the next call acknowledges
MOST_KEPT = 100_000
SWEEP_EVERY = 1_000  # events between two checks of the number that are stored
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
        subject: the turn, or the fire if it has no turn.
        state: the outcome of the subject.
        trigger: the cause of the turn's newest interval: fire, author, agent or answer.
        summary: one line of the agent's text.
        error: one sentence.
        held_by: the interrupts of a held fire or of an asking turn.
        turn: the turn whose tokens are reported and, after a success or a pause, its wake-up time.
    """
    wakes = turn is not None and state in {"SUCCEEDED", "SILENT", "PAUSED"}
    said = STARTED if (state, trigger) == ("STARTED", "fire") else subject.turn_id
    left = {"taken": False} if announce(connection, said) else {}
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
        models_json=turn.models_json if turn else "",
        tokens_in=turn.tokens_in if turn else 0,
        tokens_out=turn.tokens_out if turn else 0,
        wake_after_s=turn.wake_after_s if turn and wakes else None,
    )


def add_review(
    connection: Connection, turn_id: str, state: str, at: datetime, *, about: Sequence[str], summary: str
) -> None:
    """Append the outcome of a turn's candidate or deviation: one of `REVIEWS`. Write nothing if the turn is deleted."""
    row = connection.execute(select(*_SUBJECT, turns.c.trigger).where(turns.c.turn_id == turn_id)).mappings().first()
    if row is not None:
        announce(connection)
        tokens = {"tokens_in": 0, "tokens_out": 0, "wake_after_s": None}
        said = {
            "summary": storable(summary)[:LONGEST_SUMMARY],
            "error": "",
            "held_by_json": json.dumps(about),
            "models_json": "",
        }
        _ADD_OUTCOME.run(connection, **row, state=state, at_us=to_us(at), **said, **tokens)


def announce(connection: Connection, said: str = "") -> bool:
    """Prepare for numbering the rows that follow, and notify other processes of them. For a file, return False."""
    if is_shared := of_server(connection):
        number_after_id(connection)
        notify(connection, [said], OUTCOMES)
    return is_shared


@dataclass(frozen=True, kw_only=True)
class BridgedRecord:
    """An event inside a turn, with fields of the turn's row. Fields are named like the columns."""

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
    """Return the events with these names after a number, in order, at most one page."""
    rows = _AFTER.dicts(connection, sequence=sequence, names=listed(sorted(names)), most=LARGEST_PAGE)
    return [BridgedRecord(at=from_us(row.pop("at_us")), **row) for row in rows]


def newest(connection: Connection) -> int:
    """Return the highest number that an event ever had. 0 if there was none."""
    return connection.execute(select(last_number(bridged_events.c.sequence))).scalar() or 0


class Signal:
    """A signal that wakes all waiters when events were added.

    Call `next()` before you check for news; if there is none, wait for the event. Later notifications set the event.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event that the next notification sets."""
        return self._event

    def notify(self) -> None:
        due, self._event = self._event, asyncio.Event()
        due.set()


class EventSource:
    """The writer of events inside turns, in the store's own transactions, for the wanted names only.

    Only the store's one writer thread may use it, except `news`.

    Attributes:
        news: notified when events were added, or when another call of the stream replaces this one.
        serving: the number of calls of the stream so far; the newest is served.
    """

    def __init__(self, connection: Connection) -> None:
        """Read the wanted names."""
        self.wanted = frozenset[str](json.loads(get_meta(connection, _WANTED) or "[]"))
        self.news = Signal()
        self.serving = 0
        self._added = 0
        self._unread = False

    def want(self, connection: Connection, names: frozenset[str], acknowledged: int) -> None:
        """Keep the events of these names from now on, and delete the acknowledged ones.

        Keep the keys of unfinished turns, which may report the same events again.
        """
        set_meta(connection, _WANTED, json.dumps(sorted(names)))
        going_on = select(turns.c.turn_id).where(turns.c.status.in_(UNFINISHED))
        read = bridged_events.c.sequence <= acknowledged
        connection.execute(delete(bridged_events).where(read, bridged_events.c.turn_id.not_in(going_on)))
        self.wanted = names

    def happened(self, connection: Connection, turn_id: str, state: str, at: datetime) -> None:
        """Report that a turn or its graph began, or that the turn waits."""
        self._ask(connection)
        if state == "STARTED":
            self._emit(connection, "turn_start", turn_id, at)
        if state in _STARTS:
            self._emit(connection, "agent_start", turn_id, at, mode=_STARTS[state])
        if state in _HALTS:
            self._emit(connection, "agent_end", turn_id, at, state=_HALTS[state])

    def _ask(self, connection: Connection) -> None:
        if of_server(connection):  # a runner may have changed the wanted names since
            self.wanted = frozenset(json.loads(get_meta(connection, _WANTED) or "[]"))

    def ended(self, connection: Connection, turn: TurnRecord, state: str, at: datetime) -> None:
        """Report that a turn has ended. `turn` is its row before the end."""
        if turn.status in FINISHED:
            return
        self._ask(connection)
        if turn.status == "running":
            self._emit(connection, "agent_end", turn.turn_id, at, state=state)
        self._emit(connection, "turn_end", turn.turn_id, at, state=state)

    def said(self, connection: Connection, turn_id: str, lines: Sequence[Said], at: datetime) -> None:
        """Report the agent's messages among all messages of a turn. A repeated report adds no event."""
        if "message_end" in self.wanted:
            for number, line in enumerate(lines):
                if line.role == "agent":
                    self._emit(connection, "message_end", turn_id, at, key=f"{number}", number=number)

    def used(self, connection: Connection, name: str, turn_id: str, at: datetime, *, call: str, **what: Any) -> None:
        """Report that a tool begins or has ended. `call` is the same for every run of this call."""
        key = hashlib.sha256(call.encode("utf-8", "replace")).hexdigest()
        self._emit(connection, name, turn_id, at, key=key, **what)

    def take_news(self) -> bool:
        """Return True if events were added since the last call."""
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
        # A row with the same key is an earlier report of the same event.
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
