"""`turnkeeper migrate`: moves the content of a home's files into a database that several machines can share.

All of the content is moved in one transaction, or none. Each table is counted on both sides before the commit. The
files do not change. Afterwards the settings name the database, so that no daemon continues with the files. If the
settings no longer name the database, a marker requires a takeover first.

The module also contains `turnkeeper restore --mark`, for a database that was restored to an earlier time, and
`turnkeeper forget`, which removes a machine that will not return.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import Boolean, Connection, MetaData, Table, func, insert, select, text

from turnkeeper.bus.durable_writes import ns_of
from turnkeeper.bus.envelope import decode, encode
from turnkeeper.bus.inbox import Quarantine
from turnkeeper.bus.seals import unsealed
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import AGENT, Home
from turnkeeper.config.settings import StoreSettings, load_settings, take_server_keys
from turnkeeper.console import home, note, status
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.daemons import EVERY, SUPERVISOR
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, NotFound
from turnkeeper.storage import nodes, schema_revision, sqlite_files
from turnkeeper.storage.chain import SCHEMAS, Recorder, SharedChains
from turnkeeper.storage.database import Database, make_schemas
from turnkeeper.storage.files import SystemFiles, replace_whole
from turnkeeper.storage.locking import ProcessLock, ReaderLock
from turnkeeper.storage.server import handover
from turnkeeper.storage.server.url import in_schema, shown
from turnkeeper.storage.statements import now_us
from turnkeeper.times import from_us, rfc3339

_NOT_COPIED = frozenset({"alembic_version", "nodes", "slots", "owners", "threads", "audit_chains", "audit_records"})
_AT_ONCE = 1000
_SECTION = re.compile(r"^\[store\].*$", re.MULTILINE)
# Mark the turn events that the runner has read. Unanswered fires: accept those that the runtime has, and resend the
# others.
_SETTLED = (
    """UPDATE runtime.turn_events SET taken =
        sequence <= coalesce((SELECT sequence FROM runner.follow WHERE peer = 'agent-runtime'), 0)""",
    """UPDATE runner.fires f SET outcome = 'accepted', accepted_us = fired_us WHERE is_open AND outcome = 'sent'
        AND concat('fire:', f.fire_id, ':', f.attempt) IN
        (SELECT key FROM runtime.keys UNION ALL SELECT key FROM runtime.envelopes
        UNION ALL SELECT key FROM runtime.inbox_envelopes UNION ALL SELECT key FROM runtime.deliveries)""",
    "UPDATE runtime.deliveries SET name = key WHERE state = 'waiting'",
    """UPDATE runner.fires SET outcome = 'pending', ready_us = due_us, fired_us = NULL
        WHERE is_open AND outcome = 'sent'""",
)
_UNFINISHED = (
    "SELECT thread_id FROM runtime.turns WHERE status IN ('running', 'interrupted', 'paused')"
    " UNION SELECT thread_id FROM runtime.kept_messages"
)


def migrate(
    url: Annotated[str, typer.Option("--to", help="The database, as postgresql://USER@HOST/NAME.", metavar="URL")],
) -> None:
    """Move the home's data from files into a PostgreSQL database that several machines may share.

    The files stay. The command is refused while anything runs on the home, and if the database already contains tasks
    or turns. Afterwards the home's config.toml names the database. Put a password into PGPASSWORD, in the environment
    or the home's .env, or into ~/.pgpass.

    Example: turnkeeper down && turnkeeper migrate --to postgresql://turnkeeper@db.example.org/turnkeeper
    """
    place = home()
    if os.path.lexists(place.migrated):
        place.check_taken_over()
    url = _checked(place, url)
    with status("moving"):
        counts = move_into(place, url)
    filled = {name: count for name, count in counts.items() if count}
    note("\n".join(f"{name:<28} {count}" for name, count in sorted(filled.items())))
    note(f"{sum(filled.values())} rows of {len(filled)} tables are in the database, and {place.config} names it")
    note("the files stay, unused; on each other machine, write the same [store] into its config.toml")


def _checked(place: Home, url: str) -> str:
    """Return the URL in the form of the settings. Raises InvalidInput or Conflict if the home cannot move there."""
    try:
        store = StoreSettings(url=url)
    except ValueError as error:
        found: Any = error
        said = found.errors()[0]["msg"].removeprefix("Value error, ")  # the full message would show a password
        raise InvalidInput(said, where="--to", hint="as postgresql://USER@HOST/NAME") from None
    if not store.is_shared:
        raise InvalidInput("is the home's own files", where="--to", hint="name a database: postgresql://USER@HOST/NAME")
    take_server_keys(place)
    if load_settings(place).store.is_shared:
        raise Conflict("names a database already", where=str(place.config))
    if "url" in load_settings(place).store.model_fields_set:
        raise Conflict(
            "already names a database in [store]", where=str(place.config), hint="remove url: this command writes it"
        )
    return store.url


def move_into(place: Home, url: str) -> dict[str, int]:
    """Copy the home's stores and envelopes, and write the database into its settings. Return row counts by table."""
    with ExitStack() as held:
        for daemon in (SUPERVISOR, *EVERY):
            held.enter_context(ProcessLock(place, daemon.name))  # this raises Conflict if a process runs
        for agent in _in_terminals(place):
            held.enter_context(ReaderLock(place.inbox(agent), "migrate"))
        _check_current(place)
        stores = []
        for schema, migrations in schema_revision.STORES.items():
            stores.append(Database(in_schema(url, schema), migrations=migrations, upgrade=False))
            held.callback(stores[-1].close)
        counts: dict[str, int] = stores[-1].submit(lambda connection: _copy(connection, place)).result()
        says = {"to": shown(url), "at": rfc3339(SystemClock().now())}
        markers.write_marker(markers.MIGRATED.at(place), says)  # before the settings change: the database is complete
        said = place.config.read_text(encoding="utf-8") if place.config.exists() else ""
        begun = said if _SECTION.search(said) else f"{said}\n[store]\n"
        replace_whole(place.config, _SECTION.sub(lambda found: f'{found[0]}\nurl = "{url}"', begun, count=1).encode())
        return counts


