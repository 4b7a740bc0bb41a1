"""Alerts about machine trouble: its begin and its end are told once each."""

import json
from datetime import UTC, datetime

import pytest

from tests.support.clock import ManualClock
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.escalation import Routes
from turnkeeper.constellation.supervisor.watchdog import Orders, Troubles

AWAY = {"task-runner": "the database does not answer"}


@pytest.mark.parametrize("accepts", [True, False], ids=["accepted", "tried again"])
def test_trouble_is_told_when_it_begins_and_when_it_is_over_each_once(home: Home, accepts: bool) -> None:
    clock = ManualClock(datetime(2026, 11, 20, 8, tzinfo=UTC))
    told = home.root / "told"
    orders = Orders(
        routes=Routes(command=f"test ! -e {home.root}/deaf && printenv TURNKEEPER_TEXT >> {json.dumps(str(told))}")
    )
    troubles = Troubles(home, clock, EventLog(home.logs, "watchdog", clock))

    def look(found: dict[str, str], seconds: float) -> list[str]:
        clock.advance(seconds)
        troubles.look(found, orders, {}, ["task-runner"])
        return told.read_text().splitlines() if told.exists() else []

    begun = f"turnkeeper: task-runner: the database does not answer ({home.root})"
    assert look(AWAY, 0) == [begun]
    assert look({}, 50) == look(AWAY, 5) == look({}, 59) == [begun], "it only paused"
    if not accepts:
        (home.root / "deaf").touch()
        assert look({}, 1) == [begun]
        (home.root / "deaf").unlink()
    over = f"turnkeeper: task-runner: the trouble is over: none for 60 s ({home.root})"
    assert look({}, 1) == look({}, 600) == [begun, over]
    assert look(AWAY, 1) == [begun, over, begun]


def test_other_trouble_is_told_although_the_end_of_the_first_could_not_be(home: Home) -> None:
    clock = ManualClock(datetime(2026, 11, 20, 8, tzinfo=UTC))
    told, deaf = home.root / "told", home.root / "deaf"
    orders = Orders(routes=Routes(command=f"test ! -e {deaf} && printenv TURNKEEPER_TEXT >> {json.dumps(str(told))}"))
    troubles = Troubles(home, clock, EventLog(home.logs, "watchdog", clock))
    troubles.look(AWAY, orders, {}, ["task-runner"])
    deaf.touch()
    full = {"task-runner": "the disk is full"}
    for found in ({}, full):
        clock.advance(61)
        troubles.look(found, orders, {}, ["task-runner"])
    deaf.unlink()
    troubles.look(full, orders, {}, ["task-runner"])
    assert [line.split(": ")[2].split(" (")[0] for line in told.read_text().splitlines()] == [
        *AWAY.values(),
        *full.values(),
    ]


def test_trouble_of_a_process_that_is_gone_is_not_over(home: Home) -> None:
    clock = ManualClock(datetime(2026, 11, 20, 8, tzinfo=UTC))
    told = home.root / "told"
    orders = Orders(routes=Routes(command=f"printenv TURNKEEPER_TEXT >> {json.dumps(str(told))}"))
    troubles = Troubles(home, clock, EventLog(home.logs, "watchdog", clock))
    troubles.look(AWAY, orders, {}, ["task-runner"])
    clock.advance(61)
    troubles.look({}, orders, {}, [])
    assert len(told.read_text().splitlines()) == 1
    troubles.look({}, orders, {}, ["task-runner"])
    assert "the trouble is over" in told.read_text().splitlines()[1]
