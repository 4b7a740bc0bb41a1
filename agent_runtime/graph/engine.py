"""Running intervals of a graph: give input or answers or nothing, stop at an end, an interrupt, a limit or a drain.

The only module that runs graphs. It knows threads, checkpoints and messages; it knows nothing of the turn table.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphDrained
from langgraph.graph import END
from langgraph.runtime import RunControl
from langgraph.types import Command

from agent_runtime.approvals import Raised, canonical, read_interrupt
from agent_runtime.decide import Position, ThreadState
from agent_runtime.graph.checkpoints import Checkpoints
from agent_runtime.graph.transcript import after, said, tokens_of
from agent_runtime.model import Said, TurnContext
from turnkeeper.errors import TurnkeeperError

MOST_SEALS = 50
Stopped = Literal["end", "interrupted", "failed", "timeout", "drained"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """Begin: give the turn its prompt.

    Attributes:
        prompt: what is asked.
        payload_json: a JSON object beside it, or empty.
        note: how the turn before it ended, where that matters; empty for none.
    """

    prompt: str
    payload_json: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Go on: give interrupts their answers, by id."""

    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Onward:
    """Go on from the checkpoint, with nothing new."""


Order = Input | Answers | Onward


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a turn has said so far.

    Attributes:
        messages: its messages after the prompt, from the first; None where the graph no longer shows them.
        tokens_in: tokens read by models in this turn.
        tokens_out: tokens written by models in this turn.
    """

    messages: tuple[Said, ...] | None = ()
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an interval stopped.

    Attributes:
        stopped: at the end, an interrupt, an error, the category's time limit, or a drain.
        error: one sentence; empty but for `failed` and `timeout`.
        interrupts: what the graph waits for.
        step: all that the turn has said.
    """

    stopped: Stopped
    error: str = ""
    interrupts: tuple[Raised, ...] = ()
    step: Step = Step()


class TokenLimit(RuntimeError):
    """A turn used more tokens than its category allows."""


class _Seen:
    """The newest step of an interval, kept so that one that fails still tells what it said and what it cost."""

    def __init__(self, on_step: Callable[[Step], Awaitable[None]]) -> None:
        self._on_step = on_step
        self.step = Step(messages=None)  # until the graph shows its messages, what is on record stays

    async def take(self, newer: Step) -> Step:
        """Pass a step on when it says something new."""
        known, self.step = self.step, newer
        if newer not in (known, Step()):
            await self._on_step(newer)
        return newer

    def with_cost(self, error: Exception) -> Step:
        """Return the newest step with the tokens that a failed model call used up, where the error tells them."""
        tokens_in, tokens_out = getattr(error, "tokens", (0, 0))
        return replace(
            self.step, tokens_in=self.step.tokens_in + tokens_in, tokens_out=self.step.tokens_out + tokens_out
        )


