"""Fires for agents that the runtime does not host lie in their inboxes, and settle when they have been read."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, update

from agent_runtime.mailbox.acceptor import TerminalDeliveries
from agent_runtime.mailbox.mailboxes import Delivery
from agent_runtime.mailbox.shared import turn_id_of_key
from agent_runtime.store import mail, schema
from agent_runtime.store.schema import deliveries
from tests.integration.runtime.harness import STATES, Bench, soon
from tests.support.clock import look_again
from tests.support.scripted import calls
from turnkeeper.bus.envelope import decode
from turnkeeper.bus.folders import EnvelopeState
from turnkeeper.bus.inbox import Claimed, Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.settings import AgentSettings
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict
from turnkeeper.storage.files import SystemFiles
from turnkeeper.storage.server import inboxes
from turnkeeper.v1 import agent_runtime_pb2 as wire

folders = pytest.mark.one_machine("of files")
workers = pytest.mark.one_machine("machines that share a store have the same workers")


class Reader:
    """What reads `codex`'s inbox in a terminal: a folder's, or the rows of a store that machines share."""

    def __init__(self, bench: Bench, agent: str = "codex") -> None:
        self.folder = bench.home.inbox(agent)
        own: dict[str, Any] = {"files": SystemFiles(), "clock": SystemClock(), "entropy": SystemEntropy()}
        self.inbox = None if bench.shared else Inbox(self.folder, settles_keys=True, **own)
        self._read, self._agent = bench.runtime.store.read, agent

    async def claim(self) -> list[Any]:
        if self.inbox is not None:
            return self.inbox.claim(10)

        def work(connection: Connection) -> list[tuple[int, str, bytes]]:
            end_reading = update(schema.inboxes).values(until_us=0)
            connection.execute(end_reading)
            self.epoch = inboxes.begin_reading(connection, self._agent, "a test")
            return inboxes.claim_envelopes(connection, self._agent, self.epoch, 10, 1_000_000)

        rows = await self._read(work)
        return [Claimed(name=str(number), envelope=decode(data)) for number, _, data in rows]

    async def archive(self, *claimed: Claimed) -> None:
        if self.inbox is not None:
            self.inbox.archive_all(claimed)
            return
        for item in claimed:
            where = self._agent, self.epoch, int(item.name)
            await self._read(inboxes.end_envelope, *where, EnvelopeState.DELIVERED)

    async def read(self) -> list[str]:
        claimed = await self.claim()
        await self.archive(*claimed)
        return [item.envelope.text for item in claimed]


async def look(bench: Bench) -> int:
    follower: TerminalDeliveries = bench.runtime.worker._terminal_deliveries
    return await follower.look()


async def settled(bench: Bench, turn_id: str) -> wire.TurnEvent:
    for _ in range(2):  # it is looked for twice before it is called gone
        await look(bench)
    found = await bench.events(until=lambda event: event.turn_id == turn_id)
    return found[-1]


async def test_a_fire_for_an_agent_in_a_terminal_is_delivered_once_it_was_read(bench: Bench) -> None:
    receipt = await bench.accept(bench.fire(agent="codex", prompt="look at CI"))
    assert receipt.disposition == wire.FireReceipt.ACCEPTED
    again = await bench.accept(bench.fire(agent="codex", prompt="look at CI"))
    assert (again.disposition, again.turn_id) == (wire.FireReceipt.DUPLICATE, receipt.turn_id)
    with pytest.raises(Conflict):
        await bench.accept(bench.fire(agent="codex", prompt="other"))
    assert await look(bench) == 1
    assert (await bench.turn(receipt.turn_id)).status == "accepted"
    reader = Reader(bench)
    (item,) = await reader.claim()
    assert (item.envelope.sender, item.envelope.kind, item.envelope.text) == ("task-runner", "fire", "look at CI")
    assert await look(bench) == 1, "claimed is not delivered"
    await reader.archive(item)
    event = await settled(bench, receipt.turn_id)
    assert (event.state, event.fire_id, event.attempt) == (STATES.DELIVERED, "task-0000000a@1", 1)
    assert (await bench.turn(receipt.turn_id)).status == "delivered"
    late = await bench.accept(bench.fire(agent="codex", prompt="look at CI"))
    assert late.disposition == wire.FireReceipt.DUPLICATE
    assert await look(bench) == 0
    delivery = await bench.runtime.store.read(mail.terminal_delivery_of_turn, receipt.turn_id)
    now = bench.runtime.clock.now()
    again = await bench.runtime.store.write(mail.settle_delivery, delivery, "failed", "", now)
    assert not again
    assert await bench.history() == ["DELIVERED"], "it ends once"
    assert await reader.read() == []


async def test_what_was_read_while_the_runtime_was_down_is_delivered_when_it_is_back(bench: Bench) -> None:
    first = await bench.accept(bench.fire(1, agent="codex"))
    second = await bench.accept(bench.fire(2, agent="codex", task="b"))
    await bench.runtime.worker._terminal_deliveries.stop()
    reader = Reader(bench)
    one, two = await reader.claim()
    await reader.archive(one)
    await bench.crash()
    assert (await settled(bench, first.turn_id)).state == STATES.DELIVERED
    assert (await bench.turn(second.turn_id)).status == "accepted"
    assert (await bench.accept(bench.fire(2, agent="codex", task="b"))).disposition == wire.FireReceipt.DUPLICATE
    await reader.archive(two)
    assert (await settled(bench, second.turn_id)).state == STATES.DELIVERED


async def test_a_crash_between_the_envelope_and_its_row_loses_no_outcome(bench: Bench) -> None:
    await bench.accept(bench.fire(1, agent="codex"))
    await bench.runtime.store.write(lambda connection: connection.execute(deliveries.delete()))
    await bench.crash()
    receipt = await bench.accept(bench.fire(1, agent="codex"))
    assert receipt.disposition == wire.FireReceipt.DUPLICATE, "the envelope lies there"
    await bench.runtime.worker._terminal_deliveries.stop()
    assert await Reader(bench).read() == ["go"]
    await bench.runtime.store.write(lambda connection: connection.execute(deliveries.delete()))
    await bench.crash()
    assert (await bench.accept(bench.fire(1, agent="codex"))).turn_id == receipt.turn_id
    assert (await settled(bench, receipt.turn_id)).state == STATES.DELIVERED, "also where it was read meanwhile"
    assert await Reader(bench).read() == []


async def test_a_cancelled_fire_is_taken_back_if_nobody_has_claimed_it(bench: Bench) -> None:
    receipt = await bench.accept(bench.fire(agent="codex"))
    await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id, reason="no more"), None)
    event = await settled(bench, receipt.turn_id)
    assert (event.state, event.error) == (STATES.CANCELLED, "no more")
    assert await Reader(bench).read() == []


@folders
async def test_an_envelope_that_was_set_aside_or_removed_is_a_failed_fire(bench: Bench) -> None:
    torn = await bench.accept(bench.fire(1, agent="codex"))
    removed = await bench.accept(bench.fire(2, agent="claude"))
    (path,) = (bench.home.inbox("codex") / "inbox").glob("[!.]*")
    path.write_bytes(b"{")
    assert await Reader(bench).read() == []
    (path,) = (bench.home.inbox("claude") / "inbox").glob("[!.]*")
    path.unlink()
    for receipt, why in ((torn, "could not read it"), (removed, "was removed")):
        event = await settled(bench, receipt.turn_id)
        assert event.state == STATES.FAILED
        assert why in event.error


@workers
async def test_a_fire_that_waits_for_an_agent_which_becomes_a_worker_becomes_a_turn(bench: Bench) -> None:
    receipt = await bench.accept(bench.fire(agent="agent1"))
    bench.settings = replace_workers(bench, 1)
    await bench.crash()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    await bench.rest()
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


def replace_workers(bench: Bench, workers: int):
    return bench.settings.model_copy(update={"agents": {"agent0": AgentSettings(workers=workers)}})


@workers
async def test_a_fire_that_a_worker_had_not_begun_waits_in_its_inbox_when_the_worker_has_gone(bench: Bench) -> None:
    few = bench.settings
    bench.settings = replace_workers(bench, 1)
    await bench.crash()
    bench.runtime.worker._tasks["claim"].cancel()
    receipt = await bench.accept(bench.fire(agent="agent1"))
    bench.settings = few
    await bench.crash()
    assert (await bench.turn(receipt.turn_id)).status == "accepted"
    assert await Reader(bench, "agent1").read() == ["go"]
    assert (await settled(bench, receipt.turn_id)).state == STATES.DELIVERED


@workers
async def test_a_turn_that_a_worker_had_begun_goes_on_and_no_terminal_reads_its_fire(bench: Bench) -> None:
    few = bench.settings
    bench.settings = replace_workers(bench, 1)
    await bench.crash()
    bench.script["wait"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire(agent="agent1", prompt="wait"))
    await soon(bench.blocked.wait(), "the turn to block")
    bench.settings = few
    await bench.crash()
    reader = Reader(bench, "agent1")
    assert reader.inbox is not None
    assert (reader.inbox.adopt(), await reader.read()) == ([], [])
    bench.go.set()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert "DELIVERED" not in await bench.history()


@folders
async def test_what_was_pruned_after_it_was_read_is_known_by_its_receipt(bench: Bench) -> None:
    receipt = await bench.accept(bench.fire(agent="codex"))
    await bench.runtime.worker._terminal_deliveries.stop()
    reader = Reader(bench)
    (item,) = await reader.claim()
    from turnkeeper.bus.acks import AckLedger

    AckLedger(bench.home.logs, "inbox-watch", SystemClock()).received([item])
    await reader.archive(item)
    for path in (reader.folder / "delivered").iterdir():
        path.unlink()
    await bench.crash()
    assert (await soon(settled(bench, receipt.turn_id), "its end")).state == STATES.DELIVERED


async def test_what_was_set_aside_or_removed_from_the_shared_store_is_a_failed_fire(bench: Bench) -> None:
    if not bench.shared:
        pytest.skip("of rows: --database postgres")
    torn = await bench.accept(bench.fire(1, agent="codex"))
    removed = await bench.accept(bench.fire(2, agent="claude"))
    reader = Reader(bench)
    (item,) = await reader.claim()
    where = "codex", reader.epoch, int(item.name)
    await bench.runtime.store.read(inboxes.end_envelope, *where, EnvelopeState.QUARANTINED, "torn")
    rows = schema.inbox_envelopes.delete().where(schema.inbox_envelopes.c.agent == "claude")
    await bench.runtime.store.read(lambda c: c.execute(rows))
    for receipt, why in ((torn, "could not read it"), (removed, "was removed")):
        event = await settled(bench, receipt.turn_id)
        assert event.state == STATES.FAILED
        assert why in event.error


async def hand_over(bench: Bench) -> str:
    """Hand a fire for an agent in a terminal over, as a runner does; return its key."""
    request, key = bench.fire(agent="codex", prompt="look at CI"), "fire:task-0000000a@1:1"
    row = {"key": key, "thread_id": "thread-a", "agent": "codex", "kind": "fire"}
    given = [{**row, "envelope": request.SerializeToString()}], SystemClock().now()
    await bench.runtime.store.read(schema.handover.put_all, *given)
    return key


async def test_a_fire_that_a_runner_hands_over_is_laid_out_by_whoever_takes_its_thread(bench: Bench) -> None:
    if not bench.shared:
        pytest.skip("of rows: --database postgres")
    key = await hand_over(bench)
    reader = Reader(bench)

    async def arrived() -> list[Claimed]:
        while not (found := await reader.claim()):
            await look_again()
        return found

    (item,) = await soon(arrived(), "the envelope")
    assert (item.envelope.sender, item.envelope.kind, item.envelope.text) == ("task-runner", "fire", "look at CI")
    turn_id = turn_id_of_key(key)
    assert (await bench.turn(turn_id)).status == "accepted"
    await reader.archive(item)
    assert (await settled(bench, turn_id)).state == STATES.DELIVERED
    left = await bench.runtime.store.read(lambda c: c.execute(schema.envelopes.select()).all())
    assert left == []
    assert not bench.lying("quarantine")


async def test_a_fire_that_was_taken_back_is_not_laid_out_again_by_who_got_no_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server acknowledged nothing to who laid it out, and he tries again once it was cancelled."""
    if not bench.shared:
        pytest.skip("of rows: --database postgres")
    mailboxes, tried = bench.runtime.worker._mailboxes, asyncio.Event()
    lay_out, key = mailboxes.lay_out, "fire:task-0000000a@1:1"

    async def lay_out_twice(delivery: Delivery) -> None:
        await lay_out(delivery)
        assert await mailboxes.withdraw("codex", key)
        await lay_out(delivery)
        tried.set()

    monkeypatch.setattr(mailboxes, "lay_out", lay_out_twice)
    assert await hand_over(bench) == key
    await soon(tried.wait(), "the envelope")
    assert await mailboxes.envelope_states("codex", {key: key}) == {key: EnvelopeState.GONE}
