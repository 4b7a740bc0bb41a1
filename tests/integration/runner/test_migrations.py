"""Stores that released schemas wrote are read, brought up to date, and worked on."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Boolean, MetaData, create_engine, insert, text

from task_runner.store.store import MIGRATIONS
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.errors import Conflict
from turnkeeper.v1 import schedules_pb2 as wire

STORES = sorted((Path(__file__).parent / "stores").glob("schema_*.sql"))


def written(place: Path | str, store: Path) -> None:
    """Write a store as the release of its schema did; on a server, as it would have."""
    if isinstance(place, Path):
        with closing(sqlite3.connect(place)) as file:
            file.executescript(store.read_text(encoding="utf-8"))
        return
    config = Config()
    config.set_main_option("script_location", MIGRATIONS)
    engine = create_engine(place.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection, closing(sqlite3.connect(":memory:")) as file:
        file.executescript(store.read_text(encoding="utf-8"))
        config.attributes["connection"] = connection
        command.upgrade(config, store.stem.removeprefix("schema_"))
        tables = MetaData()
        tables.reflect(connection)
        for table in tables.sorted_tables:
            names = [column.name for column in table.columns]
            if table.name != "alembic_version":  # a migration may have put rows there
                connection.execute(table.delete())
            flags = {column.name for column in table.columns if isinstance(column.type, Boolean)}
            for row in file.execute(f"SELECT {', '.join(names)} FROM {table.name}"):
                values = {name: bool(value) if name in flags else value for name, value in zip(names, row, strict=True)}
                if table.name != "alembic_version":
                    connection.execute(insert(table).values(values))
        highest = connection.execute(text("SELECT max(entry_id) FROM fires")).scalar()
        connection.execute(text(f"ALTER TABLE fires ALTER entry_id RESTART WITH {highest + 1}"))
    engine.dispose()


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.stem)
async def test_a_store_of_each_released_schema_goes_on_where_it_stopped(
    home, clock, place, peer: Peer, store: Path
) -> None:
    written(place, store)
    clock.advance(461)
    rig = Rig(home, clock, place)
    try:
        await goes_on(rig, peer)
    finally:
        await rig.close()


async def goes_on(rig: Rig, peer: Peer) -> None:
    tasks = {task.spec.name: task for task in (await rig.service.list_tasks(wire.ListTasksRequest())).tasks}
    assert {name: task.state for name, task in tasks.items()} == {
        "digest": "active", "daily": "paused", "soon": "waiting",
    }  # fmt: skip
    assert (tasks["digest"].revision, tasks["digest"].spec.every) == (2, "2m")
    assert (tasks["daily"].spec.max_fires, dict(tasks["daily"].spec.tags)) == (5, {"team": "x"})
    assert tasks["daily"].spec.payload_json == '{"x":1}'
    assert await rig.history("digest") == [("succeeded", "", 1), ("skipped", "superseded", 6)]
    again = await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=[task.spec for task in tasks.values()]))
    assert {done.action for done in again.applied} == {"unchanged"}
    for state in (State.STARTED, State.SUCCEEDED):
        await peer.play("taken in already", state)
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        await peer.play(peer.received[0].fire_id, State.SUCCEEDED)
        await rig.trail.saw("fire.settled")
    assert await rig.history("soon") == [("succeeded", "", 1)]
    assert (await rig.task("soon")).state == "done"


def test_every_schema_but_the_newest_has_a_store_here() -> None:
    versions = Path(__file__).parents[3] / "task_runner" / "store" / "migrations" / "versions"
    numbers = sorted(path.name[:4] for path in versions.glob("[0-9]*.py"))
    assert [store.stem.removeprefix("schema_") for store in STORES] == numbers[:-1]


async def test_a_store_of_a_newer_program_is_refused_and_left_alone(home, clock) -> None:
    await Rig(home, clock, home.schedules_db).close()
    connection = sqlite3.connect(home.schedules_db)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = home.schedules_db.read_bytes()
    with pytest.raises(Conflict, match="newer version") as refused:
        Rig(home, clock, home.schedules_db)
    assert "upgrade" in str(refused.value)
    assert str(home.schedules_db) in str(refused.value)
    assert home.schedules_db.read_bytes() == before
