"""The version of a store's schema, read without opening the store for writing, and the upgrade to the newest one."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from turnkeeper.config.home import Home
from turnkeeper.config.toml_file import shared_url_in
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, unopened
from turnkeeper.storage.damage import judged
from turnkeeper.storage.sqlite_files import change, copy, reader

T = TypeVar("T")
_WAIT_S = 10.0  # seconds to wait for a process that has locked a store; the default of each `wait_s` in this module
CHANGES = 0x7475726E  # key of the server's advisory lock for schema changes
MOST_TRIES = 10  # attempts to change a schema while its tables are in use
_GAVE_WAY = {"40001", "40P01", "55P03"}  # PostgreSQL's codes for a conflict with other sessions, and for a lock timeout
# The migrations of each schema of a shared database.
STORES = {"runner": "task_runner.store:migrations", "runtime": "agent_runtime.store:migrations"}


def check_revision(path: Path, migrations: str) -> None:
    """Raise Conflict for a store that a newer version of the program wrote. Changes nothing.

    Args:
        path: the store; a missing file and a store without a schema are accepted.
        migrations: the folder of Alembic's migrations, as `package:folder` or as a path. Files: `REVISION_words.py`.

    Raises:
        Conflict: the store has a revision that this program does not know.
        Corrupt: the file cannot be read as a store.
        MachineTrouble: the machine cannot read the file at the moment.
    """
    try:
        found = revision_of(path)
    except sqlite3.Error as error:
        raise unopened(judged(error, str(path)), str(path), "a store") from error
    refuse_newer(found, migrations, str(path))


def refuse_newer(found: str | None, migrations: str, where: str) -> None:
    """Raise Conflict if `migrations` does not contain the revision of the store at `where`."""
    known = known_revisions(migrations)
    if found is not None and found not in known:
        what = f"was written by a newer version (its schema is {found}, this program knows {max(known)})"
        raise Conflict(what, where=where, hint="upgrade turnkeeper")


def newest(migrations: str) -> str:
    """Return the newest revision."""
    return max(known_revisions(migrations))


def revision_of(path: Path, wait_s: float = _WAIT_S) -> str | None:
    """Return the revision of a store's schema. None if there is no store or schema. Raises `sqlite3.Error`."""
    if not path.is_file() or not path.stat().st_size:
        return None
    with closing(reader(path, wait_s)) as store:
        return revision_in(store.execute)


def revision_in(execute: Callable[[str], Any], schema: str | None = None) -> str | None:
    """Return the revision in a file or in a server's `schema`; an empty name is the search path. Alembic is slow."""
    table = f"{schema or ''}.alembic_version".lstrip(".")
    has_table = _HAS_TABLE if schema is None else f"SELECT to_regclass('{table}')"
    row = execute(f"SELECT version_num FROM {table}").fetchone() if execute(has_table).fetchone()[0] else None  # noqa: S608
    return None if row is None else str(row[0])


def read_current(path: Path, migrations: str, read: Callable[[Any], T]) -> T | None:
    """Return the result of `read` on a read-only connection to a store. Rows have the names of columns.

    Return None if the schema is not the newest or the file cannot be read. The program that opens the store later
    reports the reason. The caller holds the lock of the process that owns the store.
    """
    try:
        if revision_of(path) != newest(migrations):
            return None
        with closing(reader(path, _WAIT_S)) as store:
            return read(store)
    except sqlite3.Error:
        return None


def is_older(path: Path, migrations: str, wait_s: float = _WAIT_S) -> bool:
    """Return True if a store has tables of an earlier version. Return False if the store cannot be read."""
    try:
        return revision_of(path, wait_s) not in {None, newest(migrations)}
    except sqlite3.Error:
        return False


def older_stores(home: Home, wait_s: float = _WAIT_S) -> list[Path]:
    """Return the files in a home that have tables of an earlier version. Return none if the stores are on a server."""
    with suppress(InvalidInput):
        if shared_url_in(home.config):
            return []
    found = zip((home.schedules_db, home.agent_db), STORES.values(), strict=True)
    return [path for path, migrations in found if is_older(path, migrations, wait_s)]


def told(path: Path) -> str:
    """Return the sentence for a person who reads a store with an older schema."""
    return f"{path.name} has an older schema: `turnkeeper up` will bring it up to date"


