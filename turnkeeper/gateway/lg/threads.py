"""Handlers of threads, their states, and the newer protocol, which follows a whole thread."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from turnkeeper.errors import Conflict, Exhausted, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.gateway import streams
from turnkeeper.gateway.calls import Who, who_of
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api as lg
from turnkeeper.gateway.lg.conversation import FINISHED, holds, run_status, state_with, thread_of
from turnkeeper.gateway.lg.events import CHANNELS, PROTOCOL_MODES, Event, RunStream, ThreadProtocol
from turnkeeper.gateway.lg.requests import MODES, checked, refuse, refuse_options
from turnkeeper.gateway.lg.runs import Runs, written
from turnkeeper.v1 import agent_runtime_pb2 as wire

_CREATE = frozenset({"thread_id", "metadata", "if_exists"})
_SEARCH = frozenset({"metadata", "status", "ids", "limit", "offset", "sort_by", "sort_order", "select"})
_STATUSES = ("idle", "busy", "interrupted", "error")
_THREAD_MODES = frozenset({"run_modes", "lifecycle", "state_update"})
SETTLE_S = 0.25
MOST_SUBSCRIPTIONS = 16  # most subscriptions of one WebSocket
DELETES = 100  # attempts to withdraw a thread after its turns were cancelled
_KEPT = "a thread's record is kept, and is not written over HTTP"


class Threads:
    def __init__(self, api: lg.Api, runs: Runs) -> None:
        self._api, self._runs = api, runs

    def routes(self) -> list[BaseRoute]:
        one = "/threads/{thread_id}"
        socket = WebSocketRoute(f"{one}/stream/events", self.socket)
        routes = lg.routes_of(
            ("GET", "/threads", self.listed),
            ("POST", "/threads", self.create),
            ("POST", "/threads/search", self.search),
            ("POST", "/threads/count", self.count),
            ("POST", "/threads/prune", self.refused),
            ("GET", one, self.get),
            ("PATCH", one, self.update),
            ("DELETE", one, self.delete),
            ("POST", f"{one}/copy", self.copy),
            ("GET", f"{one}/state", self.state),
            ("POST", f"{one}/state", self.write_state),
            ("POST", f"{one}/state/checkpoint", self.state_at),
            ("GET", f"{one}/state/{{checkpoint_id}}", self.state_at),
            ("GET", f"{one}/history", self.history),
            ("POST", f"{one}/history", self.history),
            ("GET", f"{one}/stream", self.stream),
            ("POST", f"{one}/commands", self.command),
            ("POST", f"{one}/stream/events", self.events),
        )
        return [socket, *routes]

    async def create(self, request: Request) -> Response:
        """Create a thread, or answer with an existing one if the client allows it."""
        who, runtime = self._api.asks(request, Scope.WORK)
        body = await lg.read_body(request)
        refuse_options(body, _CREATE)
        if body.get("thread_id") and body.get("if_exists") == "do_nothing":
            try:
                return lg.reply(await self._api.shown(who, runtime, await self._api.thread(runtime, body["thread_id"])))
            except NotFound:
                pass
        put = wire.PutThreadRequest(
            thread_id=str(body.get("thread_id") or ""),
            channel=self._api.channel,
            metadata_json=_metadata(body),
            must_be_new=True,
        )
        return lg.reply(await self._api.shown(who, runtime, await runtime.PutThread(put)))

    async def update(self, request: Request) -> Response:
        """Change single keys of a thread's metadata."""
        who, runtime = self._api.asks(request, Scope.WORK)
        body = await lg.read_body(request)
        refuse_options(body, {"metadata"})
        thread = await self._api.thread(runtime, request.path_params["thread_id"])
        put = wire.PutThreadRequest(thread_id=thread.thread_id, metadata_json=_metadata(body))
        changed = await runtime.PutThread(put)
        if "return=minimal" in request.headers.get("prefer", ""):
            return Response(status_code=204)
        return lg.reply(await self._api.shown(who, runtime, changed))

    async def get(self, request: Request) -> Response:
        who, runtime = self._api.asks(request)
        thread = await self._api.thread(runtime, request.path_params["thread_id"])
        return lg.reply(await self._api.shown(who, runtime, thread))

    async def search(self, request: Request) -> Response:
        who, runtime = self._api.asks(request)
        body = await lg.read_body(request)
        found, known = await self._found(who, runtime, body)
        shown, headers = lg.page_of(lg.ordered(found, body, "updated_at"), body)
        values = not body.get("select") or any(str(name).startswith("values") for name in body["select"])
        whole = [self._api.shown(who, runtime, known[one["thread_id"]], values=values) for one in shown]
        return lg.reply([lg.selected(one, body.get("select")) for one in await asyncio.gather(*whole)], headers=headers)

    async def listed(self, request: Request) -> Response:
        """Answer with a page of threads without their values, as servers of the Agent Protocol do."""
        who, runtime = self._api.asks(request)
        found, _ = await self._found(who, runtime, {})
        shown, headers = lg.page_of(lg.ordered(found, {}, "updated_at"), request.query_params, default=100)
        return lg.reply({"threads": shown, "total": len(found)}, headers=headers)

    async def count(self, request: Request) -> Response:
        who, runtime = self._api.asks(request)
        return lg.reply(len((await self._found(who, runtime, await lg.read_body(request)))[0]))

    async def _found(
        self, who: Who, runtime: Any, body: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, wire.Thread]]:
        refuse_options(body, _SEARCH)
        wanted, ids = body.get("metadata") or {}, body.get("ids")
        if body.get("status") not in {None, *_STATUSES}:
            raise InvalidInput("no thread has this status", where="status", hint=f"one of {', '.join(_STATUSES)}")
        known: dict[str, wire.Thread] = {}
        found, cursor = [], "-"
        while cursor and len(known) < lg.MOST_READ:
            page = await runtime.ListThreads(wire.ListThreadsRequest(limit=lg.PAGE, cursor=cursor.strip("-")))
            cursor = page.next_cursor
            for thread in page.threads:
                name = self._api.name_of(thread.graph)
                one = thread_of(thread, None, [], name, lg.assistant_id(name))
                if not who.sees(one["metadata"]):
                    continue
                known[thread.thread_id] = thread
                fits = holds(one["metadata"], wanted) and body.get("status") in {None, one["status"]}
                if fits and (ids is None or thread.thread_id in ids):
                    found.append(one)
        return found, known

    async def state(self, request: Request) -> Response:
        inner = request.query_params.get("subgraphs", "").lower() in {"1", "true"}
        state = await self._state(request, subgraphs=inner)
        return lg.reply(lg.selected(state, request.query_params.getlist("select")))

    async def _state(self, request: Request, **how: Any) -> dict[str, Any]:
        """Return a state of the thread in a request's path, and record the approvals shown. Raises NotFound."""
        who, runtime = self._api.asks(request)
        thread_id = request.path_params["thread_id"]
        state = await self._api.state(runtime, thread_id, **how)
        asked = [] if how.get("checkpoint_id") else await self._api.seen(who, runtime, thread_id)
        return state_with(state, asked)

    async def state_at(self, request: Request) -> Response:
        wanted: Any = {"checkpoint_id": request.path_params.get("checkpoint_id")}
        if request.method == "POST":
            body = await lg.read_body(request)
            wanted = body.get("checkpoint") if isinstance(body.get("checkpoint"), dict) else {}
            wanted["subgraphs"] = bool(body.get("subgraphs"))
        known = ("checkpoint_id", "checkpoint_ns", "subgraphs")
        return lg.reply(await self._state(request, **{name: wanted[name] for name in known if wanted.get(name)}))

    async def history(self, request: Request) -> Response:
        """Answer with the stored states of a thread, newest first."""
        who, runtime = self._api.asks(request)
        body = await lg.read_body(request) if request.method == "POST" else dict(request.query_params)
        before, limit = body.get("before"), lg.number(body.get("limit"), "limit", 10)
        before = before.get("checkpoint_id") if isinstance(before, dict) else before
        place, thread_id = body.get("checkpoint"), request.path_params["thread_id"]
        asked = wire.ListStatesRequest(
            thread_id=thread_id,
            before=str(before or ""),
            limit=limit,
            metadata_json=_metadata(body),
            checkpoint_ns=str(place.get("checkpoint_ns") or "") if isinstance(place, dict) else "",
        )
        found = [json.loads(text) for text in (await runtime.ListStates(asked)).states_json if limit]
        if found and not before:
            found[0] = state_with(found[0], await self._api.seen(who, runtime, thread_id))
        return lg.reply([lg.selected(state, body.get("select")) for state in found])

    async def write_state(self, request: Request) -> Response:
        """Write values to a thread's state. Without values, answer with the state.

        Or reject the pending approvals, if agent-inbox asks for this.
        """
        who, runtime = self._api.asks(request, Scope.WORK)
        body, thread_id = await lg.read_body(request), request.path_params["thread_id"]
        if body.get("values") is None and body.get("as_node") is None:
            return await self.state_at(request)
        thread = await self._api.thread(runtime, thread_id)
        if body.get("values") is None and body.get("as_node") == "__end__":
            who.check(Scope.DECIDE)
            await self._runs.reject_all(runtime, thread_id, {})
        else:
            await self._runs.write(who, runtime, thread, body, request.headers.get("idempotency-key", ""))
        return lg.reply({"checkpoint": (await self._api.state(runtime, thread_id))["checkpoint"]})

    async def delete(self, request: Request) -> Response:
        """Cancel the thread's turns, then withdraw the thread. Its conversation stays until the owner erases it."""
        _, runtime = self._api.asks(request, Scope.WORK)
        thread_id = request.path_params["thread_id"]
        await self._api.thread(runtime, thread_id)
        for left in reversed(range(DELETES)):
            await self._runs.cancel_all(runtime, thread_id)
            try:
                await runtime.WithdrawThread(wire.WithdrawThreadRequest(thread_id=thread_id))
                break
            except Conflict:  # a turn is not over yet
                if not left:
                    raise
                await self._api.gateway.clock.sleep(lg.AWAY_S / 5)
        return Response(status_code=204)

    async def copy(self, request: Request) -> Response:
        """Create a thread with the metadata of another thread that has no state."""
        who, runtime = self._api.asks(request, Scope.WORK)
        thread = await self._api.thread(runtime, request.path_params["thread_id"])
        if thread.turns:
            refuse("thread", _KEPT, "copy a thread before its first run, or create another one: threads.create()")
        put = wire.PutThreadRequest(channel=thread.channel, metadata_json=thread.metadata_json)
        return lg.reply(await self._api.shown(who, runtime, await runtime.PutThread(put)))

    async def refused(self, request: Request) -> Response:
        """Refuse to delete several threads at once."""
        self._api.asks(request, Scope.WORK)
        refuse("thread_ids", "threads are deleted one by one", "use threads.delete(THREAD_ID)")

    async def stream(self, request: Request) -> Any:
        """Stream the events of all runs of a thread that begin from now on, until the client disconnects."""
        who, runtime = self._api.asks(request)
        thread_id = request.path_params["thread_id"]
        await self._api.thread(runtime, thread_id)
        given = request.query_params.getlist("stream_mode") or ["run_modes"]
        modes = {"state_update": {"values"}, "lifecycle": set()}.get(given[0], MODES)
        if not set(given) <= _THREAD_MODES:
            raise InvalidInput("unknown mode", where="stream_mode", hint=f"one of {', '.join(sorted(_THREAD_MODES))}")
        newest = await runtime.ListTurns(wire.ListTurnsRequest(thread_id=thread_id, limit=200))
        done = {turn.turn_id for turn in newest.turns if turn.status in FINISHED}
        return self._api.event_stream(self._told(who, runtime, thread_id, frozenset(modes), done))

    async def _told(
        self, who: Who, runtime: Any, thread_id: str, modes: frozenset[str], done: set[str]
    ) -> AsyncIterator[bytes]:
        streams_of: dict[str, RunStream] = {}
        followed = lg.Followed(runtime, self._api.gateway.clock, thread_id, "")
        async with aclosing(followed.changes()) as changes:
            async for change in changes:
                if change.turn_id in done:
                    continue
                if change.turn_id not in streams_of:
                    streams_of[change.turn_id] = RunStream(change.turn_id, modes)
                    yield written(streams_of[change.turn_id].begin())
                for one in streams_of[change.turn_id].take(change):
                    yield written(one)
                status = json.loads(change.data_json)["status"] if change.mode == "status" else ""
                if status == "interrupted":
                    for one in await self._runs.left(who, runtime, thread_id, streams_of[change.turn_id]):
                        yield written(one)
                if status in FINISHED:
                    done.add(change.turn_id)
                    yield written(Event("run_done", {"run_id": change.turn_id, "status": run_status(status)}))

    async def command(self, request: Request) -> Response:
        """Answer a command of the newer protocol; a refusal is also an answer."""
        who, runtime = self._api.asks(request, Scope.WORK)
        body = await lg.read_body(request)
        return lg.reply(await self._answered(who, runtime, request.path_params["thread_id"], body))

    async def _answered(self, who: Who, runtime: Any, thread_id: str, body: dict[str, Any]) -> dict[str, Any]:
        params = body.get("params") if isinstance(body.get("params"), dict) else {}
        try:
            result = await self._commanded(who, runtime, thread_id, body.get("method"), params or {})
        except (InvalidInput, NotFound, Conflict) as error:
            return {"type": "error", "id": body.get("id"), "error": _code(error), "message": str(error)}
        return {"type": "success", "id": body.get("id"), "result": result}

    async def _commanded(
        self, who: Who, runtime: Any, thread_id: str, method: object, params: dict[str, Any]
    ) -> dict[str, Any]:
        if method == "run.start":
            body = {**params, "if_not_exists": "create", "stream_mode": [*PROTOCOL_MODES]}
            if params.get("input") is not None and not isinstance(params["input"], dict | list):
                body = await self._answer(runtime, thread_id, body)
        elif method == "input.respond":
            entries = params.get("responses") or [params]
            if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
                raise InvalidInput("is not a list of objects", where="params.responses")
            resume = {str(one.get("interrupt_id")): one.get("response") for one in entries}
            if params.get("update") or params.get("goto"):
                refuse("update", _KEPT, "answer only")
            body = {"assistant_id": await self._assistant(runtime, thread_id), "command": {"resume": resume}}
            body["stream_mode"] = [*PROTOCOL_MODES]
        else:
            raise InvalidInput(f"no command {str(method)[:40]!r}", where="method", hint="run.start or input.respond")
        started, _ = await self._runs.start(who, runtime, thread_id, body)
        return {"run_id": started.turn_id, "thread_id": started.thread_id}

    async def _answer(self, runtime: Any, thread_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a plain value as the answer to the only question of a waiting thread, for RemoteGraph."""
        asked = await self._api.asked(runtime, thread_id)
        if len(asked) != 1:
            return body
        return {**body, "input": None, "command": {"resume": {asked[0].interrupt_id: body["input"]}}}

    async def _assistant(self, runtime: Any, thread_id: str) -> str:
        return self._api.name_of((await self._api.thread(runtime, thread_id)).graph)

    async def events(self, request: Request) -> Any:
        """Stream a thread's events in the newer protocol until the client disconnects."""
        who, runtime = self._api.asks(request)
        body, thread_id = await lg.read_body(request), request.path_params["thread_id"]
        thread = await self._api.thread(runtime, thread_id)
        told = self._protocol(who, runtime, thread_id, self._subscribed(thread, body), body)
        return self._api.event_stream(_encoded(told))

    def _subscribed(self, thread: wire.Thread, body: dict[str, Any]) -> ThreadProtocol:
        """Return the events that a client subscribes to. Raises InvalidInput."""
        channels = checked(body).get("channels")
        if not isinstance(channels, list) or not channels:
            raise InvalidInput("is not a list of channels", where="channels", hint=f"of {', '.join(sorted(CHANNELS))}")
        return ThreadProtocol(body, self._api.name_of(thread.graph))

    async def socket(self, socket: WebSocket) -> None:
        """Answer the commands of a client, and send the events that it subscribes to, until it disconnects."""
        who, streams_open = who_of(socket), self._api.gateway.streams
        if (counted := streams_open.enter(who)) is None:
            await lg.reply({"detail": "too many streams are open"}, 429)(socket.scope, socket.receive, socket.send)
            return
        following: set[asyncio.Task[None]] = set()
        try:
            await socket.accept()
            async for text in socket.iter_text():
                await self._take(socket, text, following)
        except (WebSocketDisconnect, TimeoutError):  # the client has disconnected, or does not read
            pass
        finally:
            streams_open.leave(counted)
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _take(self, socket: WebSocket, text: str, following: set[asyncio.Task[None]]) -> None:
        """Answer one command. Begin to follow the thread if the client subscribes. A refusal is also an answer."""
        thread_id, body = socket.path_params["thread_id"], dict[str, Any]()
        try:
            given = lg.parsed(text)
            body = given if isinstance(given, dict) else {}
            if body is not given:
                raise InvalidInput("is not an object", where="body", hint="send {id, method, params}")
            if body.get("method") != "subscription.subscribe":
                who, runtime = self._api.asks(socket, Scope.WORK)
                await _sent(socket, await self._answered(who, runtime, thread_id, checked(body)))
                return
            who, runtime = self._api.asks(socket)
            params = body.get("params") if isinstance(body.get("params"), dict) else {}
            events = self._subscribed(await self._api.thread(runtime, thread_id), params or {})
            if len(following) >= MOST_SUBSCRIPTIONS:
                raise Exhausted(f"a socket has at most {MOST_SUBSCRIPTIONS} subscriptions", hint="open another")
        except TurnkeeperError as error:
            refusal = {"type": "error", "id": body.get("id"), "error": _code(error), "message": str(error)}
            await _sent(socket, refusal)
            return
        await _sent(socket, {"type": "success", "id": body.get("id"), "result": {}})
        told = self._protocol(who, runtime, thread_id, events, params or {})
        following.add(asyncio.create_task(_followed(socket, told), name=f"socket-{thread_id}"))

    async def _protocol(
        self, who: Who, runtime: Any, thread_id: str, events: ThreadProtocol, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any]]:
        followed = lg.Followed(runtime, self._api.gateway.clock, thread_id, "")
        followed.after = body["since"] if isinstance(body.get("since"), int) else 0
        async with aclosing(followed.changes()) as changes:
            async for change in changes:
                told = events.take(change)
                if change.mode == "status":
                    status = json.loads(change.data_json)["status"]
                    if status == "interrupted":  # the SDK then ends its other streams, which may have just begun
                        await self._api.gateway.clock.sleep(SETTLE_S)
                    asked = await self._api.seen(who, runtime, thread_id) if status == "interrupted" else []
                    of = wire.GetTurnRequest(turn_id=change.turn_id)
                    why = (await runtime.GetTurn(of)).error if status in FINISHED else ""
                    told = events.status(change, status, why, asked)
                for one in told:
                    yield one


async def _encoded(events: AsyncGenerator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        async for one in events:
            yield streams.event(json.dumps(one, ensure_ascii=False), name=one["method"], id_=one["event_id"])


async def _followed(socket: WebSocket, events: AsyncGenerator[dict[str, Any]]) -> None:
    """Send the events of a subscription. Close the socket if the runtime is gone or if the client does not read."""
    async with aclosing(events):
        try:
            async for one in events:
                await _sent(socket, one)
        except (TurnkeeperError, TimeoutError) as error:
            await socket.close(1011, str(error)[:100])


async def _sent(socket: WebSocket, message: dict[str, Any]) -> None:
    async with asyncio.timeout(streams.SLOWEST_S):
        await socket.send_text(json.dumps(message, ensure_ascii=False))


def _metadata(body: dict[str, Any]) -> str:
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidInput("is not an object", where="metadata")
    return json.dumps(metadata, ensure_ascii=False) if metadata else ""


def _code(error: TurnkeeperError) -> str:
    return {NotFound: "no_such_run", Conflict: "no_such_interrupt"}.get(type(error), "invalid_argument")