def mark_restored(place: Home) -> str:
    """Mark the home's shared database as restored to an earlier time. Return the new incarnation.

    Clients that read the database's numbers must start over. Writes for a turn by an earlier process are refused,
    because the new thread epochs are higher than all before. Raises Conflict while a process that uses the database is
    running.
    """
    settings, entropy = load_settings(place), SystemEntropy()
    if not settings.store.is_shared:
        hint = "a home's own files are restored by: turnkeeper restore DIR"
        raise InvalidInput("names no database", where=f"[store] of {place.config}", hint=hint)
    with ExitStack() as held:
        for daemon in (SUPERVISOR, *EVERY):
            held.enter_context(ProcessLock(place, daemon.name))  # this raises Conflict if a process runs
        make_schemas(settings.store.url, upgrade=False)
        of = Recorder.of(place, SystemClock().now(), entropy, nodes.name_of(settings.node))
        store = Database(
            in_schema(settings.store.url, handover.SCHEMA),
            migrations=schema_revision.STORES[handover.SCHEMA],
            upgrade=False,
        )
        held.callback(store.close)
        return store.submit(lambda connection: _mark(connection, of, entropy.hex(32))).result()


def _mark(connection: Connection, of: Recorder, drawn: str) -> str:
    alive = {node.name for node in nodes.nodes_of().listed(connection) if node.lives}
    if alive or connection.execute(text(_OWNS)).scalar():
        what = (
            f"is in use by {', '.join(sorted(alive)) or 'a runtime'}, or still was at the time to which it was restored"
        )
        hint = "on each machine: turnkeeper down; then wait for 15 seconds"
        raise Conflict(what, where="the shared database", hint=hint)
    at_us = connection.execute(select(now_us())).scalar_one()
    for statement in _MARKED:
        named = {"drawn": drawn, "at_us": at_us}.items()
        connection.execute(text(statement), {name: value for name, value in named if f":{name}" in statement})
    for store, schema in SCHEMAS.items():
        SharedChains(store, schema).restored(connection, from_us(at_us), of, drawn)
    return drawn


_OWNS = "SELECT EXISTS (SELECT FROM runtime.owners WHERE until_us > extract(epoch FROM clock_timestamp()) * 1000000)"
# The time in microseconds since 1970 is higher than every epoch so far, also of threads that no longer exist.
_MARKED = (
    """INSERT INTO runtime.meta (key, value) VALUES ('incarnation', :drawn), ('first_epoch', CAST(:at_us AS text))
        ON CONFLICT (key) DO UPDATE SET value = excluded.value""",
    "UPDATE runtime.threads SET epoch = :at_us, owner = ''",
    "DELETE FROM runtime.owners",
    "DELETE FROM runner.nodes",
)


def _check_current(place: Home) -> None:
    """Upgrade the schemas of the home's files. Raises Conflict, Corrupt or MachineTrouble."""
    for path, migrations in zip((place.schedules_db, place.agent_db), schema_revision.STORES.values(), strict=True):
        if path.exists():
            Database(path, migrations=migrations).close()


