"""The runtime's store: open it, and take its lease. Only the process that took the lease last may write.

The table `meta` names the store (`incarnation`) and counts its owners (`epoch`). Each owner takes the next epoch, and
each write checks that the epoch is still its own, so a superseded process changes nothing.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Connection, Text, bindparam, cast, select

from agent_runtime.store.schema import meta
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.errors import Conflict, NotFound
from turnkeeper.storage.database import Database
from turnkeeper.storage.identity import require
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.storage.statements import Statement, upsert

MIGRATIONS = "agent_runtime.store:migrations"


def open_database(place: Path | str, *, read_only: bool = False, **how: Any) -> Database:
    """Open the runtime's store, a file or a PostgreSQL URL, and bring its schema up to date.

    `read_only` and `how` are passed to `Database`. Raises its errors, and NotFound if there is no file to read.
    """
    if read_only and isinstance(place, Path) and not place.exists():
        raise NotFound("no daemon has run here yet", where=str(place), hint="start the daemon: turnkeeper up")
    return Database(place, migrations=MIGRATIONS, read_only=read_only, inline=not read_only, **how)


def open_stored(home: Home) -> Database | None:
    """Open the store of a home for reading, a file or a database. None if no daemon has run yet.

    Raises the errors of `Database`, and Corrupt if the store is missing.
    """
    url = load_settings(home).store.shared_url
    place = in_schema(url, SCHEMA) if url else home.agent_db
    if place == home.agent_db and not home.agent_db.exists():
        require(home, home.agent_db)
        return None
    return open_database(place, read_only=True)


def get_meta(connection: Connection, key: str) -> str:
    """Return a fact about the store; empty if the fact is not set."""
    return _META.value(connection, key=key) or ""


def set_meta(connection: Connection, key: str, value: str) -> None:
    """Write a fact about the store."""
    connection.execute(upsert(meta, [meta.c.key], ["value"]).values(key=key, value=value))


def take_lease(connection: Connection, drawn: str) -> tuple[str, int]:
    """Take ownership of the store. Return its incarnation, which is `drawn` for a new store, and the new epoch."""
    connection.execute(_COUNT)  # if several processes begin at once, the others wait here for the first one
    connection.execute(upsert(meta, [meta.c.key]).values(key="incarnation", value=drawn))
    return get_meta(connection, "incarnation"), int(get_meta(connection, "epoch"))


def check_lease(connection: Connection, epoch: int) -> None:
    """Raise Conflict if another process has taken over the store since `epoch`."""
    if get_meta(connection, "epoch") != str(epoch):
        raise Conflict("another process has taken over this store", where="epoch")


_NEXT = cast(cast(meta.c.value, BigInteger) + 1, Text)
_COUNT = upsert(meta, [meta.c.key], {"value": _NEXT}).values(key="epoch", value="1")
_META = Statement(select(meta.c.value).where(meta.c.key == bindparam("key")))
