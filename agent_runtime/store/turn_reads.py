"""Queries of `agent.db`: functions of an open connection, for the daemon and for commands that read while it runs."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, func, select, text
from sqlalchemy.sql import Select

from agent_runtime.model import turn as model
from agent_runtime.model.decide import FINISHED, UNFINISHED, Facts, Incoming, Question, TurnFacts
from agent_runtime.model.mapping import from_row
from agent_runtime.model.trigger import AGENT_KINDS, ASIDE, WAKES, Trigger
from agent_runtime.store.schema import cancels, delegations, interrupts, keys, messages, turn_events, turns
from agent_runtime.store.turn_events import REVIEWS
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.forms import question_of
from turnkeeper.storage.statements import Statement, among, listed, unindexed
from turnkeeper.times import from_us

E = TypeVar("E", bound=model.EventRecord)
LARGEST_PAGE = 1000
_STATUSES = FINISHED | {*UNFINISHED, "accepted", "held", "kept", "delivered"}
Row = RowMapping | Mapping[str, Any]


def get_turn(connection: Connection, turn_id: str) -> model.TurnRecord | None:
    return _turn_or_none(_TURN.first_dict(connection, turn_id=turn_id))


def get_turns(connection: Connection, turn_ids: Sequence[str]) -> list[model.TurnRecord]:
    """Return these turns, oldest first. Omit unknown ids."""
    query = select(turns).where(turns.c.turn_id.in_(turn_ids)).order_by(turns.c.number)
    return [_turn(row) for row in connection.execute(query).mappings()]


def last_answer(connection: Connection, of: Trigger) -> str:
    """Return the last text of the task's newest successful turn in the channel, except the trigger's own turn."""
    wanted = (turns.c.channel == of.channel, turns.c.task_id == of.task_id, turns.c.status == "succeeded")
    query = select(turns.c.turn_id).where(*wanted, turns.c.turn_id != of.turn_id).order_by(turns.c.number.desc())
    turn_id = connection.execute(query.limit(1)).scalar() or ""
    said = [one.said for one in messages_of(connection, [turn_id])[turn_id] if one.said.role == "agent"]
    return next((one.text for one in reversed(said) if one.text), "")


def lock_turn(connection: Connection, turn_id: str) -> model.TurnRecord | None:
    """Return a turn, and prevent others from changing its decisions until this transaction ends."""
    return _turn_or_none(_TURN_LOCKED.first_dict(connection, turn_id=turn_id))


def list_turns(
    connection: Connection, *, limit: int = 50, before: int = 0, **wanted: str
) -> tuple[list[model.TurnRecord], int]:
    """Return turns with a number below `before` and the wanted values, newest first, and the total count.

    `wanted` holds values by the names of columns; an empty value admits all turns.
    """
    only = [turns.c[name] == value for name, value in wanted.items() if value]
    query = select(turns).where(*only, *([turns.c.number < before] if before else []))
    query = query.order_by(turns.c.number.desc()).limit(min(limit or 50, LARGEST_PAGE))
    count = connection.execute(select(func.count()).select_from(turns).where(*only)).scalar_one()
    return [_turn(row) for row in connection.execute(query).mappings()], count


def check_status(status: str) -> None:
    """Raise InvalidInput if no turn can have this status."""
    if status and status not in _STATUSES:
        hint = f"one of {', '.join(sorted(_STATUSES))}"
        raise InvalidInput(f"no turn has the status {status[:40]!r}", where="status", hint=hint)


def unfinished_turns(connection: Connection) -> list[model.TurnRecord]:
    """Return turns that are running, interrupted or paused, oldest first."""
    query = select(turns).where(turns.c.status.in_(UNFINISHED)).order_by(turns.c.number)
    return [_turn(row) for row in connection.execute(query).mappings()]


def newest_on_thread(connection: Connection, thread_id: str, *, besides: str = "") -> model.TurnRecord | None:
    return _turn_or_none(_NEWEST_ON_THREAD.first_dict(connection, thread_id=thread_id, besides=besides))


def newest_that_decides(connection: Connection, thread_id: str, *, besides: str = "") -> model.TurnRecord | None:
    """Return the newest turn that determines whether a thread's loop continues; asides and agents' messages do not."""
    others = turns.c.kind.not_in([ASIDE, *AGENT_KINDS.values()])
    query = select(turns).where(turns.c.thread_id == thread_id, turns.c.turn_id != besides, others)
    return _turn_or_none(_first(connection, query.order_by(turns.c.number.desc())))


def bearing_on_thread(connection: Connection, thread_id: str, *, besides: str = "") -> model.TurnRecord | None:
    """Return the turn that determines a thread's state: the newest unfinished turn, else the newest turn.

    A turn that was cancelled before it began may have a later row than a turn that waits for its author.
    """
    row = _UNFINISHED_ON_THREAD.first_dict(connection, thread_id=thread_id, besides=besides)
    return _turn_or_none(row or _NEWEST_ON_THREAD.first_dict(connection, thread_id=thread_id, besides=besides))


def newest_visible(connection: Connection, channel: str, *, loops: bool = True) -> model.TurnRecord | None:
    """Return the newest turn in a channel's conversation that an author can reply to. Exclude workers' turns.

    Without `loops`, exclude threads of self-paced loops.
    """
    delegated = select(delegations.c.turn_id).where(delegations.c.state != "none")
    query = select(turns).where(turns.c.channel == channel, turns.c.visible, turns.c.turn_id.not_in(delegated))
    if not loops:
        own = select(turns.c.thread_id).where(turns.c.kind.in_(WAKES), turns.c.thread_id == turns.c.task_id)
        query = query.where(turns.c.thread_id.not_in(own))
    return _turn_or_none(_first(connection, query.order_by(turns.c.number.desc())))


def spoken_in(channel: str, thread_id: str) -> list[ColumnElement[bool]]:
    """Return the condition for the turns of a conversation, visible or not: those of a channel, or of one thread."""
    wanted = ((turns.c.channel, channel), (turns.c.thread_id, thread_id))
    return [column == value for column, value in wanted if value or (column is turns.c.channel and not thread_id)]


def as_shown(connection: Connection, found: Sequence[model.TurnRecord]) -> list[model.TurnRecord]:
    """Return turns with the status for readers: an interrupted turn counts as running once all decisions are made."""
    halted = [turn.turn_id for turn in found if turn.status == "interrupted"]
    asked = interrupts_of(connection, halted) if halted else {}
    left = {turn_id: {one.status for one in questions if not one.applied} for turn_id, questions in asked.items()}
    return [replace(turn, status="running") if left.get(turn.turn_id) == {"resolved"} else turn for turn in found]


def conversation(
    connection: Connection, channel: str, *, thread_id: str = "", limit: int = 50, before: int = 0
) -> tuple[list[model.TurnRecord], int, bool]:
    """Return the newest visible turns of a channel or a thread, oldest first.

    With `before`, return only turns with a smaller number. Return also the total count, and True if older turns exist.
    """
    only, most = [*spoken_in(channel, thread_id), turns.c.visible], min(limit or 50, LARGEST_PAGE)
    query = select(turns).where(*only, *([turns.c.number < before] if before else []))
    query = query.order_by(turns.c.number.desc()).limit(most + 1)
    count = connection.execute(select(func.count()).select_from(turns).where(*only)).scalar_one()
    found = [_turn(row) for row in connection.execute(query).mappings()]
    return found[:most][::-1], count, len(found) > most


def messages_of(connection: Connection, turn_ids: Sequence[str]) -> dict[str, list[model.MessageRecord]]:
    """Return the messages of turns, in order, by turn. A turn without messages has an empty list."""
    found: dict[str, list[model.MessageRecord]] = {turn_id: [] for turn_id in turn_ids}
    query = select(messages).where(messages.c.turn_id.in_(turn_ids)).order_by(messages.c.turn_id, messages.c.position)
    for row in connection.execute(query).mappings():
        found[row["turn_id"]].append(_message(row))
    return found


def interrupts_of(connection: Connection, turn_ids: Sequence[str]) -> dict[str, list[model.InterruptRecord]]:
    """Return the interrupts of turns, in order, by turn. A turn without interrupts has an empty list."""
    found: dict[str, list[model.InterruptRecord]] = {turn_id: [] for turn_id in turn_ids}
    for row in _INTERRUPTS_OF.dicts(connection, wanted=listed(turn_ids)):
        found[row["turn_id"]].append(from_row(model.InterruptRecord, row))
    return found


def asked_in_turn(connection: Connection, turn: model.TurnRecord) -> list[model.InterruptRecord]:
    """Return the interrupts of a turn, and of the paused turns that it continues, in order."""
    chain, before = [turn.turn_id], turn.resumes
    while before and before not in chain:
        chain.append(before)
        before = connection.execute(select(turns.c.resumes).where(turns.c.turn_id == before)).scalar() or ""
    found = interrupts_of(connection, chain)
    return [one for turn_id in reversed(chain) for one in found[turn_id]]


def list_interrupts(
    connection: Connection, *, channel: str = "", thread_id: str = "", include_settled: bool = False
) -> list[model.InterruptRecord]:
    """Return the questions to authors, oldest first. Omit bounded pauses, which are not questions."""
    query = _interrupts().where(interrupts.c.kind != "pause").order_by(interrupts.c.number)
    for column, wanted in ((interrupts.c.channel, channel), (interrupts.c.thread_id, thread_id)):
        query = query.where(column == wanted) if wanted else query
    query = query if include_settled else query.where(interrupts.c.status == "pending")
    return [from_row(model.InterruptRecord, row) for row in connection.execute(query).mappings()]


def count_waiting(connection: Connection) -> tuple[dict[str, int], int]:
    """Return the number of unfinished turns by state, and the number of approvals that wait for authors."""
    by_state = select(turns.c.status, func.count()).where(turns.c.status.in_(UNFINISHED)).group_by(turns.c.status)
    found: dict[str, int] = dict(connection.execute(by_state).tuples().all())
    waits = select(func.count()).where(interrupts.c.status == "pending", interrupts.c.kind != "pause")
    return {status: found.get(status, 0) for status in UNFINISHED}, connection.execute(waits).scalar_one()


def timed_interrupts(connection: Connection) -> list[model.InterruptRecord]:
    """Return the pending questions that have a time for a reminder, an alert or an end, oldest first."""
    timed = interrupts.c.remind_at_us.is_not(None) | interrupts.c.escalate_at_us.is_not(None)
    timed = timed | interrupts.c.expires_at_us.is_not(None)
    query = _interrupts().where(interrupts.c.status == "pending", timed).order_by(interrupts.c.number)
    return [from_row(model.InterruptRecord, row) for row in connection.execute(query).mappings()]


def get_interrupt(connection: Connection, interrupt_id: str) -> model.InterruptRecord | None:
    row = _first(connection, _interrupts().where(interrupts.c.interrupt_id == interrupt_id))
    return from_row(model.InterruptRecord, row) if row is not None else None


def open_interrupts(connection: Connection, thread_id: str) -> list[model.InterruptRecord]:
    """Return a thread's interrupts that are pending, or whose decision the graph has not received, oldest first."""
    return [from_row(model.InterruptRecord, row) for row in _OPEN_INTERRUPTS.dicts(connection, thread_id=thread_id)]


