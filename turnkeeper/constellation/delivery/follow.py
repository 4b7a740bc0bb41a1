"""Turn events become deliveries: each ended fire and each question gets a row in the outbox, then goes to its targets.

One transaction writes the row of an event and the position in the stream, so no event is lost or processed twice. A
fire is delivered once, with its outcome in the ledger. A failed attempt that will be retried is not a result. A fire
that never became a turn has no event. The ledger names it.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from turnkeeper.config.home import Home
from turnkeeper.console.unseen import plain
from turnkeeper.constellation.delivery import outbox, targets
from turnkeeper.constellation.delivery.outbox import SETTLING, WAITING, Delivery, delivery_key
from turnkeeper.errors import BUDGET, NotFound
from turnkeeper.rpc.channel import AsyncCaller
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.database import Database
from turnkeeper.times import rfc3339, to_us
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

ENDED = frozenset({"SUCCEEDED", "SILENT", "DELIVERED", "FAILED", "CANCELLED"})
UNSENT = frozenset({"silent", "delivered", "paused"})  # reasons of fires that succeeded without an answer for people
# States of clients' runs, under the names of LangGraph's API.
RUNS = {"SUCCEEDED": "success", "SILENT": "success", "FAILED": "error"}
RUNS |= dict.fromkeys(("CANCELLED", "INTERRUPTED"), "interrupted")
KIND_OF = {"succeeded": "success", "failed": "failure", "rejected": "failure", "cancelled": "failure"}
# Reasons for skipped times that were due and never became a turn, in the words for people.
NEVER_BEGAN = {
    "missed": "it was too late to start: catch-up skip runs nothing that was missed",
    "catch_up_window": "it was missed longer ago than catch_up_window allows",
    "max_catch_up": "more was missed than max_catch_up allows: the newest were kept",
    "queue_full": "more fires were queued than max_catch_up allows: the oldest were skipped",
    "quarantined": "it could not be started, so the task was quarantined",
}
LOOK_BACK = timedelta(days=30)  # the greatest age of an undelivered skipped time at a start
NEWEST_OF_ALL, NEWEST_OF_ONE = 500, 20
AGAIN_S = (0.2, 1.0, 5.0, 30.0)  # seconds before the next query of the ledger about a fire that is still open
NEWEST_TURNS = 20
LONGEST_ANSWER = 100_000  # characters
LONGEST_IN_EVENT = 24_000  # bytes of an answer in the data of an event
_State = agents.TurnEvent.State


def taken(event: agents.TurnEvent) -> Delivery | None:
    """Return the outbox row for a turn event. Return None if the event causes no delivery."""
    state, at_us = _State.Name(event.state), to_us(event.at.ToDatetime(UTC))
    if state == "INTERRUPTED":
        key, kind = f"{event.turn_id}:{event.sequence}:asks", "waits"
    elif state in ENDED and event.fire_id:
        key, kind = f"{event.fire_id}:ended", "ended"
    else:
        return None
    return Delivery(
        key=key, kind=kind, state=SETTLING, next_us=at_us, made_us=at_us, task_id=event.task_id, task=event.task_name,
        channel=event.channel, fire_id=event.fire_id, turn_id=event.turn_id,
        body=json.dumps({"thread": event.thread_id}),
    )  # fmt: skip


class Follower:
    """The reader of the runtime's turn events, which writes them into the outbox."""

    def __init__(self, store: Database, daemons: AsyncCaller, wake: Callable[[], None], failpoints: Failpoints) -> None:
        """Call `wake` after each new row."""
        self._store, self._daemons, self._wake, self._failpoints = store, daemons, wake, failpoints

    async def run(self) -> None:
        """Read until the stream ends."""
        last = await self._store.run(outbox.place)
        asked = agents.WatchTurnsRequest(details=True, incarnation=last.incarnation, after_sequence=last.sequence)
        async for event in self._daemons.WatchTurns(asked):
            row = taken(event)
            at_us = to_us(event.at.ToDatetime(UTC))
            # Another incarnation sends all of its events, at the first start and after a restore. Skip the older ones.
            is_new = event.incarnation == last.incarnation or at_us > last.at_us
            rows = [one for one in (row, await self._of_run(event) if is_new else None) if one is not None]
            if rows and is_new:
                here = outbox.Place(event.incarnation, event.sequence, at_us)
                self._failpoints.reach("delivery.heard")
                await self._store.run(partial(_record, rows=rows, here=here))
                self._failpoints.reach("delivery.written")
                self._wake()

    async def _of_run(self, event: agents.TurnEvent) -> Delivery | None:
        """Return the outbox row if a client's run that names a webhook ended or waits; else None."""
        state, at_us = _State.Name(event.state), to_us(event.at.ToDatetime(UTC))
        if event.fire_id or state not in RUNS:
            return None
        try:
            turn = await self._daemons.GetTurn(agents.GetTurnRequest(turn_id=event.turn_id))
        except NotFound:
            return None
        url = json.loads(turn.run_json or "{}").get("webhook", "")
        said = {"thread": event.thread_id, "status": RUNS[state]}
        return None if not url else Delivery(
            key=f"{event.turn_id}:{event.sequence}:run", kind="run", state=SETTLING, next_us=at_us, made_us=at_us,
            address=url, channel=event.channel, turn_id=event.turn_id, body=json.dumps(said),
        )  # fmt: skip


