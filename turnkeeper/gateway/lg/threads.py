"""Handlers of threads, their states, and the newer protocol, which follows a whole thread."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from turnkeeper.config.json_text import is_within
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.gateway import streams
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api as lg
from turnkeeper.gateway.lg import runs
from turnkeeper.gateway.lg.api import Api, Call, Followed
from turnkeeper.gateway.lg.conversation import FINISHED, run_status, state_with, thread_of
from turnkeeper.gateway.lg.events import CHANNELS, PROTOCOL_MODES, Event, RunStream, ThreadProtocol
from turnkeeper.gateway.lg.requests import MODES, checked, refuse, refuse_options
from turnkeeper.v1 import agent_runtime_pb2 as wire

_CREATE = frozenset({"thread_id", "metadata", "if_exists"})
_SEARCH = frozenset({"metadata", "status", "ids", "limit", "offset", "sort_by", "sort_order", "select"})
_STATUSES = ("idle", "busy", "interrupted", "error")
_THREAD_MODES = frozenset({"run_modes", "lifecycle", "state_update"})
SETTLE_S = 0.25
MOST_SUBSCRIPTIONS = 16  # most subscriptions of one WebSocket
DELETES = 100  # attempts to withdraw a thread after its turns were cancelled
_KEPT = "a thread's record is kept, and is not written over HTTP"


async def create(call: Call) -> dict[str, Any]:
    """Create a thread, or answer with an existing one if the client allows it."""
    body = call.body
    refuse_options(body, _CREATE)
    if body.get("thread_id") and body.get("if_exists") == "do_nothing":
        try:
            return await call.shown(await call.thread(body["thread_id"]))
        except NotFound:
            pass
    put = wire.PutThreadRequest(
        thread_id=body.get("thread_id") or "",
        channel=call.api.channel,
        metadata_json=json.dumps(body.get("metadata") or {}, ensure_ascii=False),
        must_be_new=True,
    )
    return await call.shown(await call.ask(put))


async def update(call: Call) -> Any:
    """Change single keys of a thread's metadata."""
    refuse_options(call.body, {"metadata"})
    thread = await call.thread()
    text = json.dumps(call.body.get("metadata") or {}, ensure_ascii=False)
    changed = await call.ask(wire.PutThreadRequest(thread_id=thread.thread_id, metadata_json=text))
    if "return=minimal" in call.request.headers.get("prefer", ""):
        return Response(status_code=204)
    return await call.shown(changed)


async def get(call: Call) -> dict[str, Any]:
    return await call.shown(await call.thread())


async def search(call: Call) -> Response:
    body = call.body
    found, known = await _found(call, body)
    page, headers = lg.page_of(lg.ordered(found, body, "updated_at"), body)
    values = not body.get("select") or any(str(name).startswith("values") for name in body["select"])
    shown = await asyncio.gather(*(call.shown(known[one["thread_id"]], values=values) for one in page))
    return JSONResponse([lg.selected(one, body.get("select")) for one in shown], headers=headers)


async def listed(call: Call) -> Response:
    """Answer with a page of threads without their values, as servers of the Agent Protocol do."""
    found, _ = await _found(call, {})
    shown, headers = lg.page_of(lg.ordered(found, {}, "updated_at"), call.query, default=100)
    return JSONResponse({"threads": shown, "total": len(found)}, headers=headers)


async def count(call: Call) -> int:
    return len((await _found(call, call.body))[0])


async def _found(call: Call, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, wire.Thread]]:
    refuse_options(body, _SEARCH)
    wanted, ids = body.get("metadata") or {}, body.get("ids")
    if body.get("status") not in {None, *_STATUSES}:
        raise InvalidInput("no thread has this status", where="status", hint=f"one of {', '.join(_STATUSES)}")
    known: dict[str, wire.Thread] = {}
    found, cursor = [], "-"
    while cursor and len(known) < lg.MOST_READ:
        page = await call.ask(wire.ListThreadsRequest(limit=lg.PAGE, cursor=cursor.strip("-")))
        cursor = page.next_cursor
        for thread in page.threads:
            name = call.api.name_of(thread.graph)
            one = thread_of(thread, None, [], name, lg.assistant_id(name))
            if not call.who.sees(one["metadata"]):
                continue
            known[thread.thread_id] = thread
            fits = is_within(wanted, one["metadata"]) and body.get("status") in {None, one["status"]}
            if fits and (ids is None or thread.thread_id in ids):
                found.append(one)
    return found, known


