"""What is over for long goes, with all that was said; what is open, waits or says where a thread goes on stays."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from sqlalchemy import Connection, func, select, update

from agent_runtime.store import leases, schema
from agent_runtime.store.leases import Fenced
from agent_runtime.turns.pruning import Pruner, prune_shared
from tests.integration.runtime.harness import STATES, Bench
from tests.support.clock import look_again
from tests.support.cluster import doing
from tests.support.scripted import calls
from turnkeeper.bus.documents.documents import documents_in, with_documents
from turnkeeper.config.settings import HistorySettings, Settings
from turnkeeper.constellation.audit.records import examine
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import NotFound
from turnkeeper.rpc.callers import Via, answer_for
from turnkeeper.storage.chain import Signer
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.storage.statements import alone
from turnkeeper.v1 import agent_runtime_pb2 as wire

AT_ONCE = 1e-6  # seconds: whatever is over is old


def pruner(bench: Bench, **keep: float) -> Pruner:
    runtime, keep = bench.runtime, {"keep_turns": AT_ONCE, "keep_events": AT_ONCE} | keep
    return Pruner(
        runtime.store, runtime.checkpoints, clock=runtime.clock, log=runtime.log, keep=HistorySettings(**keep)
    )  # fmt: skip


async def read_by_runner(bench: Bench) -> None:
    """Have the runner take all turn events in; and wait until no thread is owned."""
    while bench.shared and bench.runtime.mailboxes.ownership.held:  # type: ignore[attr-defined]
        await look_again()
    await bench.runtime.store.read(lambda connection: connection.execute(update(schema.turn_events).values(taken=True)))
    bench.runtime.store.read_up_to = await bench.runtime.store.read(
        lambda connection: connection.execute(select(func.max(schema.turn_events.c.sequence))).scalar() or 0
    )


async def counts(bench: Bench, *tables: Any) -> Sequence[int]:
    return await bench.runtime.store.read(
        lambda connection: [connection.execute(select(func.count()).select_from(each)).scalar_one() for each in tables]
    )


async def test_a_fires_own_thread_goes_whole_and_what_comes_again_has_no_effect(bench: Bench) -> None:
    bench.script["go"] = [calls(("note", {"text": "the pump"})), AIMessage("done")]
    first = bench.fire(1)
    first.thread_id = first.fire_id
    receipt = await bench.accept(first)
    await bench.stopped(receipt.turn_id)
    await bench.rest()
    await read_by_runner(bench)
    assert await bench.runtime.checkpoints.aget_tuple({"configurable": {"thread_id": first.fire_id}})

    assert (await pruner(bench).pass_over())[0] == 1
    assert await counts(bench, schema.turns, schema.messages, schema.turn_events) == [0, 0, 0]
    assert await bench.runtime.checkpoints.aget_tuple({"configurable": {"thread_id": first.fire_id}}) is None
    with pytest.raises(NotFound):
        await bench.turn(receipt.turn_id)
    again = await bench.accept(first)
    assert (again.disposition, again.turn_id) == (wire.FireReceipt.DUPLICATE, receipt.turn_id)
    await bench.rest()
    assert bench.noted == ["the pump"]


async def test_what_waits_and_the_newest_turn_of_a_thread_stay(bench: Bench) -> None:
    bench.script["go"] = [AIMessage("one")]
    bench.script["ask"] = [calls(("ask", {"question": "may I?"})), AIMessage("thanks")]
    old = await bench.run(1)
    newest = await bench.run(2)
    asks = await bench.run(3, thread_id="thread-b", prompt="ask")
    await read_by_runner(bench)
    await pruner(bench).pass_over()
    with pytest.raises(NotFound):
        await bench.turn(old.turn_id)
    assert (await bench.turn(newest.turn_id)).summary == "one"
    (pending,) = await bench.pending()
    await bench.resolve(pending.interrupt_id, "answer", message="yes")
    ended = await bench.stopped(asks.turn_id, after=asks.sequence)
    assert ended.summary == "thanks"


async def test_nothing_goes_that_the_runner_has_yet_to_read_and_nothing_where_all_is_kept(bench: Bench) -> None:
    bench.script["go"] = [AIMessage("one")]
    for number in (1, 2):
        await bench.run(number)
    await bench.rest()
    assert await pruner(bench).pass_over() == (0, 0)
    await read_by_runner(bench)
    assert await pruner(bench, keep_turns=0, keep_events=0).pass_over() == (0, 0)
    assert await pruner(bench, keep_turns=3600, keep_events=3600).pass_over() == (0, 0)
    assert (await pruner(bench).pass_over())[0] == 1


async def test_one_machine_prunes_at_a_time_and_a_thread_that_is_owned_stays(bench: Bench) -> None:
    if not bench.shared:
        pytest.skip("several machines share a server's database: --database postgres")
    bench.script["go"] = [AIMessage("one")]
    first = bench.fire(1)
    first.thread_id = first.fire_id
    await bench.stopped((await bench.accept(first)).turn_id)
    await read_by_runner(bench)
    before = bench.runtime.clock.now()
    with doing(in_schema(bench.shared, SCHEMA)) as do:
        do(lambda c: leases.begin(c, "another"))
        lease = do(lambda c: leases.take(c, first.fire_id, "another"))
        assert do(lambda c: prune_shared(c, before)) == 0, "its owner lives"
        do(lambda c: leases.free(c, lease))

        def while_another_prunes(connection: Connection) -> int:
            assert alone(connection, "pruning turns")
            assert connection.execute(select(func.count()).select_from(schema.turns)).scalar() == 1
            with doing(in_schema(bench.shared, SCHEMA)) as beside:
                return beside(lambda c: prune_shared(c, before))

        assert do(while_another_prunes) == 0
        assert do(lambda c: prune_shared(c, before)) == 1
        with pytest.raises(Fenced):
            do(lambda c: leases.check(c, lease))


@pytest.mark.sqlite_only("reads the file of a store")
async def test_the_records_of_what_went_leave_their_hashes(bench: Bench) -> None:
    bench.script["go"] = [AIMessage("one")]
    for number in (1, 2, 3):
        await bench.run(number)
    await bench.rest()
    await read_by_runner(bench)
    runtime = bench.runtime
    sqlite3.connect(bench.home.schedules_db).executescript("CREATE TABLE fires (fire_id)")  # the runner's store
    signer = Signer(
        bench.home, runtime.store.write, schema.audit, clock=runtime.clock, entropy=SystemEntropy(), emit=print
    )
    await signer.sign()
    assert (await pruner(bench).pass_over())[0] == 2
    await signer.sign()
    assert examine(bench.home).faults == []
    await runtime.store.write(lambda connection: connection.execute(schema.turns.delete()))
    assert examine(bench.home).faults == [], "the newest turn is older than what was pruned, and its record went"
    await bench.run(4, thread_id="thread-b")
    await signer.sign()
    await runtime.store.write(lambda connection: connection.execute(schema.turns.delete()))
    (fault,) = examine(bench.home).faults
    assert "gone from the store" in fault


async def test_the_runner_says_what_it_has_read_and_no_other_watcher_does(bench: Bench) -> None:
    bench.script["go"] = [AIMessage("one")]
    ended = await bench.run(1)  # the test itself watches until it has stopped
    assert bench.runtime.store.read_up_to == 0
    answer_for(Via(program="task-runner", surface="daemon"))  # as the door does once that is proven
    await bench.events(until=lambda event: event.state == STATES.SUCCEEDED, after=ended.sequence - 1)
    assert bench.runtime.store.read_up_to == ended.sequence - 1


def test_turns_are_kept_for_as_long_as_the_ledger_names_them() -> None:
    settings = Settings.model_validate({"history": {"keep_turns": "1d"}})
    assert settings.kept.keep_turns == settings.scheduler.keep_history
    assert Settings.model_validate({"history": {"keep_turns": 0}}).kept.keep_turns == 0


async def test_the_copy_of_a_file_is_pruned_with_the_turn_that_got_it(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The pump is behind the shed")
    bench.script[prompt := with_documents(bench.home, "Sum up.", [str(tmp_path / "notes.txt")])] = [AIMessage("done")]
    fire = bench.fire(1, prompt=prompt)
    fire.thread_id = fire.fire_id
    receipt = await bench.accept(fire)
    await bench.stopped(receipt.turn_id)
    assert documents_in((await bench.conversation())[-1].messages[0].text)
    await read_by_runner(bench)
    assert (await pruner(bench).pass_over())[0] == 1
    assert await counts(bench, schema.messages, schema.turns) == [0, 0]
    assert not [one async for one in bench.runtime.checkpoints.alist({"configurable": {"thread_id": fire.thread_id}})]
