"""A store that an earlier version made is brought up to date when it is opened, with what is in it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from agent_runtime.store import schema
from agent_runtime.store.database import open_database
from agent_runtime.workspace import memory as entries
from agent_runtime.workspace.memory import Shelf
from tests.support.postgres import Places
from turnkeeper.config.home import Home

STORES = sorted((Path(__file__).parent / "stores").glob("schema_*.sql"))


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
def store(request: pytest.FixtureRequest, home: Home) -> str:
    """A store as a program of that revision left it; 0001 to 0003 had no derivations, 0006 had today's memory."""
    path: Path = request.param
    with closing(sqlite3.connect(home.agent_db)) as made:
        made.executescript(path.read_text(encoding="utf-8"))
    return path.stem


def shape(connection: sa.Connection) -> dict[str, object]:
    """Return each table with its columns, constraints and indexes. SQLite ignores lengths and widths."""
    found = sa.inspect(connection)
    return {
        table: (
            [(column["name"], kind(column["type"]), column["nullable"]) for column in found.get_columns(table)],
            found.get_pk_constraint(table)["constrained_columns"],
            sorted(tuple(unique["column_names"]) for unique in found.get_unique_constraints(table)),
            sorted((str(check["name"]), check["sqltext"]) for check in found.get_check_constraints(table)),
            sorted(map(described, found.get_indexes(table))),
        )
        for table in found.get_table_names()
        if table != "alembic_version"
    }


def kind(of: sa.types.TypeEngine[Any]) -> str:
    known = {sa.String: "text", sa.Integer: "integer"}
    return next((name for base, name in known.items() if isinstance(of, base)), str(of))


def described(index: Any) -> tuple[Any, ...]:
    conditions = {str(value) for key, value in index.get("dialect_options", {}).items() if key.endswith("_where")}
    return index["name"], index["column_names"], index["unique"], conditions


def opened_shape(place: Path | str) -> dict[str, object]:
    opened = open_database(place)
    try:
        return opened.submit(shape).result()
    finally:
        opened.close()


def test_the_migrations_make_what_the_program_works_with(home: Home, place: Path | str, place_of: Places) -> None:
    beside = place_of(home.root / "described.db")
    engine = sa.create_engine(
        f"sqlite:///{beside}" if isinstance(beside, Path) else beside.replace(":", "+psycopg:", 1)
    )
    with engine.begin() as connection:
        schema.metadata.create_all(connection)
        wanted = shape(connection)
    engine.dispose()
    assert opened_shape(place) == wanted, "a change of the schema needs a migration"


def test_a_store_of_before_gets_the_schema_of_a_new_one(home: Home, store: str) -> None:
    upgraded = opened_shape(home.agent_db)
    home.agent_db.unlink()
    assert upgraded == opened_shape(home.agent_db)


def test_a_store_of_before_keeps_its_rows(home: Home, store: str) -> None:
    opened = open_database(home.agent_db)
    try:
        shelf = Shelf(tier="channel", owner="general")
        entry = opened.submit(lambda connection: entries.get(connection, shelf, "bucket")).result()
    finally:
        opened.close()
    assert (entry.text, entry.origin, entry.form, entry.turn_id) == ("blue", "agent-produced", "text", "turn-1")
    with closing(sqlite3.connect(home.agent_db)) as file:
        assert file.execute("SELECT turn_id FROM cancels").fetchall() == [("turn-1",)]
        assert file.execute("SELECT sequence, turn_id, wake_after_s FROM turn_events").fetchall() == [
            (1, "turn-1", None)
        ]
        links = file.execute("SELECT * FROM page_links ORDER BY source").fetchall()
    accepted = [("pump", "garden", 3), ("pump", "https://example.org/", 0)]
    assert links == ([] if store == "schema_0001" else accepted), "what its candidate came from"
