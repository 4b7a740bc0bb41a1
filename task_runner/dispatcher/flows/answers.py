"""Tasks that follow other tasks: the answers that they receive, and whether the followed tasks have succeeded.

A task follows others by the filter `after=a,b` of `task.succeeded`. The answers are read before the transaction that
records an outcome. If the runtime does not answer, the runner reads the outcome again later, so no answer is lost.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from task_runner.dispatcher.flows.prompts import LONGEST, names_before
from task_runner.dispatcher.runtime_client import Runtime
from task_runner.model.events import SUCCEEDED, Event
from task_runner.model.task import Definition, Fire, Outcome, Task, TaskState, thread_of
from task_runner.store.rows import Note
from task_runner.store.store import Session, Store
from turnkeeper.errors import NotFound
from turnkeeper.times import EPOCH, rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire

NEWEST_TURNS = 20  # newest turns of a thread, which include a turn that has just ended
NEWEST_FIRES = 50  # newest fires of a followed task
_ENDED = frozenset({wire.TurnEvent.SUCCEEDED, wire.TurnEvent.SILENT, wire.TurnEvent.DELIVERED})
_DID = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.REJECTED: "was rejected",
    Outcome.CANCELLED: "was cancelled",
    Outcome.INTERRUPTED: "waits for its author",
    Outcome.HELD: "waits for its author",
}


class Source(NamedTuple):
    """The turn that gave an answer."""

    thread_id: str
    turn_id: str


def before(task: Task) -> Sequence[str]:
    """Return the names of the tasks that a task follows; empty if it follows none by `after`."""
    return names_before(task.definition.on.filters if task.definition.on is not None else ())


def missing(session: Session, definition: Definition) -> list[str]:
    """Return a warning for each name of `--after` that no other task has, because the new task waits for it."""
    names = names_before(definition.on.filters if definition.on is not None else ())
    others = {name: session.tasks.find(name) for name in names if name != definition.name}
    gone = [name for name in names if (task := others.get(name)) is None or task.state is TaskState.DELETED]
    return [
        f"no other task is named {name[:70]}, and this one waits for it; see: turnkeeper task list" for name in gone
    ]


def is_whole(session: Session, task: Task, event: Event) -> bool:
    """Return True if an event completes the tasks that a task follows: each succeeded since the task's last fire.

    If several succeeded, the last one fires the task.
    """
    others = set(before(task)) - {event.task_name}
    if event.name != SUCCEEDED or not others or task.definition.on is None:
        return True
    since = _counts_from(session, task)
    for name in others:
        found = _newest(session, session.tasks.find(name))
        ended_at = found[1].ended_at if found else None
        if ended_at is None or not (since < ended_at and (ended_at, name) <= (event.at, event.task_name)):
            return False
    return True


def _counts_from(session: Session, task: Task) -> datetime:
    """Return the time after which successes of other tasks count for the next fire of a task."""
    newest, since = session.events.newest(task.id), task.definition.on.since if task.definition.on else EPOCH
    if newest is not None and (note := session.events.notes([newest.entry_id]).get(newest.entry_id)):
        return max(since, note.at)
    return since


async def answers(
    store: Store, runtime: Runtime, ended: Sequence[wire.TurnEvent | wire.Turn]
) -> Mapping[str, dict[str, Any]]:
    """Return, by fire id, the answers for the followers. Empty if no task waits for a success.

    Raises TurnkeeperError if the runtime does not answer.
    """
    good = {one.fire_id: Source(one.thread_id, one.turn_id) for one in ended if one.fire_id and one.state in _ENDED}
    wanted = await store.read(lambda connection: _wanted(connection, good=good)) if good else {}
    told: dict[str, dict[str, Any]] = {}
    for fire_id, (own, sources) in wanted.items():
        most = LONGEST // len(sources)
        texts = {name: _cut(await _answer(runtime, source), most) for name, source in sources.items()}
        told[fire_id] = {"answer": texts[own]}
        with suppress(ValueError):
            if isinstance(result := json.loads(texts[own]), dict | list):
                told[fire_id]["result"] = result
        if len(texts) > 1:
            told[fire_id]["answers"] = texts
    return told


def _wanted(session: Session, good: Mapping[str, Source]) -> dict[str, tuple[str, dict[str, Source]]]:
    """Return, by fire id, the fire's task and the turns whose answers go to followers."""
    listeners = session.events.listeners({SUCCEEDED})
    found: dict[str, tuple[str, dict[str, Source]]] = {}
    for fire_id, fire in session.fires.by_ids(list(good) if listeners else []).items():
        task = session.tasks.find(fire.task_id)
        if task is None:
            continue
        own, sources = task.definition.name, {task.definition.name: good[fire_id]}
        for name in {name for one in listeners if own in before(one) for name in before(one)} - {own}:
            if newest := _newest(session, session.tasks.find(name)):
                sources[name] = Source(thread_of(newest[0], newest[1].fire_id), newest[1].turn_id)
        found[fire_id] = own, sources
    return found


