"""Findings about what a store lost, and about tasks that stopped because they cannot be planned or sent."""

from collections.abc import Iterator
from contextlib import closing

from turnkeeper.config.home import Home
from turnkeeper.constellation.inspect.finding import Finding
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.v1.schedules_pb2 import ListTasksRequest

MOST_NAMED = 20
_RUNNER = "task-runner"


def findings(home: Home) -> Iterator[Finding]:
    """Yield a finding for each quarantined task, unless the runner cannot be called, which another check reports."""
    if not is_serving(home.socket(_RUNNER)):
        return
    try:
        with closing(Caller(home, via="turnkeeper/cli", deadline_s=1.0)) as runner:
            tasks = runner.ListTasks(ListTasksRequest(state="quarantined", limit=MOST_NAMED)).tasks
    except TurnkeeperError:
        return
    for task in tasks:
        what = f"task {task.spec.name} is quarantined: {task.reason}"
        fix = f"fix the cause, then run: turnkeeper task resume {task.spec.name}"
        yield Finding(process=_RUNNER, what=what, fix=fix, degraded=False)
