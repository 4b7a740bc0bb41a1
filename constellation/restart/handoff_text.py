"""The text of a planned handoff: what the daemons have in progress, by name and id, and the author's notes.

It holds no prompts, messages or arguments: agent0 can look up what it names.
"""

from collections.abc import Callable, Iterator
from typing import Any

from protos.turnkeeper.v1.agent_runtime_pb2 import ListInterruptsRequest, ListTurnsRequest
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from protos.turnkeeper.v1.schedules_pb2 import ListTasksRequest
from protos.turnkeeper.v1.schedules_pb2_grpc import SchedulesStub
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import Caller

MOST_NAMED = 20
_OPEN = ("running", "interrupted", "paused")
_ARMED = frozenset({"active", "running", "waiting", "interrupted"})


def handoff_text(home: Home, notes: str) -> str:
    """Return the text of a planned handoff. What a daemon does not answer for is said to be unknown."""
    runtime = Caller(home.socket("agent-runtime"), AgentRuntimeStub, "agent-runtime")
    runner = Caller(home.socket("task-runner"), SchedulesStub, "task-runner")
    try:
        lines = [
            "Planned restart of agent-runtime. Turns go on from their last checkpoint by themselves.",
            _line("open turns", lambda: _turns(runtime)),
            _line("decisions waiting for the author", lambda: _interrupts(runtime)),
            _line("armed tasks", lambda: _tasks(runner, _ARMED)),
            _line("tasks with held fires", lambda: _tasks(runner, frozenset({"held"}))),
        ]
    finally:
        runtime.close()
        runner.close()
    return "\n".join([*lines, f"notes:\n{notes.strip()}" if notes.strip() else "notes: none"])


def _line(what: str, ask: Callable[[], Iterator[str]]) -> str:
    try:
        found = list(ask())
    except TurnkeeperError as error:
        return f"{what}: unknown ({error.what})"
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{what}: {', '.join(found[:MOST_NAMED]) or 'none'}{more}"


def _turns(runtime: Any) -> Iterator[str]:
    for status in _OPEN:
        for turn in runtime.ListTurns(ListTurnsRequest(status=status, limit=1000)).turns:
            yield f"{turn.turn_id} ({status}, {turn.task_name or turn.trigger}, in {turn.channel})"


def _interrupts(runtime: Any) -> Iterator[str]:
    for asked in runtime.ListInterrupts(ListInterruptsRequest()).interrupts:
        yield f"{asked.interrupt_id} ({asked.kind} {asked.tool}, in {asked.channel})".replace(" ,", ",")


def _tasks(runner: Any, states: frozenset[str]) -> Iterator[str]:
    for task in runner.ListTasks(ListTasksRequest()).tasks:
        if task.state in states:
            due = f", next {task.next_fire_at.ToJsonString()}" if task.HasField("next_fire_at") else ""
            yield f"{task.spec.name} ({task.schedule}{due})"
