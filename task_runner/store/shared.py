"""The tables that runners and runtimes share in one database: envelopes that wait for threads, and events of turns.

The runtime owns these tables; a runner writes and reads them here, in its own transactions.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from task_runner.store.events import LISTENING
from task_runner.store.schema import fires, follow, slots, tasks
from turnkeeper.storage.nodes import TAG
from turnkeeper.storage.server.following import Holes
from turnkeeper.storage.server.handover import FIRE, SCHEMA, handover_of
from turnkeeper.storage.statements import TEXT, Statement, among, listed, now_us, one_of, upsert
from turnkeeper.times import from_us, to_us

MOST_WAITING = 4096  # envelopes that no runtime has begun; further fires wait in the ledger, under their policies
EVENTS_READ = "agent-runtime/events"  # the position of the last event inside a turn that a runner read
SOON_US = 1_000_000
_CATCH_UP = "catch-up"
_ASLEEP = frozenset({"INTERRUPTED", "PAUSED"})
_GOES_ON = frozenset({"interrupted", "paused", "running"})
_REVIEWS = frozenset({"PROPOSED", "CONTRADICTED", "REVIEWED"})  # events of proposals, not states of a turn


class WrittenTurnEvent(NamedTuple):
    """One turn event, as the runtime wrote it."""

    sequence: int
    fire_id: str
    attempt: int
    turn_id: str
    thread_id: str
    trigger: str
    state: str
    at_us: int
    error: str
    held_by_json: str
    tokens_in: int
    tokens_out: int
    wake_after_s: int | None
    models_json: str
    refused: str = ""  # the field of a fire's request that kept a runtime from beginning the fire


class Happened(NamedTuple):
    """An event inside a turn, as the runtime wrote it, with fields of the turn's row."""

    sequence: int
    name: str
    turn_id: str
    tool: str
    data_json: str
    at_us: int
    thread_id: str
    fire_id: str
    task_id: str
    task_name: str
    channel: str
    category: str
    agent: str


class Waiting(NamedTuple):
    """The work that waits for a runner.

    Attributes:
        has_runtime: True if a runtime is running.
        ready: True if a fire may be handed over within a second.
        news: True if a turn event waits for a runner.
        overdue: True if a fire that no runtime began is past its grace.
        listens: True if a task waits, or has waited, for events inside turns.
        wake_us: when the next task needs planning; None if none does.
    """

    has_runtime: bool
    ready: bool
    news: bool
    overdue: bool
    listens: bool
    wake_us: int | None


