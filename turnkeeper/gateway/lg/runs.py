"""Handlers of runs: send a message, make a decision, follow a turn until its end."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.responses import JSONResponse, Response

from turnkeeper.bus.envelope import turn_id_of
from turnkeeper.config.surfaces import required
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound, Unreachable
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api as lg
from turnkeeper.gateway.lg import requests
from turnkeeper.gateway.lg.api import Call, Followed
from turnkeeper.gateway.lg.approvals import rejection
from turnkeeper.gateway.lg.conversation import FINISHED, LATER, is_uuid, is_write, run_of, run_status, turn_statuses
from turnkeeper.gateway.lg.crons import LATER_TAG, later_spec, later_turn
from turnkeeper.gateway.lg.events import Event, RunStream
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1 import schedules_pb2 as schedules

_BUSY = frozenset({"accepted", "running", "paused", "interrupted"})
_REPLACED = "another run took its place"


class Started(NamedTuple):
    """The result of a request for a run: its thread, its turn, and the assistant's id; `resumed` after a decision."""

    thread_id: str
    turn_id: str
    assistant: str = ""
    resumed: bool = False

    def headers(self, then: str = "") -> dict[str, str]:
        """Return the headers with the run's path. The path lacks the prefix of the API, because clients add it."""
        place = f"/threads/{self.thread_id}/runs/{self.turn_id}"
        return {"content-location": place} | ({"location": f"{place}{then}"} if then else {})


async def start(
    call: Call, thread_id: str, body: Mapping[str, Any], key: str = ""
) -> tuple[Started, requests.RunRequest]:
    """Send the message in a client's body, or make the decision in it.

    Args:
        thread_id: empty for a new thread.
        key: the `Idempotency-Key` of the request, if any.

    Raises:
        TurnkeeperError: the request was refused, or its effect is unknown because the daemon became unavailable.
    """
    asked = requests.read_run(await call.completed(requests.checked(dict(body))))
    if webhook := asked.run.get("webhook"):
        required("webhook of a run", call.api.gateway.home, webhook)
    known = await call.graph_of(asked.assistant)
    graph = lg.in_daemons(known)
    name = asked.assistant if is_uuid(asked.assistant) else lg.assistant_id(known.name)
    about = {"graph_id": known.graph or known.name, "assistant_id": name}
    metadata = {"created_by": "system", **asked.run.get("metadata", {}), **about}
    asked = replace(asked, run={**asked.run, "assistant_id": name, "metadata": metadata})
    if asked.replays and not thread_id:
        requests.refuse_missing()
    if not (asked.is_decision or asked.replays or _may_decide(call)):
        asked = replace(asked, run={**asked.run, "no_answer": True})  # a message may answer a graph's question
    thread = await _thread(call, thread_id, asked)
    if thread.waiting and "no_answer" in asked.run:
        await _refuse_at_question(call, thread)
    if asked.replays or (asked.checkpoint_id and not asked.is_decision):
        asked = await _forked(call, thread, asked)
    if asked.is_decision:
        return Started(thread_id, await _decide(call, thread_id, asked), name, resumed=True), asked
    if asked.after_s:
        return Started(thread.thread_id, await _later(call, thread, graph, asked, key), name), asked
    sent = await _send(call, thread, graph, asked, key)
    return Started(sent.thread_id, sent.turn_id, name), asked


async def _refuse_at_question(call: Call, thread: wire.Thread) -> None:
    """Refuse an input without a message while a graph's own question is pending: it would answer nothing."""
    if any(one.kind == "question" for one in await call.asked(thread.thread_id)):
        hint = "answer it: command={'resume': …}"
        raise Conflict("the thread waits for the answer to a question", where="input", hint=hint)


async def _later(call: Call, thread: wire.Thread, graph: str, asked: requests.RunRequest, key: str) -> str:
    """Make the task that starts a run later. Return the name of the task, which is the id of the run."""
    about = json.dumps([call.who.key, thread.thread_id, graph, asked.after_s, asked.input, asked.run], sort_keys=True)
    id_ = call.api.once.id_of(about, key, call.who.key)
    where = {"thread_id": thread.thread_id, "channel": thread.channel or call.api.channel, "graph": graph or None}
    spec = later_spec(asked, f"run-{id_}", category=call.api.category, **where)
    try:
        await call.ask(schedules.CreateTaskRequest(spec=spec))
    except Conflict:
        if not key:
            raise
        await call.ask(schedules.GetTaskRequest(name=spec.name))  # the repeated request made the task
    except Unreachable:
        call.api.once.is_unsure(about, id_)
        raise
    return spec.name


