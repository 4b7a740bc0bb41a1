"""One statement, compiled for whichever database it is run on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Identity, Index, MetaData, Table, bindparam, delete, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

from tests.support.postgres import Places
from turnkeeper.storage.database import Database
from turnkeeper.storage.statements import (
    NUMBER,
    TEXT,
    NumberedInsert,
    Statement,
    among,
    hold_any,
    listed,
    partial,
    upsert,
)

MIGRATIONS = str(Path(__file__).parent / "migrations")
plants = Table(
    "plants",
    MetaData(),
    Column("number", NUMBER, Identity(), primary_key=True),
    Column("name", TEXT, nullable=False),
    Column("gone", Boolean, nullable=False),
    Index("plants_name", "name", unique=True, **partial("gone = 0")),
    Index("plants_gone", "name", **partial("gone = 1")),
)
beds = Table("beds", MetaData(), Column("name", TEXT, primary_key=True), Column("plants", NUMBER, nullable=False))
ADD = NumberedInsert(plants)
PUT_EACH = Statement(insert(plants))
NAMES = Statement(select(plants.c.name).where(among(plants.c.name, "names")).order_by(plants.c.name))
BY_NUMBER = Statement(select(plants).where(among(plants.c.number, "numbers")).order_by(plants.c.number))
PULL = Statement(update(plants).where(plants.c.name == bindparam("called")).values(gone=True))
FORGET = Statement(delete(plants).where(among(plants.c.name, "names")))
GROW = Statement(upsert(beds, [beds.c.name], {"plants": beds.c.plants + bindparam("more")}))
KEEP = Statement(upsert(beds, [beds.c.name]))
PLANTED = Statement(select(beds.c.plants).where(beds.c.name == bindparam("bed")))

Run = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture
def run(place_of: Places, tmp_path: Path) -> Iterator[Run]:
    database = Database(place_of(tmp_path / "store.db"), migrations=MIGRATIONS)
    for table in (plants, beds):
        database.submit(table.create).result()
    yield lambda work: database.submit(work).result()
    database.close()


def add(*names: str) -> Callable[[Any], list[int]]:
    return lambda connection: ADD.run_each(connection, [{"name": name, "gone": False} for name in names])


def test_the_database_numbers_rows_and_says_each_number(run: Run) -> None:
    assert run(add("rose", "oak")) == [1, 2]
    assert run(add("elm")) == [3]
    assert run(add()) == []
    run(lambda connection: FORGET.run(connection, names=listed(["rose"])))
    assert run(add("fir", "yew", "ash")) == [4, 5, 6]
    rows = run(lambda connection: BY_NUMBER.dicts(connection, numbers=listed([4, 6])))
    assert [row["name"] for row in rows] == ["fir", "ash"]


def test_the_order_of_listed_values_does_not_depend_on_the_process() -> None:
    assert listed(["rose", "oak"]) == listed({"oak", "rose"}) == ["oak", "rose"]


def test_flags_are_booleans(run: Run) -> None:
    run(add("rose", "oak"))
    assert run(lambda connection: PULL.run(connection, called="oak")) == 1
    rows = run(lambda connection: BY_NUMBER.dicts(connection, numbers=listed([2, 1, 7])))
    assert rows == [{"number": 1, "name": "rose", "gone": False}, {"number": 2, "name": "oak", "gone": True}]
    assert [type(row["gone"]) for row in rows] == [bool, bool]


def test_a_search_for_words_finds_rows_with_any_of_them_and_without_a_word_none(run: Run) -> None:
    run(add("Rose bush", "oak", "rock ROSE"))

    def found(*words: str) -> list[str]:
        query = select(plants.c.name).where(hold_any([plants.c.name], words)).order_by(plants.c.number)
        return list(run(lambda connection: connection.scalars(query).all()))

    assert found("rose", "elm") == ["Rose bush", "rock ROSE"]
    assert found() == []


def test_text_is_in_the_order_of_its_bytes(run: Run) -> None:
    names = ["b", "B", "a", "ä", "Z", "_", "10", "9", "a b", "ab", "İ", "i", ""]
    run(add(*names))
    asked = listed([*names, "none of them", "x"])
    assert run(lambda connection: NAMES.values(connection, names=asked)) == sorted(names, key=str.encode)
    assert run(lambda connection: NAMES.values(connection, names=listed([]))) == []
    assert run(lambda connection: FORGET.run(connection, names=listed(["b", "B"]))) == 2


def test_an_upsert_changes_the_row_that_is_there_or_keeps_it(run: Run) -> None:
    def grow(connection: Any) -> None:
        GROW.run_each(connection, [{"name": "north", "plants": 1, "more": 5}] * 2)
        KEEP.run(connection, name="north", plants=99)
        KEEP.run(connection, name="south", plants=7)

    run(grow)
    planted = [
        run(lambda connection, bed=bed: PLANTED.value(connection, bed=bed)) for bed in ("north", "south", "west")
    ]
    assert planted == [6, 7, None]


def test_an_index_over_some_rows_is_unique_among_these_alone(run: Run) -> None:
    run(lambda connection: ADD.run_each(connection, [{"name": "rose", "gone": gone} for gone in (True, True, False)]))
    with pytest.raises(IntegrityError):
        run(add("rose"))


def test_an_error_of_the_driver_is_sqlalchemys_and_tells_no_values(run: Run) -> None:
    for work in (
        lambda connection: ADD.run_each(connection, [{"name": None, "gone": False}]),
        lambda connection: PUT_EACH.run_each(connection, [{"name": None, "gone": False}]),
        lambda connection: KEEP.run(connection, name="my secret", plants=None),
    ):
        with pytest.raises(IntegrityError) as refused:
            run(work)
        assert refused.value.params is None
        assert "my secret" not in str(refused.value).replace(str(refused.value.orig), "")


def test_a_parameter_that_is_forgotten_is_an_error(run: Run) -> None:
    with pytest.raises(DBAPIError) as refused:
        run(PLANTED.value)
    assert isinstance(refused.value, ProgrammingError)


@pytest.mark.parametrize("text", ["ro\0se", "\0"])
def test_a_text_with_a_nul_is_looked_up_and_not_found(run: Run, text: str) -> None:
    run(add("rose"))
    assert run(lambda connection: PULL.run(connection, called=text)) == 0
    assert run(lambda connection: connection.execute(select(plants).where(plants.c.name == text)).all()) == []
    assert run(lambda connection: NAMES.values(connection, names=listed(["rose", text]))) == ["rose"]