def _record(store: Any, rows: list[Delivery], here: outbox.Place) -> None:
    outbox.put(store, rows)
    outbox.move(store, here)


def skipped(fire: schedules.Fire, since: datetime) -> Delivery | None:
    """Return the outbox row for skipped times. Return None if the times are not a failure, or are older than `since`.

    Later times may be added to an entry of the ledger, so the key contains the newest of its times.
    """
    at = fire.last_nominal_at.ToDatetime(UTC)
    if fire.outcome != "skipped" or fire.reason not in NEVER_BEGAN or at < since:
        return None
    said = {"outcome": fire.outcome, "reason": NEVER_BEGAN[fire.reason], "text": "", "count": fire.count}
    said |= {"first_at": rfc3339(fire.first_nominal_at.ToDatetime(UTC)), "last_at": rfc3339(at)}
    key = f"{fire.task_id}:{fire.entry_id}:{said['last_at']}:skipped"
    return Delivery(
        key=key, kind="skipped", state=SETTLING, next_us=to_us(at), made_us=to_us(at), task_id=fire.task_id,
        task=fire.task_name, fire_id=fire.fire_id, body=json.dumps(said),
    )  # fmt: skip


def stopped(task: schedules.Task, since: datetime) -> Delivery | None:
    """Return the outbox row for a stop by a budget.

    Return None if no budget stops the task, or if it last fired before `since`. The reason names the day or the fire
    and the amount used, so that it identifies the stop.
    """
    at, why = task.last_fire_at.ToDatetime(UTC), task.paused_note.removeprefix(BUDGET)
    if task.state != "paused" or why == task.paused_note or at < since:
        return None
    until = rfc3339(task.paused_until.ToDatetime(UTC)) if task.HasField("paused_until") else "you resume it"
    said = {"outcome": "stopped", "reason": f"its budget stops it until {until}: {why}", "text": ""}
    return Delivery(
        key=f"{task.id}:{why}:stopped", kind="skipped", state=SETTLING, next_us=to_us(at), made_us=to_us(at),
        task_id=task.id, task=task.spec.name, body=json.dumps(said),
    )  # fmt: skip


def before_its_end(task: schedules.Task, stop: Any) -> schedules.Task:
    """Return the task as it was during a recorded stop."""
    was = schedules.Task(id=task.id, spec=task.spec, state="paused", paused_note=stop.why)
    was.last_fire_at.FromMicroseconds(stop.from_us)
    was.paused_until.FromMicroseconds(stop.to_us)
    return was