class Shared:
    """The shared tables, over one connection inside a transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def has_runtime(self) -> bool:
        """Return True if a runtime is running that could take fires."""
        return _handover.has_runtime(self._connection)

    def waiting(self, now: datetime) -> Waiting:
        """Return the work that waits for a runner. The check is one statement without a lock."""
        return Waiting(*_WORK.rows(self._connection, now=to_us(now), soon=to_us(now) + SOON_US, limit=1)[0])

    def may_hand_over(self, now: datetime) -> bool:
        """Return False if a runtime is running and no fire is ready. The check is one statement without a lock."""
        return bool(_MAY_HAND_OVER.value(self._connection, soon=to_us(now)))

    def has_news(self) -> bool:
        """Return True if a turn event waits for a runner. The check is one statement without a lock."""
        return bool(_HAS_NEWS.value(self._connection))

    def room(self) -> int:
        """Return the number of fires that may be handed over before the runtimes have begun some."""
        return MOST_WAITING - _handover.waiting(self._connection, MOST_WAITING)

    def put(self, requests: Sequence[tuple[Any, bytes]], at: datetime) -> None:
        """Put fires, each given as its request and the request's bytes."""
        rows = [
            {"key": f"fire:{request.fire_id}:{request.attempt}", "kind": FIRE, "envelope": data}
            | {"thread_id": request.thread_id, "agent": request.agent}
            | ({"reason": f"{TAG}{request.needs}"} if request.needs else {})
            for request, data in requests
        ]
        _handover.put_all(self._connection, rows, at)

    def overdue(self, now: datetime, limit: int) -> list[str]:
        """Return at most `limit` fires that no runtime has begun by the end of their grace."""
        return list(_OVERDUE.values(self._connection, now=to_us(now), limit=limit))

    def withdraw(self, fire_id: str, attempt: int) -> bool:
        """Delete the envelope of an attempt that no runtime has begun. False if one has begun it."""
        return _handover.withdraw(self._connection, f"fire:{fire_id}:{attempt}")

    def cancel(self, fire_id: str, attempt: int, thread_id: str, reason: str, at: datetime, *, asleep: bool) -> None:
        """Request the end of an attempt's turn; with `asleep`, even if the turn waits for its author or a pause."""
        turn_id = turn_of(fire_id, attempt)
        if asleep or _NEWEST.value(self._connection, turn=turn_id) not in _ASLEEP:
            _handover.cancel(self._connection, turn_id, thread_id, reason, at)

    def catch_up(self) -> datetime | None:
        """Keep other runners from handing over a caught-up fire until this transaction ends.

        Return the time before which no runner may hand over the next. Return None if another runner is doing so.
        """
        until_us = _SLOT.value(self._connection, slot=_CATCH_UP)
        return None if until_us is None else from_us(until_us)

    def catch_up_after(self, at: datetime) -> None:
        """Set the time before which no runner may hand over another caught-up fire."""
        _SLOT_UNTIL.run(self._connection, slot=_CATCH_UP, at=to_us(at))

    def take(self, limit: int) -> list[WrittenTurnEvent]:
        """Return at most `limit` turn events that no runner has read, in order, and mark them as read.

        Events of one task stay in order across runners: a runner locks the tasks of the events it reads, and skips
        tasks that another runner has locked.
        """
        found = _FOUND.rows(self._connection, limit=limit)
        tasks_of = dict(_TASKS_OF.rows(self._connection, ids=listed({fire_id for _, fire_id in found if fire_id})))
        free = set(_LOCK_FREE.values(self._connection, ids=listed(set(tasks_of.values()))))
        mine = [number for number, fire_id in found if tasks_of.get(fire_id) is None or tasks_of[fire_id] in free]
        taken = [WrittenTurnEvent(*row) for row in _TAKE.rows(self._connection, numbers=listed(mine))] if mine else []
        if taken:
            _TAKEN.run(self._connection, numbers=listed([each.sequence for each in taken]))
        return taken

    def incarnation(self) -> str:
        """Return the incarnation of the runtimes' store. Empty before a runtime has opened it."""
        return _META.value(self._connection, of="incarnation") or ""

    def want(self, names: Collection[str]) -> None:
        """Tell the runtimes to keep events inside turns with these names from now on."""
        wanted = json.dumps(sorted(names))
        if (_META.value(self._connection, of="bridged") or "[]") != wanted:
            _SET_META.run(self._connection, key="bridged", value=wanted)

    def happened(self, names: Collection[str], after: int, limit: int, holes: Holes) -> tuple[list[Happened], int]:
        """Return events inside turns with these names after a number, and the number up to which none is missing."""
        rows, reached = holes.read(_HAPPENED, self._connection, after, names=listed(names), limit=limit)
        return [Happened(**row) for row in rows], reached

    def forget_happened(self, through: int) -> None:
        """Delete the events up to a number. Keep those that an unfinished turn may report again."""
        _FORGET_HAPPENED.run(self._connection, through=through)


def turn_of(fire_id: str, attempt: int) -> str:
    """Return the id of the present or future turn of a fire's attempt."""
    said = json.dumps([fire_id, attempt], separators=(",", ":"))
    return f"turn-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def _columns(table: str, *names: str, **kinds: Any) -> sa.Table:
    columns: Sequence[sa.Column[Any]] = [sa.Column(name, kinds.get(name, TEXT)) for name in names]
    return sa.Table(table, sa.MetaData(schema=SCHEMA), *columns)


_handover = handover_of()
_NUMBERS = dict.fromkeys(("sequence", "attempt", "at_us", "tokens_in", "tokens_out", "wake_after_s"), sa.BigInteger())
_told = _columns(
    "turn_events", "sequence", "fire_id", "attempt", "turn_id", "thread_id", "trigger", "state", "at_us", "error",
    "held_by_json", "tokens_in", "tokens_out", "wake_after_s", "models_json", "taken", taken=sa.Boolean(), **_NUMBERS,
)  # fmt: skip
_turns = _columns("turns", "turn_id", "status", *Happened._fields[6:])
_meta = _columns("meta", "key", "value")
_happened = _columns("bridged_events", *Happened._fields[:6], **_NUMBERS)


def _new(*columns: Any) -> sa.Select[Any]:
    return sa.select(*columns).where(sa.not_(_told.c.taken)).order_by(_told.c.sequence)


