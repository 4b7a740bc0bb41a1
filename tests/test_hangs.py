"""A test that takes too long says what each of its tasks waits for."""

import asyncio

from tests.support.hangs import waits


async def outer(event: asyncio.Event) -> None:
    await inner(event)


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def test_each_coroutine_is_named_that_a_task_waits_for() -> None:
    event = asyncio.Event()
    task = asyncio.create_task(outer(event))
    await asyncio.sleep(0)  # noqa: TID251  it begins
    (line,) = [line for line in waits().splitlines() if "outer" in line]
    assert line.startswith(f"1 x outer ({__file__}:")
    assert line.index(" > inner (") < line.index(" > wait (")
    event.set()
    await task
    assert "outer" not in waits()
