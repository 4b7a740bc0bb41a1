"""What happens inside turns, told to whoever asked for it by name: the runner, for tasks that an event sets off.

    turn_start, turn_end                        a turn begins; it is over, however it ended
    agent_start, agent_end                      its graph begins or goes on after an answer; it ends, asks or pauses
    message_end                                 the agent said something, or called tools
    tool_execution_start, tool_execution_end    a tool that the guard let through begins to run; it gave an answer

Each is on disk with what it tells of, or before that can have consequences, and once: a graph that runs a step again
after a crash tells it again under the same key. While nobody has asked, nothing is written and nothing is waited for.
An event holds names and ids, never what was said or what a tool was given.

Bridged events: what happened inside turns, kept for whoever asked for it by name until it is acknowledged.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    select,
    text,
)

from agent_runtime.model.decide import FINISHED
from agent_runtime.model.signal import Signal
from agent_runtime.model.turn import Said, TurnRecord
from agent_runtime.store import turn_reads, turn_writes
from agent_runtime.store.schema import metadata, turns
from turnkeeper.storage.statements import Statement, among, listed, upsert
from turnkeeper.times import from_us, to_us

LARGEST_PAGE = 500
MOST_KEPT = 100_000
_WANTED = "bridged"  # in `meta`: a JSON array of names

# A turn's own row tells the rest. Numbers are assigned in commit order, by the one writer, and never again.
bridged_events = Table(
    "bridged_events",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("key", String(160), unique=True),  # null where the turn's own row changes with the event: it comes once
    Column("name", String(32), nullable=False),
    Column("turn_id", String(64), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("tool", String(128), nullable=False),
    Column("data_json", Text, nullable=False),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, kw_only=True)
class BridgedRecord:
    """A bridged event with what its turn's row tells. Names are those of the columns."""

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


def wanted(connection: Connection) -> frozenset[str]:
    """Return the names that are kept."""
    return frozenset(json.loads(turn_reads.get_meta(connection, _WANTED) or "[]"))


def want(connection: Connection, names: Collection[str]) -> None:
    """Write which names are kept from now on."""
    turn_writes.set_meta(connection, _WANTED, json.dumps(sorted(names)))


def add(
    connection: Connection,
    name: str,
    turn_id: str,
    at: datetime,
    *,
    data: Mapping[str, Any],
    key: str | None = None,
    tool: str = "",
) -> None:
    """Append an event; one whose key is there already is the same event, told again."""
    values = {"key": key, "name": name, "turn_id": turn_id, "at_us": to_us(at), "tool": tool[:128]}
    _ADD.run(connection, **values, data_json=json.dumps(data, sort_keys=True))


def after(connection: Connection, sequence: int, names: Collection[str]) -> Sequence[BridgedRecord]:
    """Return the events of these names after a number, in order, at most a page of them."""
    rows = _AFTER.dicts(connection, sequence=sequence, names=listed(sorted(names)), most=LARGEST_PAGE)
    return [BridgedRecord(at=from_us(row.pop("at_us")), **row) for row in rows]


def newest(connection: Connection) -> int:
    """Return the number of the newest event that there ever was; 0 for none."""
    found = text("SELECT seq FROM sqlite_sequence WHERE name = 'bridged_events'")
    return connection.execute(found).scalar() or 0


def forget(connection: Connection, acknowledged: int) -> None:
    """Drop what was acknowledged; the keys of a turn that goes on are kept, for what it may tell again."""
    going_on = select(turns.c.turn_id).where(turns.c.status.in_(turn_reads.UNFINISHED))
    read = bridged_events.c.sequence <= acknowledged
    connection.execute(delete(bridged_events).where(read, bridged_events.c.turn_id.not_in(going_on)))


def drop_beyond(connection: Connection, most: int) -> int:
    """Drop the oldest events beyond the newest so many; return how many went."""
    last = connection.execute(select(func.max(bridged_events.c.sequence))).scalar() or 0
    return connection.execute(delete(bridged_events).where(bridged_events.c.sequence <= last - most)).rowcount


_ADD = Statement(upsert(bridged_events, [bridged_events.c.key]))
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


OF_TOOLS = ("tool_execution_start", "tool_execution_end")
NAMES = ("turn_start", "turn_end", "agent_start", "agent_end", "message_end", *OF_TOOLS)
SWEEP_EVERY = 1_000  # events between two looks at how many are kept
MOST_SENT = 10_000  # events of one stream; the next call acknowledges them
_STARTS = {"STARTED": "start", "RESUMED": "resume"}
_HALTS = {"INTERRUPTED": "interrupted", "PAUSED": "paused"}


class Bridge:
    """Which names are wanted, and the writing of their events inside the store's own transactions.

    All but `news` is touched by the store's one writer thread alone.

    Attributes:
        news: rings when events were added, or when another call of the stream takes the place of this one.
        serving: counts the calls of the stream; the newest is served.
    """

    def __init__(self, wanted: frozenset[str]) -> None:
        self.news = Signal()
        self.serving = 0
        self._wanted = wanted
        self._added = 0
        self._unheard = False

    @property
    def wanted(self) -> frozenset[str]:
        """The names whose events are kept."""
        return self._wanted

    def want(self, connection: Connection, names: frozenset[str], acknowledged: int) -> None:
        """Keep the events of these names from now on; forget what was read."""
        want(connection, names)
        forget(connection, acknowledged)
        self._wanted = names

    def happened(self, connection: Connection, turn_id: str, state: str, at: datetime) -> None:
        """Tell that a turn, or its graph, began, or that it waits."""
        if state == "STARTED":
            self._tell(connection, "turn_start", turn_id, at)
        if state in _STARTS:
            self._tell(connection, "agent_start", turn_id, at, mode=_STARTS[state])
        if state in _HALTS:
            self._tell(connection, "agent_end", turn_id, at, state=_HALTS[state])

    def ended(self, connection: Connection, turn: TurnRecord, state: str, at: datetime) -> None:
        """Tell that a turn is over; `turn` is as it was before that."""
        if turn.status in FINISHED:
            return
        if turn.status == "running":
            self._tell(connection, "agent_end", turn.turn_id, at, state=state)
        self._tell(connection, "turn_end", turn.turn_id, at, state=state)

    def said(self, connection: Connection, turn_id: str, lines: Sequence[Said], at: datetime) -> None:
        """Tell of the agent's messages among all that a turn has said; those that were told are told once."""
        if "message_end" in self._wanted:
            for number, line in enumerate(lines):
                if line.role == "agent":
                    self._tell(connection, "message_end", turn_id, at, key=f"{number}", number=number)

    def used(self, connection: Connection, name: str, turn_id: str, at: datetime, *, call: str, **what: Any) -> None:
        """Tell that a tool begins or has ended; `call` is equal whenever the graph makes this call again."""
        self._tell(
            connection, name, turn_id, at, key=hashlib.sha256(call.encode("utf-8", "replace")).hexdigest(), **what
        )

    def take_news(self) -> bool:
        """Return whether events were added since this was asked last."""
        unheard, self._unheard = self._unheard, False
        return unheard

    def _tell(
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
        if name not in self._wanted:
            return
        known_as = f"{turn_id}|{name}|{key}" if key else None
        add(connection, name, turn_id, at, key=known_as, tool=tool, data=data)
        self._added += 1
        self._unheard = True
        if self._added % SWEEP_EVERY == 0:
            drop_beyond(connection, MOST_KEPT)
