"""Handlers of runs: send a message, make a decision, follow a turn until its end."""

import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper.bus.envelope import turn_id_of
from turnkeeper.config.surfaces import required
from turnkeeper.errors import Conflict, Denied, InvalidInput, NotFound, Unreachable
from turnkeeper.gateway import streams
from turnkeeper.gateway.calls import Who, need
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api as lg
from turnkeeper.gateway.lg import requests
from turnkeeper.gateway.lg.approvals import rejection
from turnkeeper.gateway.lg.conversation import FINISHED, LATER, is_uuid, is_write, run_of, run_status, turn_statuses
from turnkeeper.gateway.lg.crons import LATER_TAG, later_spec, later_turn
from turnkeeper.gateway.lg.events import Event, RunStream
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1 import schedules_pb2 as schedules

_BUSY = frozenset({"accepted", "running", "paused", "interrupted"})
_KEPT = "its record stays"
_REPLACED = "another run took its place"


class Started:
    """The result of a request for a run: its thread, its turn, and the assistant's id."""

    def __init__(self, thread_id: str, turn_id: str, assistant: str) -> None:
        self.thread_id, self.turn_id, self.assistant = thread_id, turn_id, assistant

    def headers(self, then: str = "") -> dict[str, str]:
        """Return the headers with the run's path. The path lacks the prefix of the API, because clients add it."""
        place = f"/threads/{self.thread_id}/runs/{self.turn_id}"
        return {"content-location": place} | ({"location": f"{place}{then}"} if then else {})


