"""The history in the stores of a home: the ledger of fires, turns, approvals, tool calls and deliveries.

A store is read in its state at the first query, on a separate read-only connection that does not wait for a process
that has locked the file. If several machines share a database, it contains the history of all of them.
"""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnkeeper.clock import SharedClock, SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.surfaces import required
from turnkeeper.constellation.timeline.records import Record
from turnkeeper.errors import TurnkeeperError, Unreachable
from turnkeeper.storage import nodes
from turnkeeper.storage.schema_revision import STORES, readable
from turnkeeper.storage.server import handover
from turnkeeper.storage.sqlite_files import reader
from turnkeeper.times import from_us, rfc3339, to_us

FOREVER_US = 253_402_300_799_000_000  # the end of the year 9999
_SCHEMAS = f"{nodes.SCHEMA}, {handover.SCHEMA}"  # no table that is read here exists in both schemas
_CHANNELS = (handover.OUTCOMES, handover.TASKS, handover.NEWS)
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at"
WAIT_S = 0.25  # seconds to wait for a store that another process has locked
_OWN = frozenset({"at", "kind"})


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The range of records to read.

    Attributes:
        since_us, until_us: microseconds since 1970, both ends included.
        ids: only records that name one of these ids; empty for all records.
    """

    since_us: int
    until_us: int
    ids: frozenset[str] = frozenset()

    def in_time(self, at_us: int) -> bool:
        """Return True if an instant is in the range."""
        return self.since_us <= at_us <= self.until_us


class Stores:
    """The databases of a home.

    Args:
        skipped: receives the name of each unreadable store, with the reason.
    """

    def __init__(self, home: Home, skipped: dict[str, str]) -> None:
        self._home, self._skipped = home, skipped
        self._open: dict[Path, Any] = {}
        self._shared: Any = None
        self._clock = SharedClock()

    def now_us(self) -> int:
        """Return the earlier time of this machine's clock and the shared database's clock."""
        self._store(self._home.agent_db)
        if self._shared is not None:
            with contextlib.suppress(Unreachable):
                self._clock.set(from_us(next(self._shared.execute(_NOW))["at"]))
        return to_us(min(SystemClock().now(), self._clock.now()))

    @property
    def is_whole(self) -> bool:
        """True if the shared database was read completely, as far as requested."""
        return not shared_url(self._home) or self._skipped.keys().isdisjoint(
            {self._home.schedules_db.name, self._home.agent_db.name}
        )

    def renew(self) -> None:
        """Take new snapshots at the next read. Keep the connection to a server, unless it is lost."""
        if self._shared is not None and self.is_whole:
            with contextlib.suppress(Unreachable):
                self._shared.renew()
                return
        self.close()
        for path in (self._home.schedules_db, self._home.agent_db):
            self._skipped.pop(path.name, None)

    def wait(self, seconds: float) -> None:
        """Wait for another process's notification of a commit, or the timeout; without a server, the timeout."""
        channels = () if self._shared is None else load_settings(self._home).store.heard(*_CHANNELS)
        if self._shared is None or not channels or not self.is_whole:
            SystemClock().block(seconds)
            return
        try:
            self._shared.wait(seconds, channels)
        except Unreachable:
            SystemClock().block(seconds)

    def close(self) -> None:
        """Close the open connections. The next read takes new snapshots."""
        for path, store in self._open.items():
            store.close()
            self._skipped.pop(path.name, None)
        self._open.clear()
        self._shared = None

    def read(self, wanted: Wanted) -> list[Iterator[Record]]:
        """Return the records of each table, oldest first."""
        ledger = [
            self._of_store("task-runner", self._home.schedules_db, query, key, wanted) for query, key in _LEDGER.items()
        ]
        return ledger + [
            self._of_store("agent-runtime", self._home.agent_db, query, key, wanted) for query, key in _TURNS.items()
        ]

    def _of_store(self, process: str, path: Path, query: str, key: str, wanted: Wanted) -> Iterator[Record]:
        store = self._store(path)
        if store is None:
            return
        try:
            for row in self._ask(store, *self._within(query, key, wanted)):
                for told in _each(dict(row)):
                    fields = {name: _value(name, value) for name, value in told.items() if name not in _OWN}
                    yield Record(row["at"], path.name, row["kind"], process, plain(fields))
        except (sqlite3.Error, TurnkeeperError, ValueError) as error:  # ValueError: a string that is not JSON
            self._skipped[path.name] = f"cannot be read: {error}"

    def _ask(self, store: Any, query: str, *values: Any) -> Iterator[Any]:
        """Run a query with the parameters $1, $2 and so on, which both databases understand."""
        is_file = isinstance(store, sqlite3.Connection)
        rows = store.execute(query, {str(at): value for at, value in enumerate(values, 1)} if is_file else values)
        return iter(rows)

    def _within(self, query: str, key: str, wanted: Wanted) -> tuple[Any, ...]:
        """Return the query for the records in a range, and its values. Only a list of ids depends on the database."""
        named, values = "WHERE at BETWEEN $1 AND $2", list[Any]([wanted.since_us, wanted.until_us])
        if wanted.ids:
            is_file, ids = self._shared is None, sorted(wanted.ids)
            one_of = "IN (SELECT value FROM json_each($3))" if is_file else "= ANY ($3)"
            named += f" AND ({' OR '.join(f'{name} {one_of}' for name in key.split())})"
            values.append(json.dumps(ids) if is_file else ids)
        return f"SELECT * FROM ({query}) AS told {named} ORDER BY at", *values  # noqa: S608  none of it is from outside

    def _store(self, path: Path) -> Any:
        """Open a store for reading, in its present state. Return None if the store cannot be read or is missing."""
        if path not in self._open and path.name not in self._skipped:
            try:
                if url := shared_url(self._home):
                    self._shared = self._shared or required("shared-snapshot", url, _SCHEMAS, named=True)
                    self._open[path] = self._shared
                elif path.exists():
                    schema = nodes.SCHEMA if path == self._home.schedules_db else handover.SCHEMA
                    with readable(path, STORES[schema], WAIT_S) as file:
                        self._open[path] = reader(file, WAIT_S)
            except (sqlite3.Error, TurnkeeperError) as error:
                self._skipped[path.name] = f"cannot be read: {error}"
        return self._open.get(path)

    def _look_up(self, path: Path, query: str, key: str) -> dict[str, Any] | None:
        """Return a row by an id. None if there is none, or if the store cannot be read."""
        store = self._store(path)
        with contextlib.suppress(sqlite3.Error, TurnkeeperError):
            return next(map(dict, self._ask(store, query, key)), None) if store is not None else None
        return None

    def _task(self, task_id: str) -> dict[str, Any] | None:
        """Return a task with its agent and its thread, read from its definition."""
        row = self._look_up(self._home.schedules_db, _TASK, task_id)
        with contextlib.suppress(ValueError):
            definition = json.loads(row.pop("definition")) if row is not None else {}
            thread = definition.get("thread_id") or task_id
            return row and row | {"agent": definition.get("agent"), "thread_id": "" if thread == "each" else thread}
        return None

    def lookups(self) -> dict[str, Callable[[str], Mapping[str, Any] | None]]:
        """Return the lookups for :class:`Known`, by the names of its parameters."""
        turn, question = (partial(self._look_up, self._home.agent_db, query) for query in (_TURN, _QUESTION))
        return {"turn": turn, "question": question, "task": self._task}


