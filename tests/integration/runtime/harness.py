"""A runtime in the test's own process: real graph, real stores, real files; only the model reads from a script."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt

from agent_runtime.daemon.assembly import assemble
from agent_runtime.model.turn import TurnContext
from agent_runtime.service.servicer import Runtime, Servicer
from tests.support.clock import look_again
from tests.support.cluster import end_lease
from tests.support.fires import accept
from tests.support.scripted import ScriptedModel
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.event_log import read_events
from turnkeeper.bus.inbox import open_inbox
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import CategorySettings, Settings
from turnkeeper.entropy import SystemEntropy
from turnkeeper.storage.files import SystemFiles
from turnkeeper.v1 import agent_runtime_pb2 as wire

T = TypeVar("T")
PATIENCE_S = 60.0
STATES = wire.TurnEvent.State
OVER = {"INTERRUPTED", "PAUSED", "SUCCEEDED", "SILENT", "FAILED", "CANCELLED", "HELD"}
SETTINGS = Settings(categories=CategorySettings(autonomous_allowed=("work", "quiet", "brief")))
CATEGORY = """
name = "{name}"
autonomous = {autonomous}
silent = {silent}
[scopes]
tools = [{tools}]{graphs}
[limits]
seconds = {seconds}
tool_calls = {tool_calls}
"""


class Notes:
    """What a tool holds in place of its bench: the same after a restart, and on another machine."""


_BENCHES: "WeakKeyDictionary[Notes, Bench]" = WeakKeyDictionary()


class Bench:
    """One home and the runtime on it; `crash` abandons the runtime as it is and opens another."""

    def __init__(
        self, home: Home, clock: Clock | None = None, *, place: Path | str | None = None, shared: str = ""
    ) -> None:
        self.home = home
        self.shared = shared
        self.place = place or home.agent_db
        self.clock = clock
        self.settings = SETTINGS
        self.script: dict[str, list[AIMessage]] = {}
        self.noted: list[str] = []
        self.blocked = asyncio.Event()
        self.go = asyncio.Event()
        self.sitting = threading.Event()
        self.rise = threading.Event()
        self.runtime: Runtime
        self.service: Servicer
        self._left: list[Runtime] = []
        self._stack = AsyncExitStack()
        self.category("work", tools=["tool:note", "tool:block", "tool:ask", "tool:pause"])

    def category(self, name: str, *, tools: Sequence[str] = (), **changes: Any) -> None:
        """Write an author's category; a turn under it sees the change at its next interval."""
        given = {"autonomous": True, "silent": False, "seconds": 60, "tool_calls": 20} | changes
        fields = {key: str(value).lower() for key, value in given.items()}
        named = fields.pop("graphs", "").replace("'", '"')
        fields["graphs"] = f"\ngraphs = {named}" if named else ""
        quoted = ", ".join(f'"{scope}"' for scope in tools)
        path = self.home.categories / f"{name}.toml"
        path.write_text(CATEGORY.format(name=name, tools=quoted, **fields))

    async def open(self, **environ: str) -> None:
        """Open the stores and start."""
        how = {"environ": environ, "clock": self.clock, "build": self._build, "place": self.place}
        how |= {"shared": self.shared}
        opened = assemble(self.home, self.settings, **how)
        self.runtime = await self._stack.enter_async_context(opened)
        self.service = Servicer(self.runtime)
        await self.runtime.worker.start()

    async def crash(self) -> None:
        """Abandon the runtime without a word, and open another on what is on disk."""
        worker: Any = self.runtime.worker
        for name in worker._tasks.keys() & {"claim", "outboxes"}:  # two runtimes would refuse a message twice
            worker._tasks[name].cancel()
        self._left.append(self.runtime)
        if self.shared:
            await self._die()
        self.blocked, self.go = asyncio.Event(), asyncio.Event()
        await self.open()

    async def _die(self) -> None:
        """Let the abandoned runtime's lease end, as if its process were gone for longer than that."""
        mailboxes: Any = self.runtime.mailboxes
        mailboxes.ownership._keeping.cancel()
        mailboxes._listener.cancel()
        await self.runtime.store.read(end_lease, mailboxes.ownership.owner)

    def post(self, envelope: Envelope) -> str:
        """Put an envelope with the home's seal, as another process of the home does; return its name."""
        own = {"files": SystemFiles(), "clock": self.runtime.clock, "entropy": SystemEntropy()}
        return open_inbox(self.home, envelope.to, hosted=True, **own).put(envelope).name

    async def rest(self) -> None:
        """Wait until nothing is under way."""
        worker: Any = self.runtime.worker
        async with asyncio.timeout(PATIENCE_S):
            while worker._lanes.depth:
                await look_again()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop in good order."""
        await self.runtime.worker.stop(grace_s)
        self.runtime.mailboxes.close()

    async def close(self) -> None:
        self.rise.set()
        self.go.set()
        opened = [self.runtime] if hasattr(self, "runtime") else []
        for runtime in (*opened, *self._left):
            await runtime.worker.stop(0.0)
            runtime.mailboxes.close()
        await self._stack.aclose()

    def fire(self, number: int = 1, **changes: Any) -> wire.FireRequest:
        given = {"attempt": 1, "prompt": "go", "category": "work", "task": "a", "thread_id": "thread-a"} | changes
        task = f"task-0000000{given.pop('task')}"
        request = wire.FireRequest(
            fire_id=f"{task}@{number}", task_id=task, task_name=f"digest-{task[-1]}", channel="main", kind="manual"
        )
        request.nominal_at.FromSeconds(1_790_000_000 + number)
        request.MergeFrom(wire.FireRequest(**given))
        return request

    async def accept(self, request: wire.FireRequest) -> wire.FireReceipt:
        """Send a fire; return its receipt, or raise the error that refuses it."""
        return await accept(self.service, request)

    async def run(self, number: int = 1, **changes: Any) -> wire.TurnEvent:
        """Send a fire and wait until its turn stops; return the event that says how."""
        receipt = await self.accept(self.fire(number, **changes))
        return await self.stopped(receipt.turn_id)

    async def send(self, text: str, **changes: Any) -> wire.SendMessageResponse:
        return await self.service.SendMessage(wire.SendMessageRequest(channel="main", text=text, **changes), None)

    async def resolve(self, interrupt_id: str, decision: str, **changes: Any) -> wire.Interrupt:
        request = wire.ResolveInterruptRequest(interrupt_id=interrupt_id, decision=decision, **changes)
        return await self.service.ResolveInterrupt(request, None)

    async def resolve_all(self, *decisions: tuple[str, str], **changes: Any) -> list[wire.Interrupt]:
        made = [wire.ResolveInterruptRequest(interrupt_id=each, decision=way, **changes) for each, way in decisions]
        request = wire.ResolveInterruptsRequest(decisions=made)
        return list((await self.service.ResolveInterrupts(request, None)).interrupts)

    async def pending(self) -> list[wire.Interrupt]:
        return list((await self.service.ListInterrupts(wire.ListInterruptsRequest(), None)).interrupts)

    async def turn(self, turn_id: str) -> wire.Turn:
        return await self.service.GetTurn(wire.GetTurnRequest(turn_id=turn_id), None)

    async def conversation(self) -> list[wire.ConversationTurn]:
        return list((await self.service.GetConversation(wire.GetConversationRequest(channel="main"), None)).turns)

    async def events(self, *, until: Callable[[wire.TurnEvent], bool], after: int = 0) -> list[wire.TurnEvent]:
        """Watch turn events until one is wanted; all up to it."""
        found: list[wire.TurnEvent] = []
        request = wire.WatchTurnsRequest(incarnation=self.runtime.store.incarnation, after_sequence=after)

        async def watch() -> list[wire.TurnEvent]:
            async for event in self.service.WatchTurns(request, Call()):
                found.append(event)
                if until(event):
                    return found
            return found

        try:
            return await soon(watch(), "the event")
        except AssertionError as error:
            raise AssertionError(f"{error}; there were {[STATES.Name(event.state) for event in found]}") from error

    async def stopped(self, turn_id: str, *, after: int = 0) -> wire.TurnEvent:
        """Wait for the next event by which a turn stops."""
        found = await self.events(
            until=lambda event: event.turn_id == turn_id and STATES.Name(event.state) in OVER, after=after
        )
        return found[-1]

    async def history(self) -> list[str]:
        """Return the states of all turn events so far, in order."""
        from agent_runtime.store.turn_reads import events_after

        return [event.state for event in await self.runtime.store.read(lambda connection: events_after(connection, 0))]

    def trail(self, event: str) -> list[dict[str, Any]]:
        return [record for record in read_events(self.home.logs) if record["event"] == event]

    def lying(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.home.inbox("agent0") / folder).iterdir() if path.suffix == ".json")

    def _build(self, specs: Any, middleware: Any, saver: Any) -> Any:
        model = ScriptedModel(script=self.script)
        tools = [spec.tool for spec in specs] + self._tools()
        return create_agent(model, tools, middleware=middleware, context_schema=TurnContext, checkpointer=saver)

    def _tools(self) -> list[BaseTool]:
        bench, notes = self, Notes()
        _BENCHES[notes] = self

        @tool
        async def note(text: str) -> str:
            """Note a text."""
            _BENCHES[notes].noted.append(text)
            return f"noted {text}"

        @tool
        async def block() -> str:
            """Wait until the test says go."""
            _BENCHES[notes].blocked.set()
            await _BENCHES[notes].go.wait()
            return "went on"

        @tool
        async def ask(question: str) -> str:
            """Ask the author."""
            return f"the author says {interrupt({'question': question})}"

        @tool
        async def ask_twice() -> str:
            """Ask the author two things, one after the other."""
            return f"{interrupt({'question': 'first?'})}, then {interrupt({'question': 'second?'})}"

        @tool
        async def pause() -> str:
            """Wait for the task's next fire."""
            return f"woken by {interrupt({'resume_on': 'trigger', 'timeout_s': 60})['fire_id']}"

        @tool
        def sit() -> str:
            """Sit in a thread, where nothing can be cancelled, until the test says rise."""
            bench.sitting.set()
            bench.rise.wait(PATIENCE_S)
            bench.noted.append("sat")
            return "rose"

        @tool
        async def resist() -> str:
            """Take no notice of being cancelled, until the test says go."""
            while not bench.go.is_set():
                bench.blocked.set()
                with suppress(asyncio.CancelledError):
                    await bench.go.wait()
            bench.noted.append("resisted")
            return "went on"

        @tool
        async def fail() -> str:
            """Fail the turn."""
            raise RuntimeError("the tool broke")

        return [note, block, ask, ask_twice, pause, sit, resist, fail]


class Call:
    """The part of a call's context that streams use.

    Attributes:
        metadata: what was said before the first message.
    """

    metadata: Sequence[tuple[str, str]] = ()

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.metadata = metadata


async def soon(work: Awaitable[T], what: str) -> T:
    """Await work that must end within the deadline."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError as error:
        raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}") from error
