"""Two runners of one database: each fire is handed over once, whoever is killed."""

import signal
from datetime import timedelta

from task_runner.daemon.assembly import call
from tests.acceptance.test_metrics import samples
from tests.integration.cluster.shared import Cluster
from tests.integration.cluster.test_nodes import command
from tests.support.constellation import TASK_RUNNER, Constellation
from turnkeeper.clock import SystemClock
from turnkeeper.rpc.process import VARIABLE
from turnkeeper.storage.database import make_schemas
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2, schedules_pb2

TASKS = 100


def declare(cluster: Cluster) -> None:
    """Declare a hundred tasks for one time soon, by a command of a home whose runner does not run."""
    make_schemas(cluster.url)  # which may take longer than the seconds until then
    fields = {"category": "loop", "channel": "general", "prompt": "p", "grace": "1h"}
    at = rfc3339(SystemClock().now().replace(microsecond=0) + timedelta(seconds=3))
    specs = [schedules_pb2.TaskSpec(name=f"task-{number}", at=at, **fields) for number in range(TASKS)]
    call(cluster.home(0), "ApplyTasks", schedules_pb2.ApplyTasksRequest(specs=specs))


def test_two_runners_hand_each_fire_over_once(cluster: Cluster) -> None:
    declare(cluster)
    homes = [cluster.home(number) for number in (1, 2)]
    for home in homes:
        cluster.start(home)
    cluster.until(lambda: cluster.value("SELECT count(*) FROM runtime.envelopes") == TASKS)
    envelopes = cluster.rows("SELECT key, thread_id, agent, kind, state, envelope FROM runtime.envelopes")
    assert len({key for key, *_ in envelopes}) == TASKS
    requests = [agent_runtime_pb2.FireRequest.FromString(row[-1]) for row in envelopes]
    assert {request.task_name for request in requests} == {f"task-{number}" for number in range(TASKS)}
    assert {row[2:5] for row in envelopes} == {("agent0", "fire", "waiting")}
    assert cluster.rows("SELECT DISTINCT outcome FROM runner.fires WHERE fire_id IS NOT NULL") == [("accepted",)]
    assert cluster.value("SELECT count(*) FROM runner.fires WHERE fire_id IS NOT NULL") == TASKS
    both = [("machine-1", "task-runner"), ("machine-2", "task-runner")]
    cluster.until(lambda: cluster.rows("SELECT name, role FROM runner.nodes ORDER BY name") == both)
    cluster.until(lambda: all(home.http("task-runner").exists() for home in homes))
    told = [samples(Constellation(home), TASK_RUNNER) for home in homes]
    assert sum(each["fires_committed_total", "scheduled"] for each in told) == TASKS, "what each did adds up"
    for each in told:
        whole = each["tasks",], each["fires_open", "accepted"]
        assert whole == (TASKS, TASKS), "what stands in the store each tells as a whole"
        assert not any(name == "store_bytes" for name, *_ in each), "there is no file"


def test_runners_that_are_killed_between_and_inside_the_two_commits_lose_and_double_nothing(cluster: Cluster) -> None:
    declare(cluster)
    points = ("runner.committed", "runner.claimed", "runner.sent", "runner.handed")
    for place, point in enumerate(points, 1):
        doomed = cluster.start(cluster.home(place), **{VARIABLE: point})
        assert doomed.wait(60) == -signal.SIGKILL, point
        assert (cluster.value("SELECT count(*) FROM runtime.envelopes") > 0) == (point == "runner.handed"), point
    handed = cluster.value("SELECT count(*) FROM runtime.envelopes")
    accepted = "SELECT count(*) FROM runner.fires WHERE outcome = 'accepted'"
    assert handed == cluster.value(accepted), "both are of one commit"
    cluster.start(cluster.home(9))
    cluster.until(lambda: cluster.value("SELECT count(*) FROM runtime.envelopes") >= TASKS)
    assert cluster.value("SELECT count(DISTINCT key) FROM runtime.envelopes") == TASKS
    assert cluster.value(accepted) == cluster.value("SELECT count(*) FROM runner.fires WHERE fire_id IS NOT NULL")
    assert cluster.rows("SELECT DISTINCT fires, accepted FROM runner.tasks") == [(1, 1)]


def test_who_waits_for_a_fire_needs_a_runner_on_any_machine(cluster: Cluster) -> None:
    here, there = cluster.home(1), cluster.home(2)
    spec = schedules_pb2.TaskSpec(name="hello", category="loop", channel="general", prompt="Say hello.", every="9h")
    call(here, "CreateTask", schedules_pb2.CreateTaskRequest(spec=spec))
    run = ("task", "run", "hello", "--wait")
    assert "so the task would not fire" in command(here, *run).stderr
    for start in (cluster.start, cluster.start_runtime):
        start(there)
    cluster.until(lambda: cluster.value("SELECT count(*) FROM runner.nodes") == 2)
    done = command(here, *run)
    assert (done.returncode, "succeeded" in done.stdout) == (0, True), done


def test_a_runner_may_be_the_first_of_all(cluster: Cluster) -> None:
    cluster.sql.execute("DROP SCHEMA runtime CASCADE")
    declare(cluster)
    cluster.start(cluster.home(1))
    cluster.until(lambda: cluster.value("SELECT count(*) FROM runner.outages WHERE lasts") == 1)
    cluster.make_runtime()
    cluster.until(lambda: cluster.value("SELECT count(*) FROM runtime.envelopes") == TASKS)