async def state(call: Call) -> dict[str, Any]:
    return lg.selected(await _state(call, subgraphs=call.says("subgraphs")), call.query.getlist("select"))


async def _state(call: Call, **how: Any) -> dict[str, Any]:
    """Return a state of the thread in a request's path, and record the approvals shown. Raises NotFound."""
    found = await call.state(call.thread_id, **how)
    return state_with(found, [] if how.get("checkpoint_id") else await call.seen(call.thread_id))


async def state_at(call: Call) -> dict[str, Any]:
    wanted: Any = call.path
    if call.method == "POST":
        named = call.body.get("checkpoint")
        wanted = {**(named if isinstance(named, dict) else {}), "subgraphs": bool(call.body.get("subgraphs"))}
    known = ("checkpoint_id", "checkpoint_ns", "subgraphs")
    return await _state(call, **{name: wanted[name] for name in known if wanted.get(name)})


async def history(call: Call) -> list[dict[str, Any]]:
    """Answer with the stored states of a thread, newest first."""
    body: Any = call.body if call.method == "POST" else checked(dict(call.query))
    before, limit = body.get("before"), lg.number(body.get("limit"), "limit", 10)
    before = before.get("checkpoint_id") if isinstance(before, dict) else before
    place = body.get("checkpoint")
    asked = wire.ListStatesRequest(
        thread_id=call.thread_id,
        before=str(before or ""),
        limit=limit,
        metadata_json=json.dumps(body.get("metadata") or {}, ensure_ascii=False),
        checkpoint_ns=str(place.get("checkpoint_ns") or "") if isinstance(place, dict) else "",
    )
    found = [json.loads(text) for text in (await call.ask(asked)).states_json if limit]
    if found and not before:
        found[0] = state_with(found[0], await call.seen(call.thread_id))
    return [lg.selected(one, body.get("select")) for one in found]


async def write_state(call: Call) -> dict[str, Any]:
    """Write values to a thread's state. Without values, answer with the state.

    Or reject the pending approvals, if agent-inbox asks for this.
    """
    body = call.body
    if body.get("values") is None and body.get("as_node") is None:
        return await state_at(call)
    thread = await call.thread()
    if body.get("values") is None and body.get("as_node") == "__end__":
        call.who.check(Scope.DECIDE)
        await runs.reject_all(call, call.thread_id, {})
    else:
        await runs.write(call, thread, body)
    return {"checkpoint": (await call.state(call.thread_id))["checkpoint"]}


async def delete(call: Call) -> Response:
    """Cancel the thread's turns, then withdraw the thread. Its conversation stays until the owner erases it."""
    await call.thread()
    for left in reversed(range(DELETES)):
        await runs.cancel_all(call, call.thread_id)
        try:
            await call.ask(wire.WithdrawThreadRequest(thread_id=call.thread_id))
            break
        except Conflict:  # a turn is not over yet
            if not left:
                raise
            await call.clock.sleep(lg.AWAY_S / 5)
    return Response(status_code=204)


async def copy(call: Call) -> dict[str, Any]:
    """Create a thread with the metadata of another thread that has no state."""
    thread = await call.thread()
    if thread.turns:
        refuse("thread", _KEPT, "copy a thread before its first run, or create another one: threads.create()")
    put = wire.PutThreadRequest(channel=thread.channel, metadata_json=thread.metadata_json)
    return await call.shown(await call.ask(put))


async def prune(_call: Call) -> None:
    """Refuse to delete several threads at once."""
    refuse("thread_ids", "threads are deleted one by one", "use threads.delete(THREAD_ID)")


async def stream(call: Call) -> Any:
    """Stream the events of all runs of a thread that begin from now on, until the client disconnects."""
    await call.thread()
    given = call.query.getlist("stream_mode") or ["run_modes"]
    modes = {"state_update": {"values"}, "lifecycle": set()}.get(given[0], MODES)
    if not set(given) <= _THREAD_MODES:
        raise InvalidInput("unknown mode", where="stream_mode", hint=f"one of {', '.join(sorted(_THREAD_MODES))}")
    newest = await call.ask(wire.ListTurnsRequest(thread_id=call.thread_id, limit=200))
    done = {turn.turn_id for turn in newest.turns if turn.status in FINISHED}
    return call.stream(_told(call, frozenset(modes), done))


