"""What hundreds of tests make alike is made once: a new store, whose history is long, and the schema of a tool.

The first new store of a process is migrated as ever, and so is each that an earlier version made; the others are copies
of the first. LangChain reads the signature of a function that becomes a tool for as long as all else of a runtime takes
to start; tools of the same function share what it found.
"""

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.tools import structured

from agent_runtime.store.database import MIGRATIONS as RUNTIME
from task_runner.store.store import MIGRATIONS as RUNNER
from turnkeeper.storage import database

migrate = database._migrate
read_signature: Any = structured.create_schema_from_function
_made: dict[str, bytes] = {}
_read: dict[Any, tuple[Callable[..., Any], Any]] = {}


def use() -> None:
    """Copy new stores, and share schemas of tools, in this process and those forked from it."""
    database._migrate = _migrate_or_copy
    structured.create_schema_from_function = _schema


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


def _schema(name: str, function: Callable[..., Any], **options: Any) -> Any:
    body: Any = inspect.unwrap(function)
    try:
        about = body.__code__, id(body.__globals__), tuple(body.__annotations__.items()), body.__defaults__
        key = name, about, body.__doc__, repr(options)
        known = _read.get(key)
    except (AttributeError, TypeError):  # no function, or one that says of itself what has no hash
        return read_signature(name, function, **options)
    if known is None:
        known = _read[key] = body, read_signature(name, function, **options)  # the body is kept, and so are its globals
    return known[1]
