"""Python client for programs: tasks, turns, conversations and decisions over the daemons' local sockets.

    from turnkeeper.client import Turnkeeper

    with Turnkeeper() as tk:
        tk.create_task("digest", cron="0 9 * * *", category="catch-up-summary", channel="news", prompt="What is new?")

`AsyncTurnkeeper` has the same methods as coroutines. Times are aware `datetime`s, durations are `timedelta`s, and each
error is a :class:`TurnkeeperError` with advice. The client starts no daemon; run `turnkeeper up`.
"""

from turnkeeper.client.clients import AsyncTurnkeeper, Turnkeeper, run
from turnkeeper.client.operations import NeedsDecision, TimedOut, TurnFailed
from turnkeeper.client.specs import TaskFields
from turnkeeper.client.values import (
    Approval,
    Explanation,
    Fire,
    Message,
    Result,
    RunningCall,
    Sent,
    Speech,
    Task,
    ToolCall,
    Trigger,
    Turn,
    TurnEvent,
)
from turnkeeper.errors import Conflict, Denied, Exhausted, InvalidInput, NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.errors import AlreadyExists

__all__ = [
    "AlreadyExists",
    "Approval",
    "AsyncTurnkeeper",
    "Conflict",
    "Denied",
    "Exhausted",
    "Explanation",
    "Fire",
    "InvalidInput",
    "Message",
    "NeedsDecision",
    "NotFound",
    "Result",
    "RunningCall",
    "Sent",
    "Speech",
    "Task",
    "TaskFields",
    "TimedOut",
    "ToolCall",
    "Trigger",
    "Turn",
    "TurnEvent",
    "TurnFailed",
    "Turnkeeper",
    "TurnkeeperError",
    "Unreachable",
    "run",
]