def list_channels(connection: Connection) -> list[model.ChannelRecord]:
    """Return every channel that has turns, beginning with the channel of the newest turn."""
    pending = select(interrupts.c.channel, func.count().label("count")).where(
        interrupts.c.status == "pending", interrupts.c.kind != "pause"
    )
    waiting = {row.channel: row[1] for row in connection.execute(pending.group_by(interrupts.c.channel)).all()}
    query = select(
        turns.c.channel,
        func.count().filter(turns.c.visible).label("turns"),
        func.max(turns.c.started_at_us).label("last"),
    )
    query = query.group_by(turns.c.channel).order_by(func.max(turns.c.number).desc())
    return [
        model.ChannelRecord(
            name=row.channel, turns=row.turns, waiting=waiting.get(row.channel, 0), last_at=from_us(row.last)
        )
        for row in connection.execute(query)
    ]


def get_keys(connection: Connection, wanted: Collection[str]) -> dict[str, model.KeyRecord]:
    """Return the keys that were taken, by key. Omit unknown keys."""
    return {row["key"]: from_row(model.KeyRecord, row) for row in _KEYS.dicts(connection, wanted=listed(wanted))}


def key_of_turn(connection: Connection, turn_id: str) -> model.KeyRecord | None:
    """Return the key with this turn id, even if its trigger did not become its own turn."""
    row = _first(connection, select(keys).where(keys.c.turn_id == turn_id))
    return from_row(model.KeyRecord, row) if row is not None else None


