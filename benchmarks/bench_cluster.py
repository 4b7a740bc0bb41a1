"""Several machines on one PostgreSQL: hand-overs by four runners and by one, takeovers after kill -9, a long backlog.

The server is one of this run's own, with every commit synced. `python -m benchmarks.bench_cluster` prints the table.
"""

import time
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any

import psycopg

from agent_runtime.store import leases
from benchmarks.bench_shared import DURABLE
from benchmarks.report import Section, percentile, ratio, spread
from task_runner.daemon.assembly import call
from tests.integration.cluster.shared import Cluster
from tests.integration.runtime.test_several_machines import Node, made_home, put, until
from tests.integration.runtime.turn_kills import fire
from tests.support import postgres
from tests.support.cluster import Do, doing
from turnkeeper.clock import SystemClock
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1 import schedules_pb2

RUNNERS, TASKS = (1, 4), 1_000
IN_A_ROW, SUCCEEDED = 100, wire.ListTurnsRequest(status="succeeded", limit=1)  # turns of one thread
KILLS, OWNED = 10, 10  # threads that a runtime owns when it is killed
BACKLOGS, OF_EACH, CLAIMS = (100, 100_000), 10, 40
FILL = """INSERT INTO runtime.envelopes (key, thread_id, agent, kind, envelope, state, not_before_us, at_us)
 SELECT 'key ' || n, 'thread ' || n / %s, 'agent0', 'envelope', 'x', 'waiting', 0, 0 FROM generate_series(0, %s) n"""
CLOCK = SystemClock()


def hand_overs(url: str, runners: int) -> float:
    """Return how many fires that are due at once so many runners hand over in a second."""
    cluster = Cluster(url)
    try:
        homes = [cluster.home(number) for number in range(1, runners + 1)]
        for home in homes:
            cluster.start(home)
        cluster.until(lambda: all(is_serving(home.socket("task-runner")) for home in homes))
        due = CLOCK.now().replace(microsecond=0) + timedelta(seconds=15)
        fields = {"category": "loop", "channel": "general", "prompt": "p", "grace": "1h", "at": rfc3339(due)}
        specs = [schedules_pb2.TaskSpec(name=f"task-{number}", **fields) for number in range(TASKS)]
        call(cluster.home(0), "ApplyTasks", schedules_pb2.ApplyTasksRequest(specs=specs))
        assert CLOCK.now() < due, "declaring them took too long"
        cluster.until(lambda: cluster.value("SELECT count(*) FROM runtime.envelopes") >= TASKS)
        return TASKS / (CLOCK.now() - due).total_seconds()
    finally:
        cluster.close()


def takeovers(url: str) -> list[float]:
    """Kill the runtime that owns threads, so many times; return for each thread how long it had no living owner."""
    waited: list[float] = []
    with ExitStack() as stack:
        do = stack.enter_context(doing(in_schema(url, SCHEMA)))
        sql = stack.enter_context(psycopg.connect(url, autocommit=True))
        nodes = [Node(stack.enter_context(made_home()), url)]
        for number in range(KILLS):
            print(f"takeovers: kill {number + 1} of {KILLS}", flush=True)
            nodes[-1].wait()
            before = _wait_until_owned(sql, nodes[-1], do, number)
            nodes.append(Node(stack.enter_context(made_home()), url))
            stack.callback(nodes[-1].end)
            nodes[-1].wait()
            nodes[-2].end()
            waited += _wait_for_others(sql, before)
    return waited


def _wait_until_owned(sql: Any, node: Node, do: Do, number: int) -> dict[str, int]:
    """Let a runtime own threads that have much to do; return their epochs."""
    while True:
        put(do, number * 100_000 + int(time.monotonic() * 10) % 10_000 * 10, OWNED)
        query = "SELECT thread_id, epoch FROM runtime.threads WHERE owner LIKE %s"
        owned = dict(sql.execute(query, (f"%/{node.process.pid}/%",)).fetchall())
        waiting = sql.execute("SELECT count(*) FROM runtime.envelopes").fetchone()[0]
        if len(owned) == OWNED and waiting > OWNED * 20:
            return owned
        CLOCK.block(0.05)


def _wait_for_others(sql: Any, before: dict[str, int]) -> list[float]:
    """Return after how many seconds each thread had another owner."""
    begun, found = time.perf_counter(), dict[str, float]()
    while len(found) < len(before):
        rows = sql.execute("SELECT thread_id, epoch FROM runtime.threads").fetchall()
        taken = [thread for thread, epoch in rows if thread in before and epoch > before[thread]]
        for thread in taken:
            found.setdefault(thread, time.perf_counter() - begun)
        assert time.perf_counter() - begun < 60, "nobody takes them"
        CLOCK.block(0.01)
    return list(found.values())