def _copy(connection: Connection, place: Home) -> dict[str, int]:
    for statement in handover.CHECKPOINTS:
        connection.execute(text(statement))
    if any(connection.execute(text(f"SELECT EXISTS (SELECT FROM {each})")).scalar() for each in _EMPTY):  # noqa: S608
        raise Conflict("holds tasks or turns already", where="--to", hint="name a new database")
    counts: dict[str, int] = {}
    files = (("runner", place.schedules_db), ("runtime", place.agent_db), ("runtime", place.checkpoints_db))
    for schema, path in files:
        if path.exists():
            with sqlite_files.reading(path) as file:
                counts |= dict(_copy_store(connection, file, schema))
    at = SystemClock().now()
    waiting = list(_waiting(place, {row[0] for row in connection.execute(text("SELECT key FROM runtime.keys"))}))
    put = handover.handover_of()
    counts["envelopes that wait"] = sum(put.put_all(connection, waiting, at))
    counts["envelopes of terminals"] = _copy_inboxes(connection, place)
    for statement in _SETTLED:
        connection.execute(text(statement))
    for (thread_id,) in connection.execute(text(_UNFINISHED)).all():
        put.look(connection, thread_id, "moved", at)
    return counts


_EMPTY = ("runner.tasks", "runner.fires", "runtime.turns", "runtime.messages", "runtime.checkpoints")


def _copy_store(connection: Connection, file: Any, schema: str) -> Iterator[tuple[str, int]]:
    """Copy the tables that a file and a schema have in common. Yield the number of rows of each. Raises Corrupt."""
    tables = MetaData(schema=schema)
    tables.reflect(connection, schema=schema)
    for table in tables.sorted_tables:
        if table.name in _NOT_COPIED or not sqlite_files.has_table(file, table.name):
            continue
        if table.name in {"meta", "audit"}:  # the stores wrote rows into them when they were opened
            connection.execute(table.delete())
        rows = _rows(file, table)
        while batch := [row for _, row in zip(range(_AT_ONCE), rows, strict=False)]:
            connection.execute(insert(table), batch)
        (count,) = file.execute(f'SELECT count(*) FROM "{table.name}"').fetchone()  # noqa: S608
        found = connection.execute(select(func.count()).select_from(table)).scalar()
        if found != count:
            raise Corrupt(f"has {count} rows in the file, and {found} in the database", where=f"{schema}.{table.name}")
        _go_on_numbering(connection, file, table)
        yield f"{schema}.{table.name}", count


def _rows(file: Any, table: Table) -> Iterator[dict[str, Any]]:
    have = {row[1] for row in file.execute(f'PRAGMA table_info("{table.name}")')}
    columns = [column for column in table.columns if column.name in have]
    flags = [column.name for column in columns if isinstance(column.type, Boolean)]
    names = ", ".join(f'"{column.name}"' for column in columns)
    for values in file.execute(f'SELECT {names} FROM "{table.name}"'):  # noqa: S608
        row = dict(zip((column.name for column in columns), values, strict=True))
        yield row | {name: None if row[name] is None else bool(row[name]) for name in flags}


def _go_on_numbering(connection: Connection, file: Any, table: Table) -> None:
    """Make the database give new rows higher numbers than any row of the file ever had."""
    for column in table.primary_key:
        sequence = f"pg_get_serial_sequence('{table.schema}.{table.name}', '{column.name}')"
        if not connection.execute(text(f"SELECT {sequence}")).scalar():
            continue
        (highest,) = file.execute(f'SELECT max("{column.name}") FROM "{table.name}"').fetchone()  # noqa: S608
        if sqlite_files.has_table(file, "sqlite_sequence"):
            ever = file.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", [table.name]).fetchone()
            highest = max(highest or 0, ever[0] if ever else 0)
        if highest:
            connection.execute(text(f"SELECT setval({sequence}, {int(highest)})"))


