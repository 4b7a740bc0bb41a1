"""The processes that share a database, each with the time by the database's clock at which it was last seen.

A process updates its row every two seconds. A process that has not updated its row for ten seconds counts as lost. Only
the status depends on this rule, because every claim and every lease expires by itself.
"""

import hashlib
import json
import platform
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from turnkeeper.clock import Clock, SharedClock
from turnkeeper.config.build import build
from turnkeeper.config.home import Home
from turnkeeper.config.settings import NodeSettings
from turnkeeper.errors import Conflict, TurnkeeperError, Unreachable
from turnkeeper.storage.database import Query
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.schema_revision import STORES
from turnkeeper.storage.server.url import in_schema
from turnkeeper.storage.statements import IN_FORCE, TEXT, Statement, alone, now_us, refuse_pooler, unconnected, upsert
from turnkeeper.times import format_duration, from_us, rfc3339

SCHEMA = "runner"  # the table's schema in a shared database
WEB = "web"  # the role of a daemon that only serves its machine's page
BEAT_S = 2.0
GONE_AFTER_S = 10.0
CHECK_S = 5.0  # less than a lease, so that a database is not restored between two checks of a process that runs
FORGOTTEN_AFTER_S = 86_400.0
ALERT_AFTER_S = 60.0  # silence of a whole machine before an alert; the alerting process must have beaten for as long
ALERTED = (1 << 63) - 1
AGENTS = "agents"  # the fact with the agents that a runtime hosts
CORDONED = "cordoned"  # the fact of a runtime since when it takes no new turns, while none of its turns runs
TAG = "tag "  # prefix of the fact that a machine offers a tag
UNUSABLE = "cannot be used: "  # prefix of the fact about a category that a machine cannot read
_NOW = Statement(sa.select(now_us()))
_SAID = ("node_id", "name", "role", "host", "version", "draining", "owner", "alerted_us")
_CHANGE = ("draining", "owner", "facts_json", "alerted_us")


Row = Mapping[str, Any]


class Node(NamedTuple):
    """A process that shares the database.

    Attributes:
        role: `task-runner`, `agent-runtime` or `web`.
        offset_s: seconds by which its machine's clock is ahead of the database's.
        draining: True while it shuts down and begins no work.
        silent_s: seconds since it was last seen.
        owner: the id under which it owns threads; empty if it owns none.
        facts: digests of its configuration and code, by subject.
        alerted_us: when another node began to alert the author to the silence of this one; `ALERTED` after the alert.
    """

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
    owner: str
    facts: Mapping[str, str]
    alerted_us: int

    @property
    def lives(self) -> bool:
        return self.silent_s < GONE_AFTER_S


