"""The gate that decides about one tool call: it may run, the author must be asked, or it is refused.

Nothing is allowed by default. A call outside a turn never runs. A tool has one of our scopes only if it is
that very tool, whatever its name; any other is `tool:<name>` and counts as a write. An approval holds for one call with
exactly the arguments that the author saw; an answer that does not fit counts for nothing, and the author is asked anew.

An approval is bound to the arguments and to an id that is equal when the call is run again. The author approves all of
a tool's arguments but those that LangGraph itself put in. An annotation or a name tells where a value should come from,
but whoever calls the tool may give another, which may be a model's. So only a value that is LangGraph's own is left
out: by its class, or because a `ToolNode` put this very object into this very call. An object that cannot be written
down is not shown either, where the tool marks it as injected: no model gives one.
"""

import dataclasses
import hashlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, cast
from uuid import UUID  # noqa: TID251  the class, to know one by; none is made here
from weakref import WeakKeyDictionary

from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.prebuilt import ToolRuntime
from langgraph.prebuilt.tool_node import _get_all_injected_args
from langgraph.store.base import BaseStore
from langgraph.types import interrupt
from pydantic import BaseModel

from agent_runtime.graph.context import ToolSpec, bound, current_turn, turn_around
from agent_runtime.model.approval import answers_call, ask, call_key, canonical, hash_args
from agent_runtime.model.turn import Category, TurnContext, Verdict
from agent_runtime.permissions.judge import FOREIGN, approve_once, intersect, narrowed, needs_proposal
from turnkeeper.errors import Denied

