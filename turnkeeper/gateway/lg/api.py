"""Code that handlers of the LangGraph API share: callers, request bodies, assistants, and the state of threads."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property, partial, wraps
from typing import Any
from uuid import NAMESPACE_URL, uuid5  # noqa: TID251 - made from a name: nothing is drawn

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from turnkeeper.config.json_text import read_value
from turnkeeper.errors import Exhausted, InvalidInput, NotFound, meant
from turnkeeper.gateway.calls import MOST_OF_API, MOST_STREAMS, SILENT, Gateway, need
from turnkeeper.gateway.door import LARGEST_BODY
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg.approvals import Served, to_interrupt
from turnkeeper.gateway.lg.conversation import FINISHED, OWN, is_uuid, run_of, thread_of
from turnkeeper.gateway.lg.events import Event
from turnkeeper.gateway.lg.requests import Once, checked, configurable
from turnkeeper.gateway.streams import EventStream, event
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire

_DEEPEST = 128  # nesting levels of a body; an edited tool call may have 100
MOST_LISTED = 1000  # threads or crons in one answer
MOST_READ = 5000  # newest threads that a search reads, if its caller may see each of them
PAGE = 500  # threads in one answer of the daemon
LOOK_S = 1.0  # seconds between polls of a turn that its conversation does not show
AWAY_S = 0.5  # seconds between attempts to reach a daemon that is unavailable
LONGEST_AWAY = 240  # attempts before a stream is closed
Handler = Callable[["Call"], Awaitable[Any]]
Routes = tuple[tuple[str, str, Handler, Scope, str], ...]


def parsed(text: str) -> Any:
    """Return the JSON of a body or of a frame; an empty object if it is empty. Raises InvalidInput."""
    return read_value(text, where="body", longest=LARGEST_BODY, deepest=_DEEPEST) if text.strip() else {}


def number(given: Any, name: str, default: int) -> int:
    """Return a number from a request, or its default. Raises InvalidInput."""
    try:
        found = int(default if given is None else given)
    except (TypeError, ValueError) as error:
        raise InvalidInput("is not a number", where=name) from error
    most = MOST_LISTED if name == "limit" else MOST_READ
    if not 0 <= found <= most:
        raise InvalidInput(f"must be from 0 to {most}", where=name)
    return found


def page_of(found: Sequence[Any], body: Mapping[str, Any], default: int = 10) -> tuple[list[Any], dict[str, str]]:
    """Return the requested page, and the headers that describe the other pages. Raises InvalidInput."""
    limit, offset = number(body.get("limit"), "limit", default), number(body.get("offset"), "offset", 0)
    headers = {"x-pagination-total": str(len(found))}
    if offset + limit < len(found):
        headers["x-pagination-next"] = str(offset + limit)
    return list(found[offset : offset + limit]), headers


def ordered(found: list[dict[str, Any]], body: Mapping[str, Any], default: str) -> list[dict[str, Any]]:
    """Sort objects in the order that the client requests, by default newest first. Raises InvalidInput."""
    by = str(body.get("sort_by") or default)
    if found and by not in found[0]:
        raise InvalidInput(f"{by[:40]!r} is not a field to sort by", where="sort_by")
    newest = str(body.get("sort_order") or "desc").lower() == "desc"
    return sorted(found, key=lambda one: str(one[by] or ""), reverse=newest)


def selected(found: dict[str, Any], select: object) -> dict[str, Any]:
    """Return only the fields that a client selects, or all fields if it selects none."""
    names = select.split(",") if isinstance(select, str) else select
    if not isinstance(names, list) or not names:
        return found
    wanted = {str(name).partition(".")[0] for name in names}
    return {name: value for name, value in found.items() if name in wanted}


def with_fields(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with values that are an object: any other value becomes the field `value`."""
    if not isinstance(state["values"], dict):
        state["values"] = {"value": state["values"]}
    return state


def page(found: Sequence[dict[str, Any]], body: Mapping[str, Any]) -> JSONResponse:
    """Answer with the requested page of objects, each with the fields that the client selects."""
    shown, headers = page_of(found, body)
    return JSONResponse([selected(one, body.get("select")) for one in shown], headers=headers)


