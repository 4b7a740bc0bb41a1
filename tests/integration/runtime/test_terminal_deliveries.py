"""Fires for agents that the runtime does not host lie in their inboxes, and settle when they have been read."""

import pytest

from agent_runtime.mailbox.acceptor import TerminalDeliveries
from agent_runtime.store import mail
from agent_runtime.store.schema import deliveries
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from tests.integration.runtime.harness import STATES, Bench, soon
from tests.support.scripted import calls
from turnkeeper.bus.inbox import Claimed, Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.settings import AgentSettings
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict
from turnkeeper.storage.files import SystemFiles

pytestmark = pytest.mark.one_machine("agents in terminals read folders of one machine")


class Reader:
    """What reads `codex`'s inbox in a terminal."""

    def __init__(self, bench: Bench, agent: str = "codex") -> None:
        self.folder = bench.home.inbox(agent)
        self.inbox = Inbox(
            self.folder, files=SystemFiles(), clock=SystemClock(), entropy=SystemEntropy(), settles_keys=True
        )

    def claim(self) -> list[Claimed]:
        return self.inbox.claim(10)

    def read(self) -> list[str]:
        claimed = self.claim()
        self.inbox.archive_all(claimed)
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
    receipt = await bench.service.Fire(bench.fire(agent="codex", prompt="look at CI"), None)
    assert receipt.disposition == wire.FireReceipt.ACCEPTED
    again = await bench.service.Fire(bench.fire(agent="codex", prompt="look at CI"), None)
    assert (again.disposition, again.turn_id) == (wire.FireReceipt.DUPLICATE, receipt.turn_id)
    with pytest.raises(Conflict):
        await bench.service.Fire(bench.fire(agent="codex", prompt="other"), None)
    assert await look(bench) == 1
    assert (await bench.turn(receipt.turn_id)).status == "accepted"
    reader = Reader(bench)
    (item,) = reader.claim()
    assert (item.envelope.sender, item.envelope.kind, item.envelope.text) == ("task-runner", "fire", "look at CI")
    assert await look(bench) == 1, "claimed is not delivered"
    reader.inbox.archive(item)
    event = await settled(bench, receipt.turn_id)
    assert (event.state, event.fire_id, event.attempt) == (STATES.DELIVERED, "task-0000000a@1", 1)
    assert (await bench.turn(receipt.turn_id)).status == "delivered"
    late = await bench.service.Fire(bench.fire(agent="codex", prompt="look at CI"), None)
    assert late.disposition == wire.FireReceipt.DUPLICATE
    assert await look(bench) == 0
    delivery = await bench.runtime.store.read(mail.terminal_delivery_of_turn, receipt.turn_id)
    now = bench.runtime.clock.now()
    again = await bench.runtime.store.write(mail.settle_delivery, delivery, "failed", "", now)
    assert not again
    assert await bench.history() == ["DELIVERED"], "it ends once"
    assert reader.read() == []


async def test_what_was_read_while_the_runtime_was_down_is_delivered_when_it_is_back(bench: Bench) -> None:
    first = await bench.service.Fire(bench.fire(1, agent="codex"), None)
    second = await bench.service.Fire(bench.fire(2, agent="codex", task="b"), None)
    await bench.runtime.worker._terminal_deliveries.stop()
    reader = Reader(bench)
    one, two = reader.claim()
    reader.inbox.archive(one)
    await bench.crash()
    assert (await settled(bench, first.turn_id)).state == STATES.DELIVERED
    assert (await bench.turn(second.turn_id)).status == "accepted"
    assert (
        await bench.service.Fire(bench.fire(2, agent="codex", task="b"), None)
    ).disposition == wire.FireReceipt.DUPLICATE
    reader.inbox.archive(two)
    assert (await settled(bench, second.turn_id)).state == STATES.DELIVERED


