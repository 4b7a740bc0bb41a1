"""A fire that is sent again after its category or agent has gone."""

from typing import Any

import pytest

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from tests.integration.runtime.harness import STATES, Bench
from turnkeeper.errors import Conflict


@pytest.mark.parametrize("gone", ["removed", "unreadable"])
async def test_a_fire_is_a_duplicate_also_when_its_category_has_gone(bench: Bench, gone: str) -> None:
    assert (await bench.run()).state == STATES.SUCCEEDED
    path = bench.home.categories / "work.toml"
    path.unlink() if gone == "removed" else path.write_text("what = ")
    again = await bench.service.Fire(bench.fire(), None)
    assert again.disposition == wire.FireReceipt.DUPLICATE
    with pytest.raises(Conflict, match="other content"):
        await bench.service.Fire(bench.fire(prompt="something else"), None)
    for _ in range(2):  # a refusal takes no key
        with pytest.raises(Conflict, match="category"):
            await bench.service.Fire(bench.fire(2), None)
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


async def test_a_fire_is_a_duplicate_also_when_its_agent_has_gone(bench: Bench) -> None:
    assert (await bench.run()).state == STATES.SUCCEEDED
    mailboxes: Any = bench.runtime.mailboxes
    mailboxes._inboxes = {"agent1": mailboxes._inboxes["agent0"]}
    again = await bench.service.Fire(bench.fire(), None)
    assert again.disposition == wire.FireReceipt.DUPLICATE
    with pytest.raises(Conflict, match="no agent"):
        await bench.service.Fire(bench.fire(2), None)
