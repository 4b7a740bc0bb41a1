"""Fires: how late a hundred are among idle tasks, and how many a second of five thousand due at one moment."""

from contextlib import ExitStack, closing
from typing import Any

from benchmarks.ours import Ours
from benchmarks.peers import Peer
from benchmarks.places import place
from benchmarks.plots import bars
from benchmarks.report import Row, Section, percentile, ratio, spread

REPETITIONS = 5
IDLE = (0, 100_000, 1_000_000)
DUE_TOGETHER, DUE_AT_ONCE = 100, 5000
Found = dict[str, list[Any]]


def lateness(repetitions: int = REPETITIONS, levels: tuple[int, ...] = IDLE) -> Section:
    """Measure how late each of a hundred fires is, among more and more idle tasks."""
    rows, late = list[Row](), _waves(DUE_TOGETHER, levels, repetitions)
    for idle in levels:
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            ours, theirs = ([percentile(wave, share) for wave in late[idle][who]] for who in ("ours", "theirs"))
            rows.append((f"{idle:,}", f"{name} late, ms", spread(ours), spread(theirs), ratio(theirs, ours)))
    gates = {
        f"p99 lateness among {idle:,} idle tasks, APScheduler 3 / ours": [
            percentile(there, 0.99) / percentile(here, 0.99)
            for here, there in zip(late[idle]["ours"], late[idle]["theirs"], strict=True)
        ]
        for idle in levels
    }
    for idle in levels:
        middle = [percentile(here, 0.5) / percentile(here, 0.99) for here in late[idle]["ours"]]
        rows.append((f"{idle:,}", "p50 / p99", spread(middle, 2), "", ""))
    p99 = {idle: [percentile(wave, 0.99) for wave in found["ours"]] for idle, found in late.items()}
    rows += [(f"{idle:,}", "p99 / p99 at 0 idle", ratio(p99[idle], p99[levels[0]], 2), "", "") for idle in levels[1:]]
    drawn = {
        f"{idle:,} idle": {
            name: [percentile(wave, 0.99) for wave in found[who]]
            for who, name in (("ours", "Turnkeeper"), ("theirs", "APScheduler 3"))
        }
        for idle, found in late.items()
    }
    return Section(
        title=LATENESS,
        about=ABOUT_LATENESS,
        header=("idle tasks", "of 100 due", "ours", "APScheduler 3", "theirs / ours"),
        rows=rows,
        gates=gates,
        plots={"lateness.svg": bars("p99 lateness of 100 fires due at one moment", "ms", drawn)},
    )


def fires(repetitions: int = REPETITIONS) -> Section:
    """Measure fires a second, of five thousand due at one moment."""
    rates: dict[str, list[float]] = {"ours": [], "APScheduler 3": [], "huey": []}
    with ExitStack() as stack:
        folder = stack.enter_context(place())
        ours = stack.enter_context(closing(Ours(folder).start_both()))
        peers = {
            name: stack.enter_context(closing(Peer(module, folder / module)))
            for name, module in (("APScheduler 3", "apscheduler3"), ("huey", "huey_sqlite"))
        }
        for number in range(repetitions):
            print(f"{DUE_AT_ONCE:,} due: run {number + 1} of {repetitions}", flush=True)
            rates["ours"].append(DUE_AT_ONCE / ours.wave(DUE_AT_ONCE)[-1] * 1000)
            theirs = peers["APScheduler 3"].ask(do="wave", due=DUE_AT_ONCE)
            rates["APScheduler 3"].append(DUE_AT_ONCE / theirs[-1] * 1000)
            rates["huey"].append(DUE_AT_ONCE / peers["huey"].ask(do="wave", due=DUE_AT_ONCE))
            print(", ".join(f"{name} {values[-1]:,.0f}/s" for name, values in rates.items()), flush=True)
    rows = [
        (name, spread(values), ratio(rates["ours"], values) if name != "ours" else "") for name, values in rates.items()
    ]
    return Section(
        title=FIRES,
        about=ABOUT_FIRES,
        header=("5,000 due at one moment", "fires a second", "ours / theirs"),
        rows=rows,
        gates={
            f"5,000 due at once, ours / {name}": [
                ours / theirs for ours, theirs in zip(rates["ours"], values, strict=True)
            ]
            for name, values in rates.items()
            if name != "ours"
        },
        plots={"fires.svg": bars("fires a second, 5,000 due at one moment", "/s", {"fires": rates})},
    )


def _waves(due: int, levels: tuple[int, ...], repetitions: int) -> dict[int, Found]:
    """Let waves fall due in turn, ours and theirs at each level: what is compared lies side by side in time."""
    found: dict[int, Found] = {idle: {"ours": [], "theirs": []} for idle in levels}
    with ExitStack() as stack:
        running = {}
        for idle in levels:
            print(f"{due} due among {idle:,}: making the stores", flush=True)
            folder = stack.enter_context(place())
            ours = stack.enter_context(closing(Ours(folder, idle=idle).start_both()))
            peer = stack.enter_context(closing(Peer("apscheduler3", folder / "peer")))
            if idle:
                peer.ask(do="idle", count=idle)
            running[idle] = ours, peer
        for number in range(-1, repetitions):
            print(f"{due} due: run {number + 1} of {repetitions}", flush=True)
            for idle, (ours, peer) in running.items():
                waves = {"ours": ours.wave(due), "theirs": peer.ask(do="wave", due=due)}
                if number >= 0:  # the first of a process pays for what the others find ready
                    for who, wave in waves.items():
                        found[idle][who].append(wave)
    return found


LATENESS, FIRES = "Lateness", "Fires a second"
ABOUT_LATENESS = """
From the moment they were due. Ours: a real `task-runner`, its socket, and the runtime's accepting half; a fire counts
when its envelope is synced in the inbox. APScheduler 3: a background scheduler with its jobs in SQLite; a job counts
when it has begun, and delivers nothing. All of them run on for all waves, and take turns; a first wave is not
counted. The idle tasks are due next year; they are written as copies of one, in SQL, in both stores. At a steady pace
half of a hundred needs half of the time, beside what all of them wait for together: so p50 / p99 is above one half,
unless the last ones are held back.
"""
ABOUT_FIRES = """
None may be lost or doubled. Ours: from the moment they were due until the last envelope is synced: commit, gRPC, synced
file each. APScheduler 3: until the last job has begun. huey: SQLite synced at each commit, four threads, no results;
from the first task begun to the last, as its scheduler looks once a second. Neither delivers anything.
"""