def _newest(session: Session, task: Task | None) -> tuple[Task, Any] | None:
    if task is None:
        return None
    fires, _ = session.fires.page(1, task_id=task.id, outcome=Outcome.SUCCEEDED.value)
    return (task, fires[0]) if fires else None


async def _answer(runtime: Runtime, source: Source) -> str:
    """Return the last text of a turn; empty if the turn wrote no text or was deleted."""
    asked = wire.GetConversationRequest(thread_id=source.thread_id, limit=NEWEST_TURNS)
    try:
        turns = (await runtime.ask("GetConversation", asked)).turns
    except NotFound:
        return ""
    said = [
        one.text for turn in turns if turn.turn_id == source.turn_id for one in turn.messages if one.role == "agent"
    ]
    return next((text for text in reversed(said) if text), "")


def _cut(text: str, most: int) -> str:
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def explained(session: Session, task: Task, note: Note | None) -> list[str]:
    """Return a sentence about each task that a task follows; empty if the task follows no other by `after`.

    With the note of an entry, name the fires that triggered it. Without a note, say what the task waits for now.
    """
    found = {name: _fires(session, session.tasks.find(name)) for name in before(task)}
    if note is not None:
        good = {name: _success(fires or (), note.at) for name, fires in found.items()}
        return [f"{name} had succeeded: {_ended(fire)}." for name, fire in good.items() if fire is not None]
    since = _counts_from(session, task)
    return [_standing(name, fires, since) for name, fires in found.items()]


def _fires(session: Session, task: Task | None) -> Sequence[Fire] | None:
    """Return the newest fires of a task, newest first; None if there is no such task."""
    if task is None or task.state is TaskState.DELETED:
        return None
    entries, _ = session.fires.page(NEWEST_FIRES, task_id=task.id, without_folded=True)
    return [entry for entry in entries if entry.fire_id]


def _success(fires: Sequence[Fire], until: datetime) -> Fire | None:
    good = (one for one in fires if one.outcome is Outcome.SUCCEEDED and one.ended_at and one.ended_at <= until)
    return next(good, None)


def _ended(fire: Fire) -> str:
    return f"{fire.fire_id}, at {rfc3339(fire.ended_at)}" if fire.ended_at else fire.fire_id


def _standing(name: str, fires: Sequence[Fire] | None, since: datetime) -> str:
    """Return whether a task has succeeded after `since`, or else the outcome of its newest fire."""
    if fires is None:
        return f"It waits for {name}, but no task has that name."
    good = next(
        (one for one in fires if one.outcome is Outcome.SUCCEEDED and one.ended_at and one.ended_at > since), None
    )
    if good is not None:
        return f"{name} has succeeded: {_ended(good)}."
    if not fires:
        return f"It waits for {name}, which has not fired."
    newest = fires[0]
    at = f" at {rfc3339(newest.ended_at)}" if newest.ended_at else ""
    why = f": {newest.reason}" if newest.reason else ""
    if newest.outcome is Outcome.SUCCEEDED:
        why = " and has counted"
    return f"It waits for {name}, whose newest fire {newest.fire_id} {_DID.get(newest.outcome, 'is open')}{at}{why}."
