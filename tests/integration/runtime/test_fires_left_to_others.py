"""Of runtimes that share a database, one begins a fire that hosts its agent and can use its category."""

from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import select

from agent_runtime.mailbox.shared import turn_id_of_key
from agent_runtime.store import schema
from tests.integration.runtime.harness import STATES, Bench, soon
from tests.integration.runtime.test_owners_of_threads import looked, looks_no_more
from tests.support.clock import look_again
from tests.support.scripted import calls
from turnkeeper.storage.server import inboxes
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.parametrize("workers", [1])


@pytest_asyncio.fixture
async def pair(pair: tuple[Bench, Bench]) -> tuple[Bench, Bench]:
    """Two runtimes, of which only the second hosts a worker."""
    for bench in pair:
        bench.script["go"] = [calls(("note", {"text": "here"}))]
    await beat(*pair)
    return pair


async def beat(*benches: Bench) -> None:
    """Let each machine tell the others with what it works, and hear it of them."""
    for bench in (*benches, *benches):
        assert bench.runtime.beat is not None
        await bench.runtime.beat.once()


async def hand_over(bench: Bench, number: int = 1, **changes: Any) -> str:
    """Put a fire as a runner does; return its turn's id."""
    row = row_of(bench.fire(number, **{"agent": "agent0"} | changes))
    await bench.runtime.store.read(lambda c: schema.handover.put_all(c, [row], bench.runtime.clock.now()))
    return turn_id_of_key(str(row["key"]))


def row_of(request: Any) -> dict[str, Any]:
    """Return the row of a fire, as a runner puts it."""
    row = {"key": f"fire:{request.fire_id}:1", "thread_id": request.thread_id, "agent": request.agent, "kind": "fire"}
    needs = {"reason": f"tag {request.needs}"} if request.needs else {}
    return row | {"envelope": request.SerializeToString()} | needs


async def states(bench: Bench) -> list[str]:
    query = select(schema.envelopes.c.state).order_by(schema.envelopes.c.number)
    return list(await bench.runtime.store.read(lambda c: c.execute(query).scalars().all()))


async def test_a_fire_for_a_worker_is_begun_where_that_worker_is_hosted(pair: tuple[Bench, Bench]) -> None:
    one, two = pair
    await looks_no_more(two)
    turns = [await hand_over(one, number, agent="agent1") for number in (1, 2)]
    await looked(one)
    assert await one.history() == [], "it waits for the machine that hosts it"
    assert await states(one) == ["waiting", "waiting"]
    own = await hand_over(one, 3, task="b")
    message = await one.send("hello", thread_id="thread-a")
    for turn_id in (own, message.turn_id):
        assert (await one.stopped(turn_id)).state == STATES.SUCCEEDED, "it holds up nothing else of its thread"
    while one.runtime.mailboxes.owns("thread-a"):
        await look_again()
    del two.runtime.mailboxes.ownership.take
    events = [await two.stopped(turn_id) for turn_id in turns]
    assert [event.state for event in events] == [STATES.SUCCEEDED] * 2
    assert events[0].sequence < events[1].sequence
    assert (one.noted, two.noted) == (["here"], ["here"] * 2)


async def test_it_waits_while_that_machine_is_away_and_can_be_cancelled_meanwhile(pair: tuple[Bench, Bench]) -> None:
    one, two = pair
    await two.stop()
    turns = [await hand_over(one, number, agent="agent1") for number in (1, 2)]
    await looked(one)
    assert await one.history() == []
    await one.service.CancelTurn(wire.CancelTurnRequest(turn_id=turns[0], reason="enough"), None)
    assert (await one.stopped(turns[0])).state == STATES.CANCELLED
    while await states(one) != ["waiting"]:
        await look_again()
    failed = await hand_over(one, 3, agent="agent7", thread_id="thread-b")
    event = await one.stopped(failed)
    assert (event.state, "agent7 is neither hosted here" in event.error) == (STATES.FAILED, True), (
        "none has ever hosted it"
    )


@pytest.mark.parametrize("broken", [False, True], ids=["not hosted", "not hosted and no category"])
async def test_a_turn_that_was_begun_goes_on_where_its_fire_could_not_be_begun(
    pair: tuple[Bench, Bench], *, broken: bool
) -> None:
    one, two = pair
    two.script["go"] = [calls(("block", {}))]
    turn_id = await hand_over(one, agent="agent1")
    await soon(two.blocked.wait(), "the turn to block")
    if broken:
        (one.home.categories / "work.toml").write_text("name = 7\n")
    one.go.set()
    await two._die()
    ended = STATES.INTERRUPTED if broken else STATES.SUCCEEDED
    assert (await one.stopped(turn_id)).state == ended, "a category that cannot be used grants nothing"
    while await states(one):
        await look_again()


