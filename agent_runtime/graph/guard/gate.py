"""The gate that decides about one tool call: it may run, the author must be asked, or it is refused.

Nothing is allowed by default. A call outside a turn never runs. A tool has one of Turnkeeper's scopes only if it is
that very tool; any other tool is `tool:<name>` and counts as a write. An approval covers one call with exactly the
content that the author saw. If an answer does not fit, the gate asks again. The gate also asks again if the category
was narrowed since, because an approval covers only the scopes that the call lacked at the question.

An approval is bound to the tool, its scope and identity (:mod:`agent_runtime.graph.guard.identity`), to the arguments
(:mod:`agent_runtime.graph.guard.arguments`) and to an id that stays the same when the call is run again. The guard
records its questions; no other question counts as one.
"""

import functools
import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from agent_runtime.graph.context import Content, ToolSpec, bound, current_turn, record_question, turn_around
from agent_runtime.graph.guard.arguments import write
from agent_runtime.graph.guard.identity import Identity, identity
from agent_runtime.model import approval
from agent_runtime.model.mapping import canonical
from agent_runtime.model.turn import Category, TurnContext, Verdict
from agent_runtime.permissions.judge import FOREIGN, approve_once, intersect, narrowed, needs_proposal, once_only
from turnkeeper.errors import Denied

_TWO = "another tool also has or had the name {0}, or the code or values of {0} have changed"
_BOUND = "{0}: an approval is only for this object, in this process"
_IN_TASK = "__pregel_call"  # in a config: the function that starts a node's own tasks


class RepeatedCalls:
    """Counters of identical calls in each run of a node."""

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
        self._outside = itertools.count()
        self._lock = threading.Lock()

    def name(self, call: str) -> str:
        """Return a name that distinguishes a call from identical calls and stays the same if the node is run again.

        Args:
            call: all known facts about the call, as text.
        """
        run = configurable().get(_IN_TASK)  # a new counter for each run of a node
        with self._lock:
            if run is None:  # the caller is never run again
                return f"{call}|outside {next(self._outside)}"
            alike = self._runs.setdefault(run, Counter())
            alike[call] += 1
            return f"{call}|{alike[call]}"


def made_id(at: str, name: str, args: Mapping[str, Any]) -> str:
    """Return an id for a call without an id; the id stays the same if its node is run again."""
    written = write(args)
    about = written.shown if written.plain and not written.problem else written.digest
    return direct_id(canonical([at, name, about]))


def direct_id(about: str) -> str:
    """Return the id of a call that no model made, from the text that identifies the call."""
    return f"direct-{hashlib.sha256(about.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def code_of(tool: BaseTool | None) -> str:
    """Return the location of a built-in tool's code: its function, or its class."""
    function = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    code = type(tool) if function is None else getattr(function, "func", function)  # the function of a partial
    return f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', type(code).__qualname__)}"


def place() -> str:
    """Return the checkpoint namespace of the running node; empty outside a graph."""
    return str(configurable().get("checkpoint_ns", ""))


def configurable() -> Mapping[str, Any]:
    """Return the configuration of the running graph; empty outside a graph."""
    try:
        return cast("Mapping[str, Any]", get_config().get("configurable", {}))
    except RuntimeError:
        return {}


Judge = Callable[[str, str, Mapping[str, Any], TurnContext], Verdict]
Narrow = Callable[[TurnContext], TurnContext]


class LimitReached(RuntimeError):
    """The turn continued to call tools long after its category's limit, and therefore fails."""


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """A tool call that a model, a graph or a tool is about to make.

    Attributes:
        tool: the tool; None if no tool has the name.
        call_id: an id that stays the same whenever LangGraph runs this call again.
        args: the arguments from the model or graph, without those that LangGraph injects.
        why: the caller's reason for the call; may be empty.
        known: scope and effect, if the call uses one of Turnkeeper's own objects in a graph, such as its store.
    """

    tool: BaseTool | None
    name: str
    call_id: str
    args: Mapping[str, Any]
    why: str = ""
    known: tuple[str, str] | None = None

    @functools.cached_property
    def identity(self) -> Identity:
        """The identity of the tool at the time of this call."""
        return Identity(digest="", inexact="") if self.tool is None else identity(self.tool)


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """An admitted call.

    Attributes:
        args: its arguments, which the author may have edited.
        context: the turn with the grants for this one call.
    """

    args: Mapping[str, Any]
    context: TurnContext


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A refused call, and the text for the model."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A call about which the author must be asked, and the value of the interrupt."""

    question: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Start:
    """A subagent that the running code belongs to, and the limit of its caller."""

    turn_id: str
    most: int
    name: str


