"""Agents in terminals are told that everything goes down, and are waited for."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from agent_runtime.mailbox.inbox import Reader, reading
from tests.support.clock import START, ManualClock
from turnkeeper.bus.envelope import shown
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import terminals
from turnkeeper.entropy import SystemEntropy
from turnkeeper.storage.locking import ReaderLock


class Watched(SystemClock):
    """A clock whose pauses take no time, and in which what is to happen meanwhile happens."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._manual, self._meanwhile = ManualClock(START), meanwhile

    def monotonic(self) -> float:
        return self._manual.monotonic()

    def block(self, seconds: float) -> None:
        self._manual.advance(seconds)
        self._meanwhile()


@pytest.fixture
def told(home: Home) -> Callable[[Callable[[], None]], dict[str, str]]:
    return lambda meanwhile: terminals.tell_all(home, clock=Watched(meanwhile), entropy=SystemEntropy())


def lying(home: Home, agent: str, place: str) -> list[str]:
    return [path.name for path in (home.inbox(agent) / place).iterdir() if not path.name.startswith(".")]


def read_by(opened: ExitStack, home: Home, agent: str = "codex") -> Reader:
    where = {"clock": SystemClock(), "entropy": SystemEntropy()}
    return opened.enter_context(reading(home, agent, "inbox watch", **where))  # type: ignore[arg-type]


def test_one_that_is_read_gets_the_shutdown_and_is_waited_for(home: Home, told) -> None:
    seen: list[str] = []
    with ExitStack() as opened:
        reader = read_by(opened, home)

        def take() -> None:
            for claimed in reader.claim():
                reader.finish(claimed, lambda envelope: seen.append(shown(envelope)))

        assert told(take) == {"codex": "took the shutdown"}
    (text,) = seen
    assert text.startswith('<channel source="agent" from="watchdog" kind="shutdown"')


def test_one_that_is_busy_is_waited_for_a_minute_and_the_shutdown_is_taken_back(home: Home, told) -> None:
    pauses: list[None] = []
    with ExitStack() as opened:
        reader = read_by(opened, home)
        assert told(lambda: pauses.append(None)) == {"codex": "did not read the shutdown within 60s"}
        assert reader.claim() == []
    assert 595 <= len(pauses) <= 605


def test_one_that_ends_meanwhile_is_not_waited_for_and_reads_nothing_of_it_later(home: Home, told) -> None:
    with ExitStack() as opened:
        reader = read_by(opened, home)

        def end() -> None:
            reader.claim()  # between claim and delivery
            opened.close()

        assert told(end) == {"codex": "ended"}
    assert lying(home, "codex", "inbox") + lying(home, "codex", "claimed") == []


def test_an_inbox_that_nobody_reads_or_that_the_runtime_reads_gets_nothing(home: Home, told) -> None:
    for agent in ("codex", "agent0"):
        home.inbox(agent).mkdir(parents=True, mode=0o700)
    with ReaderLock(home.inbox("agent0"), "agent-runtime"):
        assert told(lambda: None) == {}
    assert not (home.inbox("codex") / "inbox").exists()


def test_where_machines_share_a_database_none_is_told_and_the_author_is_told_so(home: Home, told) -> None:
    for agent in ("codex", "agent0", "agent1"):
        home.inbox(agent).mkdir(parents=True, mode=0o700)
    home.config.write_text('[store]\nurl = "postgresql://turnkeeper@127.0.0.1/turnkeeper"\n')
    assert told(lambda: None) == {
        "codex": "got no message: other machines that share the database may continue to deliver to it"
    }
    assert not (home.inbox("codex") / "inbox").exists()


def test_whoever_interrupts_the_wait_leaves_nothing_behind(home: Home, told) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with ExitStack() as opened:
        reader = read_by(opened, home)
        with pytest.raises(KeyboardInterrupt):
            told(interrupt)
        assert reader.claim() == []