def is_cancelled(connection: Connection, turn_id: str) -> bool:
    return _CANCEL.value(connection, turn_id=turn_id) is not None


def cancel_reason(connection: Connection, turn_id: str) -> str:
    """Return the reason why a turn is to be cancelled. Empty if no cancel is stored."""
    return _CANCEL.value(connection, turn_id=turn_id) or ""


def events_after(connection: Connection, sequence: int, read: Any = Statement.dicts) -> list[model.EventRecord]:
    """Return the turn events after a number, in order."""
    return [_event(row) for row in read(_EVENTS_AFTER, connection, sequence=sequence, most=LARGEST_PAGE)]


def detailed_events_after(
    connection: Connection, sequence: int, read: Any = Statement.dicts
) -> list[model.DetailedEvent]:
    """Return the turn events after a number, in order, with fields of their turns."""
    rows = read(_DETAILED_AFTER, connection, sequence=sequence, most=LARGEST_PAGE)
    return [_event(row, model.DetailedEvent) for row in rows]


def newest_sequence(connection: Connection) -> int:
    """Return the number of the newest turn event. 0 if there is none."""
    return connection.execute(select(func.max(turn_events.c.sequence))).scalar() or 0


def newest_event(connection: Connection, turn_id: str) -> model.EventRecord | None:
    """Return the newest event of a turn, or of a held fire that has no turn."""
    return newest_events(connection, [turn_id]).get(turn_id)