def shared_url(home: Home) -> str:
    """Return the URL of the database with the stores. Empty if the stores are files or the settings cannot be read."""
    with contextlib.suppress(TurnkeeperError):
        return load_settings(home).store.shared_url
    return ""


def _value(name: str, value: Any) -> Any:
    return rfc3339(from_us(value)) if name.endswith("_at") and isinstance(value, int) else value


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in {None, ""}}


def _each(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row or, for a message with tool calls, one row for each call."""
    if (calls := row.pop("tool_calls_json", None)) is None:
        yield row
    for call in json.loads(calls or "[]"):
        yield row | {"tool": call.get("name"), "call_id": call.get("id")}


_KINDS = {
    "fire": ("sent", "accepted", "running", "settled"),
    "outage": ("began", "ended"),
    "turn": ("started", "held", "released", "stopped"),
    "interrupt": ("raised", "resolved", "expired", "reminded", "escalated"),
    "tool": ("called",),
}
# Kinds of records: a trail contains those of its own process, and a shared store those of all processes.
TOLD = frozenset(f"{subject}.{what}" for subject, kinds in _KINDS.items() for what in kinds)
_TURN = "SELECT thread_id, channel, agent, task_id, task_name AS task, fire_id FROM turns WHERE turn_id = $1"
_QUESTION = "SELECT turn_id FROM interrupts WHERE interrupt_id = $1"
_TASK = "SELECT name AS task, channel, definition FROM tasks WHERE id = $1"
# Each query with the ids that find its rows. The ids have an index if the table is large.
_MOMENTS = (
    ("fired_us", "fire.sent", ""),
    ("accepted_us", "fire.accepted", ""),
    ("started_us", "fire.running", ""),
    ("ended_us", "fire.settled", ", outcome, reason"),
)
_LEDGER = {
    **{
        f"SELECT {column} AS at, '{kind}' AS kind, task_id, fire_id, attempt, turn_id{more} FROM fires": "fire_id"  # noqa: S608
        for column, kind, more in _MOMENTS
    },
    """
    SELECT from_us AS at, 'outage.began' AS kind, '' AS fire_id, '' AS turn_id FROM outages
    UNION ALL
    SELECT to_us, 'outage.ended', '', '' FROM outages WHERE NOT lasts
    """: "fire_id",
}
_TURNS = {
    """
    SELECT at_us AS at, CASE state WHEN 'STARTED' THEN 'turn.started' WHEN 'RESUMED' THEN 'turn.started'
        WHEN 'HELD' THEN 'turn.held' WHEN 'RELEASED' THEN 'turn.released' ELSE 'turn.stopped' END AS kind,
        turn_id, fire_id, attempt, thread_id, trigger,
        CASE state WHEN 'STARTED' THEN 'start' WHEN 'RESUMED' THEN 'resume' ELSE '' END AS mode,
        CASE WHEN state IN ('STARTED', 'RESUMED', 'HELD', 'RELEASED') THEN '' ELSE lower(state) END AS state
    FROM turn_events WHERE state NOT IN ('PROPOSED', 'CONTRADICTED', 'REVIEWED')
    """: "fire_id turn_id",
    """
    SELECT at, interrupts.kind AS asked, moments.kind, interrupt_id, turn_id, '' AS fire_id, thread_id, channel, tool,
        missing_scope, CASE moments.kind WHEN 'interrupt.resolved' THEN decision END AS decision,
        CASE moments.kind WHEN 'interrupt.resolved' THEN decided_by END AS via
    FROM interrupts JOIN (
        SELECT number, created_at_us AS at, 'interrupt.raised' AS kind FROM interrupts
        UNION ALL
        SELECT number, resolved_at_us,
            CASE decision WHEN 'expired' THEN 'interrupt.expired' ELSE 'interrupt.resolved' END
        FROM interrupts
        UNION ALL
        SELECT number, reminded_at_us, 'interrupt.reminded' FROM interrupts
        UNION ALL
        SELECT number, escalated_at_us, 'interrupt.escalated' FROM interrupts
    ) AS moments USING (number)
    """: "interrupt_id turn_id",
    """
    SELECT at_us AS at, 'tool.called' AS kind, turn_id, '' AS fire_id, tool_calls_json
    FROM messages WHERE tool_calls_json <> ''
    """: "turn_id",
    """
    SELECT settled_at_us AS at, 'fire.' || state AS kind, turn_id, fire_id, attempt, agent, thread_id, channel, reason
    FROM deliveries
    """: "fire_id turn_id",
}
