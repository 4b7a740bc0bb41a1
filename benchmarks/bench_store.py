"""The store at scale: registering tasks, starting among a million, doing nothing among a million."""

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

from benchmarks.ours import RUNNER, RUNTIME, Ours, cpu_s, fill, resident_mb, spec
from benchmarks.peers import Peer
from benchmarks.places import place
from benchmarks.report import Section, ratio, spread

REPETITIONS = 5
REGISTERED, REGISTERED_THERE = 10_000, 500
MANY = 1_000_000
IDLE_S = 30.0


def register(repetitions: int = REPETITIONS) -> Section:
    """Measure tasks created a second: ten thousand in one request, beside a peer's one by one."""
    ours, theirs = list[float](), list[float]()
    with (
        place() as folder,
        closing(Ours(folder).start_both()) as mine,
        closing(Peer("apscheduler3", folder / "peer")) as peer,
    ):
        at = (datetime.now(UTC) + timedelta(days=300)).isoformat()
        for number in range(repetitions):
            print(f"register: run {number + 1} of {repetitions}", flush=True)
            ours.append(REGISTERED / mine.apply([spec(name, at=at) for name in mine.names(REGISTERED)]))
            theirs.append(REGISTERED_THERE / peer.ask(do="register", count=REGISTERED_THERE))
    row = (f"{REGISTERED:,} by `apply`", spread(ours), spread(theirs), ratio(ours, theirs))
    return Section(
        title=REGISTER,
        about=ABOUT_REGISTER,
        header=("work", "ours, tasks a second", "APScheduler 3, one by one", "ours / theirs"),
        rows=[row],
        gates={"apply of 10,000, ours / APScheduler 3": [a / b for a, b in zip(ours, theirs, strict=True)]},
    )


def start(repetitions: int = REPETITIONS, many: int = MANY) -> Section:
    """Measure the time from the start of the process to the first fire, its memory, and what idling costs."""
    took: dict[int, list[float]] = {0: [], many: []}
    resident: dict[int, list[float]] = {0: [], many: []}
    with place() as folder:
        homes = {}
        for idle in took:
            print(f"cold start among {idle:,}: making the store", flush=True)
            (folder / str(idle)).mkdir()
            homes[idle] = Ours(folder / str(idle), idle=idle)
        for number in range(repetitions):
            for idle, ours in homes.items():
                print(f"cold start among {idle:,}: run {number + 1} of {repetitions}", flush=True)
                seconds, mb = _cold(ours)
                took[idle].append(seconds)
                resident[idle].append(mb)
        idling = _idling(homes[many])
    rows = [
        ("process start to first fire, s", spread(took[0], 2), spread(took[many], 2), ratio(took[many], took[0], 2)),
        ("resident then, MB", spread(resident[0]), spread(resident[many]), ratio(resident[many], resident[0], 2)),
        (f"of a core while nothing is due, over {IDLE_S:.0f} s", "", f"{idling:.2%}", ""),
    ]
    header = ("", "no other task", f"{many:,} idle", "many / none")
    return Section(title=START, about=ABOUT_START, header=header, rows=rows)


def _cold(ours: Ours) -> tuple[float, float]:
    """Start a runner for which one task is due already; return the seconds to its envelope, and the resident MB."""
    now = datetime.now(UTC)
    fill(ours.home, [spec(*ours.names(1), at=(now - timedelta(seconds=5)).isoformat())], now - timedelta(seconds=60))
    try:
        ours.start(*RUNTIME)
        list(ours.facts("fire.received"))
        begun = datetime.now(UTC)
        runner = ours.start(*RUNNER, wait=False)
        (fact,) = ours.wait_for("fire.received", 1)
        return (datetime.fromisoformat(fact["at"]) - begun).total_seconds(), resident_mb(runner)
    finally:
        ours.close()


def _idling(ours: Ours) -> float:
    """Return the share of a core that a runner takes while nothing is due."""
    try:
        ours.start(*RUNTIME)
        runner = ours.start(*RUNNER)
        time.sleep(5)
        begun, used = time.monotonic(), cpu_s(runner)
        time.sleep(IDLE_S)
        return (cpu_s(runner) - used) / (time.monotonic() - begun)
    finally:
        ours.close()


REGISTER, START = "Registering", "Cold start and idling"
ABOUT_REGISTER = f"""
Ours: one `ApplyTasks` request of {REGISTERED:,} tasks over the socket, which is what `task-runner apply` sends:
checked, written with their first revisions in one synced transaction, and answered one by one. APScheduler 3: `add_job`
on a running scheduler with its jobs in SQLite, {REGISTERED_THERE} one by one, as it offers nothing else.
"""
ABOUT_START = """
The runtime is up; one task is due already. From the start of the runner's process until that fire's envelope is synced.
The idle tasks are due next year, written as copies of one in SQL. Files are in the page cache.
"""
