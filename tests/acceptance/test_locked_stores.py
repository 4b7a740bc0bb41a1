"""A store that another process has locked blinds nobody: the trails go on, and the timeline tells each step."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.constellation import Constellation

pytestmark = pytest.mark.process

# For how many seconds more a store stays locked once all was told that is expected; a person sets 30.
LOCKED_S = float(os.environ.get("TURNKEEPER_TEST_LOCKED_S", "0"))


@contextmanager
def locked(constellation: Constellation, store: Path) -> Iterator[None]:
    with closing(sqlite3.connect(store, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        constellation.pass_time(LOCKED_S)


def told(constellation: Constellation, fire_id: str) -> list[str]:
    return [step["event"] for step in constellation.ask("turnkeeper", "events", "--trace", fire_id)]


def fire_of(constellation: Constellation, kind: str) -> str:
    """Return which fire the timeline tells of as it shall."""

    def look() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = constellation.ask("turnkeeper", "events", "--kind", kind)
        return found

    return str(constellation.until(kind, look)[0]["fire_id"])


def test_the_timeline_tells_of_a_fire_while_the_store_of_either_daemon_is_locked(constellation: Constellation) -> None:
    constellation.create("daily", "--in", "2s", "--prompt", "Summarise the garden.")
    with locked(constellation, constellation.home.agent_db):
        fire_id = fire_of(constellation, "fire.arrived")
        assert told(constellation, fire_id)[-3:] == ["fire.committed", "fire.sent", "fire.arrived"]
    constellation.until_outcome("daily", "succeeded")
    after = told(constellation, fire_id)
    for step in ("fire.received", "turn.started", "turn.stopped", "fire.accepted", "fire.settled"):
        assert after.count(step) == 1, f"{step} is told once: {after}"

    constellation.create("later", "--in", "2s", "--prompt", "Summarise the garden.")
    with locked(constellation, constellation.home.schedules_db):
        waits = constellation.until("the runner to wait", lambda: constellation.ask(
            "turnkeeper", "events", "--kind", "store.waits"))  # fmt: skip
        assert waits[0]["text"].startswith("task-runner waits for its store to ")
    (fired,) = constellation.until_outcome("later", "succeeded")
    assert told(constellation, fired["fire_id"]).count("fire.settled") == 1