async def _find(call: Call, run_id: str) -> wire.Turn:
    """Return the turn of a run or, if the run begins later, a turn that represents it. Raises NotFound."""
    turn_id = run_id
    if LATER.fullmatch(run_id):
        task = await call.ask(schedules.GetTaskRequest(name=run_id))
        fires = (await call.ask(schedules.ListFiresRequest(name=run_id, limit=1))).fires
        if not fires or not fires[0].turn_id:
            return later_turn(task, fires)
        turn_id = fires[0].turn_id
    found: wire.Turn = await call.ask(wire.GetTurnRequest(turn_id=turn_id))
    return found


async def _planned(call: Call, thread_id: str) -> list[wire.Turn]:
    """Return the runs of a thread that begin later, including cancelled ones, newest first."""
    tasks = (await call.ask(schedules.ListTasksRequest(tags={LATER_TAG: "yes"}))).tasks
    open_ = [one for one in tasks if one.spec.thread_id == thread_id and one.state in {"active", "paused", "disabled"}]
    return [later_turn(one, ()) for one in open_][::-1]


async def _cancel(call: Call, run_id: str, reason: str = "cancelled over the API") -> wire.Turn:
    """Cancel a run, even one that has not begun. Return its turn before the cancellation. Raises NotFound."""
    turn = await _find(call, run_id)
    if LATER.fullmatch(turn.turn_id):
        await call.ask(schedules.DisableTaskRequest(name=turn.turn_id))
        turn = await _find(call, run_id)  # the run may have begun meanwhile
    if not LATER.fullmatch(turn.turn_id):
        await call.ask(wire.CancelTurnRequest(turn_id=turn.turn_id, reason=reason))
    return turn


async def _forked(call: Call, thread: wire.Thread, asked: requests.RunRequest) -> requests.RunRequest:
    """Return a request that begins at an earlier state of its thread. Raises Conflict while an approval waits."""
    newest = state = await call.state(thread.thread_id)
    if asked.checkpoint_id and asked.checkpoint_id != newest["checkpoint_id"]:
        state = await call.state(thread.thread_id, checkpoint_id=asked.checkpoint_id)
    if thread.waiting and (asked.replays or state is not newest):
        raise Conflict("the thread waits for a decision", where="checkpoint", hint="decide first")
    return requests.forked(asked, newest, state)


async def _thread(call: Call, thread_id: str, asked: requests.RunRequest) -> wire.Thread:
    """Return the named thread, or create one, because clients ask for it before its turn has begun."""
    if not thread_id and asked.is_decision:
        raise Conflict("nothing waits on a new thread", where="command.resume", hint="name the thread")
    try:
        if thread_id:
            return await call.thread(thread_id)
    except NotFound:
        if asked.must_exist or asked.is_decision or asked.replays:
            raise
    made: wire.Thread = await call.ask(wire.PutThreadRequest(thread_id=thread_id, channel=call.api.channel))
    return made


async def _decide(call: Call, thread_id: str, asked: requests.RunRequest) -> str:
    if not _may_decide(call):
        hint = "make another key: turnkeeper web keys make NAME --scope decide"
        raise Denied("this key may not decide", where="command.resume", hint=hint)
    if asked.rejects:
        return await reject_all(call, thread_id, asked.run)
    known = await call.asked(thread_id, status="")
    decisions = call.api.served.decisions(call.who.key, thread_id, known, asked.resume)
    return await _resolve(call, decisions, asked.run)


async def _resolve(call: Call, decisions: list[wire.ResolveInterruptRequest], run: Mapping[str, Any]) -> str:
    """Decide, and record the modes of `run` from now on. Return the turn that asked last."""
    modes = {name: run[name] for name in ("stream_modes", "stream_subgraphs") if name in run}
    done = await call.ask(wire.ResolveInterruptsRequest(decisions=decisions, **modes))
    return str(done.interrupts[-1].turn_id)


