"""A fire that is sent again after its category or agent has gone."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from agent_runtime.model.trigger import to_envelope
from agent_runtime.service.requests import read_fire
from tests.integration.runtime.harness import STATES, Bench
from turnkeeper.bus.envelope import encode
from turnkeeper.config.settings import AgentSettings
from turnkeeper.errors import Conflict, Degraded
from turnkeeper.v1 import agent_runtime_pb2 as wire


@pytest.mark.parametrize("gone", ["removed", "unreadable"])
async def test_a_fire_is_a_duplicate_also_when_its_category_has_gone(bench: Bench, gone: str) -> None:
    assert (await bench.run()).state == STATES.SUCCEEDED
    path = bench.home.categories / "work.toml"
    path.unlink() if gone == "removed" else path.write_text("what = ")
    again = await bench.accept(bench.fire())
    assert again.disposition == wire.FireReceipt.DUPLICATE
    with pytest.raises(Conflict, match="other content"):
        await bench.accept(bench.fire(prompt="something else"))
    for _ in range(2):  # a refusal takes no key
        with pytest.raises(Degraded, match="category"):
            await bench.service.Fire(bench.fire(2), None)
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


@pytest.mark.one_machine("a worker goes, and its inbox becomes a terminal's")
async def test_a_fire_is_a_duplicate_also_when_its_worker_has_gone_and_a_new_one_waits_for_it(bench: Bench) -> None:
    few = bench.settings
    bench.settings = few.model_copy(update={"agents": {"agent0": AgentSettings(workers=1)}})
    await bench.crash()
    assert (await bench.run(agent="agent1")).state == STATES.SUCCEEDED
    await bench.rest()
    bench.settings = few
    await bench.crash()
    again = await bench.accept(bench.fire(agent="agent1"))
    assert again.disposition == wire.FireReceipt.DUPLICATE
    new = await bench.accept(bench.fire(2, agent="agent1"))
    assert new.disposition == wire.FireReceipt.ACCEPTED
    assert (await bench.turn(new.turn_id)).status == "accepted", "it lies in the inbox, as for any agent in a terminal"
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


async def test_what_a_killed_writer_had_not_put_yet_is_no_duplicate(bench: Bench) -> None:
    """Only a link gives an envelope its name: a temporary file, though whole, is swept away at the next start."""
    trigger = read_fire(bench.fire(), bench.runtime.categories.get)
    envelope = to_envelope(trigger, envelope_id="0" * 32, at=bench.runtime.clock.now())
    temporary = f".{1:020}-{2**22 + 1}-00000000-000001-task-runner.json.tmp"  # no process has such an id
    (bench.home.inbox("agent0") / "inbox" / temporary).write_bytes(encode(envelope))
    await bench.crash()
    receipt = await bench.accept(bench.fire())
    assert receipt.disposition == wire.FireReceipt.ACCEPTED
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED


async def test_the_runtime_says_when_a_fire_was_sent_or_at_least_accepted(bench: Bench) -> None:
    """So the runner can tell a fire that its store lost from a fire that someone else sent."""
    sent_at = Timestamp(seconds=1_790_000_100)
    assert (await bench.run(fired_at=sent_at)).state == STATES.SUCCEEDED
    turn = await bench.service.GetTurn(wire.GetTurnRequest(fire_id=bench.fire().fire_id, attempt=1), None)
    assert turn.fired_at == sent_at
    receipt = await bench.accept(bench.fire(2, agent="codex", fired_at=sent_at))
    assert (await bench.turn(receipt.turn_id)).fired_at.seconds > sent_at.seconds, "its row has the time of acceptance"
