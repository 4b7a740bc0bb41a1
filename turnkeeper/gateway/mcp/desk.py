"""The caller of a tool, its permissions, and the daemons that the tool calls."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.settings import McpSettings
from turnkeeper.errors import Denied, NotFound
from turnkeeper.gateway.calls import SILENT, Who
from turnkeeper.gateway.keys import Scope
from turnkeeper.rpc.channel import AsyncCaller
from turnkeeper.times import format_duration
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as runner

MADE_BY = "mcp"  # key of the tag with the client that created a task
_PROGRAM = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 64
QUEUED, AWAY = "queued", "not known while agent-runtime is away"
UNDER_WAY = frozenset({QUEUED, AWAY, "accepted", "kept", "running"})
_LOOKED_AT = 20  # next times of a task in which the shortest gap is searched
_BEAT_S = 5.0  # seconds between progress reports while a tool waits


def program_of(name: str) -> str:
    """Convert the name that a client gives itself to a valid program name.

    >>> program_of("Claude Code (CLI)"), program_of("../x"), program_of("")
    ('Claude-Code-CLI', 'x', 'mcp-client')
    """
    return _PROGRAM.sub("-", name)[:_LONGEST_NAME].strip("-._") or "mcp-client"


def caller_of(ctx: Any) -> Who:
    """Return the caller of the current request: on stdio the person's own client, over HTTP the owner of a key."""
    told, request = ctx.session.client_params, ctx.request_context.request
    program = program_of(told.client_info.name if told else "")
    who = Who(surface="", scope=Scope.DECIDE) if request is None else request.scope["who"]
    return replace(who, surface="mcp", program=program, scope=who.scope or Scope.READ)


def owner_of(caller: Who) -> str:
    """Return the tag of the tasks that a client creates. It is unique to the client's program and key."""
    return ":".join(filter(None, (caller.program, caller.key)))


@dataclass(kw_only=True)
class Desk:
    """Shared parts of all tools for one home.

    Attributes:
        settings: the settings in `[mcp]`.
        page: the base address of the page; empty if the page is not served.
        watched: callbacks of waiting tools, by turn.
    """

    daemons: AsyncCaller
    settings: McpSettings
    page: str = ""
    clock: Clock = field(default_factory=SystemClock)
    watched: dict[str, set[asyncio.Event]] = field(default_factory=dict)

    def decides_at(self, approval: str = "") -> dict[str, str]:
        """Return the command that decides one approval, or all of them, and the address of the page for this."""
        command = f"turnkeeper approvals show {approval}" if approval else "turnkeeper triage"
        url = f"{self.page}/ui/decisions{f'#card-{approval}' if approval else ''}" if self.page else ""
        return {"command": command, "url": url}

    async def call(self, request: Any, via: str) -> Any:
        """Call a daemon. Raises TurnkeeperError."""
        return await self.daemons.by(via).ask(request)

    def category(self, name: str) -> str:
        """Return the category for a task: the named one, or else the first allowed one. Raises Denied."""
        allowed = self.settings.categories
        if (name or not allowed) and name not in allowed:
            hint = f"allowed here: {', '.join(allowed) or 'none'}; the person adds to them in [mcp] categories"
            raise Denied(
                f"{name[:60]!r} is not a category that MCP clients may schedule under", where="category", hint=hint
            )
        return name or allowed[0]

    async def check_pace(self, spec: Any, via: str) -> None:
        """Raise Denied if a task would fire more often than a client may schedule."""
        request = runner.PreviewScheduleRequest(spec=spec, count=_LOOKED_AT)
        times = [one.nominal_at.ToDatetime() for one in (await self.call(request, via)).nominals]
        least = timedelta(seconds=self.settings.shortest_gap_s)
        if any(later - earlier < least for earlier, later in pairwise(times)):
            hint = "schedule it less often; the person may lower [mcp] shortest_gap_s"
            raise Denied(f"a client's task fires at most every {format_duration(least)}", where="when", hint=hint)

    def may_change(self, task: Any, caller: Who) -> bool:
        """Return True if a client may change a task: it created the task, or it may change all tasks."""
        return self.settings.manage == "all" or task.spec.tags.get(MADE_BY) == owner_of(caller)

    async def own_task(self, name: str, caller: Who) -> Any:
        """Return a task that the caller may change. Raises Denied or TurnkeeperError."""
        task = await self.call(runner.GetTaskRequest(name=name), caller.via)
        if not self.may_change(task, caller):
            hint = 'the person can change it, or set [mcp] manage = "all"'
            raise Denied(f"task {task.spec.name} was not made by this client", where="name", hint=hint)
        return task

    async def turn(self, turn_id: str, via: str) -> Any:
        """Return a turn. If the turn is not recorded yet, its status is `queued`."""
        try:
            return await self.call(runtime.GetTurnRequest(turn_id=turn_id), via)
        except NotFound:
            return runtime.Turn(turn_id=turn_id, status=QUEUED)

    async def wait(self, turn_id: str, wait_s: float, via: str, beat: Callable[[float, str], Awaitable[None]]) -> Any:
        """Return a turn when it ends or waits for the person, or after `wait_s` seconds in its current state.

        Args:
            beat: called every few seconds with the seconds waited and the turn's status.
        """
        began = self.clock.monotonic()
        with self._watching(turn_id) as changed:
            while True:
                changed.clear()
                spent = self.clock.monotonic() - began
                try:
                    turn = await self.turn(turn_id, via)
                except SILENT:  # the daemon will return, and the turn will continue
                    if spent >= wait_s:
                        raise
                    turn = runtime.Turn(turn_id=turn_id, status=AWAY)
                if spent >= wait_s or turn.status not in UNDER_WAY:
                    return turn
                await beat(spent, turn.status)
                await self.clock.wait(changed, min(_BEAT_S, wait_s - spent))

    @contextmanager
    def _watching(self, turn_id: str) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self.watched.setdefault(turn_id, set()).add(changed)
        try:
            yield changed
        finally:
            self.watched[turn_id].discard(changed)
            if not self.watched[turn_id]:
                del self.watched[turn_id]