def assistant_id(name: str) -> str:
    """Return the id of the assistant with this name.

    >>> assistant_id("agent0")
    '6d1d3862-7f10-5e24-b465-4276d1eb94d7'
    """
    return str(uuid5(NAMESPACE_URL, f"turnkeeper:assistant:{name}"))


def in_daemons(graph: wire.Graph) -> str:
    """Return the name of an assistant or a graph in the daemons; empty for the default one."""
    return "" if graph.is_default else graph.name


class Api:
    """State that all requests share."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.served = Served()
        self.once = Once(lambda: gateway.entropy.hex(32))
        self.channel, self.category = gateway.settings.web.langgraph_channel, gateway.settings.web.langgraph_category
        self.since = self.now()
        self.default = gateway.settings.default_graph
        self.default = OWN if self.default == "default" else self.default

    def now(self) -> str:
        return rfc3339(self.gateway.clock.now())

    def name_of(self, graph: str) -> str:
        """Return the name under which clients know the graph of a thread or task."""
        return self.default if graph in {"", OWN, self.gateway.settings.default_graph} else graph

    def route(self, method: str, path: str, handler: Handler, scope: Scope, act: str) -> Route:
        """Return the route of a handler, for callers with this scope. A handler returns an answer, or its JSON.

        The name of the route is the act about which the login of a project is asked; empty if its users may not do it.
        """

        @wraps(handler)
        async def answer(request: Request) -> Any:
            need(request, scope)  # before the body is read
            found = await handler(Call(self, request, scope, await request.body()))
            return found if callable(found) else JSONResponse(found)

        return Route(path, answer, methods=[method], name=act)


class Call:
    """A client's request: its caller, its content, and the daemons' answers to the caller.

    Attributes:
        daemons: the methods of both daemons, called on behalf of the caller.
        has_begun: True once the answer is being sent. From then on, a request waits for a daemon that is away.
        thread_id: the thread in the path; empty if there is none.
        key: the `Idempotency-Key`; empty if there is none.
    """

    def __init__(self, api: Api, request: HTTPConnection, scope: Scope, content: bytes = b"") -> None:
        """Raise Denied if the caller does not have this scope."""
        self.api, self.request, self.who = api, request, need(request, scope)
        self.method = request.scope.get("method", "")
        self.daemons, self.clock = api.gateway.daemons(self.who), api.gateway.clock
        self.has_begun = False
        self.path, self.query, self._content = request.path_params, request.query_params, content
        self.thread_id: str = self.path.get("thread_id", "")
        self.key: str = request.headers.get("idempotency-key", "")

    @cached_property
    def json(self) -> Any:
        """The JSON of the request. Raises InvalidInput."""
        try:
            return parsed(self._content.decode())
        except UnicodeDecodeError as error:
            raise InvalidInput("is not UTF-8", where="body") from error

    @cached_property
    def body(self) -> dict[str, Any]:
        """The JSON object of the request. An empty body counts as an empty object. Raises InvalidInput."""
        if not isinstance(self.json, dict):
            raise InvalidInput("is not a JSON object", where="body")
        return checked(self.json)

    def says(self, name: str) -> bool:
        """Return True if the query sets an option."""
        return self.query.get(name, "").lower() in {"1", "true"}

    async def ask(self, request: Any) -> Any:
        """Send a request to the method of its type, and return the answer."""
        ask = partial(self.daemons.ask, request)
        return await (self.ask_until_answered(ask) if self.has_begun else ask())

    async def ask_until_answered(self, ask: Callable[[], Awaitable[Any]], more: int = LONGEST_AWAY) -> Any:
        """Return the result of `ask`. Repeat it, at most `more` times, while a daemon or its disk is away."""
        for left in reversed(range(more + 1)):
            try:
                return await ask()
            except SILENT:
                if not left:
                    raise
                await self.clock.sleep(AWAY_S)
        return None

    def stream(self, events: AsyncGenerator[Event], headers: Mapping[str, str] | None = None) -> EventStream:
        self.has_begun = True
        return EventStream(_encoded(events), self.api.gateway.streams, headers=headers)

    def long_answer(self, parts: AsyncIterator[bytes], headers: Mapping[str, str]) -> EventStream:
        """Send JSON that takes long, after spaces that keep the connection open. Such an answer counts as a stream."""
        self.has_begun = True
        whole = {**headers, "content-type": "application/json"}
        return EventStream(parts, self.api.gateway.streams, headers=whole, ping=b" ")

    def need_room(self) -> None:
        """Raise Exhausted before any work begins, if the answer to this request would exceed the limit of streams."""
        if self.api.gateway.streams.full(self.who):
            detail = f"at most {MOST_STREAMS} streams are open at once, and {MOST_OF_API} of one client"
            raise Exhausted(detail, hint="close another, or start the run without waiting for it")

    async def assistants(self) -> list[wire.Graph]:
        """Return all graphs and assistants. Turnkeeper's own agent has the name that clients know."""
        found = list((await self.ask(wire.ListGraphsRequest())).graphs)
        default = next((one.name for one in found if one.is_default), "")
        for one in found:
            if one.is_default:
                one.name = self.api.default
            elif one.graph == default:
                one.graph = self.api.default
        return found

    async def graph_of(self, given: str) -> wire.Graph:
        """Return an assistant of config.toml, or the graph of one that a client made. Raises NotFound."""
        made = await self.made(given)
        given = json.loads(made.fields_json)["graph_id"] if made is not None else given
        known = await self.assistants()
        for one in known:
            names = {one.name, assistant_id(one.name)}
            names |= {one.graph, OWN, assistant_id(OWN)} if one.is_default else set()
            if given in names:
                return one
        raise NotFound(f"assistant {given[:80]!r} not found", hint=meant(given, [one.name for one in known]))

    async def made(self, given: str) -> wire.Assistant | None:
        """Return the assistant with this id that a client made, with its versions, or None if there is none."""
        if not is_uuid(given):
            return None
        found = (await self.ask(wire.ListAssistantsRequest(assistant_id=given))).assistants
        return found[0] if found else None

    async def completed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with the config and context of the assistant that it names. Its own keys take precedence."""
        made = await self.made(str(body.get("assistant_id") or ""))
        if made is None:
            return dict(body)
        fields = json.loads(made.fields_json)
        whole = {**fields["config"], **(body.get("config") or {})}
        if inner := configurable(fields) | configurable(body):
            whole["configurable"] = inner
        return {**body, "config": whole, "context": {**fields["context"], **(body.get("context") or {})}}

    async def thread(self, thread_id: str = "") -> wire.Thread:
        """Return a thread, by default the one in the path. Raises NotFound.

        If a run was accepted and has not begun, the thread's status says so.
        """
        of = thread_id or self.thread_id
        queued = await self.ask(wire.ListWaitingRunsRequest(thread_id=of))
        found: wire.Thread = await _of_thread(of, self.ask(wire.GetThreadRequest(thread_id=of)))
        if found.status in FINISHED | {""} and any(turn.status == "accepted" for turn in queued.turns):
            found.status = "accepted"
        return found

    async def runs(self, turns: Sequence[wire.Turn], **rest: Any) -> list[dict[str, Any]]:
        """Return turns as runs. A run of a deleted assistant names the assistant of its graph."""
        given = {json.loads(turn.run_json or "{}").get("assistant_id", "") for turn in turns}
        gone = [one for one in given if await self.made(one) is None]
        return [run_of(turn, assistant_id(self.api.name_of(turn.graph)), gone, **rest) for turn in turns]

    async def values(self, thread_id: str, asked: Iterable[wire.Interrupt]) -> dict[str, Any]:
        """Return the newest values of a thread's state, with its pending approvals."""
        waits = [to_interrupt(one) for one in asked]
        return {**(await self.state(thread_id))["values"], **({"__interrupt__": waits} if waits else {})}

    async def state(self, thread_id: str, **how: Any) -> dict[str, Any]:
        """Return a state of a thread. Raises NotFound."""
        found = await _of_thread(thread_id, self.ask(wire.GetStateRequest(thread_id=thread_id, **how)))
        return with_fields(json.loads(found.state_json))

    async def asked(self, thread_id: str, status: str = "pending") -> list[wire.Interrupt]:
        """Return the approvals of a thread, by default the pending ones."""
        request = wire.ListInterruptsRequest(thread_id=thread_id, status=status, all=not status)
        return list((await self.ask(request)).interrupts)

    async def shown(self, thread: wire.Thread, *, values: bool = True) -> dict[str, Any]:
        """Return a thread in the client's format, and record the approvals that it shows."""
        asked = await self.seen(thread.thread_id) if thread.waiting else []
        found = (await self.state(thread.thread_id))["values"] if values else None
        name = self.api.name_of(thread.graph)
        return thread_of(thread, found, asked, name, assistant_id(name))

    async def seen(self, thread_id: str) -> list[wire.Interrupt]:
        """Return the pending approvals of a thread, and record that a client gets them."""
        asked = await self.asked(thread_id)
        self.api.served.show(self.who.key, thread_id, asked)
        return asked