async def reject_all(call: Call, thread_id: str, run: Mapping[str, Any]) -> str:
    """Reject a thread's pending approvals. Return the turn that asked last. Raises Conflict if none is pending."""
    waiting = await call.asked(thread_id)
    if not waiting:
        raise Conflict("nothing waits for a decision on this thread", where="command", hint="send a message instead")
    return await _resolve(call, [rejection(one) for one in waiting], run)


async def _send(
    call: Call, thread: wire.Thread, graph: str, asked: requests.RunRequest, key: str
) -> wire.SendMessageResponse:
    if asked.if_busy == "reject" and (thread.status in _BUSY or thread.waiting):
        raise Conflict("the thread is busy", where="multitask_strategy", hint="wait for its run, or give 'enqueue'")
    place = call.who.key, thread.thread_id, graph
    about = json.dumps([*place, asked.input, asked.run, dict(asked.options)], sort_keys=True)
    name = f"{thread.thread_id}/{asked.message_id}" if asked.message_id else ""
    name += f"/{about}" if name and "checkpoint_id" in asked.run else ""  # an edited message may keep its id
    id_ = call.api.once.id_of(about, key or name, call.who.key)
    if asked.if_busy in {"interrupt", "rollback"}:
        try:  # a repeated request does not cancel its own run
            known = await call.ask(wire.GetTurnRequest(turn_id=turn_id_of("message", id_)))
            return wire.SendMessageResponse(turn_id=known.turn_id, thread_id=thread.thread_id, duplicate=True)
        except NotFound:
            asked = await _taking_over(call, thread, asked)
    request = wire.SendMessageRequest(
        channel=thread.channel or call.api.channel,
        text=asked.text,
        thread_id=thread.thread_id,
        request_id=id_,
        graph=graph,
        input_json=json.dumps(asked.input, ensure_ascii=False),
        run_json=json.dumps(asked.run, ensure_ascii=False),
        config_json=asked.options.get("config_json", ""),
        context_json=asked.options.get("context_json", ""),
    )
    try:
        sent: wire.SendMessageResponse = await call.ask(request)
    except Unreachable:
        call.api.once.is_unsure(about, id_)
        raise
    return sent


async def _taking_over(call: Call, thread: wire.Thread, asked: requests.RunRequest) -> requests.RunRequest:
    """Cancel the runs of a thread that are not over, and return the request that replaces them.

    If the runs are rolled back, the returned request begins at the state before them. Their tools' effects stay.

    Raises:
        Conflict: a run waits for a person, and only a decision ends that.
    """
    queued = await call.ask(wire.ListWaitingRunsRequest(thread_id=thread.thread_id))
    begun = await call.ask(wire.ListTurnsRequest(thread_id=thread.thread_id, limit=200))
    left = [turn for turn in (*queued.turns, *begun.turns) if turn.status not in FINISHED]
    waits = thread.waiting or any(turn.status in {"interrupted", "paused"} for turn in left)
    for turn in left if not waits else ():
        await call.ask(wire.CancelTurnRequest(turn_id=turn.turn_id, reason=_REPLACED, unless_waiting=True))
    for turn in left if not waits else ():
        waits = waits or (await _until_over(call, turn.thread_id, turn.turn_id)).status not in FINISHED
    if waits:
        hint = "decide first: command={'resume': …}; or give enqueue"
        raise Conflict("a run of the thread waits for a decision", where="multitask_strategy", hint=hint)
    over = {turn.turn_id for turn in left}
    if asked.if_busy == "interrupt" or not over:
        return asked
    listed = wire.ListStatesRequest(thread_id=thread.thread_id, limit=lg.MOST_LISTED)
    states = [json.loads(text) for text in (await call.ask(listed)).states_json]
    theirs = [state for state in states if (state["metadata"] or {}).get("run_id") in over]
    if not theirs:  # these runs saved nothing
        return asked
    first = theirs[-1]  # on a new thread, it is an input that another input replaces
    return replace(asked, run={**asked.run, "checkpoint_id": first["parent_checkpoint_id"] or first["checkpoint_id"]})


