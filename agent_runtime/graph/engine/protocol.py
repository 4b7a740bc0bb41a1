"""The interface of an engine, which runs a graph: orders in, results out; and the engines of a runtime, by graph."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agent_runtime.model.approval import RaisedInterrupt
from agent_runtime.model.decide import ThreadState
from agent_runtime.model.graphs import Catalog
from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import Said, TurnContext, Used
from turnkeeper.config.surfaces import offered

CALLED = "the turn"  # the place of machine faults outside our stores: in a file or device of a graph, tool or model
Stopped = Literal["end", "interrupted", "failed", "timeout", "drained", "refused"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """Begin a turn with its prompt.

    Attributes:
        payload_json: a JSON object with the prompt, or empty.
        note: how the previous turn ended, if the graph needs to know; else empty.
        input_json: a JSON object with fields of the graph's input, or empty.
        end: the snapshot of the thread's end, if the caller has just read it.
        run_json: the options of a client's run, whose input is `input_json` alone; empty for any other turn.
    """

    prompt: str
    payload_json: str = ""
    input_json: str = ""
    run_json: str = ""
    note: str = ""
    end: Any = None


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Continue with the answers to interrupts, by id."""

    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Continue:
    """Continue from the checkpoint, without new input."""


Order = Input | Answers | Continue


@dataclass(frozen=True, kw_only=True)
class Step:
    """The messages and costs of a turn so far.

    Attributes:
        messages: the turn's messages after the prompt; None if the graph no longer has them.
        used: tokens that models read and wrote.
        of_subagents: the tokens of subagents that are still running.
        wake_after_s: the requested wake-up in this interval, in seconds after its end; None for no request.
    """

    messages: tuple[Said, ...] | None = ()
    used: Used = field(default_factory=Used)
    of_subagents: Used = field(default_factory=Used)
    wake_after_s: int | None = None

    @property
    def text(self) -> str:
        """The newest text of the agent; empty if there is none."""
        return next((one.text for one in reversed(self.messages or ()) if one.role == "agent" and one.text.strip()), "")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of an interval.

    Attributes:
        stopped: why the interval ended: the graph's end, an interrupt, an error, a limit, a drain, or a refused write.
        error: one sentence; empty except for `failed`, `timeout` and `refused`.
        step: the turn's messages and costs; without messages, the stored messages stay.
        refused: after a failure, the answered interrupts whose step raised, which are pending again.
        returned: a line for what the nodes returned, and its kind: `message` or `answer` for a turn without another
            answer, the latter from fields of the state; `values` for fields besides the answer.
    """

    stopped: Stopped
    error: str = ""
    interrupts: tuple[RaisedInterrupt, ...] = ()
    step: Step = Step(messages=None)
    refused: frozenset[str] = frozenset()
    returned: tuple[Said | None, str] = (None, "")


OnStep = Callable[[Step], Awaitable[None]]


class Engine(Protocol):
    """One graph and its checkpoints, in this process or another one."""

    async def read(self, thread_id: str, turn_ids: Sequence[str] = (), *, strict: bool = False) -> ThreadState:
        """Return the thread's position, and the turns among `turn_ids` whose input is in its checkpoint.

        If `strict`, steps that the graph no longer has also count as remaining.
        """

    async def last_message(self, thread_id: str) -> str:
        """Return the id of the thread's last message, or an empty string."""

    async def look(self, thread_id: str, mark: str) -> Ended:
        """Return the result of the thread's newest interval, from its checkpoint, without running anything."""

    async def run(
        self, order: Order, context: TurnContext, mark: str, on_step: OnStep, used: Used | None = None
    ) -> Ended:
        """Run one interval.

        Args:
            context: the turn; its category's limits apply.
            mark: id of the message after which this turn's own messages begin.
            on_step: called after each superstep is on disk; after an interrupted superstep, with its token counts only.
            used: tokens that the turn's earlier intervals read and wrote.

        Raises:
            CancelledError: the caller's task was cancelled; checkpoints stay.
            MachineTrouble: the machine could not read or write; the turn has not failed, and continues later.
        """

    def drain(self) -> None:
        """Ask every interval, now and later, to stop at its next superstep boundary."""

    def unread(self, trigger: Trigger) -> str:
        """Return an error if the graph would ignore a part of a trigger, else an empty text. Raises InvalidInput."""

    def flush(self) -> None:
        """Write delayed work, such as pruning."""

    async def prune(self, thread_id: str) -> None:
        """Drop checkpoints that a thread at its end no longer needs."""

    async def state(self, config: Any, *, subgraphs: bool = False) -> Any:
        """Return LangGraph's snapshot of a state, with those of its subgraphs if they are asked for."""

    def history(self, config: Any, before: Any) -> AsyncIterator[Any]:
        """Yield LangGraph's snapshots of a thread's stored states, newest first."""

    async def describe(self, xray: int | bool, namespace: str | None, recurse: bool) -> Any:
        """Return the graph's drawing, its schemas and those of its subgraphs, as LangGraph's API has them."""


class Engines:
    """The engines of a runtime, one for each usable graph."""

    def __init__(self, engines: Mapping[str, Engine], catalog: Catalog, events: Any = None) -> None:
        self._engines = engines
        self.catalog, self.events = catalog, events

    def of(self, graph: str) -> Engine:
        """Return the engine of a graph or assistant. Raises Conflict if the graph cannot run now."""
        self.catalog.require(graph)
        return self._engines[self.catalog.graph_of(graph)]

    def unread(self, trigger: Trigger, newest: Any) -> str:
        """Return a warning if the graph would not read all of a trigger, or if the category is for another graph.

        `newest` is the newest turn of its thread, if any. Raises InvalidInput if the graph would refuse the input.
        """
        ready = self.catalog.setup(trigger, newest)
        engine = self._engines.get(self.catalog.graph_of(ready.graph))
        unread = engine.unread(ready) if engine else ""
        return unread or offered("other graph", ready.grant, self.catalog.label(ready.graph)) or ""

    def drain(self) -> None:
        """Ask every interval of every graph, now and later, to stop at its next superstep boundary."""
        for engine in self._engines.values():
            engine.drain()

    def flush(self) -> None:
        for engine in self._engines.values():
            engine.flush()
