"""Findings about commits that a database lost, and about tasks that are paused or cannot be planned or sent."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.times import rfc3339
from turnkeeper.v1.schedules_pb2 import ListTasksRequest, Task

MOST_NAMED = 20
TOLD_FOR = timedelta(days=7)  # how long a loss is reported
_RUNNER = "task-runner"
Found = tuple[str, str, str]  # a process, its fault, and the remedy


def findings(home: Home) -> Iterator[Found]:
    """Yield recent losses of the database and, if the runner can be called, its quarantined and paused tasks."""
    yield from _losses(home)
    if not is_serving(home.socket(_RUNNER)):
        return
    try:
        with closing(Caller(home, via="turnkeeper/cli", deadline_s=1.0)) as runner:
            tasks = runner.ListTasks(ListTasksRequest(state="quarantined", limit=MOST_NAMED)).tasks
            paused = runner.ListTasks(ListTasksRequest(state="paused")).tasks
    except TurnkeeperError:  # another check reports this
        return
    for task in tasks:
        fix = f"fix the cause, then run: turnkeeper task resume {task.spec.name}"
        yield _RUNNER, f"task {task.spec.name} is quarantined: {task.reason}", fix
    yield from _paused(paused)


def _paused(tasks: Iterable[Task]) -> Iterator[Found]:
    """Yield a finding for the tasks that are paused until the same time and for the same reason."""
    together = defaultdict[str, list[str]](list)
    for task in tasks:
        until = rfc3339(task.paused_until.ToDatetime(UTC)) if task.HasField("paused_until") else "you resume it"
        together[f"paused until {until}{f' ({task.paused_note})' if task.paused_note else ''}"].append(task.spec.name)
    for state, names in together.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        yield _RUNNER, f"{state}: {', '.join(names[:MOST_NAMED])}{more}", "see: turnkeeper task list --state paused"


def _losses(home: Home) -> Iterator[Found]:
    """Yield once each loss that the daemons of this home noticed."""
    since, told = SystemClock().now() - TOLD_FOR, set[str]()
    for path in sorted(home.root.glob("state/database-seen-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            for loss in json.loads(path.read_bytes())["lost"]:
                if loss["now"] not in told and datetime.fromisoformat(loss["to"]) > since:
                    told.add(loss["now"])
                    yield "", str(loss["says"]), "compare what ran then: turnkeeper events; turnkeeper audit verify"
