"""Checkpoints of a thread that several machines may own: each commit proves the lease, or nothing of it is written."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import id as drawing
from langgraph.func import entrypoint, task
from sqlalchemy import Connection, text

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.graph.engine import patches
from agent_runtime.store import leases
from agent_runtime.store.leases import Fenced, Lease, under
from tests.integration.runtime.test_checkpointer import META, holding
from tests.support.clock import look_again
from tests.support.cluster import Do, doing, end_lease, taken
from tests.support.saving import at, checkpoint


@pytest.fixture
def lease_of_one(shared_url: str) -> tuple[str, Lease]:
    return taken(shared_url)


@pytest.fixture
def do(lease_of_one: tuple[str, Lease]) -> Iterator[Do]:
    with doing(lease_of_one[0]) as made:
        yield made


@pytest.fixture
def saver(lease_of_one: tuple[str, Lease]) -> Iterator[GroupedSaver]:
    made = GroupedSaver(lease_of_one[0], fenced=True)
    yield made
    made.close()


def taken_by_another(do: Do) -> Lease:
    """Let the owner be stopped for longer than its lease, and another take its thread."""
    do(lambda c: end_lease(c, "one"))
    do(lambda c: leases.begin(c, "two"))
    lease: Lease = do(lambda c: leases.take(c, "t", "two"))
    assert lease.epoch == 2
    return lease


async def test_an_owner_that_was_stopped_and_wakes_writes_nothing(
    lease_of_one: tuple[str, Lease], do: Do, saver: GroupedSaver
) -> None:
    stale = lease_of_one[1]
    with under(stale):
        await saver.aput(at("t"), checkpoint("id-1", x=1), META, {})
    fresh = taken_by_another(do)
    with under(stale), pytest.raises(Fenced, match="since epoch 1"):
        await saver.aput(at("t", "id-1"), checkpoint("id-2", x=2), META, {})
    with under(stale), pytest.raises(Fenced):
        await saver.aput_writes(at("t", "id-1"), [("x", 3)], "task")
    with under(fresh):
        await saver.aput(at("t", "id-1"), checkpoint("id-3", x=4), META, {})
    assert [found.checkpoint["id"] async for found in saver.alist(at("t"))] == ["id-3", "id-1"]


async def test_who_let_a_thread_go_and_got_no_answer_writes_nothing(
    lease_of_one: tuple[str, Lease], do: Do, saver: GroupedSaver
) -> None:
    """Another may take it at any moment."""
    do(lambda c: leases.release(c, lease_of_one[1]))
    with under(lease_of_one[1]), pytest.raises(Fenced):
        await saver.aput(at("t"), checkpoint("id-1"), META, {})


async def test_checkpoints_leave_a_session_that_may_not_write(
    lease_of_one: tuple[str, Lease], saver: GroupedSaver
) -> None:
    """As after a failover, where the address has moved from a server that is a standby now."""
    connection: Any = saver._file._writing  # type: ignore[attr-defined]
    connection.execute("SET default_transaction_read_only = on")
    with under(lease_of_one[1]):
        await saver.aput(at("t"), checkpoint("id-1", x=1), META, {})
    assert [found.checkpoint["id"] async for found in saver.alist(at("t"))] == ["id-1"]


async def test_without_a_lease_nothing_is_written(saver: GroupedSaver) -> None:
    with pytest.raises(Fenced):
        await saver.aput(at("t"), checkpoint("id-1"), META, {})
    with pytest.raises(Fenced):
        await saver.aprune_ended("t")
    assert await saver.aget_tuple(at("t")) is None


async def test_of_what_shares_a_commit_only_what_is_stale_is_refused(
    lease_of_one: tuple[str, Lease], do: Do, saver: GroupedSaver
) -> None:
    stale, fresh = lease_of_one[1], taken_by_another(do)
    async with holding(saver) as go:
        asked = []
        for number, lease in enumerate((stale, fresh, stale, fresh)):
            with under(lease):
                asked.append(asyncio.create_task(saver.aput(at("t"), checkpoint(f"id-{number}"), META, {})))
        await look_again()
        go.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(answer, Fenced) for answer in answers] == [True, False, True, False]
    assert [found.checkpoint["id"] async for found in saver.alist(at("t"))] == ["id-3", "id-1"]


def test_a_thread_is_not_taken_between_the_proof_and_the_write(lease_of_one: tuple[str, Lease], do: Do) -> None:
    """Who takes it waits for the transaction that proved its lease: its epoch is held until the commit."""
    place, lease = lease_of_one
    do(lambda c: end_lease(c, "one"))
    do(lambda c: leases.begin(c, "two"))

    def proves_then_writes(connection: Connection) -> bool:
        leases.check(connection, lease)
        return nobody_takes_it(place)

    assert do(proves_then_writes)
    assert do(lambda c: leases.take(c, "t", "two")) == Lease("t", 2)


async def test_nor_between_the_proof_and_a_checkpoint(
    lease_of_one: tuple[str, Lease], do: Do, saver: GroupedSaver
) -> None:
    place, lease = lease_of_one
    do(lambda c: end_lease(c, "one"))
    do(lambda c: leases.begin(c, "two"))
    with under(lease):
        assert await saver._writing(lambda _connection: nobody_takes_it(place), lambda done: done).run({})


def nobody_takes_it(place: str) -> bool:
    def impatient(connection: Connection) -> Lease | None:
        connection.execute(text("SET LOCAL lock_timeout = 50"))
        return leases.take(connection, "t", "two")

    with doing(place) as other, pytest.raises(Exception, match="lock timeout"):
        other(impatient)
    return True


async def test_an_owner_that_was_stopped_in_a_task_of_a_workflow_begins_no_other(
    lease_of_one: tuple[str, Lease], do: Do, saver: GroupedSaver
) -> None:
    begun = []

    @task
    async def step(name: str) -> None:
        begun.append(name)
        if name == "one":
            await asyncio.to_thread(taken_by_another, do)

    @entrypoint(checkpointer=saver)
    async def workflow(_: str) -> None:
        assert patches.AsyncPregelLoop.aaccept_push is patches._accept_push
        await step("one")
        await step("two")

    with under(lease_of_one[1]), pytest.raises(Fenced):
        await workflow.ainvoke("go", at("t"), durability="sync")
    assert begun == ["one"]


async def test_ids_go_on_from_what_a_machine_with_a_faster_clock_wrote(
    lease_of_one: tuple[str, Lease], saver: GroupedSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "_last_v6_timestamp", None)
    ahead = "1ffe0000-0000-6000-8000-000000000000"
    with under(lease_of_one[1]):
        await saver.aput(at("t"), checkpoint(ahead), META, {})
        await saver.aput(at("another"), checkpoint("1fff0000-0000-6000-8000-000000000000"), META, {})
    await saver.acontinue("t")
    assert ahead < str(drawing.uuid6()) < "1fff0000-0000-6000-8000-000000000000"