def waits(connection: Connection, turn_id: str) -> bool:
    """Return True if, according to its newest event, a turn waits for its author or for the end of a pause."""
    event = newest_event(connection, turn_id)
    return event is not None and event.state in {"INTERRUPTED", "PAUSED"}


def newest_events(connection: Connection, turn_ids: Sequence[str]) -> dict[str, model.EventRecord]:
    """Return the newest event of each of these turns, by turn id. Omit turns without events."""
    told = turn_events.c.turn_id.in_(turn_ids) & turn_events.c.state.not_in(REVIEWS)
    newest = select(func.max(turn_events.c.sequence)).where(told).group_by(turn_events.c.turn_id)
    rows = connection.execute(select(turn_events).where(turn_events.c.sequence.in_(newest))).mappings()
    return {row["turn_id"]: _event(row) for row in rows}


def _first(connection: Connection, query: Select[Any]) -> Row | None:
    return connection.execute(query.limit(1)).mappings().one_or_none()


def _turn_or_none(row: Row | None) -> model.TurnRecord | None:
    return _turn(row) if row is not None else None


def _turn(row: Row) -> model.TurnRecord:
    return from_row(
        model.TurnRecord, row, grant=_grant(row["grant_json"]), answers=json.loads(row["answers_json"] or "{}")
    )


@lru_cache(256)  # a workspace has few categories, and every read of a turn decodes one
def _grant(text: str) -> model.Category:
    return model.Category.from_dict(json.loads(text))


def _message(row: Row) -> model.MessageRecord:
    calls = tuple(model.ToolUse(**call) for call in json.loads(row["tool_calls_json"] or "[]"))
    line = model.Said(role=row["role"], text=row["text"], tool_calls=calls, tool_call_id=row["tool_call_id"])
    return model.MessageRecord(turn_id=row["turn_id"], position=row["position"], said=line, at=from_us(row["at_us"]))


def _interrupts() -> Select[Any]:
    joined = interrupts.outerjoin(turns, turns.c.turn_id == interrupts.c.turn_id)
    return select(
        interrupts,
        func.coalesce(turns.c.task_name, "").label("task_name"),
        func.coalesce(turns.c.category, "").label("category"),
        func.coalesce(turns.c.graph, "").label("graph"),
    ).select_from(joined)


def _event(row: Row, kind: type[E] = model.EventRecord) -> E:  # type: ignore[assignment]
    return from_row(kind, row, held_by=tuple(json.loads(row["held_by_json"] or "[]")))