_NEWS_WAIT = sa.exists().where(sa.not_(_told.c.taken))
_HAS_NEWS = Statement(sa.select(_NEWS_WAIT))
_owners = _columns("owners", "owner", "until_us", until_us=sa.BigInteger())
_RUNS = sa.exists().where(_owners.c.until_us > now_us())
_READY = sa.or_(
    *(
        sa.exists().where(fires.c.ready_us <= sa.bindparam("soon"), fires.c.caught_up == sa.literal(late))
        for late in (False, True)
    )
)
_MAY_HAND_OVER = Statement(sa.select(sa.or_(sa.not_(_RUNS), _READY)))
_FOUND = Statement(_new(_told.c.sequence, _told.c.fire_id).limit(sa.bindparam("limit")))
_TASKS_OF = Statement(sa.select(fires.c.fire_id, fires.c.task_id).where(among(fires.c.fire_id, "ids")))
_LOCK_FREE = Statement(
    sa.select(tasks.c.id).where(among(tasks.c.id, "ids")).order_by(tasks.c.id).with_for_update(skip_locked=True)
)
_keys = _columns("keys", "turn_id", "became", "into")
_REFUSED_FOR = (
    sa.select(_keys.c.into)
    .where(_keys.c.turn_id == _told.c.turn_id, _keys.c.became == "refused", _told.c.fire_id != "")
    .scalar_subquery()
)
_TAKE = Statement(
    _new(
        *(_told.c[name] for name in WrittenTurnEvent._fields[:-1]),
        sa.func.coalesce(_REFUSED_FOR, ""),
    )
    .where(among(_told.c.sequence, "numbers"))
    .with_for_update(skip_locked=True)
)
_TAKEN = Statement(sa.update(_told).where(among(_told.c.sequence, "numbers")).values(taken=sa.true()))
_states = sa.select(_told.c.state).where(_told.c.turn_id == sa.bindparam("turn")).order_by(_told.c.sequence.desc())
_NEWEST = Statement(_states.where(sa.not_(one_of(_told.c.state, _REVIEWS))).limit(1))
_envelopes = _columns("envelopes", "number", "key", "kind", "state", number=sa.BigInteger())
_OLDEST = (
    sa.select(_envelopes.c.key)
    .where(_envelopes.c.state == "waiting", _envelopes.c.kind == FIRE)
    .order_by(_envelopes.c.number)
    .limit(MOST_WAITING)
    .subquery()
)
_late = (
    sa.select(fires.c.fire_id)
    .join(_OLDEST, _OLDEST.c.key == sa.literal("fire:", TEXT) + fires.c.fire_id + ":" + sa.cast(fires.c.attempt, TEXT))
    .where(fires.c.outcome == "accepted", fires.c.kind == "scheduled", fires.c.send_by_us < sa.bindparam("now"))
    .order_by(fires.c.entry_id)
    .limit(sa.bindparam("limit"))
)
_OVERDUE = Statement(_late)
_LISTENS = sa.or_(sa.exists().where(*LISTENING), sa.exists().where(follow.c.peer == EVENTS_READ))
_NEXT_WAKE = sa.select(sa.func.min(tasks.c.wake_us)).where(tasks.c.wake_us.is_not(None)).scalar_subquery()
_WORK = Statement(
    sa.select(
        *(
            each.label(name)
            for each, name in zip(
                (_RUNS, _READY, _NEWS_WAIT, _late.exists(), _LISTENS, _NEXT_WAKE), Waiting._fields, strict=True
            )
        )
    )
)
_META = Statement(sa.select(_meta.c.value).where(_meta.c.key == sa.bindparam("of")))
_SET_META = Statement(upsert(_meta, [_meta.c.key], ["value"]))
_HAPPENED = Statement(
    sa.select(*_happened.c, *(_turns.c[name] for name in Happened._fields[6:]))
    .join(_turns, _turns.c.turn_id == _happened.c.turn_id)
    .where(_happened.c.sequence > sa.bindparam("sequence"), among(_happened.c.name, "names"))
    .order_by(_happened.c.sequence)
    .limit(sa.bindparam("limit"))
)
_FORGET_HAPPENED = Statement(
    sa.delete(_happened).where(
        _happened.c.sequence <= sa.bindparam("through"),
        _happened.c.turn_id.not_in(sa.select(_turns.c.turn_id).where(one_of(_turns.c.status, _GOES_ON))),
    )
)
_SLOT = Statement(
    sa.select(slots.c.until_us).where(slots.c.name == sa.bindparam("slot")).with_for_update(skip_locked=True)
)
_SLOT_UNTIL = Statement(
    sa.update(slots).where(slots.c.name == sa.bindparam("slot")).values(until_us=sa.bindparam("at"))
)
