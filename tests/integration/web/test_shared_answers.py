"""Many tabs cost the daemons as much as one: what was asked a moment ago is not asked again, until something changed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from tests.support.clock import ManualClock, look_again
from turnkeeper.config.settings import Settings
from turnkeeper.errors import Unreachable
from turnkeeper.gateway.calls import Gateway
from turnkeeper.gateway.page.live import REST_S, SETTLE_S, Changes
from turnkeeper.gateway.page.reads import _between
from turnkeeper.gateway.page.shell import FRESH_S, Answers, Shell
from turnkeeper.v1 import schedules_pb2 as schedules


class Runner:
    """A runner that counts what it is asked, and may be away."""

    def __init__(self) -> None:
        self.asked, self.away = 0, False
        self.changes = asyncio.Queue[object]()
        self.watched = list[Any]()

    async def ask(self, _request: Any) -> Any:
        self.asked += 1
        await look_again()
        if self.away:
            raise Unreachable("task-runner cannot be reached")
        return schedules.ListTasksResponse(total=self.asked)

    async def WatchTasks(self, request: Any) -> AsyncIterator[object]:
        self.watched.append(request)
        while True:
            yield await self.changes.get()

    async def WatchTurns(self, _request: Any) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield


class Two:
    """As much of a gateway as it takes."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.one, self.settings = clock, Runner(), Settings()

    def daemons(self, _who: Any) -> Any:
        return self.one


async def test_what_fifty_tabs_ask_together_is_asked_once_and_again_after_a_change_or_a_second(
    clock: ManualClock,
) -> None:
    two = Two(clock)
    answers, request = Answers(cast("Gateway", two)), schedules.ListTasksRequest()

    async def ask() -> int:
        return int((await answers.ask(request)).total)

    assert set(await asyncio.gather(*(ask() for _ in range(50)))) == {1}
    answers.forget()
    assert await ask() == 2, "something changed"
    clock.advance(FRESH_S)
    assert await ask() == 3
    first = asyncio.ensure_future(answers.ask(schedules.ListTasksRequest(channel="x")))
    await look_again()
    first.cancel()
    assert (await answers.ask(schedules.ListTasksRequest(channel="x"))).total == 4, "one tab was closed"
    two.one.away = True
    answers.forget()
    found = await asyncio.gather(ask(), ask(), return_exceptions=True)
    assert [type(one) for one in found] == [Unreachable, Unreachable]


async def test_a_daemon_that_is_away_gives_an_empty_answer_and_is_named_until_it_answers(clock: ManualClock) -> None:
    two = Two(clock)
    shell = Shell(cast("Gateway", two))
    two.one.away = True
    assert await shell.ask(schedules.ListTasksRequest()) == schedules.ListTasksResponse()
    assert shell.away == {"task-runner": clock.now()}
    two.one.away = False
    shell.answers.forget()
    assert (await shell.ask(schedules.ListTasksRequest())).total == 2
    assert not shell.away


async def test_tabs_are_told_of_many_changes_once_and_after_they_settled(clock: ManualClock) -> None:
    two = Two(clock)
    changes = Changes(cast("Any", SimpleNamespace(gateway=two, answers=Answers(cast("Gateway", two)))))
    async with changes.reader() as first, changes.reader() as second:
        for _ in range(100):
            two.one.changes.put_nowait("fired")
        told = [asyncio.ensure_future(one.next()) for one in (first, second)]
        await look_again()
        assert not any(one.done() for one in told), "it takes time from what is due"
        clock.advance(SETTLE_S)
        assert await asyncio.gather(*told) == ["tasks", "tasks"]
        again = asyncio.ensure_future(first.next())
        clock.advance(REST_S)
        await look_again()
        assert not again.done()
        again.cancel()
    assert [one.names_only for one in two.one.watched] == [True], "one follower, which asks for no tasks"


def test_tabs_that_ask_within_a_minute_ask_for_the_same_span() -> None:
    def asked(second: int) -> Any:
        at = datetime(2026, 11, 22, 20, 30, second, tzinfo=UTC)
        return _between(schedules.ListFiresRequest(), at, at)

    assert asked(1) == asked(59)
    assert asked(1).to.ToDatetime(UTC) == datetime(2026, 11, 22, 20, 31, tzinfo=UTC)