_STARTED: ContextVar[tuple[_Start, ...]] = ContextVar("turnkeeper_subagents", default=())
NO_TURN = Refused(text="this call was made outside a turn; it was not run")
NOBODY_THERE = Refused(
    text="an earlier question of this turn got no answer, so the turn asks no more questions; this call was not run"
)
ONLY_READS = Refused(
    text="this loop only reads, and asks its author nothing; this call was not run, so continue without it"
)
OTHER_PROCESS = Refused(text="this call was made in a process other than the turn's; it was not run")


def over_limit(number: int, most: int) -> str:
    """Return why a call exceeds the limit; empty if it is within the limit.

    Args:
        number: the call's number, from 1, in its turn or in the turn's subagent.

    Raises:
        LimitReached: the turn ignored the earlier refusals.
    """
    if number <= most:
        return ""
    if number > 2 * most + 10:
        raise LimitReached(f"called tools {number} times, its category allows {most}")
    return f"the category's limit of {most} tool calls a turn is used up; finish without further calls"


def limits(turn: TurnContext) -> list[tuple[tuple[str, ...], int]]:
    """Return the limits on calls made here, the innermost subagent's first and the turn's last.

    Each limit has the path of nested subagents (empty for the whole turn), and the maximum number of their calls.
    """
    started = [one for one in _STARTED.get() if one.turn_id == turn.turn_id]
    names = tuple(one.name for one in started)
    most = [*(one.most for one in started), turn.category.tool_calls]
    return [(names[:depth], most[depth]) for depth in reversed(range(len(most)))]


def unchanged(context: TurnContext) -> TurnContext:
    """Return the turn unchanged, for graphs that run outside a runtime."""
    return context