class Overlooker:
    """The reader of the ledger and of stops by budgets. It writes into the outbox what no turn event tells."""

    def __init__(self, home: Home, store: Database, daemons: AsyncCaller, clock: Any, wake: Callable[[], None]) -> None:
        self._home, self._store, self._daemons, self._clock, self._wake = home, store, daemons, clock, wake

    async def run(self) -> None:
        """Read the ledger now, and the entries of a task after each change of the task, until the stream ends."""
        async for told in self._daemons.WatchTasks(schedules.WatchTasksRequest(names_only=True)):
            if not told.task_id:
                await self.look("", NEWEST_OF_ALL)
                tasks, since = await self._daemons.ListTasks(schedules.ListTasksRequest()), await self._since()
                stops = await asyncio.to_thread(outbox.stops, self._home)  # also those that ended unseen
                past = [before_its_end(task, stop) for task in tasks.tasks for stop in stops if stop.task_id == task.id]
                await self._put([stopped(task, since) for task in [*tasks.tasks, *past]])
            elif told.change == "changed":
                await self.look(told.task_id, NEWEST_OF_ONE)
            elif told.change == "paused":
                with suppress(NotFound):
                    task = await self._daemons.GetTask(schedules.GetTaskRequest(name=told.task_id))
                    await self._put([stopped(task, await self._since())])

    async def look(self, name: str, most: int) -> None:
        """Write the newest skipped times of a task, or of all, into the outbox. Do not repeat times that it has."""
        asked = schedules.ListFiresRequest(name=name, outcome="skipped", limit=most)
        try:
            fires = (await self._daemons.ListFires(asked)).fires
        except NotFound:  # the task was deleted, and its history too
            return
        since = await self._since()
        await self._put([skipped(fire, since) for fire in fires])

    async def _since(self) -> datetime:
        since: datetime = max(await self._store.run(outbox.began), self._clock.now() - LOOK_BACK)
        return since

    async def _put(self, found: list[Delivery | None]) -> None:
        if rows := [row for row in found if row]:
            await self._store.run(partial(outbox.put, rows=rows))
            self._wake()