_PLAIN = (str, int, float, bool, type(None))
_WRITTEN = (Enum, Decimal, date, time, timedelta, UUID, PurePath, bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Names:
    """Names of arguments that no model should fill in.

    Attributes:
        marked: a tool's class or function says so of them.
        replaced: what a model gives for them, a `ToolNode` takes out or puts its own in the place of.
    """

    marked: frozenset[str]
    replaced: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _PutIn:
    """What a `ToolNode` put into the call that it makes next."""

    tool: str
    call_id: str
    values: Mapping[str, Any]


_KNOWN: dict[int, tuple[weakref.ref[BaseTool], _Names]] = {}
_PUT_IN: ContextVar[_PutIn | None] = ContextVar("turnkeeper_put_in", default=None)


def note_put_in(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Remember what LangGraph put into a call, given the call before and after, for what is done with it next."""
    had = before["args"]
    values = {name: value for name, value in after["args"].items() if name not in had or had[name] is not value}
    _PUT_IN.set(_PutIn(tool=before["name"], call_id=before["id"] or "", values=values))


def chosen(tool: BaseTool, args: Mapping[str, Any], call_id: str | None = None) -> dict[str, Any]:
    """Return the arguments that an approval is about, objects of an injected one as what they hold.

    Where the call has an id, what LangGraph put into this very call is left out.
    """
    marked, put_in = _names_of(tool).marked, _PUT_IN.get()
    own: Mapping[str, Any] = {}
    if call_id and put_in is not None and (put_in.tool, put_in.call_id) == (tool.name, call_id):
        own = put_in.values
    shown: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, ToolRuntime | BaseStore) or (name in own and own[name] is value):
            continue
        if name not in marked:
            shown[name] = value
        elif not _opaque(value):
            shown[name] = _read(value)
    return shown


def sent_by_model(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `ToolNode` leaves of the arguments that a model wrote."""
    return {name: value for name, value in args.items() if name not in _names_of(tool).replaced}


def _opaque(value: Any) -> bool:
    """Return whether an object cannot be written down so that it reads the same when its node is run again."""
    readable = (*_PLAIN, *_WRITTEN, Mapping, list, tuple, set, frozenset, BaseModel)
    return not isinstance(value, readable) and not _is_record(value)


def _read(value: Any) -> Any:
    """Return what an object holds, in what JSON has; an object inside that cannot be written down as its class."""
    if isinstance(value, (*_PLAIN, *_WRITTEN)):
        return value if isinstance(value, _PLAIN) else str(value)
    if _is_record(value):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping | BaseModel):
        return {str(name): _read(inner) for name, inner in dict(value).items()}
    if isinstance(value, set | frozenset):
        return sorted((_read(inner) for inner in value), key=repr)
    return [_read(inner) for inner in value] if isinstance(value, list | tuple) else f"<{type(value).__name__}>"


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _names_of(tool: BaseTool) -> _Names:
    key = id(tool)
    known = _KNOWN.get(key)
    if known is not None and known[0]() is tool:
        return known[1]
    found = _get_all_injected_args(tool)
    replaced = {name for name in (*found.state, found.store, found.runtime) if name} | found.all_injected_keys
    marked = found.all_injected_keys | tool._injected_args_keys  # noqa: SLF001  what a schema leaves out
    names = _Names(marked=frozenset(marked), replaced=frozenset(replaced))
    _KNOWN[key] = (weakref.ref(tool, lambda _gone: _KNOWN.pop(key, None)), names)
    return names


_IN_TASK = "__pregel_call"  # in a config: the function by which a node starts tasks of its own


class RepeatedCalls:
    """Counts, for each run of a node, the calls that are exactly alike."""

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
        self._outside = itertools.count()
        self._lock = threading.Lock()

    def name(self, call: str) -> str:
        """Return a name for a call that tells it from calls exactly like it: equal whenever the node is run again.

        Args:
            call: all that is known of it.
        """
        run = configurable().get(_IN_TASK)  # made anew for each run of a node
        with self._lock:
            if run is None:  # nothing runs it again
                return f"{call}|outside {next(self._outside)}"
            alike = self._runs.setdefault(run, Counter())
            alike[call] += 1
            return f"{call}|{alike[call]}"


def made_id(at: str, name: str, args: Mapping[str, Any]) -> str:
    """Return an id for a call that has none: equal whenever its node is run again."""
    return "direct-" + hashlib.sha256(canonical([at, name, args]).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def place() -> str:
    """Return the checkpoint namespace of the running node, or nothing outside a graph."""
    return str(configurable().get("checkpoint_ns", ""))


def configurable() -> Mapping[str, Any]:
    """Return what the running graph was configured with, or nothing outside a graph."""
    try:
        return cast("Mapping[str, Any]", get_config().get("configurable", {}))
    except RuntimeError:
        return {}


Judge = Callable[[str, str, Mapping[str, Any], TurnContext], Verdict]
Narrow = Callable[[TurnContext], TurnContext]


class LimitReached(RuntimeError):
    """A turn went on calling tools long after its category's limit; it fails."""


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """A tool call that a model, a graph or a tool is about to make.

    Attributes:
        tool: the tool; None where there is none of that name.
        name: the name it was called by.
        call_id: equal whenever LangGraph runs this call again.
        args: the arguments that a model or a graph chose, without those that LangGraph injects.
        why: what the caller says that it is good for; empty for nothing.
        known: scope and effect, where not a tool is called but something of ours that a graph holds: its store.
    """

    tool: BaseTool | None
    name: str
    call_id: str
    args: Mapping[str, Any]
    why: str = ""
    known: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A call that may run, as it may run.

    Attributes:
        args: its arguments, which the author may have edited.
        context: the turn under what is granted to this call; for this call only.
    """

    args: Mapping[str, Any]
    context: TurnContext


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A call that does not run, and what the model is told of it."""

    text: str


@dataclass(frozen=True, kw_only=True)
class _Start:
    """A subagent that was started around this line of code, and the limit of what started it."""

    turn_id: str
    most: int
    name: str


_STARTED: ContextVar[tuple[_Start, ...]] = ContextVar("turnkeeper_subagents", default=())
NO_TURN = Refused(text="this call was made outside a turn; it was not run")


def over_limit(number: int, most: int) -> str:
    """Return why a turn's call is one too many, or nothing.

    Args:
        number: the call's number, from 1, in its turn or in what a subagent does of it.
        most: the category's limit.

    Raises:
        LimitReached: the turn was told, and does not take the hint.
    """
    if number <= most:
        return ""
    if number > 2 * most + 10:
        raise LimitReached(f"called tools {number} times, its category allows {most}")
    return f"the category's limit of {most} tool calls a turn is used up; finish without further calls"


def limits(turn: TurnContext) -> list[tuple[tuple[str, ...], int]]:
    """Return the limits on calls made here, the innermost subagent's first and the turn's last.

    Each names the subagents that were started one inside the other, none for the whole turn, and the most calls that
    may be made there.
    """
    started = [one for one in _STARTED.get() if one.turn_id == turn.turn_id]
    names = tuple(one.name for one in started)
    most = [*(one.most for one in started), turn.category.tool_calls]
    return [(names[:depth], most[depth]) for depth in reversed(range(len(most)))]


def unchanged(context: TurnContext) -> TurnContext:
    """Return the turn as it is: for graphs that run without a runtime around them."""
    return context


class Gate:
    """Decides about calls. Holds no state: the turn tells what the author was asked and approved before."""

    def __init__(self, specs: Mapping[str, ToolSpec], judge: Judge, narrow: Narrow = unchanged) -> None:
        """Make a gate for tools by their names.

        The judge is the pure function that knows what a category grants. `narrow` gives the turn under its category as
        it is at this moment, and must never widen it.
        """
        self._specs = specs
        self._judge = judge
        self._narrow = narrow

    def turn(self, given: object = None) -> TurnContext | None:
        """Return the turn around this line of code as it is now; None where there is none, which means: refuse.

        Args:
            given: LangGraph's runtime context, which whoever starts a graph chooses. It can narrow the turn, as it does
                for a subagent; it can neither widen it nor make one.
        """
        turn = current_turn()
        if turn is None:
            return None
        if isinstance(given, TurnContext) and given is not turn:
            if given.turn_id != turn.turn_id or given.thread_id != turn.thread_id:
                return None
            category = intersect(turn.category, given.category)
            turn = replace(turn, category=category, read_only=turn.read_only or given.read_only)
        return self._narrow(turn)

    @contextmanager
    def subagent(self, category: Category, admitted: TurnContext | None = None) -> Iterator[TurnContext]:
        """Put a subagent's turn around the block: its parent's, under what both their categories grant.

        Whatever graph is run inside, with the context that this gives or with none, cannot do more. Its category's
        limit of calls is for what this subagent does in the turn; each of its calls is one of the turn's too.

        `admitted` is the turn as the call that starts it was admitted, which an author's approval may have widened.

        Raises:
            Denied: there is no turn, or its category does not let it start this subagent.
        """
        turn = self.turn()
        if turn is None:
            raise Denied("a subagent is started inside a turn", where=f"subagents:{category.name}")
        start = _Start(turn_id=turn.turn_id, most=turn.category.tool_calls, name=category.name)
        granted = admitted if admitted is not None and admitted.turn_id == turn.turn_id else turn
        with turn_around(narrowed(granted, category)) as inner, bound(_STARTED, (*_STARTED.get(), start)):
            yield inner

    def admit(self, request: CallRequest, turn: TurnContext) -> Admitted | Refused:
        """Decide; where the author must be asked, interrupt the graph.

        Raises:
            GraphInterrupt: the author has not decided yet. When the graph is resumed, this same call comes here again.
        """
        scope, effect = self.named(request)
        verdict = self._judge(scope, effect, request.args, turn)
        if not verdict.allowed:
            return self._put_to_author(request, turn, "permission", verdict)
        halts = needs_proposal(scope, effect, turn)
        # A call that was put to the author is his to decide, though by now it might run without him.
        if call_key(request.call_id, hash_args(request.args)) in turn.asked or (halts and not turn.writes_approved):
            name = turn.category.name
            why = f"category {name} does not act by itself; approving covers this turn's other writes"
            asked_before = Verdict(allowed=False, missing_scope=scope, reason=why if halts else "it was asked before")
            return self._put_to_author(request, turn, "proposal" if halts else "permission", asked_before)
        return Admitted(args=request.args, context=turn)

    def named(self, request: CallRequest) -> tuple[str, str]:
        """Return a call's scope and effect."""
        if request.known is not None:
            return request.known
        spec = self._specs.get(request.name)
        if spec is None or request.tool is None or spec.tool is not request.tool:
            return f"{FOREIGN}{request.name}", "write"
        return spec.scope, spec.effect

    def _put_to_author(
        self, request: CallRequest, turn: TurnContext, kind: Literal["permission", "proposal"], verdict: Verdict
    ) -> Admitted | Refused:
        """Interrupt; when the author has decided, this is reached again and `interrupt` returns the decision."""
        started = [one.name for one in _STARTED.get() if one.turn_id == turn.turn_id]
        reason = f"the subagent {started[-1]} asks: {verdict.reason}" if started else verdict.reason
        why = f"{reason}; the agent says: {request.why}" if request.why else reason
        args, call_id = request.args, request.call_id
        question = ask(kind, tool=request.name, args=args, call_id=call_id, scope=verdict.missing_scope, why=why)
        answer = interrupt(question)
        while not answers_call(answer, args=args, call_id=call_id, thread_id=turn.thread_id):
            answer = interrupt(question)  # ends: each round takes up one answer, or stops the graph to wait for one
        decision, edited = answer["decision"], answer.get("args")
        if decision == "approve":
            return self._approved(request, turn, request.args)
        if decision == "edit" and isinstance(edited, dict):
            return self._approved(request, turn, edited)
        because = str(answer.get("message", ""))
        return Refused(text=f"the author refused this call: {because}" if because else "the author refused this call")

    def _approved(self, request: CallRequest, turn: TurnContext, args: Mapping[str, Any]) -> Admitted:
        scope, effect = self.named(request)
        return Admitted(args=args, context=approve_once(scope, effect, args, turn))
