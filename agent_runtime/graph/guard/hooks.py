"""The guard under every tool call of the process, whatever the caller and the way to the tool.

An author's graph binds its own tools to a `ToolNode` or to an agent inside a node or another tool, or calls
`tool.invoke` itself. All of these calls reach `BaseTool.run` or `BaseTool.arun`. While a runtime watches, both ask the
gate first. A call that our own agent's guard admitted passes once; calls inside a tool are separate calls.

A plain `ToolNode` runs all calls of a message as one task. On a resume, finished calls would run again, and answers
would be matched to calls by their order. So while a runtime watches, each call becomes a separate task, as in
LangChain's agents, with its own stored result and its own question id.

Both methods are replaced for the whole process, not per graph, because a graph that is called inside a node's function
cannot be found. Methods of an author's class that replace these, or run a tool in any other way, are judged first;
their inner call of the same tool with the same arguments then passes.

Tasks that a node or a tool leaves running do not act for a turn. A process that is forked, or started by
`multiprocessing`, can call no tool, because its calls could be neither judged nor counted here.

If a reader wants the events of tools, each call writes two events: one before the tool begins, and one after its answer
and before the answer is used. Tools run on the event loop and in threads; both wait here until the event is on disk.
"""

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.func import task
from langgraph.prebuilt import ToolNode
from langgraph.pregel import _runner
from sqlalchemy import Connection

from agent_runtime.graph.context import bound, lifetime
from agent_runtime.graph.guard import arguments, gate, overrides
from agent_runtime.model.mapping import canonical
from agent_runtime.model.turn import ToolUse, TurnContext, Verdict
from agent_runtime.store.turn_events import OF_TOOLS
from agent_runtime.store.turn_reads import get_turn
from agent_runtime.store.turn_store import Store
from agent_runtime.store.turn_writes import add_call
from turnkeeper.clock import Clock
from turnkeeper.storage.database import Database

_START, _END = OF_TOOLS