async def _until_over(call: Call, thread_id: str, turn_id: str) -> Followed:
    """Wait until a turn is over or waits for a person. Return it with its last status."""
    followed = Followed(call, thread_id, turn_id)
    await followed.end()
    return followed


async def write(call: Call, thread: wire.Thread, body: dict[str, Any]) -> None:
    """Write values to a thread's state, in a separate turn.

    Raises:
        Conflict: a turn of the thread is running or waiting.
        InvalidInput: the thread has no graph yet, or the graph does not accept the values.
    """
    asked = requests.read_write(body)
    if not thread.turns:
        raise requests.NoGraph("the thread has no associated graph", where="thread_id", hint="start a run first")
    made = {name: value for name, value in json.loads(thread.run_json or "{}").items() if name == "assistant_id"}
    sent = await _send(call, thread, "", replace(asked, run={**asked.run, **made}), call.key)
    followed = await _until_over(call, thread.thread_id, sent.turn_id)
    if run_status(followed.status) != "success":
        refused = Conflict if (await call.thread(thread.thread_id)).waiting else InvalidInput
        raise refused(followed.error or followed.status)


async def _following(call: Call, started: Started) -> Followed:
    """Return the run to follow. If the run begins later, wait until it begins, or is cancelled."""
    turn = wire.Turn(turn_id=started.turn_id)
    while LATER.fullmatch(turn.turn_id) and turn.status not in FINISHED:
        await call.clock.sleep(lg.AWAY_S)
        turn = await _find(call, started.turn_id)
    followed = Followed(call, started.thread_id, turn.turn_id, resumed=started.resumed)
    if LATER.fullmatch(turn.turn_id):
        followed.status, followed.error, followed.ended = turn.status, turn.error, True
    return followed


async def create(call: Call) -> Response:
    """Start a run and answer immediately."""
    started, _ = await start(call, call.thread_id, call.body, call.key)
    return JSONResponse(await _run(call, started), headers=started.headers())


async def _run(call: Call, started: Started) -> dict[str, Any]:
    turn = await _find(call, started.turn_id)
    turn.thread_id = turn.thread_id or started.thread_id
    run = run_of(turn, started.assistant, run_id=started.turn_id)
    if run["created_at"] is None:
        run["created_at"] = run["updated_at"] = call.api.now()
    return run


async def batch(call: Call) -> list[dict[str, Any]]:
    """Start several runs. If one run is refused, the runs before it are already started."""
    if not isinstance(call.json, list) or not all(isinstance(one, dict) for one in call.json):
        raise InvalidInput("is not a list of objects", where="body")
    started = [(await start(call, str(body.get("thread_id") or ""), body))[0] for body in call.json]
    return [await _run(call, one) for one in started]


async def stream(call: Call) -> Any:
    """Start a run and stream its events until it is over or waits."""
    call.need_room()
    started, asked = await start(call, call.thread_id, call.body, call.key)
    modes = "&".join(f"stream_mode={mode}" for mode in sorted(asked.modes))
    return _streamed(call, started, f"?{modes}", asked.modes, subgraphs=asked.subgraphs)


async def join_stream(call: Call) -> Any:
    """Stream a run's events until it is over or waits. To a client that reconnects, first send the current state.

    A client that names no modes gets those of the run's newest request, as a page does after a reload.
    """
    turn = await _turn(call)
    run, query = json.loads(turn.run_json or "{}"), call.request.url.query
    modes = requests.read_modes(_modes_in(call) or run.get("stream_modes"))
    over = turn.status in FINISHED and ("last-event-id" in call.request.headers or "values")
    how: Any = {"subgraphs": bool(run.get("stream_subgraphs")), "skips": over}
    return _streamed(call, Started(turn.thread_id, turn.turn_id), f"?{query}" if query else "", modes, **how)


