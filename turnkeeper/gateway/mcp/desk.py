"""For whom a tool works, what it may do for it, and the daemons that it asks."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.settings import McpSettings
from turnkeeper.errors import Denied, NotFound, Unreachable
from turnkeeper.gateway.calls import Who
from turnkeeper.gateway.keys import Scope
from turnkeeper.rpc.channel import AsyncCaller
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as runner

MADE_BY = "mcp"  # the tag of a task that names the client which made it
_PROGRAM = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 64
QUEUED, AWAY = "queued", "not known while agent-runtime is away"
UNDER_WAY = frozenset({QUEUED, AWAY, "accepted", "kept", "running"})
_BEAT_S = 5.0  # between two signs of life while a tool waits


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The program that calls a tool.

    Attributes:
        program: what it calls itself.
        key: the id of the key that it came with; empty where it is a child of the person's own, on stdio.
        scope: what it may do.
    """

    program: str
    key: str = ""
    scope: Scope = Scope.DECIDE

    @property
    def via(self) -> str:
        """By what its calls come, as the daemons record it."""
        return "/".join(filter(None, (self.program, "mcp", self.key)))

    @property
    def owner(self) -> str:
        """What the tasks that it makes are tagged with: another program, or the same with another key, has another."""
        return ":".join(filter(None, (self.program, self.key)))

    def check(self, scope: Scope) -> None:
        """Raise Denied unless it may do this."""
        if self.scope < scope:
            what = f"this key may not do that: it takes the scope {scope.name.lower()}"
            raise Denied(what, hint="make another key: turnkeeper web keys make NAME --scope SCOPE")


def program_of(name: str) -> str:
    """Return what a client calls itself as the name of a program.

    >>> program_of("Claude Code (CLI)"), program_of("../x"), program_of("")
    ('Claude-Code-CLI', 'x', 'mcp-client')
    """
    return _PROGRAM.sub("-", name)[:_LONGEST_NAME].strip("-._") or "mcp-client"


def caller_of(ctx: Any) -> Caller:
    """Return who makes the call that is being answered: over HTTP, with the key that the guard found."""
    told, request = ctx.session.client_params, ctx.request_context.request
    program = program_of(told.client_info.name if told else "")
    if request is None:
        return Caller(program=program)
    who: Who = request.scope["who"]
    return Caller(program=program, key=who.key, scope=who.scope or Scope.READ)


@dataclass(kw_only=True)
class Desk:
    """What all tools work with, of one home.

    Attributes:
        runtime: the agent runtime.
        runner: the task runner.
        settings: `[mcp]`.
        page: the address of the page, without a path; empty where none is served.
        clock: for waiting.
        watched: what is waited for, by turn.
    """

    runtime: AsyncCaller
    runner: AsyncCaller
    settings: McpSettings
    page: str = ""
    clock: Clock = field(default_factory=SystemClock)
    watched: dict[str, set[asyncio.Event]] = field(default_factory=dict)

    def decides_at(self, approval: str = "") -> dict[str, str]:
        """Return where the person decides, on the command line and on the page: one approval, or all that waits."""
        command = f"turnkeeper approvals show {approval}" if approval else "turnkeeper triage"
        url = f"{self.page}/ui/decisions{f'#card-{approval}' if approval else ''}" if self.page else ""
        return {"command": command, "url": url}

    async def call(self, method: str, request: Any, via: str) -> Any:
        """Call a daemon. Raises TurnkeeperError."""
        daemon = self.runner if request.DESCRIPTOR.file is runner.DESCRIPTOR else self.runtime
        return await getattr(daemon.by(via), method)(request)

    def category(self, name: str) -> str:
        """Return the category that a task is to have; the first of those allowed unless named. Raises Denied."""
        allowed = self.settings.categories
        if (name or not allowed) and name not in allowed:
            hint = f"allowed here: {', '.join(allowed) or 'none'}; the person adds to them in [mcp] categories"
            raise Denied(
                f"{name[:60]!r} is no category that MCP clients may schedule under", where="category", hint=hint
            )
        return name or allowed[0]

    def may_change(self, task: Any, caller: Caller) -> bool:
        """Return whether a client may change a task: it made it, or may change all."""
        return self.settings.manage == "all" or task.spec.tags.get(MADE_BY) == caller.owner

    async def own_task(self, name: str, caller: Caller) -> Any:
        """Return a task that the caller may change. Raises Denied or TurnkeeperError."""
        task = await self.call("GetTask", runner.GetTaskRequest(name=name), caller.via)
        if not self.may_change(task, caller):
            hint = 'the person can change it, or set [mcp] manage = "all"'
            raise Denied(f"task {task.spec.name} was not made by this client", where="name", hint=hint)
        return task

    async def turn(self, turn_id: str, via: str) -> Any:
        """Return a turn; one that is not on record yet, with the status `queued`."""
        try:
            return await self.call("GetTurn", runtime.GetTurnRequest(turn_id=turn_id), via)
        except NotFound:
            return runtime.Turn(turn_id=turn_id, status=QUEUED)

    async def wait(self, turn_id: str, wait_s: float, via: str, beat: Callable[[float, str], Awaitable[None]]) -> Any:
        """Return a turn once it has ended or waits for the person, or as it is after `wait_s`.

        Args:
            turn_id: the turn.
            wait_s: how long to wait.
            via: by what the call comes.
            beat: is told every few seconds how long it has waited, and how the turn stands.
        """
        began = self.clock.monotonic()
        with self._watching(turn_id) as changed:
            while True:
                changed.clear()
                spent = self.clock.monotonic() - began
                try:
                    turn = await self.turn(turn_id, via)
                except Unreachable:  # it comes back, and the turn goes on
                    if spent >= wait_s:
                        raise
                    turn = runtime.Turn(turn_id=turn_id, status=AWAY)
                if spent >= wait_s or not await self._goes_on(turn, via):
                    return turn
                await beat(spent, turn.status)
                await self.clock.wait(changed, min(_BEAT_S, wait_s - spent))

    async def _goes_on(self, turn: Any, via: str) -> bool:
        """Return whether a turn goes on by itself; one that was decided about is resumed a moment later."""
        if turn.status != "interrupted":
            return turn.status in UNDER_WAY
        asked = await self.call("ListInterrupts", runtime.ListInterruptsRequest(thread_id=turn.thread_id), via)
        return all(one.turn_id != turn.turn_id for one in asked.interrupts)

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
