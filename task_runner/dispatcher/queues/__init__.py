"""The limits of queues over all machines, and the tags that machines offer.

A runner checks the limits in the transaction that sends a fire or hands it over, under a lock of the queue's row. The
turns of a queue are counted in the ledger, so a process that dies neither frees nor keeps a place. A fire that a limit
stops stays unsent in the ledger, where catch-up and overlap decide about it, until its next try. The end of a turn
makes the next fires of its queue ready.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import bindparam, func, literal_column, select, update

from task_runner.model.task import QUEUED, UNDER_WAY, WAITS, Outcome
from task_runner.store.schema import fires, slots, tasks
from task_runner.store.store import Session
from turnkeeper.config.surfaces import offered
from turnkeeper.storage import nodes
from turnkeeper.storage.statements import Statement, among, file_of, listed, of_server, one_of, upsert
from turnkeeper.times import from_us, to_us
from turnkeeper.v1.agent_runtime_pb2 import FireRequest

AGAIN = timedelta(seconds=30)  # until the next try of a fire if the end of its turn was not noticed
MOST_WOKEN = 100
Limits = Mapping[str, Any]  # settings, by queue


def admission(settings: Any) -> Callable[[Session, Sequence[Any], datetime], list[Any]]:
    """Return a function that returns the fires which the limits of these settings admit, and postpones the others."""
    return partial(_admitted, settings)


def _admitted(settings: Any, session: Session, found: Sequence[Any], now: datetime) -> list[Any]:
    """Return the fires that tags and queues admit, highest priority first. Postpone the others."""
    found, limits = _with_tags(settings, session, found, now), settings.queues
    ids = listed({each.fire.task_id for each in found})
    queue_of = dict(_QUEUES.rows(session.connection, ids=ids)) if found else {}
    if not queue_of:
        return list(found)
    by_queue: dict[str, list[Any]] = {}
    for each in found:
        by_queue.setdefault(queue_of.get(each.fire.task_id, ""), []).append(each)
    sent = by_queue.pop("", [])
    for name in sorted(by_queue):  # all runners lock in this order
        sent += _within(limits.get(name), session, name, by_queue[name], now)
    priority = {name: its.priority for name, its in limits.items()}
    return sorted(sent, key=lambda each: -priority.get(queue_of.get(each.fire.task_id, ""), 0))


def _with_tags(settings: Any, session: Session, found: Sequence[Any], now: datetime) -> Sequence[Any]:
    """Return the fires that need no tag, or a tag that a running machine offers. Postpone the others."""
    needs = [FireRequest.FromString(each.request).needs for each in found]
    if not any(needs):
        return found
    tags = {"", *(_tags(session) if settings.store.is_shared else settings.node.tags)}
    for tag in {*needs} - tags:
        left = [each for each, its in zip(found, needs, strict=True) if its == tag]
        _postpone(session, left, now + AGAIN, f"{WAITS}a machine that offers {tag}")
    return [each for each, tag in zip(found, needs, strict=True) if tag in tags]


def _tags(session: Session) -> list[str]:
    """Return the tags that the machines of a shared store offer which can begin fires now."""
    found = [one for one in nodes.nodes_of(None).listed(session.connection) if one.lives and not one.draining]
    begin = [one.facts for one in found if one.role == "agent-runtime" and nodes.CORDONED not in one.facts]
    return [fact.removeprefix(nodes.TAG) for its in begin for fact in its if fact.startswith(nodes.TAG)]


def _within(limits: Any, session: Session, name: str, found: list[Any], now: datetime) -> list[Any]:
    if limits is None:
        _postpone(session, found, now + AGAIN, f"{QUEUED}{name}: config.toml has no [queues.{name}]")
        return []
    slot = f"queue {name}"
    _ADD.run(session.connection, name=slot, holder="", until_us=0)
    free_at = from_us(_LOCK.value(session.connection, slot=slot))
    room = len(found)
    if limits.turns_at_once:
        count = _RUNNING.value(session.connection, queue=name)
        room = min(room, max(0, limits.turns_at_once - count))
        why = f"{QUEUED}{name}: {min(count + room, limits.turns_at_once)} of {limits.turns_at_once} turns at once"
        _postpone(session, found[room:], now + AGAIN, why)
    if limits.per_minute and room:
        gap = timedelta(minutes=1) / limits.per_minute
        free_at = free_at if now < free_at <= now + gap else now  # a later time was written before a clock step
        own = 1 if free_at == now else 0
        next_at = free_at + gap * own
        for at, each in enumerate(found[own:room]):
            _postpone(session, [each], next_at + gap * at, f"{QUEUED}{name}: {limits.per_minute} turns a minute")
        if own:
            _BOOK.run(session.connection, slot=slot, at=to_us(next_at))
        room = own
    return found[:room]


def _postpone(session: Session, found: Sequence[Any], until: datetime, why: str) -> None:
    """Make unsent fires ready later. A fire keeps another reason: with it, the fire may ask to cancel a turn."""
    rows = [
        {"number": each.fire.entry_id, "ready_us": to_us(until)}
        | {"reason": each.fire.reason if each.fire.reason and not each.fire.reason.startswith(WAITS) else why}
        for each in found
    ]
    _POSTPONE.run_each(session.connection, rows)


def wake(session: Session, task_ids: Collection[str], now: datetime) -> None:
    """Make the next fires ready in the queues of tasks with a turn that has ended, earliest first."""
    if task_ids:
        _WAKE.run(session.connection, ids=listed(task_ids), now=to_us(now), stopped=f"{QUEUED}%at once")


def cordon(session: Any) -> str:
    """Describe the cordon that all fires wait for. Return an empty text if a machine takes turns."""
    connection = session.connection
    if of_server(connection):
        return (
            "the end of the cordon of all machines: turnkeeper uncordon NODE"
            if offered("cordon of all machines", connection)
            else ""
        )
    return "the end of the cordon: turnkeeper uncordon" if file_of(connection).with_name("cordoned").exists() else ""


def shown(read: Callable[[str], Iterable[Mapping[str, Any]]], limits: Limits, now: datetime) -> list[dict[str, Any]]:
    """Return each queue with its limits, its turns now and in the last minute, and its fires that wait; by name.

    Args:
        read: returns the rows of a query on the runner's store.
    """
    since = to_us(now - timedelta(minutes=1))
    counted = {row["name"]: row for row in read(_SHOWN.format(since=since))}
    found = []
    for name in sorted({*limits, *counted}):
        row, its = counted.get(name, {"turns": 0, "waiting": 0, "begun": 0}), limits.get(name)
        limit = {key: getattr(its, key, None) for key in ("turns_at_once", "per_minute", "priority")}
        found.append({"name": name, **{key: row[key] for key in ("turns", "waiting", "begun")}, **limit})
    return found


# Only the newest entries are counted, because a history may be long.
_SHOWN = """
SELECT queue AS name, sum(CASE WHEN is_open AND outcome IN ('sent', 'accepted', 'running') THEN 1 ELSE 0 END) AS turns,
  sum(CASE WHEN outcome = 'pending' THEN 1 ELSE 0 END) AS waiting,
  sum(CASE WHEN fired_us > {since} THEN 1 ELSE 0 END) AS begun