class Runs(lg.Handlers):
    def routes(self) -> list[Route]:
        starters = (("", self.create), ("/stream", self.stream), ("/wait", self.wait))
        place = "/threads/{thread_id}"
        return lg.routes_of(
            ("POST", "/runs/batch", self.batch),
            ("POST", "/runs/cancel", self.cancel_many),
            ("GET", f"{place}/runs", self.listed),
            ("GET", f"{place}/runs/{{run_id}}", self.get),
            ("DELETE", f"{place}/runs/{{run_id}}", self.delete),
            ("GET", f"{place}/runs/{{run_id}}/join", self.join),
            ("GET", f"{place}/runs/{{run_id}}/stream", self.join_stream),
            ("POST", f"{place}/runs/{{run_id}}/cancel", self.cancel),
            *(("POST", f"{prefix}/runs{end}", handler) for prefix in ("", place) for end, handler in starters),
        )

    async def start(
        self, who: Who, runtime: Any, thread_id: str, body: Mapping[str, Any], key: str = ""
    ) -> tuple[Started, requests.RunRequest]:
        """Send the message in a client's body, or make the decision in it.

        Args:
            runtime: the agent runtime, called on behalf of `who`.
            thread_id: empty for a new thread.
            key: the `Idempotency-Key` of the request, if any.

        Raises:
            TurnkeeperError: the request was refused, or its effect is unknown because the daemon became unavailable.
        """
        asked = requests.read_run(await self._api.completed(runtime, requests.checked(dict(body))))
        if webhook := asked.run.get("webhook"):
            required("webhook of a run", self._api.gateway.home, webhook)
        known = await self._api.graph_of(runtime, asked.assistant)
        graph = lg.in_daemons(known)
        name = asked.assistant if is_uuid(asked.assistant) else lg.assistant_id(known.name)
        about = {"graph_id": known.graph or known.name, "assistant_id": name}
        metadata = {"created_by": "system", **asked.run.get("metadata", {}), **about}
        asked = replace(asked, run={**asked.run, "assistant_id": name, "metadata": metadata})
        if asked.replays and not thread_id:
            requests.refuse_missing()
        if not (asked.decides or asked.rejects or asked.replays or _may_decide(who)):
            asked = replace(asked, run={**asked.run, "no_answer": True})  # a message may answer a graph's question
        thread = await self._thread(runtime, thread_id, asked)
        if thread.waiting and "no_answer" in asked.run:
            await self._refuse_at_question(runtime, thread)
        if asked.replays or (asked.checkpoint_id and not (asked.decides or asked.rejects)):
            asked = await self._forked(runtime, thread, asked)
        if asked.decides or asked.rejects:
            return Started(thread_id, await self._decide(who, runtime, thread_id, asked), name), asked
        if asked.after_s:
            return Started(thread.thread_id, await self._later(who, runtime, thread, graph, asked, key), name), asked
        sent = await self._send(who, runtime, thread, graph, asked, key)
        return Started(sent.thread_id, sent.turn_id, name), asked

    async def _refuse_at_question(self, runtime: Any, thread: wire.Thread) -> None:
        """Refuse an input without a message while a graph's own question is pending: it would answer nothing."""
        if any(one.kind == "question" for one in await self._api.asked(runtime, thread.thread_id)):
            hint = "answer it: command={'resume': …}"
            raise Conflict("the thread waits for the answer to a question", where="input", hint=hint)

    async def _later(
        self, who: Who, runtime: Any, thread: wire.Thread, graph: str, asked: requests.RunRequest, key: str
    ) -> str:
        """Make the task that starts a run later. Return the name of the task, which is the id of the run."""
        about = json.dumps([who.key, thread.thread_id, graph, asked.after_s, asked.input, asked.run], sort_keys=True)
        id_ = self._api.once.id_of(about, key, who.key)
        where = {"thread_id": thread.thread_id, "channel": thread.channel or self._api.channel, "graph": graph or None}
        category = self._api.gateway.settings.web.langgraph_category
        spec = later_spec(asked, f"run-{id_}", category=category, **where)
        try:
            await runtime.CreateTask(schedules.CreateTaskRequest(spec=spec))
        except Conflict:
            if not key:
                raise
            await runtime.GetTask(schedules.GetTaskRequest(name=spec.name))  # the repeated request made the task
        except Unreachable:
            self._api.once.is_unsure(about, id_)
            raise
        return spec.name

    @staticmethod
    async def _find(runtime: Any, run_id: str) -> wire.Turn:
        """Return the turn of a run or, if the run begins later, a turn that represents it. Raises NotFound."""
        turn_id = run_id
        if LATER.fullmatch(run_id):
            task = await runtime.GetTask(schedules.GetTaskRequest(name=run_id))
            fires = (await runtime.ListFires(schedules.ListFiresRequest(name=run_id, limit=1))).fires
            if not fires or not fires[0].turn_id:
                return later_turn(task, fires)
            turn_id = fires[0].turn_id
        found: wire.Turn = await runtime.GetTurn(wire.GetTurnRequest(turn_id=turn_id))
        return found

    async def _planned(self, runtime: Any, thread_id: str) -> list[wire.Turn]:
        """Return the runs of a thread that begin later, including cancelled ones, newest first."""
        tasks = (await runtime.ListTasks(schedules.ListTasksRequest(tags={LATER_TAG: "yes"}))).tasks
        open_ = [
            one for one in tasks if one.spec.thread_id == thread_id and one.state in {"active", "paused", "disabled"}
        ]
        return [later_turn(one, ()) for one in open_][::-1]

    async def _cancel(self, runtime: Any, run_id: str, reason: str = "cancelled over the API") -> wire.Turn:
        """Cancel a run, even one that has not begun. Return its turn before the cancellation. Raises NotFound."""
        turn = await self._find(runtime, run_id)
        if LATER.fullmatch(turn.turn_id):
            await runtime.DisableTask(schedules.DisableTaskRequest(name=turn.turn_id))
            turn = await self._find(runtime, run_id)  # the run may have begun meanwhile
        if not LATER.fullmatch(turn.turn_id):
            await runtime.CancelTurn(wire.CancelTurnRequest(turn_id=turn.turn_id, reason=reason))
        return turn

    async def _forked(self, runtime: Any, thread: wire.Thread, asked: requests.RunRequest) -> requests.RunRequest:
        """Return a request that begins at an earlier state of its thread. Raises Conflict while an approval waits."""
        newest = state = await self._api.state(runtime, thread.thread_id)
        if asked.checkpoint_id and asked.checkpoint_id != newest["checkpoint_id"]:
            state = await self._api.state(runtime, thread.thread_id, checkpoint_id=asked.checkpoint_id)
        if thread.waiting and (asked.replays or state is not newest):
            raise Conflict("the thread waits for a decision", where="checkpoint", hint="decide first")
        return requests.forked(asked, newest, state)

    async def _thread(self, runtime: Any, thread_id: str, asked: requests.RunRequest) -> wire.Thread:
        """Return the named thread, or create one, because clients ask for it before its turn has begun."""
        if not thread_id and (asked.decides or asked.rejects):
            raise Conflict("nothing waits on a new thread", where="command.resume", hint="name the thread")
        try:
            if thread_id:
                return await self._api.thread(runtime, thread_id)
        except NotFound:
            if asked.must_exist or asked.decides or asked.rejects or asked.replays:
                raise
        put = wire.PutThreadRequest(thread_id=thread_id, channel=self._api.channel)
        made: wire.Thread = await runtime.PutThread(put)
        return made

    async def _decide(self, who: Who, runtime: Any, thread_id: str, asked: requests.RunRequest) -> str:
        if not _may_decide(who):
            need_decide()
        if asked.rejects:
            return await self.reject_all(runtime, thread_id, asked.run)
        known = await self._api.asked(runtime, thread_id, status="")
        decisions = self._api.served.decisions(who.key, thread_id, known, asked.resume)
        return await self._resolve(runtime, decisions, asked.run)

    @staticmethod
    async def _resolve(runtime: Any, decisions: list[wire.ResolveInterruptRequest], run: Mapping[str, Any]) -> str:
        """Decide, and record the modes of `run` from now on. Return the turn that asked last."""
        modes = {name: run[name] for name in ("stream_modes", "stream_subgraphs") if name in run}
        done = await runtime.ResolveInterrupts(wire.ResolveInterruptsRequest(decisions=decisions, **modes))
        return str(done.interrupts[-1].turn_id)

    async def reject_all(self, runtime: Any, thread_id: str, run: Mapping[str, Any]) -> str:
        """Reject a thread's pending approvals. Return the turn that asked last. Raises Conflict if none is pending."""
        waiting = await self._api.asked(runtime, thread_id)
        if not waiting:
            raise Conflict(
                "nothing waits for a decision on this thread", where="command", hint="send a message instead"
            )
        return await self._resolve(runtime, [rejection(one) for one in waiting], run)

    async def _send(
        self, who: Who, runtime: Any, thread: wire.Thread, graph: str, asked: requests.RunRequest, key: str
    ) -> wire.SendMessageResponse:
        if asked.if_busy == "reject" and (thread.status in _BUSY or thread.waiting):
            raise Conflict("the thread is busy", where="multitask_strategy", hint="wait for its run, or give enqueue")
        place = who.key, thread.thread_id, graph
        about = json.dumps([*place, asked.input, asked.run, dict(asked.options)], sort_keys=True)
        name = f"{thread.thread_id}/{asked.message_id}" if asked.message_id else ""
        name += f"/{about}" if name and "checkpoint_id" in asked.run else ""  # an edited message may keep its id
        id_ = self._api.once.id_of(about, key or name, who.key)
        if asked.if_busy in {"interrupt", "rollback"}:
            known = await self._taken(runtime, turn_id_of("message", id_))
            if known is not None:  # a repeated request does not cancel its own run
                return wire.SendMessageResponse(turn_id=known.turn_id, thread_id=thread.thread_id, duplicate=True)
            asked = await self._taking_over(runtime, thread, asked)
        request = wire.SendMessageRequest(
            channel=thread.channel or self._api.channel,
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
            sent: wire.SendMessageResponse = await runtime.SendMessage(request)
        except Unreachable:
            self._api.once.is_unsure(about, id_)
            raise
        return sent

    @staticmethod
    async def _taken(runtime: Any, turn_id: str) -> wire.Turn | None:
        """Return a turn, even one that has not begun. None if there is none."""
        try:
            found: wire.Turn = await runtime.GetTurn(wire.GetTurnRequest(turn_id=turn_id))
        except NotFound:
            return None
        return found

    async def _taking_over(self, runtime: Any, thread: wire.Thread, asked: requests.RunRequest) -> requests.RunRequest:
        """Cancel the runs of a thread that are not over, and return the request that replaces them.

        If the runs are rolled back, the returned request begins at the state before them. Their tools' effects stay.

        Raises:
            Conflict: a run waits for a person, and only a decision ends that.
        """
        queued = await runtime.ListWaitingRuns(wire.ListWaitingRunsRequest(thread_id=thread.thread_id))
        begun = await runtime.ListTurns(wire.ListTurnsRequest(thread_id=thread.thread_id, limit=200))
        left = [turn for turn in (*queued.turns, *begun.turns) if turn.status not in FINISHED]
        waits = thread.waiting or any(turn.status in {"interrupted", "paused"} for turn in left)
        for turn in left if not waits else ():
            cancel = wire.CancelTurnRequest(turn_id=turn.turn_id, reason=_REPLACED, unless_waiting=True)
            await runtime.CancelTurn(cancel)
        for turn in left if not waits else ():
            waits = waits or (await self._until_over(runtime, turn.thread_id, turn.turn_id)).status not in FINISHED
        if waits:
            hint = "decide first: command={'resume': …}; or give enqueue"
            raise Conflict("a run of the thread waits for a decision", where="multitask_strategy", hint=hint)
        over = {turn.turn_id for turn in left}
        if asked.if_busy == "interrupt" or not over:
            return asked
        listed = wire.ListStatesRequest(thread_id=thread.thread_id, limit=lg.MOST_LISTED)
        states = [json.loads(text) for text in (await runtime.ListStates(listed)).states_json]
        theirs = [state for state in states if (state["metadata"] or {}).get("run_id") in over]
        if not theirs:  # these runs saved nothing
            return asked
        first = theirs[-1]  # on a new thread, it is an input that another input replaces
        return replace(
            asked, run={**asked.run, "checkpoint_id": first["parent_checkpoint_id"] or first["checkpoint_id"]}
        )

    async def _until_over(self, runtime: Any, thread_id: str, turn_id: str) -> lg.Followed:
        """Wait until a turn is over or waits for a person. Return it with its last status."""
        followed = lg.Followed(runtime, self._api.gateway.clock, thread_id, turn_id)
        async with aclosing(followed.changes()) as changes:
            async for _ in changes:
                if followed.status in FINISHED:
                    break
        return followed

    async def write(self, who: Who, runtime: Any, thread: wire.Thread, body: dict[str, Any], key: str) -> None:
        """Write values to a thread's state, in a separate turn.

        Raises:
            Conflict: a turn of the thread is running or waiting.
            InvalidInput: the thread has no graph yet, or the graph does not accept the values.
        """
        asked = requests.read_write(body)
        if not thread.turns:
            raise requests.NoGraph("the thread has no associated graph", where="thread_id", hint="start a run first")
        made = {name: value for name, value in json.loads(thread.run_json or "{}").items() if name == "assistant_id"}
        sent = await self._send(who, runtime, thread, "", replace(asked, run={**asked.run, **made}), key)
        followed = await self._until_over(runtime, thread.thread_id, sent.turn_id)
        if run_status(followed.status) != "success":
            refused = Conflict if (await self._api.thread(runtime, thread.thread_id)).waiting else InvalidInput
            raise refused(followed.error or followed.status)

    async def _started(self, request: Request) -> tuple[Who, Any, Started, requests.RunRequest]:
        who, runtime = self._api.asks(request, Scope.WORK)
        key, thread_id = request.headers.get("idempotency-key", ""), request.path_params.get("thread_id", "")
        return who, runtime, *await self.start(who, runtime, thread_id, await lg.read_body(request), key)

    async def _following(self, runtime: Any, started: Started, *, resumed: bool = False) -> lg.Followed:
        """Return the run to follow. If the run begins later, wait until it begins, or is cancelled."""
        clock, turn, away = self._api.gateway.clock, wire.Turn(turn_id=started.turn_id), 0
        while LATER.fullmatch(turn.turn_id) and turn.status not in FINISHED:
            await clock.sleep(lg.AWAY_S)
            try:
                turn, away = await self._find(runtime, started.turn_id), 0
            except Unreachable:  # a daemon that was restarted answers again
                away += 1
                if away > lg.LONGEST_AWAY:
                    raise
        followed = lg.Followed(runtime, clock, started.thread_id, turn.turn_id, resumed=resumed)
        if LATER.fullmatch(turn.turn_id):
            followed.status, followed.error, followed.ended = turn.status, turn.error, True
        return followed

    async def create(self, request: Request) -> Response:
        """Start a run and answer immediately."""
        _, runtime, started, _ = await self._started(request)
        return lg.reply(await self._run(runtime, started), headers=started.headers())

    async def _run(self, runtime: Any, started: Started) -> dict[str, Any]:
        turn = await self._find(runtime, started.turn_id)
        turn.thread_id = turn.thread_id or started.thread_id
        run = run_of(turn, started.assistant, run_id=started.turn_id)
        if run["created_at"] is None:
            run["created_at"] = run["updated_at"] = self._api.now()
        return run

    async def batch(self, request: Request) -> Response:
        """Start several runs. If one run is refused, the runs before it are already started."""
        who, runtime = self._api.asks(request, Scope.WORK)
        bodies = await lg.read_json(request)
        if not isinstance(bodies, list) or not all(isinstance(one, dict) for one in bodies):
            raise InvalidInput("is not a list of objects", where="body")
        runs = []
        for body in bodies:
            started, _ = await self.start(who, runtime, str(body.get("thread_id") or ""), body)
            runs.append(await self._run(runtime, started))
        return lg.reply(runs)

    async def stream(self, request: Request) -> Any:
        """Start a run and stream its events until it is over or waits."""
        self._api.need_room(request)
        who, runtime, started, asked = await self._started(request)
        modes = "&".join(f"stream_mode={mode}" for mode in sorted(asked.modes))
        inner, resumed = bool(asked.subgraphs), asked.decides or asked.rejects
        events = RunStream(started.turn_id, asked.modes, subgraphs=inner)
        told = self._events(who, runtime, started, events, resumed=resumed)
        return self._api.event_stream(told, started.headers(f"/stream?{modes}") | not_streamed(asked.modes, inner))

    async def join_stream(self, request: Request) -> Any:
        """Stream a run's events until it is over or waits. To a client that reconnects, first send the current state.

        A client that names no modes gets those of the run's newest request, as a page does after a reload.
        """
        who, runtime = self._api.asks(request)
        turn = await self._turn(runtime, request)
        run, started = json.loads(turn.run_json or "{}"), Started(turn.thread_id, turn.turn_id, "")
        modes = requests.read_modes(_modes_in(request) or run.get("stream_modes"))
        inner = bool(run.get("stream_subgraphs"))
        events = RunStream(turn.turn_id, modes, subgraphs=inner)
        query = f"?{request.url.query}" if request.url.query else ""
        over = turn.status in FINISHED and ("last-event-id" in request.headers or "values")
        told = self._events(who, runtime, started, events, resumed=False, skips=over)
        return self._api.event_stream(told, started.headers(f"/stream{query}") | not_streamed(modes, inner))

    async def _events(
        self, who: Who, runtime: Any, started: Started, events: RunStream, *, resumed: bool, skips: bool | str = False
    ) -> AsyncIterator[bytes]:
        """Yield a run's events. If `skips`, send only the state at its end; a mode is left out."""
        yield written(events.begin())
        followed = await self._following(runtime, started, resumed=resumed)
        async with aclosing(followed.changes()) as changes:
            async for change in changes:
                for one in events.take(change) if skips not in (True, change.mode) else ():
                    yield written(one)
        for one in await self.left(who, runtime, started.thread_id, events):
            yield written(one)
        yield written(events.end(followed.status, followed.error))

    async def left(self, who: Who, runtime: Any, thread_id: str, events: RunStream) -> list[Event]:
        """Return the events that a stream lacks of a thread's pending approvals and of its state."""
        asked = await self._api.seen(who, runtime, thread_id)
        return [*events.waiting(asked), *events.values(await self._api.values(runtime, thread_id, asked))]

    async def wait(self, request: Request) -> Any:
        """Start a run, and answer with the thread's values when the run is over or waits."""
        self._api.need_room(request)
        who, runtime, started, asked = await self._started(request)
        return self._values(who, runtime, started, resumed=asked.decides or asked.rejects)

    async def join(self, request: Request) -> Any:
        """Answer with the thread's values when a run is over or waits."""
        who, runtime = self._api.asks(request)
        turn = await self._turn(runtime, request)
        return self._values(who, runtime, Started(turn.thread_id, turn.turn_id, ""))

    def _values(self, who: Who, runtime: Any, started: Started, *, resumed: bool = False) -> Any:
        """Answer with the values. Until they are available, send spaces to keep the connection open."""

        async def values() -> AsyncIterator[bytes]:
            followed = await self._following(runtime, started, resumed=resumed)
            async with aclosing(followed.changes()) as changes:
                async for _ in changes:
                    yield b" "
            asked = await self._api.seen(who, runtime, started.thread_id)
            found: Any = await self._api.values(runtime, started.thread_id, asked)
            if run_status(followed.status) == "error":
                found = {"__error__": {"error": "TurnFailed", "message": followed.error or "the turn failed"}}
            yield json.dumps(found, ensure_ascii=False).encode()

        headers = started.headers("/join")
        return self._api.long_answer(values(), headers)

    async def _turn(self, runtime: Any, request: Request) -> wire.Turn:
        """Return the turn in a request's path. Raises NotFound, also if the turn belongs to another thread."""
        thread_id, run_id = request.path_params["thread_id"], request.path_params["run_id"]
        turn = await self._find(runtime, run_id)
        if turn.thread_id != thread_id:
            raise NotFound(f"no run {run_id[:80]!r} on thread {thread_id[:80]!r}")
        return turn

    async def get(self, request: Request) -> Response:
        """Answer with a run and, if it is over or waits, with the values that `join` returns."""
        who, runtime = self._api.asks(request)
        turn, select = await self._turn(runtime, request), request.query_params.getlist("select")
        (run,) = await self._api.runs(runtime, [turn], run_id=request.path_params["run_id"])
        if not select or "output" in select:
            run["output"] = await self._output(who, runtime, turn)
        return lg.reply(lg.selected(run, select))

    async def _output(self, who: Who, runtime: Any, turn: wire.Turn) -> Any:
        """Return the values at a run's end or at its question. None if there are none or they are no longer stored."""
        if turn.status == "interrupted":
            asked = await self._api.seen(who, runtime, turn.thread_id)
            return await self._api.values(runtime, turn.thread_id, asked)
        if run_status(turn.status) != "success":
            return None
        of = json.dumps({"run_id": turn.turn_id})
        listed = wire.ListStatesRequest(thread_id=turn.thread_id, metadata_json=of, limit=1)
        found = [lg.with_fields(json.loads(text)) for text in (await runtime.ListStates(listed)).states_json]
        return found[0]["values"] if found else None

    async def listed(self, request: Request) -> Response:
        """Answer with the runs of a thread, newest first."""
        _, runtime = self._api.asks(request)
        thread_id, query = request.path_params["thread_id"], request.query_params
        await self._api.thread(runtime, thread_id)
        wanted = turn_statuses(query["status"]) if query.get("status") else None
        most = lg.number(query.get("offset"), "offset", 0) + lg.number(query.get("limit"), "limit", 10)
        found: dict[str, wire.Turn] = {}
        queued = await runtime.ListWaitingRuns(wire.ListWaitingRunsRequest(thread_id=thread_id))
        planned = await self._planned(runtime, thread_id)
        cursor = "-"
        while cursor and len(found) < most:
            asked = wire.ListTurnsRequest(thread_id=thread_id, limit=200, cursor=cursor.strip("-"))
            page = await runtime.ListTurns(asked)
            runs = (turn for turn in (*planned, *queued.turns, *page.turns) if not is_write(turn))
            found |= {turn.turn_id: turn for turn in runs if wanted is None or turn.status in wanted}
            cursor = page.next_cursor
        shown, headers = lg.page_of([*found.values()], query)
        each = await self._api.runs(runtime, shown)
        return lg.reply([lg.selected(run, query.getlist("select")) for run in each], headers=headers)

    async def cancel(self, request: Request) -> Response:
        """Cancel a run and answer with it. With `wait`, answer when it is over."""
        _, runtime = self._api.asks(request, Scope.WORK)
        self._check_action(request)
        await self._turn(runtime, request)
        turn = await self._cancel(runtime, request.path_params["run_id"])
        if request.query_params.get("wait") in {"1", "true", "True"} and not LATER.fullmatch(turn.turn_id):
            await self._until_over(runtime, turn.thread_id, turn.turn_id)
        (run,) = await self._api.runs(runtime, [await self._turn(runtime, request)])
        return lg.reply(run)

    @staticmethod
    def _check_action(request: Request) -> None:
        if request.query_params.get("action", "interrupt") != "interrupt":
            requests.refuse("action", "a turn's effects stay in its thread", "give interrupt")

    async def cancel_many(self, request: Request) -> Response:
        """Cancel the runs that a client names, or those of a thread with a status."""
        _, runtime = self._api.asks(request, Scope.WORK)
        self._check_action(request)
        body = await lg.read_body(request)
        ids = body.get("run_ids")
        if ids is None:
            ids = await self._running(runtime, str(body.get("thread_id") or ""), str(body.get("status") or "all"))
        for run_id in ids:
            await self._cancel(runtime, str(run_id))
        return Response(status_code=204)

    async def cancel_all(self, runtime: Any, thread_id: str) -> None:
        """Cancel every turn of a thread that is not over, even one that waits for a person."""
        page = await runtime.ListTurns(wire.ListTurnsRequest(thread_id=thread_id, limit=200))
        for turn in (*await self._planned(runtime, thread_id), *page.turns):
            if turn.status not in FINISHED:
                await self._cancel(runtime, turn.turn_id, "its thread was deleted")

    async def _running(self, runtime: Any, thread_id: str, status: str) -> list[str]:
        wanted = {"running", "pending"} if status == "all" else {status}
        if not thread_id and status == "all":
            requests.refuse("status", "all runs of all threads at once", "name a thread, or the runs")
        found = []
        for one in ("running", "paused"):
            page = await runtime.ListTurns(wire.ListTurnsRequest(thread_id=thread_id, status=one, limit=200))
            found += [turn.turn_id for turn in page.turns if run_status(turn.status) in wanted]
        return found

    async def delete(self, request: Request) -> Response:
        need(request, Scope.WORK)
        requests.refuse("run", _KEPT, "cancel it: runs.cancel(THREAD_ID, RUN_ID)")


def _may_decide(who: Who) -> bool:
    return who.scope is not None and who.scope >= Scope.DECIDE


def need_decide() -> None:
    """Refuse a decision if the key lacks the scope. Raises Denied."""
    hint = "make another key: turnkeeper web keys make NAME --scope decide"
    raise Denied("this key may not decide", where="command.resume", hint=hint)


def not_streamed(modes: Collection[str], subgraphs: bool) -> dict[str, str]:
    """Return the header that names a requested mode for which nothing is sent. `lifecycle` is only about subgraphs."""
    return {"x-turnkeeper-not-streamed": "lifecycle"} if "lifecycle" in modes and not subgraphs else {}


def _modes_in(request: Request) -> list[str]:
    """Return the modes of a query, which clients encode in three ways."""
    given = request.query_params.getlist("stream_mode")
    if len(given) == 1 and given[0].startswith("["):
        try:
            return list(map(str, json.loads(given[0])))
        except (ValueError, TypeError) as error:
            raise InvalidInput("is not a list of modes", where="stream_mode") from error
    return [mode for one in given for mode in one.split(",") if mode]


def written(event: Event) -> bytes:
    return streams.event(json.dumps(event.data, ensure_ascii=False), name=event.name, id_=event.id)
