"""Observers of a daemon that look once per beat: one look at a time, and a failed look is told and repeated."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clock import look_again
from turnkeeper.bus.event_log import EventLog, read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import Surface
from turnkeeper.rpc import server
from turnkeeper.rpc.server import Observers


class Watch:
    """An observer whose looks end as the test says."""

    def __init__(self) -> None:
        self.looks, self.ends, self.trouble = 0, asyncio.Event(), ""
        self.fails: list[Exception] = []

    async def look(self) -> None:
        self.looks += 1
        await self.ends.wait()
        if self.fails:
            raise self.fails.pop(0)


class Socket:
    """An observer that keeps a file of its own."""

    def __init__(self) -> None:
        self.kept = self.closed = 0

    def keep(self) -> None:
        self.kept += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def log(home: Home) -> EventLog:
    return EventLog(home.logs, "task-runner", SystemClock())


def of(*made: Any) -> Observers:
    observers = Observers("a process without surfaces")
    observers._made = list(made)
    return observers


async def beat(observers: Observers, log: EventLog) -> None:
    """Let the observers look, and wait until they have."""
    observers.keep(log)
    while not all(look.done() for look in observers._looks.values()):
        await look_again()


async def test_a_look_that_still_runs_at_the_next_beat_is_the_only_one(log: EventLog) -> None:
    watch, socket = Watch(), Socket()
    observers = of(watch, socket)
    for _ in range(3):
        observers.keep(log)
        await look_again()
    assert (watch.looks, socket.kept) == (1, 3)
    watch.ends.set()
    await beat(observers, log)
    await beat(observers, log)
    assert watch.looks == 2


async def test_a_failed_look_is_logged_once_for_each_reason_and_repeated_at_the_next_beat(
    log: EventLog, home: Home
) -> None:
    watch = Watch()
    watch.ends.set()
    watch.fails = [OSError("no room"), OSError("no room"), KeyError("x"), KeyError("x")]
    observers = of(watch)
    for _ in range(5):
        await beat(observers, log)
    watch.fails = [KeyError("x")]
    await beat(observers, log)
    assert watch.looks == 6
    assert list(reasons(home)) == ["OSError: no room", "KeyError: 'x'", "KeyError: 'x'"]


async def test_a_look_that_was_cancelled_is_followed_by_another(log: EventLog) -> None:
    watch = Watch()
    observers = of(watch)
    observers.keep(log)
    await look_again()
    observers._looks[watch].cancel()
    await asyncio.wait(observers._looks.values())
    watch.ends.set()
    await beat(observers, log)
    assert watch.looks == 2


def reasons(home: Home) -> Iterator[str]:
    for record in read_events(home.logs):
        assert (record["event"], record["observer"]) == ("look.failed", __name__)
        yield record["reason"]


async def test_closing_ends_the_look_that_runs_and_an_observer_that_never_looked_has_nothing_to_end(
    log: EventLog,
) -> None:
    watch, idle, socket = Watch(), Watch(), Socket()
    observers = of(watch, socket)
    observers.keep(log)
    await look_again()
    observers._made.append(idle)
    observers.close()
    with pytest.raises(asyncio.CancelledError):
        await observers._looks[watch]
    assert socket.closed == 1


@pytest.mark.parametrize("declares", ["state/garden.json", "config.toml"])
async def test_an_observer_is_created_once_something_is_declared_for_it(
    declares: str, home: Home, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, files = f"{__name__}:made_with", ("state/garden.json",)
    garden = Surface(name="garden", settings=("garden",), observers={"gardener": target}, declared_in=files)
    monkeypatch.setattr(server, "surfaces", lambda: {"garden": garden})
    home.config.write_text("[garden]\n")
    observers = Observers("gardener", home)
    await beat(observers, log)
    assert (observers._made, observers.trouble) == ([], "")
    (home.root / declares).parent.mkdir(exist_ok=True)
    (home.root / declares).write_text("[garden]\nbeds = 2\n")
    await beat(observers, log)
    await beat(observers, log)
    (watch,) = observers._made
    assert (watch.looks, observers.trouble) == (2, "no water")


def made_with(_home: Home) -> Watch:
    watch = Watch()
    watch.ends.set()
    watch.trouble = "no water"
    return watch