def read_facts(
    connection: Connection, asked: Incoming, thread_id: str, trigger: Trigger | None, now: datetime
) -> Facts:
    """Return the store's facts about `asked`, which `trigger` caused. The checkpoint's part is not included."""
    own = get_turn(connection, asked.turn_id) if asked.turn_id else None
    newest = bearing_on_thread(connection, thread_id, besides=asked.turn_id)
    waiting = open_interrupts(connection, thread_id)
    taken = get_keys(connection, [trigger.key]).get(trigger.key) if trigger else None
    asks = [item for item in waiting if item.status == "pending" and item.kind != "pause"]
    return Facts(
        now=now,
        own=_turn_facts(connection, own, waiting),
        newest=_turn_facts(connection, newest, waiting),
        taken=taken.became if taken is not None and own is None else "",
        cancelled=bool(asked.turn_id) and is_cancelled(connection, asked.turn_id),
        questions=tuple(Question(one.interrupt_id, trigger is not None and _may_answer(one, trigger)) for one in asks),
        decided=tuple(item.interrupt_id for item in waiting if item.status == "resolved"),
    )


def _may_answer(asked: model.InterruptRecord, trigger: Trigger) -> bool:
    return asked.allows_text and not trigger.asks_for("no_answer") and question_of(asked).takes(trigger.prompt)


def _turn_facts(
    connection: Connection, turn: model.TurnRecord | None, waiting: Sequence[model.InterruptRecord]
) -> TurnFacts | None:
    if turn is None:
        return None
    pauses = (item.interrupt_id for item in waiting if item.turn_id == turn.turn_id and item.kind == "pause")
    return TurnFacts(
        turn_id=turn.turn_id,
        status=turn.status,
        task_id=turn.task_id,
        answered=frozenset(turn.answers),
        cancelled=is_cancelled(connection, turn.turn_id),
        tries=turn.tries,
        paused_until=turn.paused_until,
        pause=next(pauses, ""),
        graph=turn.graph,
        context_json=turn.context_json,
        config_json=turn.config_json,
    )


_by_id = select(turns).where(turns.c.turn_id == bindparam("turn_id"))
_TURN, _TURN_LOCKED = Statement(_by_id), Statement(_by_id.with_for_update())
_ANY = select(turns).where(turns.c.turn_id != bindparam("besides")).order_by(turns.c.number.desc()).limit(1)
_NEWEST_ON_THREAD = Statement(_ANY.where(turns.c.thread_id == bindparam("thread_id")))
# Few turns have one of these states; a search by thread would scan all turns of a long thread.
_UNFINISHED_ON_THREAD = Statement(
    _ANY.where(unindexed(turns.c.thread_id) == bindparam("thread_id")).where(
        text("turns.status IN ('running', 'interrupted', 'paused')")
    )
)
_INTERRUPTS_OF = Statement(_interrupts().where(among(interrupts.c.turn_id, "wanted")).order_by(interrupts.c.number))
_OPEN_INTERRUPTS = Statement(
    _interrupts()
    .where(interrupts.c.thread_id == bindparam("thread_id"), text("interrupts.status <> 'void'"))
    .where(text("NOT interrupts.applied"))
    .order_by(interrupts.c.number)
)
_KEYS = Statement(select(keys).where(among(keys.c.key, "wanted")))
_CANCEL = Statement(select(cancels.c.reason).where(cancels.c.turn_id == bindparam("turn_id")))
_EVENTS_AFTER = Statement(
    select(turn_events)
    .where(turn_events.c.sequence > bindparam("sequence"))
    .order_by(turn_events.c.sequence)
    .limit(bindparam("most"))
)
_newest = turns.alias("newest")
_CHANNEL = (
    select(_newest.c.channel)
    .where(_newest.c.thread_id == turn_events.c.thread_id)
    .order_by(_newest.c.number.desc())
    .limit(1)
    .scalar_subquery()
)
_DETAILED_AFTER = Statement(
    select(
        turn_events,
        func.coalesce(turns.c.channel, _CHANNEL, "").label("channel"),
        *(func.coalesce(turns.c[name], "").label(name) for name in ("task_id", "task_name", "category", "via")),
    )
    .outerjoin(turns, turns.c.turn_id == turn_events.c.turn_id)
    .where(turn_events.c.sequence > bindparam("sequence"))
    .order_by(turn_events.c.sequence)
    .limit(bindparam("most"))
)
