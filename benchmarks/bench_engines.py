"""A turn with one call of a tool on PostgreSQL: ours, on LangGraph's stock saver, in Procrastinate, and in DBOS.

The server is one of this run's own, with every commit synced. `python -m benchmarks.bench_engines` prints the table.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg

from benchmarks.bench_shared import DURABLE
from benchmarks.peers import Peer
from benchmarks.places import place
from benchmarks.report import Row, Section, spread
from tests.integration.cluster.test_cost import SUCCEEDED, Measured
from tests.support import postgres
from turnkeeper.clock import SystemClock
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

TURNS, IDLE_S, LEAD_S = 100, 5.0, 6
COUNTED = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_utility": "on"}
WORK: dict[str, Any] = {"category": "note", "channel": "general", "prompt": "remember: the pump is new", "grace": "1h"}
CLOCK = SystemClock()
Turns = Callable[[int, int], float]  # runs the turns from one number to another, and returns how many seconds they took


class Found(NamedTuple):
    """The turns a second of one run, and the cost of each turn."""

    a_second: float
    statements: float
    synced: float


@contextmanager
def ours(server: postgres.Server) -> Iterator[tuple[Turns, str]]:
    """One machine with both daemons; the seconds are from the moment at which all tasks are due."""
    cluster = Measured(server)

    def turns(begin: int, end: int) -> float:
        due = CLOCK.now().replace(microsecond=0) + timedelta(seconds=LEAD_S)
        specs = [wire.TaskSpec(name=f"task-{number}", at=rfc3339(due), **WORK) for number in range(begin, end)]
        cluster.ask(wire.ApplyTasksRequest(specs=specs))
        assert CLOCK.now() < due, "declaring them took too long"
        cluster.until(lambda: cluster.value(SUCCEEDED) >= end)
        return (CLOCK.now() - due).total_seconds()

    with closing(cluster):
        cluster.machine(1)
        yield turns, cluster.url


@contextmanager
def of_peer(server: postgres.Server, way: str) -> Iterator[tuple[Turns, str]]:
    url = server.create()
    with place() as folder, closing(Peer("turns_on_postgres", folder)) as peer:
        yield lambda begin, end: peer.ask(do="turns", way=way, url=url, begin=begin, end=end), url


ENGINES: dict[str, Callable[[postgres.Server], Any]] = {
    "Turnkeeper, both daemons": ours,
    "LangGraph on its stock saver": lambda server: of_peer(server, "saver"),
    "the same in jobs of Procrastinate": lambda server: of_peer(server, "jobs"),
    "workflows of DBOS, without LangGraph": lambda server: of_peer(server, "workflows"),
}


def measured(server: postgres.Server, engine: Callable[[postgres.Server], Any]) -> Found:
    """Measure the turns of an engine. Subtract the cost of an idle engine over the same time."""
    with engine(server) as (turns, url), psycopg.connect(url, autocommit=True) as sql:
        sql.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public")

        def cost() -> tuple[float, float, float]:
            """Return the seconds, the statements and the transactions that synced so far."""
            query = "SELECT sum(calls), pg_snapshot_xmax(pg_current_snapshot())::text::bigint FROM pg_stat_statements"
            row = sql.execute(f"{query} WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())")
            calls, transactions = row.fetchone() or (0, 0)
            return CLOCK.monotonic(), float(calls), float(transactions)

        turns(0, 1)
        begun = cost()
        CLOCK.poll(lambda: CLOCK.monotonic() - begun[0] >= IDLE_S, timeout_s=2 * IDLE_S, every_s=0.5)
        before = cost()
        took_s = turns(1, TURNS + 1)
        after = cost()
        idle_s, all_s = before[0] - begun[0], after[0] - before[0]
        each = [(after[n] - before[n] - (before[n] - begun[n]) / idle_s * all_s) / TURNS for n in (1, 2)]
        return Found(TURNS / took_s, *each)


def engines(repetitions: int) -> Section:
    """Measure the engines in turn, each on a database of its own."""
    binaries = postgres.find_binaries()
    assert binaries is not None, "PostgreSQL is not installed: make test-services"
    found: dict[str, list[Found]] = {name: [] for name in ENGINES}
    server = postgres.Server(binaries, DURABLE | COUNTED)
    try:
        for number in range(repetitions):
            print(f"engines on PostgreSQL: run {number + 1} of {repetitions}", flush=True)
            for name, engine in ENGINES.items():
                found[name].append(measured(server, engine))
    finally:
        server.stop()
    rows: list[Row] = []
    for name, runs in found.items():
        rates, statements, synced = zip(*runs, strict=True)
        rows.append((name, spread(rates), spread(statements, 1), spread(synced, 1)))
    header = ("engine", "turns a second", "statements of a turn", "transactions of a turn that write")
    return Section(title=TITLE, about=ABOUT, header=header, rows=rows)


TITLE = "A turn on PostgreSQL"
ABOUT = """
A hundred turns with one call of a tool, begun together on a PostgreSQL on this machine that syncs every commit. Ours:
100 tasks due at one moment, on one machine with both daemons: plan, hand-over, lease, guard, checkpoints, conversation,
events. The others run up to 16 turns at once in one process. LangGraph on its stock saver queues nothing. DBOS records
each call of the model and of the tool, and its queue looks once a second. What an engine does while idle is left out.
"""
if __name__ == "__main__":
    print(engines(1).text())
