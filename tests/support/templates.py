"""Templates that tests share: a new store, which takes many migrations, and the schemas of tools.

The first new store of a process is migrated normally, and so is each store of an earlier version; the others are copies
of the first. On a server for tests, the tables of a new store are created by the statements in the server's folder,
which pg_dump wrote after the first migrations. LangChain and LangGraph need as long to read the signature of a tool's function as the rest of a runtime's
start takes, so tools of the same function share the results.
"""

import inspect
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.tools import BaseTool, structured
from langgraph.prebuilt import tool_node

from agent_runtime.store.database import MIGRATIONS as RUNTIME
from task_runner.store.store import MIGRATIONS as RUNNER
from turnkeeper.storage import database
from turnkeeper.storage.schema_revision import CHANGES
from turnkeeper.storage.server.url import in_schema

NAMES = {RUNTIME: "runtime", RUNNER: "runner"}
DUMPED = "turnkeeper_template"  # the schema that is dumped; each new store replaces the name by its own schema
migrate = database._migrate
read_signature: Any = structured.create_schema_from_function
read_injected: Any = tool_node._get_all_injected_args
_made: dict[str, bytes] = {}
_read: dict[Any, tuple[Callable[..., Any], Any]] = {}
_injected: dict[Any, tuple[Callable[..., Any], Any]] = {}


def use() -> None:
    """Copy new stores, and share schemas of tools, in this process and its forks."""
    database._migrate = _migrate_or_copy
    structured.create_schema_from_function = _schema
    vars(tool_node)["_get_all_injected_args"] = _injected_args


def make() -> None:
    """Create the stores that are copied."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        for name, migrations in (("runtime.db", RUNTIME), ("runner.db", RUNNER)):
            database.Database(Path(folder) / name, migrations=migrations).close()


def dump_tables(url: str, pg_dump: Path, folder: Path) -> None:
    """Create the tables of both stores in an empty database, and write the statements that create them into a folder."""
    import psycopg

    for migrations, name in NAMES.items():
        database.Database(in_schema(url, DUMPED), migrations=migrations).close()
        command = [pg_dump, "--dbname", url, "--schema", DUMPED, "--inserts", "--no-owner"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines(keepends=True)
        kept = [
            line
            for line in said
            if not line.startswith(("SET ", "SELECT pg_catalog.set_config", "CREATE SCHEMA", "\\"))
        ]
        (folder / f"{name}.sql").write_text("".join(kept))
        with psycopg.connect(url, autocommit=True) as sql:
            sql.execute(f"DROP SCHEMA {DUMPED} CASCADE")


def _create_tables(engine: Any, migrations: str) -> None:
    """Create the tables of a new store on a server for tests by its dumped statements. Leave a store that has tables."""
    file = Path(engine.url.query.get("host", "")) / f"{NAMES.get(migrations)}.sql"
    if not file.is_file():
        return
    with engine.begin() as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({CHANGES})")
        schema, found = connection.exec_driver_sql(
            "SELECT current_schema(), to_regclass(quote_ident(current_schema()) || '.alembic_version')"
        ).one()
        if found is None:
            connection.connection.driver_connection.execute(file.read_text().replace(DUMPED, schema))


def _migrate_or_copy(engine: Any, migrations: str, where: str, *, read_only: bool, upgrade: bool) -> None:
    if engine.dialect.name == "postgresql" and not read_only:
        _create_tables(engine, migrations)
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
        key = name, _about(body), body.__doc__, repr(options)
        known = _read.get(key)
    except (AttributeError, TypeError):  # not a function, or a function with an unhashable attribute
        return read_signature(name, function, **options)
    if known is None:
        known = _read[key] = body, read_signature(name, function, **options)  # the body is kept, and so are its globals
    return known[1]


def _injected_args(tool: BaseTool) -> Any:
    body: Any = inspect.unwrap(getattr(tool, "func", None) or getattr(tool, "coroutine", None) or _injected_args)
    try:
        key = type(tool), tool.args_schema, _about(body)
        known = _injected.get(key)
    except (AttributeError, TypeError):
        return read_injected(tool)
    if known is None or not tool.args_schema:
        known = _injected[key] = body, read_injected(tool)
    return known[1]


def _about(body: Any) -> tuple[Any, ...]:
    """Return what a function's signature depends on."""
    return body.__code__, id(body.__globals__), tuple(body.__annotations__.items()), body.__defaults__