class ToolEvents:
    """Writer of the calls that nodes make themselves, and of events of all tool calls while a reader wants them."""

    def __init__(self, database: Database, store: Store, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._database = database
        self._store = store
        self._clock = clock

    def of_call(self, turn_id: str, tool: str, call: str, own: ToolUse | None) -> "Execution | None":
        """Return the writer of one call; None if there is nothing to write. `own` is a call that is in no message."""
        if self._store.event_source.wanted.isdisjoint(OF_TOOLS) and own is None:
            return None
        return Execution(events=self, turn_id=turn_id, tool=tool, call=call, own=own)

    def write(self, work: Callable[[Connection], None]) -> None:
        """Do the work and wait for the disk, in a thread that may block."""
        self._database.submit(work).result()
        self._loop.call_soon_threadsafe(self._store.event_source.news.notify)

    async def write_async(self, work: Callable[[Connection], None]) -> None:
        """Do the work and wait for the disk, on the event loop."""
        await self._database.run(work)
        self._store.event_source.news.notify()

    def event(self, name: str, run: "Execution", **outcome: Any) -> Callable[[Connection], None]:
        """Return the work that writes one event; if the tool has outlived its turn, the work writes nothing."""
        at = self._clock.now()

        def work(connection: Connection) -> None:
            turn = get_turn(connection, run.turn_id)
            if turn is None or turn.status != "running":
                return
            if run.own is not None and name == _START:
                add_call(connection, run.turn_id, run.own, at)
            if not self._store.event_source.wanted.isdisjoint(OF_TOOLS):
                self._store.event_source.used(
                    connection, name, run.turn_id, at, call=run.call, tool=run.tool, **outcome
                )

        return self._store.right.proven(work)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One admitted call of a tool.

    An interrupted or cancelled call has not ended: the graph makes it again, or the turn has ended.

    Attributes:
        call: an id that stays the same whenever the graph makes this call again, and is unique in the turn.
        own: the call if no message of the graph contains it.
    """

    events: ToolEvents
    turn_id: str
    tool: str
    call: str
    own: ToolUse | None

    def around(self, work: Callable[[], Any]) -> Any:
        self.events.write(self._begun())
        try:
            answer = work()
        except GraphBubbleUp:
            raise
        except Exception:
            self.events.write(self._ended(ok=False))
            raise
        self.events.write(self._ended(ok=_is_good(answer)))
        return answer

    async def around_async(self, work: Callable[[], Awaitable[Any]]) -> Any:
        await self.events.write_async(self._begun())
        try:
            answer = await work()
        except GraphBubbleUp:
            raise
        except Exception:
            await self.events.write_async(self._ended(ok=False))
            raise
        await self.events.write_async(self._ended(ok=_is_good(answer)))
        return answer

    def _begun(self) -> Callable[[Connection], None]:
        return self.events.event(_START, self)

    def _ended(self, *, ok: bool) -> Callable[[Connection], None]:
        return self.events.event(_END, self, ok=ok)


def _is_good(answer: Any) -> bool:
    return not (isinstance(answer, ToolMessage) and answer.status == "error")


MOST_TURNS_COUNTED = 1024
_TEXT = "input"  # the name of a tool's only argument if it is called with a string
_IN_TASK = "__pregel_call"  # in a config: the function by which a node starts its own tasks


@dataclass(kw_only=True)
class _Pass:
    """A pass for one call that was already judged. A pass is used once, so a wrapper that retries is judged again."""

    tool: BaseTool | None
    call_id: str
    about: arguments.Written
    used: bool = False
    counted: bool = False  # the events of the call are written too

    def fits(self, tool: BaseTool, call_id: str, args: Mapping[str, Any]) -> bool:
        """Return whether this is the call of the pass, and the call has not run yet."""
        if self.tool is not tool or self.call_id != call_id or self.used or self.about.problem:
            return False
        return self.about.digest == arguments.write(args).digest


class _Counted:
    """The numbers of each turn's calls; a call that is run again counts once. A new process starts at zero."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[str, ...], set[str]] = OrderedDict()
        self._lock = threading.Lock()

    def number(self, who: tuple[str, ...], call: str) -> int:
        """Return the number of calls of a turn, or of its subagent, including this one."""
        with self._lock:
            calls = self._turns.setdefault(who, set())
            self._turns.move_to_end(who)
            while len(self._turns) > MOST_TURNS_COUNTED:
                self._turns.popitem(last=False)
            calls.add(call)
            return len(calls)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Watch:
    """A gate, the calls that it has admitted in each turn, and the writer of events."""

    decider: gate.Gate
    counted: _Counted
    repeated: gate.RepeatedCalls
    events: ToolEvents | None
    process: int


# The wrapped functions. No public API shows the values that a node inserts into a call.
_RUN, _ARUN = BaseTool.run, BaseTool.arun
_INVOKE: Any = ToolNode.invoke
_AINVOKE: Any = ToolNode.ainvoke
_INJECT: Any = ToolNode._inject_tool_args  # noqa: SLF001
_RUNNER: Any = _runner
_NODE: Any = _RUNNER.run_with_retry
_ANODE: Any = _RUNNER.arun_with_retry
_PASS: ContextVar[_Pass | None] = ContextVar("turnkeeper_pass", default=None)
_WATCHES: list[_Watch] = []
_LOCK = threading.Lock()


@contextmanager
def watching(decider: gate.Gate, events: ToolEvents | None = None) -> Iterator[None]:
    """Guard every tool call of the process during the block. A call outside a turn is then refused."""
    watch = _watch(decider, events)
    with _LOCK:
        if not _WATCHES:
            _install_hooks()
        _WATCHES.append(watch)
    try:
        yield
    finally:
        with _LOCK:
            _WATCHES.remove(watch)
            if not _WATCHES:
                _remove_hooks()


def _watch(decider: gate.Gate, events: ToolEvents | None) -> _Watch:
    repeated = gate.RepeatedCalls()
    return _Watch(decider=decider, counted=_Counted(), repeated=repeated, events=events, process=os.getpid())


def watched() -> bool:
    """Return whether tool calls are guarded now."""
    return bool(_WATCHES)


def admit_once(tool: BaseTool | None, call_id: str, args: Mapping[str, Any]) -> AbstractContextManager["_Pass | None"]:
    """Let exactly this call, which was already judged, through once within the block."""
    about = arguments.chosen(tool, arguments.sent_by_model(tool, args)) if tool is not None else args
    return bound(_PASS, _Pass(tool=tool, call_id=call_id, about=arguments.write(about)))


def _judged(tool: BaseTool, tool_input: Any, call_id: str | None) -> tuple[Any, gate.Refused | Execution | None]:
    """Return the tool's input, and either the refusal or the writer of the run's events.

    Raises:
        GraphInterrupt: the author must decide.
        LimitReached: the turn continues to call tools beyond its limit.
    """
    args = tool_input if isinstance(tool_input, dict) else {_TEXT: tool_input}
    shown = arguments.chosen(tool, args, call_id)
    watch = _WATCHES[-1]
    turn = watch.decider.turn()
    if turn is None or watch.process != os.getpid():
        return tool_input, gate.NO_TURN if turn is None else gate.OTHER_PROCESS
    leave = _PASS.get()
    if leave is not None and leave.counted and leave.fits(tool, call_id or "", shown):
        leave.used = True
        return tool_input, None
    at = gate.place()
    known_as = call_id or gate.made_id(at, tool.name, shown)
    call = watch.repeated.name(f"{at}|{known_as}")
    if over := _over_limit(watch, turn, call):
        return tool_input, gate.Refused(text=over)
    own = None if call_id else _call_of(tool, call, shown)
    run = watch.events.of_call(turn.turn_id, tool.name, call, own) if watch.events is not None else None
    if leave is not None and leave.fits(tool, call_id or "", shown):
        leave.used = True
        return tool_input, run
    decided = watch.decider.admit(gate.CallRequest(tool=tool, name=tool.name, call_id=known_as, args=shown), turn)
    if isinstance(decided, gate.Refused):
        return tool_input, decided
    return _given(tool_input, shown, decided), run


def _call_of(tool: BaseTool, call: str, args: Mapping[str, Any]) -> ToolUse:
    written = arguments.write(args)
    return ToolUse(id=gate.direct_id(call), name=tool.name, args={} if written.problem else written.shown)


def over_limit(turn: TurnContext, call: str) -> str:
    """Count an action of a turn as a tool call; return why it exceeds the limit, or an empty string."""
    return _over_limit(_WATCHES[-1], turn, call) if _WATCHES else ""


def _over_limit(watch: _Watch, turn: TurnContext, call: str) -> str:
    """Count a call; return why it exceeds the limit, or an empty string. A subagent's refused calls do not count."""
    for subagents, most in gate.limits(turn):
        if over := gate.over_limit(watch.counted.number((turn.turn_id, *subagents), call), most):
            return over
    return ""


def _given(tool_input: Any, shown: Mapping[str, Any], decided: gate.Admitted) -> Any:
    """Return a tool's input: the admitted arguments, and those that LangGraph injected."""
    if not isinstance(tool_input, dict):
        return decided.args[_TEXT] if set(decided.args) == {_TEXT} else dict(decided.args)  # the tool checks a dict
    if decided.args is shown:
        return tool_input
    given = {name: value for name, value in tool_input.items() if name not in shown}
    read = arguments.write(shown).shown
    for name, value in decided.args.items():
        if name in shown and canonical(value) == canonical(read[name]):
            given[name] = tool_input[name]  # the object itself, whose content the author approved
        elif name not in tool_input or name in shown:
            given[name] = value
    return given


class RefusedCall(ToolException):
    """A node or a tool made a call that was refused."""

    def __init__(self, text: str, tool: str) -> None:
        super().__init__(text)
        self.tool = tool


def _refusal(tool: BaseTool, refused: gate.Refused, call_id: str | None) -> ToolMessage:
    """Answer as a failed tool does: with a message to a model, otherwise with an exception."""
    if not call_id:
        raise RefusedCall(refused.text, tool.name)
    return ToolMessage(content=refused.text, name=tool.name, tool_call_id=call_id, status="error")


def _stopped(tool: BaseTool, error: ToolException, call_id: str | None) -> ToolMessage:
    """Tell the calling model which inner call was refused; raise any other failure unchanged."""
    if not call_id or not isinstance(error, RefusedCall):
        raise error
    return _refusal(tool, gate.Refused(text=f"{tool.name} stopped at its call of {error.tool}: {error}"), call_id)


def _run(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
    given, known = _judged(self, tool_input, kwargs.get("tool_call_id"))
    if isinstance(known, gate.Refused):
        return _refusal(self, known, kwargs.get("tool_call_id"))
    try:
        with bound(_PASS, None), lifetime():
            if known is None:
                return _RUN(self, given, *args, **kwargs)
            return known.around(lambda: _RUN(self, given, *args, **kwargs))
    except RefusedCall as error:
        return _stopped(self, error, kwargs.get("tool_call_id"))


async def _arun(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
    given, known = _judged(self, tool_input, kwargs.get("tool_call_id"))
    if isinstance(known, gate.Refused):
        return _refusal(self, known, kwargs.get("tool_call_id"))
    try:
        with bound(_PASS, None), lifetime():
            if known is None:
                return await _ARUN(self, given, *args, **kwargs)
            return await known.around_async(lambda: _ARUN(self, given, *args, **kwargs))
    except RefusedCall as error:
        return _stopped(self, error, kwargs.get("tool_call_id"))


def _before(tool: BaseTool, asked: overrides.Asked) -> tuple[Any, Any]:
    """Judge a call of an overriding method; return its context managers, and its input or its refusal."""
    given, known = _judged(tool, asked.given, asked.call_id)
    if isinstance(known, gate.Refused):
        return None, _refusal(tool, known, asked.call_id)
    args = given if isinstance(given, dict) else {_TEXT: given}
    about = arguments.write(arguments.chosen(tool, args, asked.call_id))
    inner = _Pass(tool=tool, call_id=asked.call_id or "", about=about, counted=True)
    contexts = (lambda: bound(_PASS, inner), lifetime)

    def stopped(error: ToolException) -> ToolMessage:
        return _stopped(tool, error, asked.call_id)

    return overrides.Around(contexts=contexts, execution=known, stopped=stopped), given


def _run_node(*args: Any, **kwargs: Any) -> Any:
    with lifetime():
        return _NODE(*args, **kwargs)


async def _arun_node(*args: Any, **kwargs: Any) -> Any:
    with lifetime():
        return await _ANODE(*args, **kwargs)


def _inject(self: ToolNode, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
    made = _INJECT(self, tool_call, *args, **kwargs)
    arguments.note_put_in(tool_call, made)
    return made


def _invoke(self: ToolNode, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002  its name there
    split = _split(self, input, config)
    if split is None:
        return _INVOKE(self, input, config, **kwargs)
    calls, kind, state = split

    def one(call: Any) -> Any:
        return _INVOKE(self, _alone(call, state), get_config(), **kwargs)

    start = _as_task(self, one)
    futures = [start(call) for call in calls]  # start all calls in order before waiting for one
    return _joined(self, [_result(future.result) for future in futures], kind)


async def _ainvoke(self: ToolNode, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002  LangGraph's signature
    split = _split(self, input, config)
    if split is None:
        return await _AINVOKE(self, input, config, **kwargs)
    calls, kind, state = split

    async def one(call: Any) -> Any:
        return await _AINVOKE(self, _alone(call, state), get_config(), **kwargs)

    start = _as_task(self, one)
    return _joined(self, await asyncio.gather(*[start(call) for call in calls], return_exceptions=True), kind)


def _as_task(node: ToolNode, one: Any) -> Any:
    """Return the function that starts a call as a separate task, whose result LangGraph keeps."""
    return task(name=node.name)(one)


def _split(node: ToolNode, given: Any, config: Any) -> tuple[list[Any], Any, Any] | None:
    """Return the calls, the form of the input and the state; None for a single call or outside a graph."""
    try:
        around = get_config()
    except RuntimeError:
        return None
    if _IN_TASK not in around.get("configurable", {}):
        return None
    calls, kind = node._parse_input(given)  # noqa: SLF001  nothing public says which calls a node is about to make
    if len(calls) < 2:
        return None
    return calls, kind, node._extract_state(given, config or around)  # noqa: SLF001  as above


def _alone(call: Any, state: Any) -> dict[str, Any]:
    return {"__type": "tool_call_with_context", "tool_call": {**call, "type": "tool_call"}, "state": state}


def _result(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  raised again after all calls have ended
        return error


def _joined(node: ToolNode, results: Sequence[Any], kind: Any) -> Any:
    """Return the node's result; raise its error, or all questions of its calls."""
    failed = [one for one in results if isinstance(one, BaseException)]
    for error in failed:
        if not isinstance(error, GraphInterrupt):
            raise error
    if failed:
        raise GraphInterrupt(tuple(question for error in failed for question in error.args[0]))
    outputs: list[Any] = []
    for result in results:
        for item in result if isinstance(result, list) else [result]:
            outputs.extend(item[node._messages_key] if isinstance(item, dict) else [item])  # noqa: SLF001
    return node._combine_tool_outputs(outputs, kind)  # noqa: SLF001  the node's own way to combine answers


def refuse_all() -> None:
    """Refuse every tool call of this process, because a watching process started it, and it does not act for a turn."""
    decider = gate.Gate({}, lambda *_call: Verdict(allowed=False))
    _install_hooks()
    _WATCHES.append(_watch(decider, None))


class _Refusing:
    """A value passed to each new process of `multiprocessing`; unpickling it refuses tools there."""

    def __reduce__(self) -> Any:
        return refuse_all, ()


def _prepare(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"turnkeeper": _Refusing(), **_PREPARE(*args, **kwargs)}


_PREPARE: Any = spawn.get_preparation_data
_OVERRIDES = overrides.Overrides(_before)


def _install_hooks() -> None:
    _OVERRIDES.install()
    for owner, hooks in _HOOKS:
        for name, hook in hooks.items():
            setattr(owner, name, hook)


def _remove_hooks() -> None:
    _OVERRIDES.remove()
    spawn.get_preparation_data = _PREPARE
    _RUNNER.run_with_retry, _RUNNER.arun_with_retry = _NODE, _ANODE
    BaseTool.run, BaseTool.arun = _RUN, _ARUN  # type: ignore[method-assign]
    ToolNode._inject_tool_args = _INJECT  # type: ignore[method-assign]  # noqa: SLF001  as it was
    for name in ("invoke", "ainvoke"):
        delattr(ToolNode, name)  # ToolNode then inherits the original method again


_HOOKS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (spawn, {"get_preparation_data": _prepare}),
    (_RUNNER, {"run_with_retry": _run_node, "arun_with_retry": _arun_node}),
    (BaseTool, {"run": _run, "arun": _arun}),
    (ToolNode, {"invoke": _invoke, "ainvoke": _ainvoke, "_inject_tool_args": _inject}),
)
