"""Many tabs cost the daemons as much as one: what was asked a moment ago is not asked again, until something changed."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.clock import ManualClock, look_again
from turnkeeper.config.settings import Settings
from turnkeeper.errors import ServerTrouble, TurnkeeperError, Unreachable
from turnkeeper.gateway.calls import Gateway
from turnkeeper.gateway.page.live import REST_S, SETTLE_S, Changes
from turnkeeper.gateway.page.reads import _between
from turnkeeper.gateway.page.shell import FRESH_S, Answers, Shell, Silence
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

DAY = timedelta(days=1)


class Runner:
    """A runner that counts what it is asked, and may be away."""

    def __init__(self) -> None:
        self.asked, self.away = 0, False
        self.refuses: TurnkeeperError | None = None
        self.stopped: asyncio.Event | None = None
        self.changes = asyncio.Queue[object]()
        self.watched = list[Any]()

    async def ask(self, _request: Any) -> Any:
        self.asked += 1
        await look_again()
        if self.stopped is not None:
            await self.stopped.wait()
        if self.refuses is not None:
            raise self.refuses
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


async def test_while_a_daemon_is_away_its_newest_answer_is_shown_with_its_time_and_the_rest_is_said_to_be_unknown(
    clock: ManualClock,
) -> None:
    two = Two(clock)
    shell = Shell(cast("Gateway", two))
    two.one.away = True
    page = shell.begin()
    assert await shell.ask(schedules.ListTasksRequest()) == schedules.ListTasksResponse()
    assert page.silent == {"task-runner": Silence(since=clock.now(), is_partly_unknown=True)}
    with pytest.raises(Unreachable, match="no earlier copy"):
        await shell.ask(schedules.ListTasksRequest(), needed=True)
    two.one.away = False
    shell.answers.forget()
    read_at, page = clock.now(), shell.begin()
    assert (await shell.ask(schedules.ListTasksRequest())).total == 2
    assert not page.silent
    assert not shell.answers.away
    clock.advance(60)
    two.one.away, page = True, shell.begin()
    assert (await shell.ask(schedules.ListTasksRequest())).total == 2, "the newest that is known"
    assert page.silent == {"task-runner": Silence(since=clock.now(), read_at=read_at)}
    await shell.ask(schedules.ListTasksRequest(channel="never read"))
    assert page.silent["task-runner"].is_partly_unknown


async def test_a_daemon_that_cannot_use_its_store_is_shown_like_one_that_is_away_until_its_store_answers(
    clock: ManualClock,
) -> None:
    two = Two(clock)
    shell = Shell(cast("Gateway", two))
    assert (await shell.ask(schedules.ListTasksRequest())).total == 1
    read_at = clock.now()
    clock.advance(60)
    two.one.refuses, page = ServerTrouble("the database does not answer"), shell.begin()
    assert (await shell.ask(schedules.ListTasksRequest())).total == 1, "the newest that is known"
    silence = Silence(since=clock.now(), read_at=read_at, why="the database does not answer")
    assert page.silent == {"task-runner": silence}
    await shell.ask(agents.ListTurnsRequest())
    two.one.refuses = None
    await shell.ask(agents.ListCategoriesRequest())
    assert set(shell.answers.away) == {"task-runner", "agent-runtime"}, "categories are no rows of a store"
    clock.advance(60)
    await shell.ask(schedules.ListTasksRequest())
    await shell.ask(agents.ListTurnsRequest())
    assert (shell.answers.away, shell.answers.troubles) == ({}, {})


async def test_the_kept_answer_for_a_period_that_moves_is_found_by_its_length(clock: ManualClock) -> None:
    two = Two(clock)
    answers = Answers(cast("Gateway", two))

    def fires(days: int) -> schedules.ListFiresRequest:
        asked: schedules.ListFiresRequest = _between(
            schedules.ListFiresRequest(), clock.now() - days * DAY, clock.now()
        )
        return asked

    await answers.ask(fires(1))
    clock.advance(3600)
    assert answers.kept(fires(1)) is not None
    assert answers.kept(fires(7)) is None


async def test_an_answer_that_comes_too_late_for_its_page_is_kept_and_ends_the_absence(clock: ManualClock) -> None:
    two = Two(clock)
    answers, request = Answers(cast("Gateway", two)), schedules.ListTasksRequest()
    told = list[str]()
    answers.moved = lambda: told.append(" ".join(answers.away))
    two.one.stopped = asyncio.Event()
    with pytest.raises(Unreachable, match="in time"):
        await answers.ask_within(request, 0.0)
    assert told == ["task-runner"]
    two.one.stopped.set()
    await look_again()
    assert answers.kept(request) == (clock.now(), schedules.ListTasksResponse(total=1))
    assert told == ["task-runner", ""]


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
