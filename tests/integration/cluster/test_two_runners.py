"""Two runners of one database: each fire is handed over once, whoever is killed."""

from protos.turnkeeper.v1 import agent_runtime_pb2, schedules_pb2
from task_runner.daemon.assembly import call
from tests.integration.cluster.shared import Cluster

TASKS = 100


def declare(cluster: Cluster, **fields: str) -> None:
    """Declare a hundred tasks, by a command of a home whose runner does not run."""
    fields = {"every": "1s", "category": "loop", "channel": "general", "prompt": "p", "grace": "60s"} | fields
    specs = [schedules_pb2.TaskSpec(name=f"task-{number}", max_fires=1, **fields) for number in range(TASKS)]
    call(cluster.home(0), "ApplyTasks", schedules_pb2.ApplyTasksRequest(specs=specs))


def test_two_runners_hand_each_fire_over_once(cluster: Cluster) -> None:
    declare(cluster)
    for number in (1, 2):
        cluster.start(cluster.home(number))
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