def _streamed(
    call: Call, started: Started, query: str, modes: Collection[str], *, subgraphs: bool, skips: bool | str = False
) -> Any:
    """Stream a run's events. If `skips`, send only the state at its end; a mode is left out.

    A header names a requested mode for which nothing is sent: `lifecycle` is only about subgraphs.
    """
    not_sent = {"x-turnkeeper-not-streamed": "lifecycle"} if "lifecycle" in modes and not subgraphs else {}
    events = _events(call, started, RunStream(started.turn_id, modes, subgraphs=subgraphs), skips)
    return call.stream(events, started.headers(f"/stream{query}") | not_sent)


async def _events(call: Call, started: Started, events: RunStream, skips: bool | str) -> AsyncGenerator[Event]:
    yield events.begin()
    followed = await _following(call, started)
    async with aclosing(followed.changes()) as changes:
        async for change in changes:
            for one in events.take(change) if skips not in (True, change.mode) else ():
                yield one
    for one in await left(call, started.thread_id, events):
        yield one
    yield events.end(followed.status, followed.error)


async def left(call: Call, thread_id: str, events: RunStream) -> list[Event]:
    """Return the events that a stream lacks of a thread's pending approvals and of its state."""
    asked = await call.seen(thread_id)
    return [*events.waiting(asked), *events.values(await call.values(thread_id, asked))]


async def wait(call: Call) -> Any:
    """Start a run, and answer with the thread's values when the run is over or waits."""
    call.need_room()
    started, _ = await start(call, call.thread_id, call.body, call.key)
    return call.long_answer(_values(call, started), started.headers("/join"))


async def join(call: Call) -> Any:
    """Answer with the thread's values when a run is over or waits."""
    turn = await _turn(call)
    started = Started(turn.thread_id, turn.turn_id)
    return call.long_answer(_values(call, started), started.headers("/join"))


async def _values(call: Call, started: Started) -> AsyncIterator[bytes]:
    followed = await _following(call, started)
    await followed.end()
    found: Any = await call.values(started.thread_id, await call.seen(started.thread_id))
    if run_status(followed.status) == "error":
        found = {"__error__": {"error": "TurnFailed", "message": followed.error or "the turn failed"}}
    yield json.dumps(found, ensure_ascii=False).encode()


async def _turn(call: Call) -> wire.Turn:
    """Return the turn in a request's path. Raises NotFound, also if the turn belongs to another thread."""
    turn = await _find(call, call.path["run_id"])
    if turn.thread_id != call.thread_id:
        raise NotFound(f"no run {call.path['run_id'][:80]!r} on thread {call.thread_id[:80]!r}")
    return turn


async def get(call: Call) -> dict[str, Any]:
    """Answer with a run and, if it is over or waits, with the values that `join` returns."""
    turn, select = await _turn(call), call.query.getlist("select")
    (run,) = await call.runs([turn], run_id=call.path["run_id"])
    if not select or "output" in select:
        run["output"] = await _output(call, turn)
    return lg.selected(run, select)


async def _output(call: Call, turn: wire.Turn) -> Any:
    """Return the values at a run's end or at its question. None if there are none or they are no longer stored."""
    if turn.status == "interrupted":
        return await call.values(turn.thread_id, await call.seen(turn.thread_id))
    if run_status(turn.status) != "success":
        return None
    of = json.dumps({"run_id": turn.turn_id})
    listed = wire.ListStatesRequest(thread_id=turn.thread_id, metadata_json=of, limit=1)
    found = [lg.with_fields(json.loads(text)) for text in (await call.ask(listed)).states_json]
    return found[0]["values"] if found else None


async def listed(call: Call) -> Response:
    """Answer with the runs of a thread, newest first."""
    thread_id, query = call.thread_id, call.query
    await call.thread()
    wanted = turn_statuses(query["status"]) if query.get("status") else None
    most = lg.number(query.get("offset"), "offset", 0) + lg.number(query.get("limit"), "limit", 10)
    found: dict[str, wire.Turn] = {}
    queued = await call.ask(wire.ListWaitingRunsRequest(thread_id=thread_id))
    planned = await _planned(call, thread_id)
    cursor = "-"
    while cursor and len(found) < most:
        asked = wire.ListTurnsRequest(thread_id=thread_id, limit=200, cursor=cursor.strip("-"))
        answer = await call.ask(asked)
        runs = (turn for turn in (*planned, *queued.turns, *answer.turns) if not is_write(turn))
        found |= {turn.turn_id: turn for turn in runs if wanted is None or turn.status in wanted}
        cursor = answer.next_cursor
    shown, headers = lg.page_of([*found.values()], query)
    each = await call.runs(shown)
    return JSONResponse([lg.selected(run, query.getlist("select")) for run in each], headers=headers)