class Engine:
    """One compiled graph and its checkpoints."""

    def __init__(self, graph: Any, checkpoints: Checkpoints) -> None:
        """Take a graph that was compiled with the saver of `checkpoints`."""
        self._graph = graph
        self._checkpoints = checkpoints
        self._takes_messages = "messages" in graph.channels
        self._controls: set[RunControl] = set()
        self._draining = False

    async def read(self, thread_id: str, turn_ids: Sequence[str] = ()) -> ThreadState:
        """Return where the thread stands, and which of the turns have their input in it."""
        snapshot = await self._graph.aget_state(_config(thread_id))
        if snapshot.created_at is None:
            return ThreadState()
        seen = {str(message.id) for message in _messages(snapshot.values)}
        seen.add(str((snapshot.metadata or {}).get("turn_id", "")))
        pending = frozenset(item.id for item in snapshot.interrupts)
        position = Position.INTERRUPTED if pending else Position.OPEN if snapshot.next else Position.END
        return ThreadState(position=position, inputs=frozenset(seen & set(turn_ids)), pending=pending)

    async def last_message(self, thread_id: str) -> str:
        """Return the id of the thread's last message, or nothing."""
        snapshot = await self._graph.aget_state(_config(thread_id))
        messages = _messages(snapshot.values)
        return str(messages[-1].id or "") if messages else ""

    async def look(self, thread_id: str, mark: str) -> Ended:
        """Return how the thread's newest interval stopped, from its checkpoint, without running anything."""
        snapshot = await self._graph.aget_state(_config(thread_id))
        raised = tuple(read_interrupt(item.id, item.value) for item in snapshot.interrupts)
        step = _step(snapshot.values, mark)
        if snapshot.next and not raised:
            return Ended(stopped="failed", error=f"stopped before {', '.join(snapshot.next)}", step=step)
        return Ended(stopped="interrupted" if raised else "end", interrupts=raised, step=step)

    async def run(
        self, order: Order, context: TurnContext, mark: str, on_step: Callable[[Step], Awaitable[None]]
    ) -> Ended:
        """Run one interval.

        Args:
            order: what the graph is given.
            context: the turn; its category's limits hold.
            mark: id of the message after which this turn's own messages begin.
            on_step: told after each superstep, when that is on disk.

        Raises:
            CancelledError: the caller's task was cancelled; what was checkpointed stays.
        """
        config = _config(context.thread_id, turn=context)
        control = RunControl()
        self._controls.add(control)
        if self._draining:
            control.request_drain()
        seen = _Seen(on_step)
        limit = asyncio.timeout(context.category.seconds)
        try:
            async with limit:
                given = await self._given(order, context)
                return await self._stream(given, context, config, mark, seen, control)
        except GraphDrained:
            return Ended(stopped="drained")
        except TimeoutError as error:
            if limit.expired():
                return Ended(stopped="timeout", error=f"took longer than {context.category.seconds} s", step=seen.step)
            return Ended(stopped="failed", error=_sentence(error), step=seen.step)
        except Exception as error:  # noqa: BLE001  whatever a graph raises is the turn's failure, recorded with it
            return Ended(stopped="failed", error=_sentence(error), step=seen.with_cost(error))
        finally:
            self._controls.discard(control)

    def drain(self) -> None:
        """Ask every interval, now and later, to stop at its next superstep boundary."""
        self._draining = True
        for control in self._controls:
            control.request_drain()

    async def seal(self, thread_id: str) -> Any:
        """Bring a thread whose turn is over to its end: what finished is kept, what did not is given up.

        Returns:
            LangGraph's snapshot of that end.
        """
        config = _config(thread_id)
        for _ in range(MOST_SEALS):
            snapshot = await self._graph.aget_state(config)
            if not snapshot.next:
                return snapshot
            await self._graph.aupdate_state(config, None, as_node=END)
        raise RuntimeError(f"thread {thread_id} did not come to its end in {MOST_SEALS} steps")

    async def prune(self, thread_id: str) -> None:
        """Drop checkpoints that a thread at its end no longer needs."""
        await self._checkpoints.prune(thread_id)

    async def _given(self, order: Order, context: TurnContext) -> Any:
        if isinstance(order, Onward):
            return None
        if isinstance(order, Answers):
            return Command(resume=dict(order.values))
        snapshot = await self.seal(context.thread_id)
        if not self._takes_messages:
            return json.loads(order.payload_json or "{}")
        return {"messages": [*_dangling(_messages(snapshot.values)), *_opening(order, context)]}

    async def _stream(
        self,
        given: Any,
        context: TurnContext,
        config: Any,
        mark: str,
        seen: "_Seen",
        control: RunControl,
    ) -> Ended:
        stream = self._graph.astream(
            given, config, context=context, stream_mode=["values"], durability="sync", version="v2", control=control
        )
        async for part in stream:
            if part["ns"]:
                continue
            step = await seen.take(_step(part["data"], mark))
            used = step.tokens_in + step.tokens_out
            if used > context.category.tokens:
                raise TokenLimit(f"used {used} tokens, its category allows {context.category.tokens}")
        # Only the checkpoint tells: the stream of a resume leaves out a question that was pending before it.
        return await self.look(context.thread_id, mark)


def _config(thread_id: str, *, turn: TurnContext | None = None) -> dict[str, Any]:
    """Return the run's config; the turn and its grant are pinned in the metadata of each of its checkpoints."""
    metadata = {"turn_id": turn.turn_id, "grant": canonical(turn.category.to_dict())} if turn else {}
    return {"configurable": {"thread_id": thread_id}, "metadata": metadata}


def _messages(values: Any) -> list[AnyMessage]:
    return list(values.get("messages", [])) if isinstance(values, dict) else []


def _step(values: Any, mark: str) -> Step:
    own = after(_messages(values), mark)
    if own is None:
        return Step(messages=None)
    tokens_in, tokens_out = tokens_of(own)
    return Step(messages=said(own), tokens_in=tokens_in, tokens_out=tokens_out)


def _dangling(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Answer the tool calls that an earlier turn left without an answer: a history with such calls is invalid."""
    last = max((at for at, message in enumerate(messages) if isinstance(message, AIMessage)), default=len(messages))
    answered = {message.tool_call_id for message in messages[last:] if isinstance(message, ToolMessage)}
    calls = [call for message in messages[last : last + 1] for call in getattr(message, "tool_calls", ())]
    return [
        ToolMessage(
            content="this call did not finish", name=call["name"], tool_call_id=call["id"] or "", status="error"
        )
        for call in calls
        if call["id"] not in answered
    ]


def _opening(order: Input, context: TurnContext) -> list[AnyMessage]:
    opening: list[AnyMessage] = []
    if order.note:
        opening.append(HumanMessage(content=order.note, id=f"{context.turn_id}-note", name="turnkeeper"))
    text = f"{order.prompt}\n\nPayload: {order.payload_json}" if order.payload_json else order.prompt
    # The id is the turn's: the input and the proof that it was taken land in one checkpoint.
    return [*opening, HumanMessage(content=text, id=context.turn_id)]


def _sentence(error: BaseException) -> str:
    """Return an error in a sentence; one of ours is written to be read, any other needs its kind to be understood."""
    return str(error)[:1000] if isinstance(error, TurnkeeperError) else f"{type(error).__name__}: {error}"[:1000]
