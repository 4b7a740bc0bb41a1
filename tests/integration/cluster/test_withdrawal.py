"""What no runtime begins in time is withdrawn and planned again as missed; what no runtime can begin stops its task."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from task_runner.dispatcher import shared
from task_runner.dispatcher.dispatcher import Pace
from task_runner.planner.self_paced import TAKEN_OVER
from task_runner.service import changes
from task_runner.service.task_spec import Defaults
from task_runner.store.shared import turn_of
from task_runner.store.store import Session, Store
from tests.integration.cluster.shared import Cluster
from tests.support.clock import ManualClock
from tests.support.planning import plan_due
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.clock import SystemClock
from turnkeeper.rpc.process import VARIABLE
from turnkeeper.storage.server.url import in_schema
from turnkeeper.v1 import agent_runtime_pb2, schedules_pb2

START = SystemClock().now().replace(microsecond=0) - timedelta(minutes=5)
DEFAULTS = Defaults(timezone="UTC", grace=timedelta(seconds=10))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Runner:
    """A runner's units on the cluster's database, at times that a test says; `task` is handed over at second 60."""

    def __init__(self, cluster: Cluster) -> None:
        self._sql = cluster.rows
        self.store = Store(in_schema(cluster.url, "runner"), "", ManualClock(), SeededEntropy(1))

    def do(self, work: Any, seconds: float) -> Any:
        clock: Any = self.store._clock
        clock.now = lambda: at(seconds)
        return self.store._database.submit(lambda c: work(Session(c, clock.now), at(seconds))).result(30)

    def hand_over(self, **changed: Any) -> None:
        fields = {"name": "digest", "every": "60s", "category": "loop", "channel": "general", "prompt": "p"}
        spec = schedules_pb2.TaskSpec(**fields | changed)
        self.do(lambda session, now: changes.create(session, spec, DEFAULTS, now, SeededEntropy(1)), 0)
        self.do(plan_due, 60)
        assert self.handed(61) == 1

    def handed(self, seconds: float) -> int:
        return len(self.do(lambda session, now: shared.hand_over(session, now=now, pace=Pace()), seconds) or [])

    def withdraw(self, seconds: float) -> int:
        done = self.do(shared.withdraw, seconds)
        return sum(event.name == "fire.withdrawn" for event in done.events)

    def history(self) -> list[tuple[str, str]]:
        return self._sql("SELECT outcome, reason FROM runner.fires ORDER BY entry_id")

    def waiting(self) -> int:
        return len(self._sql("SELECT 1 FROM runtime.envelopes"))


@pytest.fixture
def runner(cluster: Cluster) -> Iterator[Runner]:
    made = Runner(cluster)
    yield made
    made.store.close()


def test_what_is_not_to_run_late_is_withdrawn_once_its_grace_is_over(runner: Runner) -> None:
    runner.hand_over(catch_up="skip")
    assert (runner.withdraw(69), runner.waiting()) == (0, 1)
    assert (runner.withdraw(71), runner.waiting()) == (1, 0)
    assert runner.history() == [("skipped", "missed")]
    assert runner.do(lambda session, _: session.tasks.find("digest"), 72).accepted == 0, "it counts for no limit"
    assert runner.withdraw(72) == runner.handed(73) == 0


def test_what_may_run_late_keeps_its_place_while_a_runtime_lives(runner: Runner, cluster: Cluster) -> None:
    runner.hand_over(catch_up="run-once")
    assert (runner.withdraw(80), runner.waiting()) == (0, 1)
    cluster.sql.execute("UPDATE runtime.owners SET until_us = 0")
    assert (runner.withdraw(81), runner.waiting()) == (1, 0)
    assert (runner.history(), runner.handed(82)) == ([("pending", "")], 0)
    cluster.sql.execute("UPDATE runtime.owners SET until_us = 9000000000000000")
    assert (runner.handed(83), runner.waiting()) == (1, 1)
    assert runner.history() == [("accepted", "")]
    assert runner.do(lambda session, _: session.tasks.find("digest"), 84).accepted == 1


def test_what_a_runtime_begins_at_that_moment_stays(runner: Runner, cluster: Cluster) -> None:
    runner.hand_over(catch_up="skip")
    with psycopg.connect(cluster.url) as beside, ThreadPoolExecutor() as pool:
        beside.execute("UPDATE runtime.envelopes SET state = 'claimed'")
        withdrawn = pool.submit(runner.withdraw, 75)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        cluster.until(lambda: cluster.value(waits) or withdrawn.done())
        beside.commit()
        assert withdrawn.result(30) == 0
    assert (runner.history(), runner.waiting()) == ([("accepted", "")], 1)


def test_a_runner_that_is_killed_while_it_withdraws_leaves_all_or_nothing(runner: Runner, cluster: Cluster) -> None:
    runner.hand_over(catch_up="skip", every="", at=at(60).isoformat().replace("+00:00", "Z"))
    inside = cluster.start(cluster.home(1), **{VARIABLE: "runner.withdrawn"})
    assert inside.wait(60) == -signal.SIGKILL
    assert (runner.history(), runner.waiting()) == ([("accepted", "")], 1)
    behind = cluster.start(cluster.home(2), **{VARIABLE: "runner.planned_again"})
    assert behind.wait(60) == -signal.SIGKILL
    assert (runner.history(), runner.waiting()) == ([("skipped", "missed")], 0)


def test_a_fire_whose_category_is_missing_stops_its_task(runner: Runner, cluster: Cluster) -> None:
    runner.hand_over(category="gone", catch_up="skip")
    request = agent_runtime_pb2.FireRequest.FromString(cluster.value("SELECT envelope FROM runtime.envelopes"))
    assert request.category == "gone"
    cluster.start_runtime(cluster.home(1))
    cluster.until(lambda: cluster.value("SELECT count(*) FROM runtime.turn_events WHERE state = 'FAILED'"))
    runner.do(shared.take, 65)
    ((state, why),) = cluster.rows("SELECT state, reason FROM runner.tasks")
    assert state == "quarantined"
    assert why.startswith("category: "), why
    assert runner.history()[0] == ("failed", why)


def test_a_wake_up_that_its_author_anticipates_is_cancelled_in_the_transaction_that_says_so(
    runner: Runner, cluster: Cluster
) -> None:
    """A runner that is killed behind it leaves no turn that nobody wants."""
    spec = schedules_pb2.TaskSpec(name="watch", dynamic=True, prompt="p", category="loop", channel="general")
    runner.do(lambda session, now: changes.create(session, spec, DEFAULTS, now, SeededEntropy(1), loop=True), 0)
    runner.do(plan_due, 1)
    assert runner.handed(2) == 1
    ((fire_id, thread_id),) = cluster.rows(
        "SELECT fire_id, paced_thread FROM runner.fires JOIN runner.tasks t ON t.id = task_id"
    )
    cluster.sql.execute(
        b"INSERT INTO runtime.turn_events (turn_id, fire_id, attempt, thread_id, trigger, state, at_us, summary, error,"
        b" held_by_json, tokens_in, tokens_out, taken) VALUES ('turn-2', '', 0, %s, 'author', 'STARTED', 1, '', '', '',"
        b" 0, 0, false)",
        (thread_id,),
    )
    runner.do(shared.take, 3)
    assert cluster.rows("SELECT state FROM runner.tasks") == [("done",)]
    assert cluster.rows("SELECT turn_id, reason FROM runtime.cancels") == [(turn_of(fire_id, 1), TAKEN_OVER)]
