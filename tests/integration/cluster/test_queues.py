"""Runners that share a database keep the limits of a queue together, whichever of them is killed."""

import signal
from datetime import timedelta

from task_runner.daemon.assembly import call
from tests.integration.cluster.shared import Cluster
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.process import VARIABLE
from turnkeeper.storage.database import make_schemas
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2

TASKS, AT_ONCE = 12, 3
OPEN = "SELECT count(*) FROM runner.fires WHERE is_open AND outcome IN ('sent', 'accepted', 'running')"
STOPPED = "SELECT count(*) FROM runner.fires WHERE reason = 'waits for queue gpu: 3 of 3 turns at once'"
SETTLED = "SELECT count(*) FROM runner.fires WHERE outcome = 'succeeded'"
# What a runtime writes at the end of a turn, for the oldest envelope.
END = """WITH gone AS (DELETE FROM runtime.envelopes WHERE number = (SELECT min(number) FROM runtime.envelopes) RETURNING key)
    INSERT INTO runtime.turn_events (thread_id, fire_id, attempt, state, at_us, taken, {columns})
    SELECT '', split_part(key, ':', 2), 1, 'SUCCEEDED', %s, false, {values} FROM gone RETURNING fire_id"""


def home(cluster: Cluster, number: int) -> Home:
    made = cluster.home(number)
    made.config.write_text(made.config.read_text() + f"[queues.gpu]\nturns_at_once = {AT_ONCE}\n")
    return made


def declare(cluster: Cluster) -> None:
    make_schemas(cluster.url)
    fields = {"category": "loop", "channel": "general", "prompt": "p", "grace": "1h", "queue": "gpu"}
    at = rfc3339(SystemClock().now().replace(microsecond=0) + timedelta(seconds=3))
    specs = [schedules_pb2.TaskSpec(name=f"task-{number}", at=at, **fields) for number in range(TASKS)]
    call(home(cluster, 0), "ApplyTasks", schedules_pb2.ApplyTasksRequest(specs=specs))


def test_no_limit_is_exceeded_or_lost_when_runners_are_killed(cluster: Cluster) -> None:
    declare(cluster)
    for place, point in enumerate(("runner.claimed", "runner.sent"), 1):
        doomed = cluster.start(home(cluster, place), **{VARIABLE: point})
        assert doomed.wait(60) == -signal.SIGKILL, point
        assert cluster.value(OPEN) == 0, "nothing of an unfinished transaction holds a place"
    for place in (7, 8):
        cluster.start(home(cluster, place))
    ended = set[str]()
    while len(ended) < TASKS:
        left = min(AT_ONCE, TASKS - len(ended))
        cluster.until(
            lambda left=left: cluster.value(OPEN) == left == cluster.value("SELECT count(*) FROM runtime.envelopes")
        )
        if len(ended) + AT_ONCE < TASKS:
            cluster.until(lambda: cluster.value(STOPPED) == TASKS - len(ended) - AT_ONCE)
        assert cluster.value(OPEN) <= AT_ONCE
        ended.add(end_turn(cluster))
        cluster.until(lambda: cluster.value(SETTLED) == len(ended))
    assert cluster.value(OPEN) == 0


def end_turn(cluster: Cluster) -> str:
    """End the oldest turn as a runtime does; return its fire."""
    rows = cluster.rows(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'runtime'"
        " AND table_name = 'turn_events' AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'"
    )
    given = {"thread_id", "fire_id", "attempt", "state", "at_us", "taken"}
    more = {name: "0" if kind == "bigint" else "false" if kind == "boolean" else "''" for name, kind in rows}
    more = {name: value for name, value in more.items() if name not in given}
    sql = END.format(columns=", ".join(more), values=", ".join(more.values()))
    now_us = int(SystemClock().now().timestamp() * 1e6)
    return str(cluster.value(sql, now_us))