@pytest.mark.parametrize("broken", ["invalid", "missing"])
async def test_a_fire_is_begun_where_its_category_can_be_used(pair: tuple[Bench, Bench], broken: str) -> None:
    one, two = pair
    file = one.home.categories / "work.toml"
    good = file.read_text()
    file.unlink() if broken == "missing" else file.write_text("name = 7\n")
    await looks_no_more(two)
    turns = [await hand_over(one, number) for number in (1, 2)]
    await hand_over(one, 3, task="b", agent="codex", thread_id="thread-b")
    await looked(one)
    assert await one.history() == [], "another machine can use the category"
    del two.runtime.mailboxes.ownership.take
    two.runtime.worker._arrived.notify()
    assert [(await two.stopped(turn_id)).state for turn_id in turns] == [STATES.SUCCEEDED] * 2
    assert (one.noted, two.noted) == ([], ["here"] * 2)
    while not await two.runtime.store.read(lambda c: inboxes.envelope_states(c, "codex", ["fire:task-0000000b@3:1"])):
        await look_again()
    # The other one is to begin nothing any more: as on one machine, the fire fails where it cannot be begun.
    await two.runtime.beat.drain()
    await beat(one)
    await looks_no_more(two)
    last = await hand_over(one, 4, task="c", thread_id="thread-c")
    event = await one.stopped(last)
    assert (event.state, "work" in event.error) == (STATES.FAILED, True)
    file.write_text(good)
    assert (await one.stopped(await hand_over(one, 5, task="d", thread_id="thread-d"))).state == STATES.SUCCEEDED


async def test_fires_of_a_task_keep_their_order_behind_one_that_is_left(pair: tuple[Bench, Bench]) -> None:
    one, two = pair
    await looks_no_more(one, two)
    (two.home.categories / "other.toml").write_text(
        (two.home.categories / "work.toml").read_text().replace("work", "other")
    )
    await beat(one, two)
    turns = [await hand_over(one, 1, category="other"), await hand_over(one, 2), await hand_over(one, 3, task="b")]
    await looked(one)
    assert (await one.stopped(turns[2])).state == STATES.SUCCEEDED, "it is of another task"
    assert await one.history() == ["STARTED", "SUCCEEDED"]
    del two.runtime.mailboxes.ownership.take
    events = [await two.stopped(turn_id) for turn_id in turns[:2]]
    assert events[0].sequence < events[1].sequence


async def test_a_fire_that_needs_a_tag_waits_for_a_machine_that_offers_it(pair: tuple[Bench, Bench]) -> None:
    one, two = pair
    await two.stop()
    turn_id = await hand_over(one, needs="gpu")
    other = await hand_over(one, 2, task="b", thread_id="thread-b")
    await looked(one)
    assert (await one.stopped(other)).state == STATES.SUCCEEDED
    assert await states(one) == ["waiting"], "no machine offers the tag, and the fire does not fail"
    node = two.settings.node.model_copy(update={"tags": ("gpu",)})
    two.settings = two.settings.model_copy(update={"node": node})
    await two.open()
    assert (await two.stopped(turn_id)).state == STATES.SUCCEEDED
    assert (one.noted, two.noted) == (["here"], ["here"])


async def test_many_fires_that_need_a_tag_hold_up_nothing_on_a_machine_without_it(pair: tuple[Bench, Bench]) -> None:
    one, two = pair
    await two.stop()
    one.script["go"] = [calls(("block", {}))]
    running = await hand_over(one, 1, task="b", thread_id="thread-b")
    await soon(one.blocked.wait(), "the turn to block")
    rows = [row_of(one.fire(n, thread_id=f"thread-{n}", agent="agent0", needs="gpu")) for n in range(2, 602)]
    await one.runtime.store.read(lambda c: schema.handover.put_all(c, rows, one.runtime.clock.now()))
    await one.service.CancelTurn(wire.CancelTurnRequest(turn_id=running, reason="enough"), None)
    assert (await one.stopped(running)).state == STATES.CANCELLED
    one.script["go"] = []
    assert (await one.stopped(await hand_over(one, 602, task="c", thread_id="thread-c"))).state == STATES.SUCCEEDED
    message = await one.send("hello", thread_id="thread-2")
    assert (await one.stopped(message.turn_id)).state == STATES.SUCCEEDED
    while one.runtime.mailboxes.owns("thread-2"):
        await look_again()