async def _of_thread(thread_id: str, answer: Awaitable[Any]) -> Any:
    """Return a daemon's answer about a thread. Raises NotFound, in the clients' words if the thread is unknown."""
    try:
        return await answer
    except NotFound as error:
        if error.where != "thread_id":
            raise
        raise NotFound(f"thread {thread_id[:80]!r} not found", hint="see: threads.search()") from error


async def _encoded(events: AsyncGenerator[Event]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        async for one in events:
            yield event(json.dumps(one.data, ensure_ascii=False), name=one.name, id_=one.id)


class Followed:
    """A thread that is followed while a turn runs on it.

    Attributes:
        turn_id: the turn to wait for; it changes if the message became the answer to a question.
        status: the last status seen of that turn; empty before that.
    """

    def __init__(self, call: Call, thread_id: str, turn_id: str = "", *, resumed: bool = False, after: int = 0) -> None:
        """Follow a turn of the thread or, if none is named, all turns, from the event after number `after`."""
        self._call, self._thread_id = call, thread_id
        self.turn_id, self._resumed, self._after = turn_id, resumed, after
        self.status = self.error = ""
        self.ended = False

    async def end(self) -> None:
        """Wait until the turn is over or waits for a person."""
        async with aclosing(self.changes()) as changes:
            async for _ in changes:
                pass

    async def changes(self) -> AsyncGenerator[wire.RunEvent]:
        """Yield the events of the turn until it is over or waits for a person, or of all turns if none is named.

        While the daemon is unavailable, try again; after a while, raise its error.
        """
        away = 0
        while not self.ended:
            try:
                async for change in self._watched():
                    away = 0
                    yield change
            except SILENT:
                away += 1
                self._after = 0  # a runtime that was restarted counts from one
                if away > LONGEST_AWAY:
                    raise
                await self._call.clock.sleep(AWAY_S)

    async def _watched(self) -> AsyncGenerator[wire.RunEvent]:
        of = self.turn_id
        request = wire.WatchRunRequest(thread_id=self._thread_id, turn_id=of, resumed=self._resumed, after=self._after)
        async with aclosing(self._call.daemons.WatchRun(request)) as stream:
            upcoming: asyncio.Future[Any] | None = None
            try:
                while not self.ended and of == self.turn_id:
                    upcoming = upcoming or asyncio.ensure_future(anext(stream, None))
                    await asyncio.wait({upcoming}, timeout=LOOK_S)
                    if upcoming.done():
                        change, upcoming = upcoming.result(), None
                        if change is None:
                            return
                        self._after = change.number or self._after
                        await self._take(change)
                        yield change
                    elif self.turn_id:
                        await self._look()
            finally:
                if upcoming is not None:
                    upcoming.cancel()
                    await asyncio.gather(upcoming, return_exceptions=True)

    async def _take(self, change: wire.RunEvent) -> None:
        if change.mode != "status" or not self.turn_id:
            return
        self.status = json.loads(change.data_json)["status"]
        if self.status in FINISHED:
            self.error = (await self._call.ask(wire.GetTurnRequest(turn_id=self.turn_id))).error
            self.ended = True
        elif self.status == "interrupted":
            self.ended = bool(await self._call.asked(self._thread_id))

    async def _look(self) -> None:
        """Request the turn itself, because a message may be kept, or become the answer to a question."""
        turn = await self._call.ask(wire.GetTurnRequest(turn_id=self.turn_id))
        if turn.turn_id != self.turn_id:
            self.turn_id, self._after = turn.turn_id, 0
        else:
            self.ended = turn.status in FINISHED | {"kept", "held"} and self.status == turn.status
            self.status, self.error = turn.status, turn.error
