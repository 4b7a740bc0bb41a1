"""What looking on costs a fire: questions in SQL over a long history, and metrics."""

import itertools
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from agent_runtime.store.database import open_database
from benchmarks.ours import RUNNER, RUNTIME, Ours, cpu_s
from benchmarks.places import place
from benchmarks.report import Section, spread
from turnkeeper.config.home import Home

Daemons = tuple["subprocess.Popen[bytes]", "subprocess.Popen[bytes]"]
FIRES, TURNS, TASKS = 1_000_000, 100_000, 100
DUE = 3000  # fires of a wave
FAST, SHARE = "grouped count over 1,000,000 fires, in s", "CPU of a fire beside a query / without"
BY_OUTCOME = "SELECT outcome, count(*) FROM fires GROUP BY outcome"
QUESTIONS = {
    "fires by outcome": BY_OUTCOME,
    "fires by hour of the day": "SELECT substr(due_at, 12, 2), count(*), max(late_s) FROM fires GROUP BY 1",
    "turns by status": "SELECT status, count(*), sum(tokens_out) FROM turns GROUP BY 1",
    "turns and their fires by outcome": "SELECT outcome, count(*), avg(turns.took_s) FROM fires"
    " JOIN turns USING (fire_id) GROUP BY 1",
}
_LINES = "WITH RECURSIVE line(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM line WHERE n < {count}) INSERT INTO {into}"
_APART = 7_000_000  # µs between two fires: all are younger than what is pruned
_STATES = ("succeeded", "succeeded", "succeeded", "failed", "cancelled")


def fill(home: Home, fires: int, turns: int) -> None:
    """Write a long history into stores that nobody has open: a fire every few seconds, and the newest turns."""
    began = int(time.time()) * 1_000_000 - (fires + 10) * _APART
    state = " ".join(f"WHEN {place} THEN '{one}'" for place, one in enumerate(_STATES))
    at, task = f"{began} + n * {_APART}", f"printf('task-%08x', n % {TASKS} + 1)"
    moments = {f"{name}_us": f"{at} + {after}" for name, after in
               (("nominal", 0), ("due", 0), ("first", 0), ("last", 0), ("fired", 1500), ("accepted", 4000),
                ("started", 6000), ("ended", 900_000))}  # fmt: skip
    fire = moments | {
        "entry_id": "n", "task_id": task, "fire_id": f"{task} || '@' || n", "kind": "'scheduled'",
        "outcome": f"CASE n % {len(_STATES)} {state} END", "is_open": "0", "reason": "''", "covers": "1",
        "attempt": "1",
        "policy": "'run-once'", "caught_up": "0", "released": "0", "refusals": "0", "turn_id": "'turn-' || n",
    }  # fmt: skip
    _insert(home.schedules_db, "fires", fire, fires)
    open_database(home.agent_db).close()
    turn = {
        **dict.fromkeys(("payload_json", "catch_up", "traceparent", "error", "answers_json", "resumes"), "''"),
        **dict.fromkeys(("stands_for", "attempt", "tries", "epoch", "visible"), "1"),
        "turn_id": f"'turn-' || (n + {fires - turns})", "thread_id": task, "channel": "'general'", "agent": "'agent0'",
        "category": "'catch-up-summary'", "grant_json": "'{}'", "trigger": "'fire'",
        "status": f"CASE n % {len(_STATES)} {state} END",
        "fire_id": f"printf('task-%08x', (n + {fires - turns}) % {TASKS} + 1) || '@' || (n + {fires - turns})",
        "task_id": task, "task_name": f"'idle-' || (n % {TASKS} + 1)", "kind": "'scheduled'",
        "prompt": "'Summarise what happened since the last time.'", "read_only": "0", "timezone": "'UTC'",
        "started_at_us": f"{began} + (n + {fires - turns}) * {_APART} + 6000",
        "ended_at_us": f"{began} + (n + {fires - turns}) * {_APART} + 900000 + n % 977 * 40000",
        "summary": "'Nothing new.'", "after_message": "''", "tokens_in": "n % 4000", "tokens_out": "n % 700",
    }  # fmt: skip
    _insert(home.agent_db, "turns", turn, turns)


def _insert(store: Path, table: str, values: dict[str, str], count: int) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        into = f"{table} ({', '.join(values)})"
        connection.execute(f"{_LINES.format(count=count, into=into)} SELECT {', '.join(values.values())} FROM line")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def ask(home: Home, question: str) -> "subprocess.Popen[bytes]":
    """Begin to ask, as a person does who is in no hurry."""
    argv = [
        sys.executable,
        "-m",
        "constellation",
        "--home",
        str(home.root),
        "query",
        question,
        "-o",
        "json",
        "--timeout",
        "5m",
    ]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.nice(10))  # noqa: PLW1509