async def _told(call: Call, modes: frozenset[str], done: set[str]) -> AsyncGenerator[Event]:
    streams_of: dict[str, RunStream] = {}
    async with aclosing(Followed(call, call.thread_id).changes()) as changes:
        async for change in changes:
            if change.turn_id in done:
                continue
            if change.turn_id not in streams_of:
                streams_of[change.turn_id] = RunStream(change.turn_id, modes)
                yield streams_of[change.turn_id].begin()
            for one in streams_of[change.turn_id].take(change):
                yield one
            status = json.loads(change.data_json)["status"] if change.mode == "status" else ""
            if status == "interrupted":
                for one in await runs.left(call, call.thread_id, streams_of[change.turn_id]):
                    yield one
            if status in FINISHED:
                done.add(change.turn_id)
                yield Event("run_done", {"run_id": change.turn_id, "status": run_status(status)})


async def command(call: Call) -> dict[str, Any]:
    """Answer a command of the newer protocol; a refusal is also an answer."""
    try:
        return _success(call.body, await _commanded(call, call.body))
    except (InvalidInput, NotFound, Conflict) as error:
        return _refusal(call.body, error)


async def _commanded(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    params, method = _params(body), body.get("method")
    asked = {**params, "if_not_exists": "create"}
    if method == "run.start":
        if params.get("input") is not None and not isinstance(params["input"], dict | list):
            asked = await _answer(call, asked)
    elif method == "input.respond":
        entries = params.get("responses") or [params]
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise InvalidInput("is not a list of objects", where="params.responses")
        resume = {str(one.get("interrupt_id")): one.get("response") for one in entries}
        if params.get("update") or params.get("goto"):
            refuse("update", _KEPT, "answer only")
        graph = (await call.thread()).graph
        asked = {"assistant_id": call.api.name_of(graph), "command": {"resume": resume}}
    else:
        raise InvalidInput(f"no command {str(method)[:40]!r}", where="method", hint="run.start or input.respond")
    started, _ = await runs.start(call, call.thread_id, {**asked, "stream_mode": [*PROTOCOL_MODES]})
    return {"run_id": started.turn_id, "thread_id": started.thread_id}


async def _answer(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """Return a plain value as the answer to the only question of a waiting thread, for RemoteGraph."""
    asked = await call.asked(call.thread_id)
    if len(asked) != 1:
        return body
    return {**body, "input": None, "command": {"resume": {asked[0].interrupt_id: body["input"]}}}


async def events(call: Call) -> Any:
    """Stream a thread's events in the newer protocol until the client disconnects."""
    return call.stream(_protocol(call, await _subscribed(call, call.body), call.body))


async def _subscribed(call: Call, body: dict[str, Any]) -> ThreadProtocol:
    """Return the events of the thread that a client subscribes to. Raises InvalidInput, NotFound."""
    thread, channels = await call.thread(), checked(body).get("channels")
    if not isinstance(channels, list) or not channels:
        raise InvalidInput("is not a list of channels", where="channels", hint=f"of {', '.join(sorted(CHANNELS))}")
    return ThreadProtocol(body, call.api.name_of(thread.graph))


async def socket(api: Api, socket: WebSocket) -> None:
    """Answer the commands of a client, and send the events that it subscribes to, until it disconnects."""
    streams_open = api.gateway.streams
    if (counted := streams_open.enter(socket.scope["who"])) is None:
        await JSONResponse({"detail": "too many streams are open"}, 429)(socket.scope, socket.receive, socket.send)
        return
    following: set[asyncio.Task[None]] = set()
    try:
        await socket.accept()
        async for text in socket.iter_text():
            await _take(api, socket, text, following)
    except (WebSocketDisconnect, TimeoutError):  # the client has disconnected, or does not read
        pass
    finally:
        streams_open.leave(counted)
        for one in following:
            one.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def _take(api: Api, socket: WebSocket, text: str, following: set[asyncio.Task[None]]) -> None:
    """Answer one command. Begin to follow the thread if the client subscribes. A refusal is also an answer."""
    body = dict[str, Any]()
    try:
        given = lg.parsed(text)
        body = given if isinstance(given, dict) else {}
        if body is not given:
            raise InvalidInput("is not an object", where="body", hint="send {id, method, params}")
        if body.get("method") != "subscription.subscribe":
            result = await _commanded(Call(api, socket, Scope.WORK), checked(body))
            await _sent(socket, _success(body, result))
            return
        call = Call(api, socket, Scope.READ)
        told = _protocol(call, await _subscribed(call, _params(body)), _params(body))
        call.has_begun = True
        if len(following) >= MOST_SUBSCRIPTIONS:
            raise Exhausted(f"a socket has at most {MOST_SUBSCRIPTIONS} subscriptions", hint="open another")
    except TurnkeeperError as error:
        await _sent(socket, _refusal(body, error))
        return
    await _sent(socket, _success(body, {}))
    following.add(asyncio.create_task(_followed(socket, told), name=f"socket-{call.thread_id}"))


async def _protocol(call: Call, events: ThreadProtocol, body: dict[str, Any]) -> AsyncGenerator[Event]:
    since = body["since"] if isinstance(body.get("since"), int) else 0
    async with aclosing(Followed(call, call.thread_id, after=since).changes()) as changes:
        async for change in changes:
            told = events.take(change)
            if change.mode == "status":
                status = json.loads(change.data_json)["status"]
                if status == "interrupted":  # the SDK then ends its other streams, which may have just begun
                    await call.clock.sleep(SETTLE_S)
                asked = await call.seen(call.thread_id) if status == "interrupted" else []
                of = wire.GetTurnRequest(turn_id=change.turn_id)
                why = (await call.ask(of)).error if status in FINISHED else ""
                told = events.status(change, status, why, asked)
            for one in told:
                yield Event(one["method"], one, one["event_id"])


async def _followed(socket: WebSocket, events: AsyncGenerator[Event]) -> None:
    """Send the events of a subscription. Close the socket if the runtime has ended or the client does not read."""
    async with aclosing(events):
        try:
            async for one in events:
                await _sent(socket, one.data)
        except (TurnkeeperError, TimeoutError) as error:
            await socket.close(1011, str(error)[:100])


async def _sent(socket: WebSocket, message: dict[str, Any]) -> None:
    async with asyncio.timeout(streams.SLOWEST_S):
        await socket.send_text(json.dumps(message, ensure_ascii=False))


def _params(body: dict[str, Any]) -> dict[str, Any]:
    return body["params"] if isinstance(body.get("params"), dict) else {}


def _success(body: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"type": "success", "id": body.get("id"), "result": result}


def _refusal(body: dict[str, Any], error: TurnkeeperError) -> dict[str, Any]:
    code = {NotFound: "no_such_run", Conflict: "no_such_interrupt"}.get(type(error), "invalid_argument")
    return {"type": "error", "id": body.get("id"), "error": code, "message": str(error)}


_THREAD = "/threads/{thread_id}"
ROUTES: lg.Routes = (
    ("GET", "/threads", listed, Scope.READ, "threads.search"),
    ("POST", "/threads", create, Scope.WORK, "threads.create"),
    ("POST", "/threads/search", search, Scope.READ, "threads.search"),
    ("POST", "/threads/count", count, Scope.READ, "threads.search"),
    ("POST", "/threads/prune", prune, Scope.WORK, ""),
    ("GET", _THREAD, get, Scope.READ, "threads.read"),
    ("PATCH", _THREAD, update, Scope.WORK, "threads.update"),
    ("DELETE", _THREAD, delete, Scope.WORK, "threads.delete"),
    ("POST", f"{_THREAD}/copy", copy, Scope.WORK, ""),
    ("GET", f"{_THREAD}/state", state, Scope.READ, "threads.read"),
    ("POST", f"{_THREAD}/state", write_state, Scope.WORK, "threads.update"),
    ("POST", f"{_THREAD}/state/checkpoint", state_at, Scope.READ, "threads.read"),
    ("GET", f"{_THREAD}/state/{{checkpoint_id}}", state_at, Scope.READ, "threads.read"),
    ("GET", f"{_THREAD}/history", history, Scope.READ, "threads.read"),
    ("POST", f"{_THREAD}/history", history, Scope.READ, "threads.read"),
    ("GET", f"{_THREAD}/stream", stream, Scope.READ, "threads.read"),
    ("POST", f"{_THREAD}/commands", command, Scope.WORK, "threads.create_run"),
    ("POST", f"{_THREAD}/stream/events", events, Scope.READ, "threads.read"),
)