class Settler:
    """The part that replaces a row about a turn with deliveries to the targets that subscribe to it."""

    def __init__(self, store: Database, daemons: AsyncCaller, clock: Any, links: Any) -> None:
        """Take `links`, which returns the address of a page that decides a question, or nothing without such a page."""
        self._store, self._daemons, self._clock, self._links = store, daemons, clock, links

    async def settle(self, row: Delivery, known: targets.Targets) -> None:
        """Replace a row by its deliveries, or postpone the row while its fire is open. Raises TurnkeeperError."""
        if row.kind == "run":
            rows, now = await self._run(row, known), self._clock.now()
            await self._store.run(lambda store: outbox.settle(store, row, rows, now, "settled"))
            return
        ways = {"waits": self._questions, "skipped": self._skipped}
        found = await ways.get(row.kind, self._end)(row)
        now = self._clock.now()
        if found is None:
            pause_s = AGAIN_S[min(row.tries, len(AGAIN_S) - 1)]
            at = now + timedelta(seconds=pause_s)
            await self._store.run(lambda store: outbox.postpone(store, row, at, tries=row.tries + 1))
            return
        rows = [self._addressed(row, name, target, key, kind, data)
                for key, kind, data in found
                for name, target in known.items()
                if target.wants(kind, row.task, data["channel"])]  # fmt: skip
        await self._store.run(lambda store: outbox.settle(store, row, rows, now, "settled"))

    def _addressed(self, row: Delivery, name: str, target: targets.Target, key: str, kind: str, data: Any) -> Delivery:
        now = self._clock.now()
        at, gathers = target.due(kind, now)
        type_ = "approval.waits" if kind == "waits" else f"task.{data['outcome']}"
        said = {"type": type_, "timestamp": rfc3339(now), "data": data}
        state, reason = (outbox.GATHERED, outbox.DIGEST) if gathers else (WAITING, outbox.QUIET if at > now else "")
        return row._replace(
            key=delivery_key(key, name), kind=kind, state=state, target=name, tries=0, next_us=to_us(at),
            made_us=to_us(now), body=json.dumps(said, ensure_ascii=False), reason=reason,
        )  # fmt: skip

    async def _run(self, row: Delivery, known: targets.Targets) -> list[Delivery]:
        """Return the delivery of a client's run to its address. Empty if no target accepts it, or its turn is gone."""
        name, now, about = targets.of_run(known, row.address), self._clock.now(), json.loads(row.body)
        if not name:
            return []
        try:
            turn = await self._daemons.GetTurn(agents.GetTurnRequest(turn_id=row.turn_id))
        except NotFound:  # the runtime's store was restored
            return []
        try:
            state = await self._daemons.GetState(agents.GetStateRequest(thread_id=about["thread"]))
            values = json.loads(state.state_json)["values"]
        except NotFound:  # the thread was deleted
            values = None
        run = json.loads(turn.run_json or "{}")
        told = {"run_id": row.turn_id, "thread_id": about["thread"], "status": about["status"]}
        told |= {"assistant_id": run.get("assistant_id"), "metadata": run.get("metadata") or {}}
        told |= {"error": turn.error or None, "webhook_sent_at": rfc3339(now), "values": values}
        if len(text := json.dumps(told, ensure_ascii=False)) > LONGEST_ANSWER:
            text = json.dumps(told | {"values": None}, ensure_ascii=False)
        at, _ = known[name].due(row.kind, now)
        return [
            row._replace(
                key=delivery_key(row.key, name), state=WAITING, target=name, tries=0, next_us=to_us(at),
                made_us=to_us(now), body=text, reason=outbox.QUIET if at > now else "",
            )
        ]  # fmt: skip

    async def _skipped(self, row: Delivery) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the result of skipped times or of a stop, with the task's channel. Empty if the task was deleted."""
        try:
            task = await self._daemons.GetTask(schedules.GetTaskRequest(name=row.task_id))
        except NotFound:
            return []
        return [(row.key, "failure", self._about(row) | {"channel": task.spec.channel} | json.loads(row.body))]

    async def _end(self, row: Delivery) -> list[tuple[str, str, dict[str, Any]]] | None:
        """Return the result of a fire from the ledger. Empty if it is not delivered, None while the fire is open."""
        try:
            fire = await self._daemons.GetFire(schedules.GetFireRequest(fire_id=row.fire_id))
        except NotFound:  # the history of the task was deleted
            return []
        if not fire.HasField("ended_at"):
            return None
        kind = KIND_OF.get(fire.outcome)
        if kind is None or (kind == "success" and fire.reason in UNSENT):
            return []
        data = self._about(row) | {"outcome": fire.outcome, "reason": fire.reason, "attempt": fire.attempt}
        data["turn_id"] = fire.turn_id or row.turn_id
        data["ended_at"] = rfc3339(fire.ended_at.ToDatetime(UTC))
        data["text"] = await self._answer(json.loads(row.body)["thread"], data["turn_id"])
        return [(row.key, kind, data)]

    async def _questions(self, row: Delivery) -> list[tuple[str, str, dict[str, Any]]]:
        asked = agents.ListInterruptsRequest(thread_id=json.loads(row.body)["thread"])
        found = (await self._daemons.ListInterrupts(asked)).interrupts
        return [
            (
                one.interrupt_id,
                "waits",
                self._about(row)
                | {"interrupt_id": one.interrupt_id, "tool": one.tool, "arguments": one.args_json}
                | {"question": one.question}
                | ({"decide": link} if (link := self._links(one.interrupt_id, self._clock.now(), row.task)) else {}),
            )
            for one in found
            if one.turn_id == row.turn_id
        ]

    async def _answer(self, thread: str, turn_id: str) -> str:
        """Return the last text of the agent in a turn. Return nothing if there is no text or no turn."""
        asked = agents.GetConversationRequest(thread_id=thread, limit=NEWEST_TURNS)
        turns = (await self._daemons.GetConversation(asked)).turns
        said = [one.text for turn in turns if turn.turn_id == turn_id for one in turn.messages if one.role == "agent"]
        return plain(next((text for text in reversed(said) if text), ""))[:LONGEST_ANSWER]

    def _about(self, row: Delivery) -> dict[str, Any]:
        names = ("task", "task_id", "channel", "fire_id", "turn_id")
        return {name: getattr(row, name) for name in names}


def event_of(name: str, row: Delivery) -> schedules.EmitEventRequest:
    """Return the event for a result, caused by its fire. Its id is the row's key. Cut texts that no prompt can hold."""
    data = json.loads(row.body)["data"]
    data["text"] = str(data.get("text", "")).encode()[:LONGEST_IN_EVENT].decode("utf-8", "ignore")
    said, key = json.dumps(data, ensure_ascii=False), row.key.replace("_", "-")
    return schedules.EmitEventRequest(name=name, data_json=said, event_id=key, fire_id=row.fire_id)


def digest_of(name: str, rows: list[Delivery], now: Any) -> Delivery:
    """Return the one delivery that replaces all that waited for the digest of a target."""
    said = [json.loads(row.body)["data"] for row in rows]
    lines = "\n\n".join(f"{one['task']} {one['outcome']}: {one['text'] or one['reason']}" for one in said)
    body = {"type": "digest", "timestamp": rfc3339(now), "data": {"text": lines, "results": said}}
    key = delivery_key(":".join(row.key for row in rows), name)
    return Delivery(
        key=key, kind="digest", state=WAITING, next_us=to_us(now), made_us=to_us(now), target=name,
        body=json.dumps(body, ensure_ascii=False),
    )  # fmt: skip
