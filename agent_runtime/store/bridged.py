"""Bridged events: what happened inside turns, kept for whoever asked for it by name until it is acknowledged."""

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
from sqlalchemy.dialects.sqlite import insert as upsert

from agent_runtime.store import turn_reads as queries
from agent_runtime.store import turn_writes as writing
from agent_runtime.store.metadata import metadata
from agent_runtime.store.schema import turns
from agent_runtime.store.statements import Prepared
from turnkeeper.clock import from_us, to_us

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
    return frozenset(json.loads(queries.get_meta(connection, _WANTED) or "[]"))


def want(connection: Connection, names: Collection[str]) -> None:
    """Write which names are kept from now on."""
    writing.set_meta(connection, _WANTED, json.dumps(sorted(names)))


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
    rows = _AFTER.rows(connection, sequence=sequence, names=json.dumps(sorted(names)), most=LARGEST_PAGE)
    return [BridgedRecord(at=from_us(row.pop("at_us")), **row) for row in rows]


def newest(connection: Connection) -> int:
    """Return the number of the newest event that there ever was; 0 for none."""
    found = text("SELECT seq FROM sqlite_sequence WHERE name = 'bridged_events'")
    return connection.execute(found).scalar() or 0


def forget(connection: Connection, acknowledged: int) -> None:
    """Drop what was acknowledged; the keys of a turn that goes on are kept, for what it may tell again."""
    going_on = select(turns.c.turn_id).where(turns.c.status.in_(queries.UNFINISHED))
    read = bridged_events.c.sequence <= acknowledged
    connection.execute(delete(bridged_events).where(read, bridged_events.c.turn_id.not_in(going_on)))


def drop_beyond(connection: Connection, most: int) -> int:
    """Drop the oldest events beyond the newest so many; return how many went."""
    last = connection.execute(select(func.max(bridged_events.c.sequence))).scalar() or 0
    return connection.execute(delete(bridged_events).where(bridged_events.c.sequence <= last - most)).rowcount


_ADD = Prepared(
    upsert(bridged_events).on_conflict_do_nothing(index_elements=[bridged_events.c.key]),
    columns=[name for name in bridged_events.c.keys() if name != "sequence"],  # noqa: SIM118  a collection of columns
)
_OWN = [column for column in bridged_events.c if column.name != "key"]
_OF_TURN = [turns.c[name] for name in ("thread_id", "fire_id", "task_id", "task_name", "channel", "category", "agent")]
_AFTER = Prepared(
    select(*_OWN, *_OF_TURN)
    .join(turns, turns.c.turn_id == bridged_events.c.turn_id)
    .where(bridged_events.c.sequence > bindparam("sequence"))
    .where(text("bridged_events.name IN (SELECT value FROM json_each(:names))"))
    .order_by(bridged_events.c.sequence)
    .limit(bindparam("most"))
)