async def test_a_crash_between_the_envelope_and_its_row_loses_no_outcome(bench: Bench) -> None:
    await bench.service.Fire(bench.fire(1, agent="codex"), None)
    await bench.runtime.store.write(lambda connection: connection.execute(deliveries.delete()))
    await bench.crash()
    receipt = await bench.service.Fire(bench.fire(1, agent="codex"), None)
    assert receipt.disposition == wire.FireReceipt.DUPLICATE, "the envelope lies there"
    await bench.runtime.worker._terminal_deliveries.stop()
    assert Reader(bench).read() == ["go"]
    await bench.runtime.store.write(lambda connection: connection.execute(deliveries.delete()))
    await bench.crash()
    assert (await bench.service.Fire(bench.fire(1, agent="codex"), None)).turn_id == receipt.turn_id
    assert (await settled(bench, receipt.turn_id)).state == STATES.DELIVERED, "also where it was read meanwhile"
    assert Reader(bench).read() == []


async def test_a_cancelled_fire_is_taken_back_if_nobody_has_claimed_it(bench: Bench) -> None:
    receipt = await bench.service.Fire(bench.fire(agent="codex"), None)
    await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id, reason="no more"), None)
    event = await settled(bench, receipt.turn_id)
    assert (event.state, event.error) == (STATES.CANCELLED, "no more")
    assert Reader(bench).read() == []


async def test_an_envelope_that_was_set_aside_or_removed_is_a_failed_fire(bench: Bench) -> None:
    torn = await bench.service.Fire(bench.fire(1, agent="codex"), None)
    removed = await bench.service.Fire(bench.fire(2, agent="claude"), None)
    (path,) = (bench.home.inbox("codex") / "inbox").glob("[!.]*")
    path.write_bytes(b"{")
    assert Reader(bench).read() == []
    (path,) = (bench.home.inbox("claude") / "inbox").glob("[!.]*")
    path.unlink()
    for receipt, why in ((torn, "could not read it"), (removed, "was removed")):
        event = await settled(bench, receipt.turn_id)
        assert event.state == STATES.FAILED
        assert why in event.error


async def test_a_fire_that_waits_for_an_agent_which_becomes_a_worker_becomes_a_turn(bench: Bench) -> None:
    receipt = await bench.service.Fire(bench.fire(agent="agent1"), None)
    bench.settings = replace_workers(bench, 1)
    await bench.crash()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    await bench.rest()
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


def replace_workers(bench: Bench, workers: int):
    return bench.settings.model_copy(update={"agents": {"agent0": AgentSettings(workers=workers)}})


async def test_a_fire_that_a_worker_had_not_begun_waits_in_its_inbox_when_the_worker_has_gone(bench: Bench) -> None:
    few = bench.settings
    bench.settings = replace_workers(bench, 1)
    await bench.crash()
    bench.runtime.worker._claiming.cancel()
    receipt = await bench.service.Fire(bench.fire(agent="agent1"), None)
    bench.settings = few
    await bench.crash()
    assert (await bench.turn(receipt.turn_id)).status == "accepted"
    assert Reader(bench, "agent1").read() == ["go"]
    assert (await settled(bench, receipt.turn_id)).state == STATES.DELIVERED


async def test_a_turn_that_a_worker_had_begun_goes_on_and_no_terminal_reads_its_fire(bench: Bench) -> None:
    few = bench.settings
    bench.settings = replace_workers(bench, 1)
    await bench.crash()
    bench.script["wait"] = [calls(("block", {}))]
    receipt = await bench.service.Fire(bench.fire(agent="agent1", prompt="wait"), None)
    await soon(bench.blocked.wait(), "the turn to block")
    bench.settings = few
    await bench.crash()
    reader = Reader(bench, "agent1")
    assert (reader.inbox.adopt(), reader.read()) == ([], [])
    bench.go.set()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert "DELIVERED" not in await bench.history()


async def test_what_was_pruned_after_it_was_read_is_known_by_its_receipt(bench: Bench) -> None:
    receipt = await bench.service.Fire(bench.fire(agent="codex"), None)
    await bench.runtime.worker._terminal_deliveries.stop()
    reader = Reader(bench)
    (item,) = reader.claim()
    from turnkeeper.bus.acks import AckLedger

    AckLedger(bench.home.logs, "inbox-watch", SystemClock()).received([item])
    reader.inbox.archive(item)
    for path in (reader.folder / "delivered").iterdir():
        path.unlink()
    await bench.crash()
    assert (await soon(settled(bench, receipt.turn_id), "its end")).state == STATES.DELIVERED
