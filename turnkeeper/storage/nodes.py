"""The processes that share one database, and when each was last seen, by the database's clock.

A process writes its row every two seconds. One that has not for ten is taken for gone: nothing else depends on that, as
every claim and every lease ends by itself.
"""

import platform
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Boolean, Column, Connection, MetaData, Table, bindparam, delete, false, select

from turnkeeper import __version__
from turnkeeper.clock import SharedClock
from turnkeeper.storage.statements import TEXT, Statement, now_us, upsert
from turnkeeper.times import from_us

SCHEMA = "runner"  # of the table, in a shared database
BEAT_S = 2.0
GONE_AFTER_S = 10.0
FORGOTTEN_AFTER_S = 86_400.0
_NOW = Statement(select(now_us()))


class Node(NamedTuple):
    """A process that shares the database. `offset_s` is how far its machine's clock is ahead of the database's."""

    node_id: str
    name: str
    role: str
    host: str
    version: str
    started_at: datetime
    beat_at: datetime
    offset_s: float
    draining: bool
    silent_s: float

    @property
    def lives(self) -> bool:
        """Whether it was seen lately."""
        return self.silent_s < GONE_AFTER_S


def table_of(metadata: MetaData) -> Table:
    """Return the table; `metadata` is that of the runner's store."""
    return Table(
        "nodes",
        metadata,
        Column("node_id", TEXT, primary_key=True),  # one life of a process
        Column("name", TEXT, nullable=False),
        Column("role", TEXT, nullable=False),
        Column("host", TEXT, nullable=False),
        Column("version", TEXT, nullable=False),
        Column("started_us", BigInteger, nullable=False),
        Column("beat_us", BigInteger, nullable=False),
        Column("offset_us", BigInteger, nullable=False),
        Column("draining", Boolean, nullable=False, server_default=false()),
    )


class Nodes:
    """Reads and writes the table. Every method belongs to the transaction that is open on the connection."""

    def __init__(self, table: Table) -> None:
        self._beat = Statement(upsert(table, [table.c.node_id], ["beat_us", "offset_us"]))
        self._leave = Statement(delete(table).where(table.c.node_id == bindparam("node_id")))
        self._forget = Statement(delete(table).where(table.c.beat_us < bindparam("before")))
        self._all = Statement(select(table).order_by(table.c.role, table.c.name, table.c.node_id))

    def beat(self, connection: Connection, node: dict[str, Any]) -> int:
        """Write that a process lives; return the database's time."""
        at = int(_NOW.value(connection))
        self._beat.run(connection, **({"started_us": at} | node), beat_us=at)
        self._forget.run(connection, before=at - int(FORGOTTEN_AFTER_S * 1e6))
        return at

    def leave(self, connection: Connection, node_id: str) -> None:
        """Write that a process has ended in good order."""
        self._leave.run(connection, node_id=node_id)

    def listed(self, connection: Connection) -> list[Node]:
        """Return all processes that were seen within a day, by role and name."""
        at = int(_NOW.value(connection))
        return [
            Node(
                **{name: row[name] for name in ("node_id", "name", "role", "host", "version", "draining")},
                started_at=from_us(row["started_us"]),
                beat_at=from_us(row["beat_us"]),
                offset_s=row["offset_us"] / 1e6,
                silent_s=max(0.0, (at - row["beat_us"]) / 1e6),
            )
            for row in self._all.dicts(connection)
        ]


def nodes_of(schema: str | None = SCHEMA) -> Nodes:
    """Return the nodes in a schema of the connection's database, for whoever does not own the table."""
    return Nodes(table_of(MetaData(schema=schema)))


class Beat:
    """Writes every two seconds that this process lives, and sets its clock by the database's."""

    def __init__(
        self,
        run: Callable[[Callable[[Connection], int]], Awaitable[int]],
        nodes: Nodes,
        clock: SharedClock,
        *,
        node_id: str,
        name: str,
        role: str,
    ) -> None:
        """Take what runs a function of a connection in a transaction of the database."""
        self._transact, self._nodes, self._clock = run, nodes, clock
        self._node = {"node_id": node_id, "name": name or platform.node(), "role": role}
        self._node |= {"host": platform.node(), "version": __version__}

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            await self.once()
            await self._clock.sleep(BEAT_S)

    async def once(self) -> None:
        """Beat once."""
        offset_us = int(self._clock.ahead_s * 1e6)
        at = await self._transact(
            lambda connection: self._nodes.beat(connection, self._node | {"offset_us": offset_us})
        )
        self._clock.set(from_us(at))

    async def set_clock(self) -> None:
        """Set the clock by the database's, and write nothing."""
        self._clock.set(from_us(await self._transact(_NOW.value)))

    async def is_alone(self) -> bool:
        """Return whether no other process of this role lives."""
        mine = self._node["node_id"], self._node["role"]
        found: list[Node] = []

        def look(connection: Connection) -> int:
            found[:] = self._nodes.listed(connection)
            return 0

        await self._transact(look)
        return not any(node.lives and node.role == mine[1] and node.node_id != mine[0] for node in found)

    async def leave(self) -> None:
        """Write that this process ends."""

        def leave(connection: Connection) -> int:
            self._nodes.leave(connection, self._node["node_id"])
            return 0

        await self._transact(leave)