def claim_ms(url: str, backlog: int) -> float:
    """Return how long it takes to find threads, take one, and get what waits for it, where so much waits."""
    with doing(in_schema(url, SCHEMA)) as do, psycopg.connect(url, autocommit=True) as sql:
        do(lambda c: leases.begin(c, "one", 3600.0))
        sql.execute(FILL, (OF_EACH, backlog - 1))
        sql.execute("VACUUM ANALYZE")
        took = []
        for _ in range(CLAIMS):
            begun = time.perf_counter()
            thread = do(lambda c: leases.wanted(c, "one", 32))[0]
            lease = do(lambda c, t=thread: leases.take(c, t, "one"))
            rows = do(lambda c, held=lease: leases.load(c, held, adopt=True))
            took.append(time.perf_counter() - begun)
            assert len(rows) == OF_EACH
            sql.execute("UPDATE runtime.envelopes SET state = 'waiting' WHERE thread_id = %s", (thread,))
            sql.execute("UPDATE runtime.threads SET owner = '' WHERE thread_id = %s", (thread,))
        return percentile(took, 0.5) * 1000


def between_ms(url: str) -> float:
    """Return the median time between the end of a turn and the begin of the next, which waits for the same thread."""
    with made_home() as home:
        node = Node(home, url)
        try:
            node.wait()
            runner = Identity.of_daemon("task-runner", "agent-runtime", home)
            caller = Caller(home, via=runner)
            for number in range(IN_A_ROW):
                caller.Fire(fire(number, "thread", "loop"))
            until(lambda: caller.ListTurns(SUCCEEDED).total == IN_A_ROW, "all turns end")
            found = caller.ListTurns(wire.ListTurnsRequest(limit=IN_A_ROW)).turns
            turns = sorted((turn.started_at.ToMicroseconds(), turn.ended_at.ToMicroseconds()) for turn in found)
            return percentile([(later[0] - turn[1]) / 1000 for turn, later in pairwise(turns)], 0.5)
        finally:
            node.end()


def cluster(repetitions: int) -> Section:
    """Measure in turn, each run on a database of its own."""
    rates: dict[int, list[float]] = {count: [] for count in RUNNERS}
    claims: dict[int, list[float]] = {count: [] for count in BACKLOGS}
    gaps: tuple[list[float], list[float]] = [], []
    binaries = postgres.find_binaries()
    assert binaries is not None, "PostgreSQL is not installed: make test-services"
    server = postgres.Server(binaries, DURABLE | {"max_connections": "100", "autovacuum": "on"})
    try:
        for number in range(repetitions):
            print(f"cluster: run {number + 1} of {repetitions}", flush=True)
            for count, found in rates.items():
                found.append(hand_overs(server.create(), count))
            for backlog, times in claims.items():
                times.append(claim_ms(server.create(), backlog))
            for url, times in zip(("sqlite", server.create()), gaps, strict=True):
                times.append(between_ms(url))
        waited = takeovers(server.create())
    finally:
        server.stop()
    return _section(rates, claims, gaps, waited)


def _section(
    rates: dict[int, list[float]],
    claims: dict[int, list[float]],
    gaps: tuple[list[float], list[float]],
    waited: list[float],
) -> Section:
    few, many = (rates[count] for count in RUNNERS)
    short, long = (claims[count] for count in BACKLOGS)
    last = percentile(waited, 0.99)
    return Section(
        title=CLUSTER,
        about=ABOUT,
        header=("what", "with less", "with more", "more / less"),
        rows=[
            ("fires handed over a second, 1 and 4 runners", spread(few), spread(many), ratio(many, few, 2)),
            ("a claim in ms, 100 and 100,000 envelopes", spread(short, 1), spread(long, 1), ratio(long, short, 2)),
            (
                "between two turns of a thread in ms, a file and shared",
                *(spread(one, 1) for one in gaps),
                ratio(*gaps[::-1], 2),
            ),
            (f"takeover after kill -9 in s, {len(waited)} threads", spread(waited, 1), f"p99 {last:.1f}", ""),
        ],
        gates={
            "hand-overs, 4 runners / 1 runner": [b / a for a, b in zip(few, many, strict=True)],
            "a claim among 100,000 envelopes / 100": [b / a for a, b in zip(short, long, strict=True)],
            "between two turns of a thread, shared / our file": [b / a for a, b in zip(*gaps, strict=True)],
            "p99 of takeovers after kill -9, in s": [last],
        },
    )


CLUSTER = "Several machines"
ABOUT = f"""
Runners and runtimes as processes with homes of their own, and a PostgreSQL on this machine that syncs every commit.
{TASKS:,} tasks that are due at one instant, until all are handed over, by one runner and by four: machines are bought,
not speed, so four must only not be slower. A look for threads, the taking of one and the load of its {OF_EACH}
envelopes, while 100 or 100,000 wait. From the end of a turn to the begin of the next one, as {IN_A_ROW} fires wait
for one thread, on files and shared. A runtime that owns {OWNED} threads with much to do is killed, {KILLS} times,
with another beside it: how long until a thread has its next owner. A lease is {leases.LEASE_S:.0f} s.
"""
if __name__ == "__main__":
    print(cluster(2).text())
