"""Templates that tests share: a new store, which takes many migrations, and the schemas of tools.

The first new store of a process is migrated normally, and so is each store of an earlier version; the others are copies
of the first. LangChain and LangGraph need as long to read the signature of a tool's function as the rest of a runtime's
start takes, so tools of the same function share the results.
"""

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.tools import BaseTool, structured
from langgraph.prebuilt import tool_node

from agent_runtime.store.database import MIGRATIONS as RUNTIME
from task_runner.store.store import MIGRATIONS as RUNNER
from turnkeeper.storage import database

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