class Gate:
    """A gate decides about calls. The turn's context holds the earlier questions to the author and his approvals."""

    def __init__(
        self,
        specs: Mapping[str, ToolSpec],
        judge: Judge,
        narrow: Narrow = unchanged,
        tools: Mapping[str, Sequence[BaseTool]] = MappingProxyType({}),
        inside: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType({}),
    ) -> None:
        """Make a gate for tools by their names.

        The judge is the pure function that knows the grants of a category. `narrow` returns the turn under its current
        category, and must never widen it. `tools` are the tools of authors' graphs, by the graph's name in turns.
        `inside` names the tools that a tool calls, by graph and tool name.
        """
        self._names = {graph: _Names(held) for graph, held in tools.items()}
        self._inside = inside
        self._specs = specs
        self._judge = judge
        self._narrow = narrow

    def turn(self, given: object = None) -> TurnContext | None:
        """Return the current turn. If it is None, the call must be refused.

        Args:
            given: LangGraph's runtime context from the graph's caller. This context can narrow the turn, as for a
                subagent, but can neither widen nor replace the turn.
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
        """Run the block as a subagent's turn, with the grants that its parent and its own category have in common.

        No graph inside can exceed these grants, with or without the yielded context. The category's limit applies to
        this subagent's calls; each call also counts for the turn.

        `admitted` is the turn as admitted for the starting call; an author's approval may have widened it.

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
        """Decide about a call; if the author must be asked, interrupt the graph.

        Raises:
            GraphInterrupt: the author has not decided yet. After the graph is resumed, the same call is decided again.
        """
        answer = None
        while isinstance(decided := self.decide(request, turn, answer), Asked):
            answer = _ask(decided.question)  # returns the next answer, or waits for one
        return decided

    def decide(self, request: CallRequest, turn: TurnContext, answer: object = None) -> Admitted | Asked | Refused:
        """Decide about a call, whose question was answered with `answer`; an answer that does not fit is ignored."""
        scope, effect = self.named(request)
        verdict = self._judge(scope, effect, request.args, turn)
        if verdict.allowed and (why := self._asks_again(request, turn)):
            verdict = Verdict(allowed=False, missing_scope=scope, reason=why, lacking=(scope,))
        if not verdict.allowed:
            return self._put_to_author(request, turn, "permission", verdict, answer)
        halts = needs_proposal(scope, effect, turn)
        # The author decides a call about which the turn has asked, even if the call is granted now.
        was_asked = bool(turn.asked) and self._call(request, verdict, turn).was_asked(turn.asked)
        if was_asked or (halts and not turn.writes_approved):
            name = turn.category.name
            why = f"category {name} is not autonomous; approving covers this turn's other writes"
            asked_before = Verdict(allowed=True, missing_scope=scope, reason=why if halts else "it was asked before")
            return self._put_to_author(request, turn, "proposal" if halts else "permission", asked_before, answer)
        return Admitted(args=request.args, context=turn)

    def named(self, request: CallRequest) -> tuple[str, str]:
        """Return a call's scope and effect."""
        if request.known is not None:
            return request.known
        spec = self._specs.get(request.name)
        if spec is None or request.tool is None or spec.tool is not request.tool:
            return f"{FOREIGN}{request.name}", "write"
        return spec.scope, spec.effect

    def hash_of(self, graph: str, name: str) -> str:
        """Return the digest of a graph's only tool with a name; empty if no tool or several tools have the name."""
        digest = self._names[graph].only(name) if graph in self._names else ""
        return approval.tool_hash(name, f"{FOREIGN}{name}", digest) if digest and name not in self._specs else ""

    def _asks_again(self, request: CallRequest, turn: TurnContext) -> str:
        """Return why the grant of a call's scope does not cover the call; empty if the grant covers it."""
        if request.known is None and self.named(request)[0].startswith(FOREIGN) and self._is_shared(request, turn):
            return f"{_TWO.format(request.name)}, so no category grants either"
        return self._content(request, turn).asks

    def _content(self, request: CallRequest, turn: TurnContext) -> Content:
        """Return the present content of a call's tool; for a built-in tool, the location of its code."""
        if self._is_foreign(request):
            return Content(digest=request.identity.digest, inexact=request.identity.inexact)
        spec = self._specs.get(request.name)
        if spec is None or spec.content is None or request.known is not None:
            return Content(digest=code_of(request.tool))
        return spec.content(f"{turn.turn_id}|{request.call_id}")

    def _is_foreign(self, request: CallRequest) -> bool:
        return request.known is None and request.tool is not None and self.named(request)[0].startswith(FOREIGN)

    def _is_shared(self, request: CallRequest, turn: TurnContext) -> bool:
        return self._names.setdefault(turn.graph, _Names(())).is_shared(request)

    def _call(self, request: CallRequest, verdict: Verdict, turn: TurnContext) -> approval.AskedCall:
        written, scope = write(request.args), self.named(request)[0]
        foreign = self._is_foreign(request)
        told = foreign and written.plain and set(verdict.lacking) <= {scope}
        return approval.AskedCall(
            told=told and not self._is_shared(request, turn),
            tool=request.name,
            scope=scope,
            code=self._content(request, turn).digest,
            call_id=request.call_id,
            shown=written.shown,
            content=written.digest,
            plain=written.plain,
            lacking=verdict.lacking,
            missing_scope=verdict.missing_scope,
        )

    def _put_to_author(
        self, request: CallRequest, turn: TurnContext, kind: approval.Guarded, verdict: Verdict, answer: Any
    ) -> Admitted | Asked | Refused:
        """Return the question to the author, or the author's decision if `answer` fits and still covers the call."""
        if problem := write(request.args).problem:
            return Refused(text=f"this call cannot be put to the author, and was not run: {problem}")
        call = self._call(request, verdict, turn)
        if (turn.unanswered or not turn.asks) and not call.was_asked(turn.asked):
            return NOBODY_THERE if turn.asks else ONLY_READS
        fits = answer is not None and approval.answers_call(answer, call, turn.thread_id)
        if not fits or (answer["decision"] in {"approve", "edit"} and not approval.covers(answer, call)):
            since = "its category was narrowed since" if fits else approval.why_not_bound(answer, call)
            why = self._why(request, turn, verdict)
            told = f"you approved this call, and {since}; approve again to run it: {why}" if since else why
            hashes = {name: write({name: value}).digest for name, value in request.args.items()}
            call = replace(call, arg_hashes=hashes, once_only=self._once_only(request, turn, verdict))
            return Asked(question=approval.ask(kind, call, told))
        decision = answer["decision"]
        args = request.args if decision == "approve" else answer.get("args")
        if decision in {"approve", "edit"} and isinstance(args, Mapping):
            scope, effect = self.named(request)
            return Admitted(args=args, context=approve_once(scope, effect, args, turn))
        because = str(answer.get("message", ""))
        if decision == approval.EXPIRED:
            return Refused(text=f"{because}: this call was not run; finish without it")
        return Refused(text=f"the author refused this call: {because}" if because else "the author refused this call")

    def _why(self, request: CallRequest, turn: TurnContext, verdict: Verdict) -> str:
        """Return why the author is asked, the agent's reason for the call, and the calls inside its tool."""
        started = [one.name for one in _STARTED.get() if one.turn_id == turn.turn_id]
        why = f"the subagent {started[-1]} asks: {verdict.reason}" if started else verdict.reason
        inexact, inner = self._content(request, turn).inexact, self._inside.get(turn.graph, {}).get(request.name)
        why += f"; {_BOUND.format(inexact)}" if inexact else ""
        why += f"; the agent says: {request.why}" if request.why else ""
        if inner and self.named(request)[0] == f"{FOREIGN}{request.name}":
            why += f"; inside it may call {', '.join(inner)}: each is judged separately"
        return why

    def _once_only(self, request: CallRequest, turn: TurnContext, verdict: Verdict) -> str:
        """Return why the author must approve this call each time; empty if a standing exception is possible."""
        if request.known is None and request.tool is None:
            return "no tool has this name"
        scope = self.named(request)[0]
        if request.known is None and scope.startswith(FOREIGN) and self._is_shared(request, turn):
            return _TWO.format(request.name)
        content = self._content(request, turn)
        if content.inexact:
            return _BOUND.format(content.inexact)
        return content.asks or once_only(scope, verdict.lacking)