@contextmanager
def readable(path: Path, migrations: str, wait_s: float = _WAIT_S) -> Iterator[Path]:
    """Yield the file of a store. If its schema is older, yield an upgraded copy, and remove the copy afterwards.

    A program that has opened the copy can read it even after the removal. Raises Corrupt or MachineTrouble.
    """
    if not is_older(path, migrations, wait_s):
        yield path
        return
    with TemporaryDirectory(prefix="turnkeeper-") as folder:
        copied = Path(folder) / path.name
        try:
            _copy(path, copied, wait_s)
        except sqlite3.Error as error:
            raise unopened(judged(error, str(path)), str(path), "a store") from error
        import_module("turnkeeper.storage.database").Database(copied, migrations=migrations).close()
        change(copied, "PRAGMA journal_mode=DELETE")  # then a reader needs no other file beside it
        yield copied


def _copy(path: Path, target: Path, wait_s: float) -> None:
    """Copy a store unchanged. Copy it again if another program opened the store meanwhile and may have changed it."""
    log = path.with_name(f"{path.name}-wal")
    was_open = log.exists()
    with closing(reader(path, wait_s)) as source:
        copy(source, target)
    if log.exists() and not was_open:
        target.unlink()
        _copy(path, target, wait_s)


def known_revisions(migrations: str) -> frozenset[str]:
    """Return the revisions of `migrations`, from the names of the files."""
    package, _, folder = migrations.rpartition(":")
    spec = find_spec(package) if package else None
    places = spec.submodule_search_locations if spec else None
    root = Path(places[0]) / folder if places else Path(folder)
    return frozenset(file.name.partition("_")[0] for file in (root / "versions").glob("[0-9]*_*.py"))


def migrate(engine: Any, migrations: str, where: str, *, read_only: bool, upgrade: bool) -> None:
    """Upgrade a store's schema or, if that is not allowed, require the newest. Raises the same errors as `Database`."""
    with engine.connect() as connection:
        found = revision_in(connection.exec_driver_sql, "" if engine.dialect.name == "postgresql" else None)
    refuse_newer(found, migrations, where)
    if found == newest(migrations):
        return
    if engine.dialect.name == "postgresql" and (read_only or not (upgrade or found is None)):
        what = "has no tables yet" if found is None else "its tables are of an older version"
        raise Conflict(what, where=where, hint="a daemon that starts brings them up to date: turnkeeper up")
    if read_only:
        raise Corrupt("has an older schema", where=where, hint="to bring it up to date, run: turnkeeper up")
    for left in reversed(range(MOST_TRIES)):
        try:
            _upgrade(engine, migrations, where)
        except Exception as error:
            if not left or getattr(getattr(error, "orig", None), "sqlstate", None) not in _GAVE_WAY:
                raise
        else:
            return


def _upgrade(engine: Any, migrations: str, where: str) -> None:
    from alembic import command  # noqa: PLC0415  slow to import

    config = _config(migrations)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # if several processes start at once, one of them upgrades
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({CHANGES})")
            # Give up soon: while a long read holds a table, this pending change blocks every later read of it.
            connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
            refuse_older_nodes(connection, migrations, revision_in(connection.exec_driver_sql, ""), where)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def refuse_older_nodes(connection: Any, migrations: str, found: str | None, where: str) -> None:
    """Raise Conflict if a machine is running that could not use the newest schema.

    A migration that excludes earlier programs names the oldest revision that a program must know, in `oldest_reader`. A
    running program knows no revision later than `found`, because otherwise it would have upgraded the tables.
    """
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    scripts = ScriptDirectory.from_config(_config(migrations))
    newer = [script.module for script in scripts.iterate_revisions("head", found)] if found else []
    oldest = max((str(getattr(module, "oldest_reader", "")) for module in newer), default="")
    if found is None or found >= oldest or connection.exec_driver_sql(_HAS_NODES).scalar() is None:
        return
    if names := connection.exec_driver_sql(_LIVING).scalars().all():
        what = f"needs a schema that only {oldest} and later can use (it is {found}), and an older version runs on"
        raise Conflict(f"{what} {', '.join(names)}", where=where, hint="run there first: turnkeeper down")


def _config(migrations: str) -> Any:
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", migrations)
    config.set_main_option("path_separator", "os")
    return config


_HAS_TABLE = "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"
_HAS_NODES = "SELECT to_regclass('runner.nodes')"
_LIVING = """
SELECT DISTINCT name FROM runner.nodes
WHERE beat_us > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 10000000 ORDER BY name
"""