async def cancel(call: Call) -> dict[str, Any]:
    """Cancel a run and answer with it. With `wait`, answer when it is over."""
    _check_action(call)
    await _turn(call)
    turn = await _cancel(call, call.path["run_id"])
    if call.says("wait") and not LATER.fullmatch(turn.turn_id):
        await _until_over(call, turn.thread_id, turn.turn_id)
    (run,) = await call.runs([await _turn(call)])
    return run


def _check_action(call: Call) -> None:
    if call.query.get("action", "interrupt") != "interrupt":
        requests.refuse("action", "a turn's effects stay in its thread", "give interrupt")


async def cancel_many(call: Call) -> Response:
    """Cancel the runs that a client names, or those of a thread with a status."""
    _check_action(call)
    ids = call.body.get("run_ids")
    if ids is None:
        ids = await _running(call, str(call.body.get("thread_id") or ""), str(call.body.get("status") or "all"))
    for run_id in ids:
        await _cancel(call, str(run_id))
    return Response(status_code=204)


async def cancel_all(call: Call, thread_id: str) -> None:
    """Cancel every turn of a thread that is not over, even one that waits for a person."""
    begun = await call.ask(wire.ListTurnsRequest(thread_id=thread_id, limit=200))
    for turn in (*await _planned(call, thread_id), *begun.turns):
        if turn.status not in FINISHED:
            await _cancel(call, turn.turn_id, "its thread was deleted")


async def _running(call: Call, thread_id: str, status: str) -> list[str]:
    wanted = {"running", "pending"} if status == "all" else {status}
    if not thread_id and status == "all":
        requests.refuse("status", "all runs of all threads at once", "name a thread, or the runs")
    found = []
    for one in ("running", "paused"):
        begun = await call.ask(wire.ListTurnsRequest(thread_id=thread_id, status=one, limit=200))
        found += [turn.turn_id for turn in begun.turns if run_status(turn.status) in wanted]
    return found


async def delete(_call: Call) -> None:
    requests.refuse("run", "its record stays", "cancel it: runs.cancel(THREAD_ID, RUN_ID)")


def _may_decide(call: Call) -> bool:
    return call.who.scope is not None and call.who.scope >= Scope.DECIDE


def _modes_in(call: Call) -> list[str]:
    """Return the modes of a query, which clients encode in three ways."""
    given = call.query.getlist("stream_mode")
    if len(given) == 1 and given[0].startswith("["):
        try:
            return list(map(str, json.loads(given[0])))
        except (ValueError, TypeError) as error:
            raise InvalidInput("is not a list of modes", where="stream_mode") from error
    return [mode for one in given for mode in one.split(",") if mode]


_THREAD, _RUN = "/threads/{thread_id}", "/threads/{thread_id}/runs/{run_id}"
ROUTES: lg.Routes = (
    ("POST", "/runs/batch", batch, Scope.WORK, ""),
    ("POST", "/runs/cancel", cancel_many, Scope.WORK, ""),
    ("GET", f"{_THREAD}/runs", listed, Scope.READ, "threads.read"),
    ("GET", _RUN, get, Scope.READ, "threads.read"),
    ("DELETE", _RUN, delete, Scope.WORK, ""),
    ("GET", f"{_RUN}/join", join, Scope.READ, "threads.read"),
    ("GET", f"{_RUN}/stream", join_stream, Scope.READ, "threads.read"),
    ("POST", f"{_RUN}/cancel", cancel, Scope.WORK, "threads.update"),
    *(("POST", f"{place}/runs", create, Scope.WORK, "threads.create_run") for place in ("", _THREAD)),
    *(("POST", f"{place}/runs/stream", stream, Scope.WORK, "threads.create_run") for place in ("", _THREAD)),
    *(("POST", f"{place}/runs/wait", wait, Scope.WORK, "threads.create_run") for place in ("", _THREAD)),
)
