"""New stores begin as copies of one that was migrated: hundreds of tests make a store, and its history is long.

The first new store of a process is migrated as ever, and so is each that an earlier version made.
"""

import tempfile
from pathlib import Path
from typing import Any

from agent_runtime.store.database import MIGRATIONS as RUNTIME
from task_runner.store.store import MIGRATIONS as RUNNER
from turnkeeper.storage import database

migrate = database._migrate
_made: dict[str, bytes] = {}


def use() -> None:
    """Copy new stores, in this process and those forked from it."""
    database._migrate = _migrate_or_copy


def make() -> None:
    """Make the stores that are copied."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        for name, migrations in (("runtime.db", RUNTIME), ("runner.db", RUNNER)):
            database.Database(Path(folder) / name, migrations=migrations).close()


def _migrate_or_copy(engine: Any, migrations: str, where: str, *, read_only: bool, upgrade: bool) -> None:
    is_new = engine.dialect.name == "sqlite" and not read_only and not Path(where).stat().st_size
    if not is_new or migrations not in {RUNTIME, RUNNER}:
        migrate(engine, migrations, where, read_only=read_only, upgrade=upgrade)
    elif migrations in _made:
        Path(where).write_bytes(_made[migrations])
    else:
        migrate(engine, migrations, where, read_only=read_only, upgrade=upgrade)
        with engine.connect() as connection:
            _made[migrations] = connection.connection.driver_connection.serialize()