FROM tasks LEFT JOIN fires ON task_id = id AND (is_open OR entry_id > (SELECT max(entry_id) - 10000 FROM fires))
WHERE queue IS NOT NULL AND state <> 'deleted' GROUP BY queue
"""
_QUEUES = Statement(select(tasks.c.id, tasks.c.queue).where(among(tasks.c.id, "ids"), tasks.c.queue.is_not(None)))
_ADD = Statement(upsert(slots, [slots.c.name]))
_LOCK = Statement(select(slots.c.until_us).where(slots.c.name == bindparam("slot")).with_for_update())
_BOOK = Statement(update(slots).where(slots.c.name == bindparam("slot")).values(until_us=bindparam("at")))
_RUNNING = Statement(
    select(func.count())
    .select_from(fires.join(tasks, tasks.c.id == fires.c.task_id))
    .where(tasks.c.queue == bindparam("queue"), fires.c.is_open, one_of(fires.c.outcome, UNDER_WAY))
)
_POSTPONE = Statement(update(fires).where(fires.c.entry_id == bindparam("number")))
_ended = tasks.alias("ended")
_stopped = (
    select(fires.c.entry_id)
    .join(tasks, tasks.c.id == fires.c.task_id)
    .where(tasks.c.queue.in_(select(_ended.c.queue).where(among(_ended.c.id, "ids"), _ended.c.queue.is_not(None))))
    .where(fires.c.ready_us > bindparam("now"), fires.c.outcome == literal_column(f"'{Outcome.PENDING.value}'"))
    .where(fires.c.reason.like(bindparam("stopped")))
    .order_by(fires.c.due_us, fires.c.entry_id)
    .limit(MOST_WOKEN)
    .with_for_update(of=fires, skip_locked=True)
)
_WAKE = Statement(update(fires).where(fires.c.entry_id.in_(_stopped)).values(ready_us=bindparam("now")))