def _waiting(place: Home, taken: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the envelopes of hosted agents that are not turns yet, in the order of their inboxes."""
    for agent in _agents(place):
        if not _HOSTED.fullmatch(agent):
            continue
        folder = place.inbox(agent)
        for path in sorted([*folder.glob("claimed/*.json"), *folder.glob("inbox/*.json")], key=lambda path: path.name):
            if path.name.startswith("."):
                continue
            envelope = decode(path.read_bytes())
            if (key := envelope.idempotency_key or envelope.id) not in taken:
                found = {"key": key, "thread_id": envelope.thread, "agent": agent, "kind": handover.ENVELOPE}
                yield found | {"envelope": encode(envelope)}


_HOSTED = re.compile(r"agent[0-9]+", re.ASCII)
_PUT = text("""INSERT INTO runtime.inbox_envelopes (agent, key, envelope, state, reason, at_us)
    VALUES (:agent, :key, :envelope, :state, :reason, :at_us)""")


def _agents(place: Home) -> list[str]:
    """Return the agents with folders, except agents of peers, whose envelopes stay files."""
    folder = place.inbox("agent0").parent
    found = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(name for name in found if AGENT.fullmatch(name) and "@" not in name)


def _in_terminals(place: Home) -> list[str]:
    return [agent for agent in _agents(place) if not _HOSTED.fullmatch(agent)]


def _copy_inboxes(connection: Connection, place: Home) -> int:
    """Copy the inboxes of agents in terminals. Return the number of envelopes. Raises Corrupt."""
    count = 0
    for agent in _in_terminals(place):
        connection.execute(text("INSERT INTO runtime.inboxes VALUES (:agent, 0, '', 0)"), {"agent": agent})
        rows = list(_lying(place.inbox(agent)))
        for first in range(0, len(rows), _AT_ONCE):
            connection.execute(_PUT, [{"agent": agent, **row} for row in rows[first : first + _AT_ONCE]])
        count += len(rows)
    found = connection.execute(text("SELECT count(*) FROM runtime.inbox_envelopes")).scalar()
    if found != count:
        raise Corrupt(f"hold {count} envelopes in folders, and {found} in the database", where="inboxes of terminals")
    return count


def _lying(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the envelopes of an agent in a terminal, in the order in which they were put.

    A claimed envelope waits again. If several envelopes share a key, keep the first one that was read. If none was
    read, keep the first that is waiting.
    """
    aside = Quarantine(folder, files=SystemFiles(), clock=SystemClock())
    reasons = {item.name: item.reason for item in aside.items()}
    states = {"delivered": "delivered", "claimed": "waiting", "inbox": "waiting", "quarantine": "quarantined"}
    rows: dict[str, dict[str, Any]] = {}
    known: set[str] = set()
    for place, state in states.items():
        for path in sorted(path for path in folder.glob(f"{place}/*") if not path.name.startswith(".")):
            name = f"{path.name} {place if place == 'quarantine' else ''}"
            if name in rows or (place == "quarantine" and path.name not in reasons):
                continue  # a crash occurred between an archive's link and unlink, or the file is a reason
            row = _row_of(path, state)
            if row["key"] in known:
                row |= {"key": f"file:{place}/{path.name}", "state": "delivered" if state == "waiting" else state}
            known.add(row["key"])
            rows[name] = row | {"reason": reasons.get(path.name, "") if place == "quarantine" else ""}
    yield from (rows[name] for name in sorted(rows))


def _row_of(path: Path, state: str) -> dict[str, Any]:
    data, put_ns = unsealed(path.read_bytes()), ns_of(path.name)
    try:
        envelope = decode(data)
        key = envelope.idempotency_key or envelope.id
    except InvalidInput:
        key = path.name  # the reader quarantines it
    at_us = put_ns // 1000 if put_ns is not None else int(path.stat().st_mtime * 1e6)
    return {"key": key if state != "quarantined" else path.name, "envelope": data, "state": state, "at_us": at_us}


def forget(node: Annotated[str, typer.Argument(help="The machine's name in `turnkeeper status`.")]) -> None:
    """Remove a machine for good from the list of machines that share a database.

    The other machines have already taken over its work, which does not change. The command refuses a running machine.
    Without this command, a removed machine is listed for a day.

    Example: turnkeeper forget garage
    """
    place = home()
    if not (url := load_settings(place).store.shared_url):
        raise Conflict("names no database that several machines share", where=str(place.config))
    count = _strike(url, node)
    said = "process that is" if count == 1 else "processes that are"
    note(f"forgot {count} {said} gone of {node}; if it returns, it is listed again")


_STRIKE = """DELETE FROM runner.nodes WHERE name = %s
    AND beat_us < (extract(epoch FROM clock_timestamp()) - %s) * 1000000"""


def _strike(url: str, name: str) -> int:
    """Delete the rows of a machine's ended processes. Return their number. Raises NotFound, or Conflict."""
    with nodes.connected(url) as connection:
        if count := connection.execute(_STRIKE.encode(), (name, nodes.GONE_AFTER_S)).rowcount:
            connection.execute(b"DELETE FROM runtime.meta WHERE key = 'cordoned ' || %s", (name,))
            return int(count)
        found = connection.execute("SELECT name FROM runner.nodes").fetchall()
    names = sorted({str(row["name"]) for row in found})
    if name in names:
        raise Conflict("is running, or was seen seconds ago", where=name, hint="stop it there: turnkeeper down")
    raise NotFound("no machine has this name", where=name, hint=f"use one of: {', '.join(names)}" if names else "")
