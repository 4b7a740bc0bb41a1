"""Catch-up: a thousand minutely tasks that were down for a day, run once each."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.ours import RUNNER, RUNTIME, Ours, fill, spec
from benchmarks.peers import Peer
from benchmarks.places import place
from benchmarks.report import Section, ratio, spread
from turnkeeper.bus.event_log import read_events

REPETITIONS = 5
TASKS, DAYS = 1000, 1


def catch_up(repetitions: int = REPETITIONS) -> Section:
    """Measure from the runner's start until the last of a thousand tasks, down for a day, has fired once."""
    committed, delivered, theirs = list[float](), list[float](), list[float]()
    for number in range(repetitions):
        print(f"catch-up: run {number + 1} of {repetitions}", flush=True)
        with place() as folder:
            on_disk, synced = _ours(folder)
            committed.append(on_disk)
            delivered.append(synced)
            with closing(Peer("apscheduler3", folder / "peer")) as peer:
                theirs.append(peer.ask(do="catch_up", tasks=TASKS, days=DAYS))
    rows = [
        ("until all are planned and committed", spread(committed, 2), "", ratio(theirs, committed)),
        ("until all have fired, s", spread(delivered, 2), spread(theirs, 2), ratio(theirs, delivered)),
    ]
    header = ("1,000 minutely tasks, down for a day", "ours, s", "APScheduler 3, s", "theirs / ours")
    return Section(title=CATCH_UP, about=ABOUT, header=header, rows=rows)


def _ours(folder: Path) -> tuple[float, float]:
    ours, now = Ours(folder), datetime.now(UTC)
    since = now.replace(second=0, microsecond=0) - timedelta(days=DAYS)
    fill(ours.home, [spec(name, cron="* * * * *", catch_up="run-once") for name in ours.names(TASKS)], since)
    with closing(ours):
        ours.start(*RUNTIME)
        ours.start(*RUNNER, wait=False)
        received = ours.wait_for("fire.received", TASKS)
        trail = [fact for fact in read_events(ours.home.logs) if fact["process"] == "task-runner"]
    begun = next(_at(fact) for fact in trail if fact["event"] == "process.started")
    planned = max(_at(fact) for fact in trail if fact["event"] == "fire.committed")
    assert sum(fact["count"] for fact in trail if fact["event"] == "fire.committed") >= TASKS * 1440 * DAYS
    return (planned - begun).total_seconds(), (max(map(_at, received)) - begun).total_seconds()


def _at(fact: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(fact["at"])


CATCH_UP = "Catch-up"
ABOUT = """
Run-once, each for its 1,440 missed times. Ours: from the runner being up until the last fire is committed, and until
the last envelope is synced, with the pause that keeps missed fires apart switched off (by default four at once, and
0.2 s between two). APScheduler 3: coalescing, from its start until the last of its thousand jobs has begun.
"""
