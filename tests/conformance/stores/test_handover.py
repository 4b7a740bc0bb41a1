"""Envelopes of a shared store, on each database: put once, withdrawn before they are begun, looked for, counted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, update

from agent_runtime.store import schema
from agent_runtime.store.database import open_database
from tests.support.clock import ManualClock
from tests.support.postgres import Places
from turnkeeper.storage.server.handover import Handover, handover_of
from turnkeeper.storage.statements import now_us

AT = ManualClock().now()
FIRE = {"key": "fire:a@1:1", "thread_id": "t", "agent": "agent0", "kind": "fire", "envelope": b"\0\xff"}
Do = Callable[[Callable[[Connection], Any]], Any]


@pytest.fixture
def do(tmp_path: Path, place_of: Places) -> Iterator[Do]:
    database = open_database(place_of(tmp_path / "agent.db"))
    yield lambda work: database.submit(work).result()
    database.close()


@pytest.fixture(params=["own", "of a neighbour"])
def handover(request: pytest.FixtureRequest) -> Handover:
    """As the runtime's own store has it, and as whoever reaches its tables from beside."""
    return schema.handover if request.param == "own" else handover_of(None)


def rows(connection: Connection) -> list[tuple[Any, ...]]:
    table = schema.envelopes.c
    return [tuple(row) for row in connection.execute(select(table.key, table.kind, table.state, table.envelope))]


def test_an_envelope_is_put_once(do: Do, handover: Handover) -> None:
    assert do(lambda c: handover.put_all(c, [FIRE, {**FIRE, "key": "fire:a@2:1"}], AT)) == [True, True]
    assert do(lambda c: handover.put_all(c, [FIRE], AT)) == [False]
    assert do(rows) == [("fire:a@1:1", "fire", "waiting", b"\0\xff"), ("fire:a@2:1", "fire", "waiting", b"\0\xff")]
    assert do(handover.waiting) == 2


def test_only_what_nobody_has_begun_is_withdrawn(do: Do, handover: Handover) -> None:
    do(lambda c: handover.put_all(c, [FIRE, {**FIRE, "key": "fire:a@2:1"}], AT))
    do(lambda c: c.execute(update(schema.envelopes).where(schema.envelopes.c.number == 1).values(state="claimed")))
    assert not do(lambda c: handover.withdraw(c, "fire:a@1:1"))
    assert do(lambda c: handover.withdraw(c, "fire:a@2:1"))
    assert do(handover.waiting) == 0


def test_a_cancel_is_stored_with_the_wish_to_carry_it_out(do: Do, handover: Handover) -> None:
    for reason in ("the first", "another"):
        do(lambda c, reason=reason: handover.cancel(c, "turn-1", "t", reason, AT))
    assert do(lambda c: c.execute(select(schema.cancels.c.reason)).scalars().all()) == ["the first"]
    assert do(rows) == [("look:t:cancel turn-1", "look", "waiting", b'{"cancel": "turn-1"}')]


def test_a_runtime_lives_until_its_lease_ends_by_the_clock_of_the_database(do: Do, handover: Handover) -> None:
    assert not do(handover.has_runtime)
    do(lambda c: c.execute(insert(schema.owners).values(owner="a", until_us=now_us() + 60_000_000)))
    assert do(handover.has_runtime)
    do(lambda c: c.execute(update(schema.owners).values(until_us=now_us() - 1)))
    assert not do(handover.has_runtime)