def query(repetitions: int) -> Section:
    """Measure how long questions take over a long history, and what they cost the fires of that time."""
    rows: list[tuple[str, ...]] = []
    gates: dict[str, list[float]] = {FAST: [], SHARE: []}
    with place() as folder, closing(Ours(folder, idle=TASKS)) as ours:
        fill(ours.home, FIRES, TURNS)
        for name, question in QUESTIONS.items():
            took = [_took_s(ours.home, question) for _ in range(repetitions)]
            rows.append((name, f"{spread(took, 2)} s"))
            gates[FAST] += took if question == BY_OUTCOME else []
        daemons = ours.start(*RUNTIME), ours.start(*RUNNER)
        ours.wave(DUE)
        beside, alone = [], []
        for number in range(repetitions):
            print(f"CPU of a fire beside a query: run {number + 1} of {repetitions}", flush=True)
            alone.append(_cpu_us(ours, daemons))
            beside.append(_cpu_us(ours, daemons, asks=True))
        gates[SHARE] = [one / other for one, other in zip(beside, alone, strict=True)]
        rows += [("CPU of a fire, without", f"{spread(alone)} µs"), ("CPU of a fire, beside", f"{spread(beside)} µs")]
    return Section(title=QUERY, about=ABOUT_QUERY, header=("", "found"), rows=rows, gates=gates)


def _took_s(home: Home, question: str) -> float:
    begun = time.perf_counter()
    assert ask(home, question).wait() == 0, question
    return time.perf_counter() - begun


def _cpu_us(ours: Ours, daemons: Daemons, *, asks: bool = False, scrapes: bool = False) -> float:
    """Return the CPU that a fire of a wave costs both daemons, in µs; meanwhile one question follows another."""
    before, over = list[float](), threading.Event()

    def ask_on() -> None:
        for question in itertools.cycle(QUESTIONS.values()):
            if over.is_set():
                return
            ask(ours.home, question).wait()

    asking = threading.Thread(target=ask_on)

    def declared() -> None:
        before.extend(map(cpu_s, daemons))
        if asks:
            asking.start()

    ours.wave(DUE, declared)
    if scrapes:
        scrape(ours.home)
    spent = sum(after - begun for after, begun in zip(map(cpu_s, daemons), before, strict=True))
    if asks:
        over.set()
        asking.join()
    return spent / DUE * 1e6


def metrics(repetitions: int) -> Section:
    """Measure what metrics cost a fire, with a scrape in each wave, against a home without them."""
    with place() as folder, closing(Ours(folder / "on")) as on, closing(Ours(folder / "off")) as off:
        off.home.config.write_text(f"{off.home.config.read_text()}[metrics]\nenabled = false\n")
        daemons = {ours: (ours.start(*RUNTIME), ours.start(*RUNNER)) for ours in (on, off)}
        for ours in daemons:
            ours.wave(DUE)
        found: dict[str, list[float]] = {"on": [], "off": []}
        for number in range(repetitions):
            print(f"CPU of a fire with metrics: run {number + 1} of {repetitions}", flush=True)
            for name, ours in sorted({"on": on, "off": off}.items(), reverse=bool(number % 2)):
                found[name].append(_cpu_us(ours, daemons[ours], scrapes=name == "on"))
    ratios = [one / other for one, other in zip(found["on"], found["off"], strict=True)]
    rows = [(f"CPU of a fire, metrics {name}", f"{spread(values)} µs") for name, values in found.items()]
    rows.append(("on / off, median", f"{statistics.median(ratios):.3f}"))
    return Section(title=METRICS, about=ABOUT_METRICS, header=("", "found"), rows=rows, gates={COST: ratios})


def scrape(home: Home) -> bytes:
    """Read the runner's metrics once, as a collector does every quarter of a minute."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(home.http("task-runner")))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert b"turnkeeper_fires_total" in text, text[:200]
    return text


COST = "CPU of a fire with metrics / without"
QUERY, METRICS = "Questions in SQL", "Metrics"
ABOUT_QUERY = f"""
The whole command, at nice 10, on a home with {FIRES:,} fires and {TURNS:,} turns. Then waves of {DUE:,} fires on that
home, in turn without and with one of these questions after the other; CPU is user and system time of both daemons.
"""
ABOUT_METRICS = f"""
Waves of {DUE:,} fires, in turn on a home with metrics and on one without; the runner's are read once in each wave.
"""
