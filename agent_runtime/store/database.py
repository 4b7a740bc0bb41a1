"""The runtime's store, a file or a schema of a database: open it."""

from pathlib import Path
from typing import Any

from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.errors import NotFound
from turnkeeper.storage.database import Database
from turnkeeper.storage.identity import require
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema

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