def table_of(metadata: sa.MetaData) -> Table:
    """Return the table of processes, which is part of the runner's store."""
    return Table(
        "nodes",
        metadata,
        sa.Column("node_id", TEXT, primary_key=True),  # the id of one run of a process
        sa.Column("name", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("started_us", sa.BigInteger, nullable=False),
        sa.Column("beat_us", sa.BigInteger, nullable=False),
        sa.Column("offset_us", sa.BigInteger, nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("owner", TEXT, nullable=False, server_default=""),
        sa.Column("facts_json", TEXT, nullable=False, server_default="{}"),
        sa.Column("alerted_us", sa.BigInteger, nullable=False, server_default="0"),  # the same as in `Node`
    )


def digest(value: object) -> str:
    """Return a short digest of a JSON value. Machines compare digests to find differences between their values.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}), len(digest(""))
    (True, 12)
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


class Nodes:
    """Reads and writes of the table. Every method runs in the transaction that is open on the connection."""

    def __init__(self, table: Table) -> None:
        own = {each.key: sa.bindparam(f"own_{each.key}", type_=each.type) for each in table.c}
        at_once = own | dict.fromkeys(("started_us", "beat_us"), now_us())
        row = upsert(table, [table.c.node_id], ["beat_us", "offset_us", *_CHANGE])
        beaten = row.values(at_once).returning(table.c.beat_us).cte("beaten")
        old = (table.c.beat_us < now_us() - int(FORGOTTEN_AFTER_S * 1e6)) & (table.c.node_id != own["node_id"])
        seen = sa.select(beaten.c.beat_us.label("at"), table)
        seen = seen.join_from(beaten, table, table.c.node_id != own["node_id"], isouter=True)
        self._beat = Statement(seen.add_cte(sa.delete(table).where(old).cte("forgotten")))
        self._leave = Statement(sa.delete(table).where(table.c.node_id == sa.bindparam("node_id")))
        self._alerted = Statement(sa.update(table).where(table.c.node_id == sa.bindparam("of")))
        self._all = Statement(sa.select(table).order_by(table.c.role, table.c.name, table.c.node_id))

    def beat(self, connection: Connection, node: dict[str, Any]) -> tuple[int, list[Node]]:
        """Record in one statement that a process is running. Return the database's time, and all processes."""
        rows = self._beat.dicts(connection, **{f"own_{name}": value for name, value in node.items()})
        at, fresh = rows[0]["at"], node | {"started_us": rows[0]["at"], "beat_us": rows[0]["at"]}
        return at, [_node(row, at) for row in (*rows, fresh) if row["node_id"]]

    def leave(self, connection: Connection, node_id: str) -> None:
        self._leave.run(connection, node_id=node_id)

    def listed(self, connection: Connection) -> list[Node]:
        """Return all processes that were seen within the last day, ordered by role and name."""
        at = int(_NOW.value(connection))
        return [_node(row, at) for row in self._all.dicts(connection)]

    def gone(self, connection: Connection) -> list[Node]:
        """Return the newest process of each machine whose silence this process must report to the author.

        If a process does not confirm an alert within a minute, another process takes over the alert.
        """
        if not alone(connection, "gone"):
            return []
        before = (at := int(_NOW.value(connection))) - int(ALERT_AFTER_S * 1e6)
        found = [node for node in silent(self.listed(connection)) if node.alerted_us < before]
        for node in found:
            self.alerted(connection, node, at)
        return found

    def alerted(self, connection: Connection, node: Node, at_us: int = ALERTED) -> None:
        """Record that the author was alerted to a machine's silence, or when a process began the alert."""
        self._alerted.run(connection, of=node.node_id, alerted_us=at_us)


def _node(row: Row, at: int) -> Node:
    return Node(
        **{name: row[name] for name in _SAID},
        facts=json.loads(row["facts_json"]),
        started_at=from_us(row["started_us"]),
        beat_at=from_us(row["beat_us"]),
        offset_s=row["offset_us"] / 1e6,
        silent_s=max(0.0, (at - row["beat_us"]) / 1e6),
    )


def silent(found: Sequence[Node]) -> list[Node]:
    """Return the newest process of each machine that has been silent for long."""
    newest = {(node.name, node.host): node for node in sorted(found, key=lambda node: node.beat_at)}
    return [node for node in newest.values() if node.silent_s >= ALERT_AFTER_S]


def name_of(settings: NodeSettings) -> str:
    return settings.name or platform.node()


def nodes_of(schema: str | None = SCHEMA) -> Nodes:
    """Return the nodes in a schema of the connection's database, for a process that does not own the table."""
    return Nodes(table_of(sa.MetaData(schema=schema)))


def lacking(facts: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """Return the digests of categories and graphs that other machines have and this machine lacks.

    >>> lacking({"category a": "1", "config x": "2"}, [{"category a": "3", "config x": "4"}, {"category a": "1"}])
    frozenset({'3'})
    """
    told = {
        said for each in others for what, said in each.items() if not what.startswith(("config", AGENTS, CORDONED, TAG))
    }
    return frozenset(said for said in told - set(facts.values()) if not said.startswith(UNUSABLE))


def refuse_restored(clock: Clock) -> Callable[[Connection], None]:
    """Return a check that raises Conflict if the database was restored to an earlier time since this process started.

    The check reads the database every `CHECK_S`. A process that was suspended for longer reads it before other work.
    """
    known, looked = "", clock.monotonic() - CHECK_S

    def check(connection: Connection) -> None:
        nonlocal known, looked
        if (now := clock.monotonic()) - looked < CHECK_S:
            return
        found = connection.exec_driver_sql("SELECT value FROM runtime.meta WHERE key = 'incarnation'").scalar()
        if known and found != known:
            what = "was restored to an earlier time while this process ran; it stops writing"
            raise Conflict(what, where="the shared database", hint="start it again: turnkeeper up")
        known, looked = found or "", now

    return check


class Beat:
    """The heartbeat of this process. Every two seconds, it also sets this process's clock by the database's clock.

    Attributes:
        facts: returns the digests of the process's configuration and code; called at each beat.
        owner: returns the id under which the process owns threads; called at each beat.
        on_gone: alerts the author to a lost machine; called with the newest process of that machine.
        on_seen: called at each beat with all processes, and the time.
        lacking: digests that other processes of the same role had at the last beat and this process lacks.
        alike: the other processes of the same role that ran at the last beat and were not draining.
        lost: the number of machines that had been silent for long at the last beat.
    """

    def __init__(
        self, run: Callable[..., Awaitable[Any]], clock: SharedClock, *, node_id: str, name: str, role: str
    ) -> None:
        """Take `run`, which runs a function of a connection in a transaction of the database."""
        self._transact, self._nodes, self._clock = run, nodes_of(), clock
        self._node: dict[str, Any] = {"node_id": node_id, "name": name or platform.node(), "role": role}
        self._node |= {"host": platform.node(), "version": build(), "draining": False, "alerted_us": 0}
        self.facts: Callable[[], Mapping[str, str]] = dict
        self.owner: Callable[[], str] = str
        self.on_gone: Callable[[Node], object] = str
        self.on_seen: Callable[[Sequence[Node], datetime], object] = lambda _found, _at: None
        self._steady_since = self._last = clock.monotonic()
        self.lacking = frozenset[str]()
        self.alike: Sequence[Node] = ()
        self.lost = 0

    async def run(self) -> None:
        while True:
            await self.once()
            await self.look()
            await self._clock.sleep(BEAT_S)

    async def look(self) -> None:
        """Alert the author to lost machines, unless another process does this.

        Do nothing if this process was silent itself, or if the server's clock was changed.
        """
        if self._clock.monotonic() - self._steady_since < ALERT_AFTER_S:
            return
        for node in await self._transact(self._nodes.gone):
            self.on_gone(node)
            await self._transact(partial(self._nodes.alerted, node=node))

    async def once(self) -> None:
        facts, offset_us = self.facts(), int(self._clock.ahead_s * 1e6)
        said = {"facts_json": json.dumps(facts, sort_keys=True), "owner": self.owner(), "offset_us": offset_us}
        asked = self._clock.monotonic()
        at, found = await self._transact(Query(partial(self._nodes.beat, node=self._node | said)))
        alike = self.alike = [each for each in self._others_of(found) if each.lives and not each.draining]
        self.lacking = lacking(facts, [each.facts for each in alike if CORDONED not in each.facts])
        self.lost = len(silent(found))
        self.on_seen(found, from_us(at))
        was_set_s = abs((from_us(at) - self._clock.now()).total_seconds())
        self._clock.set(from_us(at), self._clock.monotonic() - asked)
        before, self._last = self._last, self._clock.monotonic()
        if max(self._last - before, was_set_s) > GONE_AFTER_S:
            self._steady_since = self._last

    def is_first_for(self, key: str) -> bool:
        """Return True if this machine is of the two that look first for what a key names: two, as one may have died."""
        others, own = {each.name for each in self.alike if CORDONED not in each.facts}, self._node["name"]
        return sum(digest([key, other]) > digest([key, own]) for other in others) < 2

    async def set_clock(self) -> None:
        """Set this process's clock by the database's clock. Write nothing."""
        asked = self._clock.monotonic()
        self._clock.set(from_us(await self._transact(_NOW.value)), self._clock.monotonic() - asked)

    async def is_alone(self) -> bool:
        """Return True if no other process of this role is running."""
        return not any(node.lives for node in self._others_of(await self._transact(self._nodes.listed)))

    async def last_other(self) -> datetime | None:
        """Return when another process of this role was last seen. Return None if one is running or none is known."""
        found = self._others_of(await self._transact(self._nodes.listed))
        return None if any(node.lives for node in found) else max((node.beat_at for node in found), default=None)

    def _others_of(self, found: Sequence[Node]) -> list[Node]:
        role, own = self._node["role"], self._node["node_id"]
        return [node for node in found if node.role == role and node.node_id != own]

    async def drain(self) -> None:
        self._node["draining"] = True
        await self.once()

    async def leave(self) -> None:
        await self._transact(lambda connection: self._nodes.leave(connection, self._node["node_id"]))


def alert(home: Home, emit: Callable[..., object], node: Node) -> None:
    """Write an alert that a machine is lost. The supervisor of this machine sends the alert."""
    since = rfc3339(node.beat_at.replace(microsecond=0))
    text = f"machine {node.name} ({node.host}) has not been seen since {since}; see: turnkeeper status"
    key = f"{since.replace(':', '')}-{digest([node.name, node.host])}"
    says = {"text": f"turnkeeper: nodes: {text} ({home.root})", "tried_at": None}
    replace_whole(home.run.parent / f"escalate-failed-{key}-nodes", json.dumps(says, sort_keys=True).encode())
    emit("node.gone", durable=True, node=node.name, host=node.host, since_at=since)


def date_alerts(home: Home, found: Sequence[Node], at: datetime) -> None:
    """In unsent alerts about machines that are back, record that the fault is over."""
    back = {digest([node.name, node.host]) for node in found if node.lives}
    for path in home.run.parent.glob("escalate-failed-*-nodes"):
        with suppress(FileNotFoundError, ValueError):  # the alert was just sent, or the file is not an alert
            says = json.loads(path.read_bytes())
            if path.name.split("-")[-2] in back and not says.get("over_at"):
                replace_whole(path, json.dumps(says | {"over_at": rfc3339(at)}, sort_keys=True).encode())


CORDON = "INSERT INTO runtime.meta VALUES (%s, %s) ON CONFLICT DO NOTHING"
_NODES = """
    WITH now AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at)
    SELECT n.*, greatest(0, (SELECT at FROM now) - n.beat_us) / 1e6 AS silent_s,
        (SELECT count(*) FROM runtime.threads t WHERE n.owner <> '' AND t.owner = o.owner) AS threads,
        (SELECT count(*) FROM runtime.threads t JOIN runtime.turns u USING (thread_id)
            WHERE n.owner <> '' AND t.owner = o.owner AND u.status = 'running') AS turns,
        (SELECT value FROM runtime.meta WHERE n.role = 'agent-runtime' AND key = 'cordoned ' || n.name) AS cordoned
    FROM runner.nodes n LEFT JOIN runtime.owners o ON o.owner = n.owner AND o.until_us > (SELECT at FROM now)
    ORDER BY n.name, n.host, n.role, n.started_us"""
_QUEUE = """
    WITH now AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at)
    SELECT count(*) AS waiting, ((SELECT at FROM now) - min(at_us)) / 1e6 AS oldest_s,
        (SELECT count(*) FROM runtime.envelopes WHERE state = 'quarantined') AS quarantined
    FROM runtime.envelopes WHERE state = 'waiting' AND not_before_us <= (SELECT at FROM now)"""
_INBOXES = """
    WITH now AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at)
    SELECT agent, count(*) FILTER (WHERE e.state = 'waiting') AS waiting,
        min(e.at_us) FILTER (WHERE e.state = 'waiting') AS oldest_us,
        ((SELECT at FROM now) - min(e.at_us) FILTER (WHERE e.state = 'waiting')) / 1e6 AS oldest_s,
        count(*) FILTER (WHERE e.state = 'quarantined') AS quarantined, i.until_us > (SELECT at FROM now) AS is_read
    FROM runtime.inbox_envelopes e JOIN runtime.inboxes i USING (agent)
    WHERE e.state IN ('waiting', 'quarantined') GROUP BY agent, i.until_us ORDER BY agent"""
_SERVER = """
    SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int / 10000 AS major,
        pg_is_in_recovery() AS is_standby, current_setting('synchronous_commit') AS synchronous_commit,
        current_setting('synchronous_standby_names') AS standbys, current_setting('fsync') AS fsync,
        current_setting('full_page_writes') AS full_page_writes,
        (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'
            AND query_start < clock_timestamp() - interval '1 s') AS unconfirmed,
        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS most"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The state of a shared database.

    `inboxes` are the inboxes of agents in terminals that contain waiting or quarantined envelopes. `server` contains
    the server's settings, and `revisions` the revision of each schema.
    """

    processes: Sequence[Row]
    queue: Row
    inboxes: Sequence[Row]
    server: Row
    revisions: Mapping[str, str]


def read_cluster(url: str) -> Cluster:
    """Read a database's state. Raises TurnkeeperError if the database does not answer or has no tables."""
    with connected(url) as connection:
        connection.execute("SET default_transaction_read_only = on")
        return _read(lambda query: connection.execute(query.encode()).fetchall())


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """Yield a new connection. Raises the same errors as `read_cluster`."""
    import psycopg  # noqa: PLC0415  only where a server is used
    from psycopg.rows import dict_row  # noqa: PLC0415

    place = in_schema(url, SCHEMA)
    try:
        with closing(psycopg.connect(place, autocommit=True, row_factory=dict_row)) as connection:
            [found] = connection.execute(IN_FORCE.encode()).fetchall()
            refuse_pooler(str(found["?column?"]), SCHEMA, url)
            connection.execute("SET statement_timeout = '10s'")
            yield connection
    except psycopg.errors.UndefinedTable as error:
        raise TurnkeeperError("has no tables yet", where=url, hint="start a daemon: turnkeeper up") from error
    except psycopg.errors.UndefinedColumn as error:
        what = "its tables are of an older version"
        raise TurnkeeperError(what, where=url, hint="they are brought up to date by: turnkeeper up") from error
    except psycopg.OperationalError as error:
        why, hint = unconnected(str(error))
        raise Unreachable(f"does not answer: {why}", where=url, hint=hint) from error


def _read(rows: Callable[[str], Sequence[Row]]) -> Cluster:
    (server,) = rows(_SERVER)
    revisions = {schema: rows(f"SELECT version_num FROM {schema}.alembic_version") for schema in STORES}  # noqa: S608
    (queue,) = rows(_QUEUE)
    oldest_s = None if queue["oldest_s"] is None else round(max(0.0, float(queue["oldest_s"])), 1)
    return Cluster(
        processes=[_process(row) for row in rows(_NODES)],
        queue={"waiting": queue["waiting"], "oldest_s": oldest_s, "quarantined": queue["quarantined"]},
        inboxes=rows(_INBOXES),
        server=server,
        revisions={schema: str(found[0]["version_num"]) if found else "" for schema, found in revisions.items()},
    )


def _process(row: Row) -> dict[str, Any]:
    silent_s = float(row["silent_s"])
    running = "draining" if row["draining"] else "cordoned" if row["cordoned"] else "ready"
    return {
        **{name: row[name] for name in ("node_id", "name", "host", "role", "version", "threads", "turns")},
        "state": running if silent_s < GONE_AFTER_S else "stale",
        "started_at": rfc3339(from_us(row["started_us"])),
        "beat_at": rfc3339(from_us(row["beat_us"])),
        "silent_s": round(silent_s, 1),
        "offset_s": round(row["offset_us"] / 1e6, 3),
        "facts": json.loads(row["facts_json"]),
    }


def span(seconds: float) -> str:
    return format_duration(timedelta(seconds=int(seconds)))