def _ask(question: dict[str, Any]) -> Any:
    """Interrupt the graph with a question of the guard, and record it; return the answer if there already is one."""
    try:
        return interrupt(question)
    except GraphInterrupt as asked:
        for one in asked.args[0]:
            record_question(one.id, question)
        raise


class _Names:
    """The owners of tool names. A grant names one tool; if two tools have the name, it counts for neither of them."""

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        self._found = {id(tool): (tool, tool.name) for tool in tools}
        self._digests = {tool.name: identity(tool).digest for tool in tools}
        self._shared = set(shared_names(tools))

    def is_shared(self, request: CallRequest) -> bool:
        """Return whether another tool of the graph or of this process has this name, or had it before."""
        digest = request.identity.digest
        _tool, name = self._found.get(id(request.tool), (None, request.name))
        if name != request.name or self._digests.setdefault(request.name, digest) != digest:
            self._shared.add(request.name)
        return request.name in self._shared

    def only(self, name: str) -> str:
        """Return the digest of the only tool with a name; empty if another tool has the name, or had it before."""
        digests = {identity(tool).digest for tool, was in self._found.values() if name in {was, tool.name}}
        return digests.pop() if len(digests) == 1 and name not in self._shared else ""


def shared_names(tools: Sequence[BaseTool]) -> frozenset[str]:
    known: dict[str, str] = {}
    digests = [(tool.name, identity(tool).digest) for tool in tools]
    return frozenset(name for name, digest in digests if known.setdefault(name, digest) != digest)
