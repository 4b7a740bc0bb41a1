"""Templates that tests share: a new store, which takes many migrations, compiled statements, and the schemas of tools.

The first new store of a process is migrated normally, and so is each store of an earlier version; the others are copies
of the first. On a server for tests, the tables of a new store are created by the statements in the server's folder,
which pg_dump wrote after the first migrations. LangChain and LangGraph need as long to read the signature of a tool's function as the rest of a runtime's
start takes, so tools of the same function share the results. SQLAlchemy keeps compiled statements for each engine, of
which a process of the product has few and a process of tests thousands, so all engines on files share them.
"""

import inspect
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.tools import BaseTool, structured
from langgraph.prebuilt import tool_node
from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

from agent_runtime.store.database import MIGRATIONS as RUNTIME
from task_runner.store.store import MIGRATIONS as RUNNER
from turnkeeper.storage import database
from turnkeeper.storage.schema_revision import CHANGES
from turnkeeper.storage.server.url import in_schema

NAMES = {RUNTIME: "runtime", RUNNER: "runner"}
DUMPED = "turnkeeper_template"  # the schema that is dumped; each new store replaces the name by its own schema
MOST_STATEMENTS = 2_000
migrate = database._migrate
open_file = database._open_file
read_signature: Any = structured.create_schema_from_function
read_injected: Any = tool_node._get_all_injected_args
read_call_schema: Any = vars(BaseTool)["tool_call_schema"].fget
_made: dict[str, bytes] = {}
_read: dict[Any, tuple[Callable[..., Any], Any]] = {}
_injected: dict[Any, tuple[Callable[..., Any], Any]] = {}
_called: dict[tuple[str, str, type], Any] = {}


class _Compiled(LRUCache[Any, Any]):
    """Compiled statements of all engines on files. A key begins with the engine's own dialect, which is left out."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


_compiled = _Compiled(MOST_STATEMENTS)


def use() -> None:
    """Copy new stores, and share compiled statements and schemas of tools, in this process and its forks."""
    database._migrate = _migrate_or_copy
    database._open_file = _open_file
    structured.create_schema_from_function = _schema
    vars(tool_node)["_get_all_injected_args"] = _injected_args
    BaseTool.tool_call_schema = property(_call_schema)  # type: ignore[method-assign, assignment]


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


def _open_file(*where: Any, **how: Any) -> Engine:
    engine = open_file(*where, **how)
    engine._compiled_cache = _compiled
    return engine


def _call_schema(tool: BaseTool) -> Any:
    """Return what a model is told of a tool's arguments, which depends on the tool's description and its schema alone."""
    if not isinstance(tool.args_schema, type):
        return read_call_schema(tool)
    key = tool.name, tool.description, tool.args_schema
    if key not in _called:
        _called[key] = read_call_schema(tool)
    return _called[key]


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
