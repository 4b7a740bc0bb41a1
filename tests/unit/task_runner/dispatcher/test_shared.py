"""The hand-over on a shared store."""

import asyncio
from types import SimpleNamespace
from typing import Any

from task_runner.dispatcher.shared import SharedHandover
from tests.support.clock import look_again


async def test_a_runner_whose_parts_have_ended_tells_the_others_of_changes() -> None:
    store: Any = SimpleNamespace(tells=True)
    unused: Any = None
    events: dict[str, Any] = {"changed": asyncio.Event(), "planned": asyncio.Event()}
    handover = SharedHandover(store, clock=unused, log=unused, failpoints=unused, pace=unused, **events)
    running = asyncio.create_task(handover.run())
    while store.tells:
        await look_again()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert store.tells
