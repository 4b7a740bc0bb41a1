"""Findings about commits that a database lost, and about tasks that stopped because they cannot be planned or sent."""

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.v1.schedules_pb2 import ListTasksRequest

MOST_NAMED = 20
TOLD_FOR = timedelta(days=7)  # how long a loss is reported
_RUNNER = "task-runner"
Found = tuple[str, str, str]  # a process, its fault, and the remedy


def findings(home: Home) -> Iterator[Found]:
    """Yield the recent losses of the database and, if the runner can be called, the quarantined tasks."""
    yield from _losses(home)
    if not is_serving(home.socket(_RUNNER)):
        return
    try:
        with closing(Caller(home, via="turnkeeper/cli", deadline_s=1.0)) as runner:
            tasks = runner.ListTasks(ListTasksRequest(state="quarantined", limit=MOST_NAMED)).tasks
    except TurnkeeperError:  # another check reports this
        return
    for task in tasks:
        fix = f"fix the cause, then run: turnkeeper task resume {task.spec.name}"
        yield _RUNNER, f"task {task.spec.name} is quarantined: {task.reason}", fix


def _losses(home: Home) -> Iterator[Found]:
    """Yield once each loss that the daemons of this home noticed."""
    since, told = SystemClock().now() - TOLD_FOR, set[str]()
    for path in sorted(home.root.glob("state/database-seen-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            for loss in json.loads(path.read_bytes())["lost"]:
                if loss["now"] not in told and datetime.fromisoformat(loss["to"]) > since:
                    told.add(loss["now"])
                    yield "", str(loss["says"]), "compare what ran then: turnkeeper events; turnkeeper audit verify"
