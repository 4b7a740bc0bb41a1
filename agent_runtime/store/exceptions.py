"""Approval of calls without a new question: the author approved the call when the graph asked, or gave an exception.

The functions take an open connection and run in the transactions of :class:`agent_runtime.store.turn_store.Store`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from agent_runtime.model.approval import AuthorDecision, RaisedInterrupt, approved_before
from agent_runtime.model.mapping import from_row
from agent_runtime.model.turn import InterruptRecord, TurnRecord
from agent_runtime.permissions import exceptions as rules
from agent_runtime.store.schema import audit, exceptions, interrupts, turns
from agent_runtime.store.turn_events import add_event
from agent_runtime.store.turn_reads import LARGEST_PAGE, get_turn, interrupts_of
from agent_runtime.store.turn_writes import ask_again, asked_of, settle_interrupt, started_by
from turnkeeper.errors import Conflict, Exhausted, NotFound
from turnkeeper.storage.chain import digest
from turnkeeper.storage.statements import storable
from turnkeeper.times import to_us

Ends = Mapping[int, str]  # the reason for the end of each exception, by number


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The result of writing a turn's questions.

    Attributes:
        fresh: ids of the questions that the author is asked now.
        decided: by id of a question decided at once, the exception that allowed its call, or 0.
        ended: the exceptions that the questions ended.
    """

    fresh: tuple[str, ...]
    decided: Mapping[str, int]
    ended: tuple[rules.StandingException, ...] = ()


def decide_at_once(
    connection: Connection, at: datetime, turn: TurnRecord, asked: Sequence[RaisedInterrupt], holding: Collection[int]
) -> Asked:
    """Approve calls that the author approved before, or that an exception among `holding` allows for the task."""
    decided, ended = dict[str, int](), list[rules.StandingException]()
    standing = [one for one in of_task(connection, turn.task_id) if one.number in holding] if holding else []
    for item in asked:
        if _as_approved(connection, at, turn, item):
            decided[item.interrupt_id] = 0
        elif (found := next((one for one in standing if rules.allows(one, item)), None)) and _use(
            connection, found, item, at
        ):
            decided[item.interrupt_id] = found.number
        else:
            others = [one for one in standing if rules.is_other_code(one, item)]
            _tell(connection, item.interrupt_id, others)
            ended += [one for one in others if one not in ended]
    end(connection, at, {one.number: rules.why_other_tool(one) for one in ended})
    fresh = tuple(item.interrupt_id for item in asked if item.interrupt_id not in decided)
    return Asked(fresh=fresh, decided=decided, ended=tuple(get(connection, one.number) for one in ended))


def _as_approved(connection: Connection, at: datetime, turn: TurnRecord, item: RaisedInterrupt) -> bool:
    """Approve a call if the author approved it when the graph itself asked about it."""
    if not item.told:
        return False
    before = interrupts_of(connection, [turn.turn_id])[turn.turn_id]
    mark = approved_before(before, item)
    if mark:
        by = next(one.decided_by for one in before if one.interrupt_id in mark)
        settle_interrupt(connection, item.interrupt_id, AuthorDecision(decision="approve", message=mark), at, by)
    return bool(mark)


def _use(connection: Connection, found: rules.StandingException, item: RaisedInterrupt, at: datetime) -> bool:
    """Approve a call by an exception, with a mark that `end` looks for. Return False if the exception has ended."""
    used = {"uses": exceptions.c.uses + 1, "last_used_at_us": to_us(at)}
    live = update(exceptions).where(exceptions.c.number == found.number, exceptions.c.ended_at_us.is_(None))
    if not connection.execute(live.values(used)).rowcount:
        return False
    settled = AuthorDecision(decision="approve", message=f"{rules.ALLOWED_BY}{found.number}")
    settle_interrupt(connection, item.interrupt_id, settled, at, found.given_by)
    _mark(connection, item.interrupt_id, found.number)
    return True


def give(
    connection: Connection, at: datetime, asked: InterruptRecord, turn: TurnRecord, wanted: rules.ForTask, by: str
) -> None:
    """Write an exception for a question that is approved in this transaction. A repeated write changes nothing.

    Raises:
        InvalidInput: the call can be approved only once, or has no such argument.
        Conflict: the question was already decided, without an exception.
        Exhausted: the task has reached the limit of exceptions.
    """
    rules.check_may_give(asked, turn, wanted.any_value)
    before = of_task(connection, turn.task_id)
    alike = [one for one in before if rules.is_same(one, asked, wanted)]
    if alike or asked.exception:
        if not alike:
            raise Conflict(f"exception {asked.exception} was given with it, for other calls", where="for_task")
        _mark(connection, asked.interrupt_id, alike[0].number)
        return
    if len(before) >= rules.MOST_OF_TASK:
        what = f"task {turn.task_name} has {rules.MOST_OF_TASK} standing exceptions, which is the limit"
        raise Exhausted(what, where="for_task", hint="revoke some of them: turnkeeper approvals exceptions list")
    row = rules.row_of(asked, turn, wanted) | {"given_by": by, "given_at_us": to_us(at)}
    blank = {"uses": 0, "ended_by": "", "ended_why": ""}
    number = connection.execute(insert(exceptions).values(row | blank).returning(exceptions.c.number)).scalar_one()
    _mark(connection, asked.interrupt_id, number)
    _record(connection, at, get(connection, number))


def _tell(connection: Connection, interrupt_id: str, ended: Sequence[rules.StandingException]) -> None:
    """Add to a question why the ended exceptions did not approve its call."""
    why = "".join(f"; standing exception {one.number} ended: {rules.why_other_tool(one)}" for one in ended)
    asked = update(interrupts).where(interrupts.c.interrupt_id == interrupt_id)
    connection.execute(asked.values(question=interrupts.c.question + storable(why)))


def _mark(connection: Connection, interrupt_id: str, number: int) -> None:
    connection.execute(update(interrupts).where(interrupts.c.interrupt_id == interrupt_id).values(exception=number))


def end(connection: Connection, at: datetime, ends: Ends, by: str = "") -> list[rules.StandingException]:
    """End open exceptions. Return the exceptions that this call ended.

    Ask again about a call that an ended exception allowed and whose turn has not received the approval yet.
    """
    ended = []
    for number, why in ends.items():
        live = update(exceptions).where(exceptions.c.number == number, exceptions.c.ended_at_us.is_(None))
        if connection.execute(live.values(ended_at_us=to_us(at), ended_by=by, ended_why=storable(why))).rowcount:
            _ask_about(connection, number, at)
            ended.append(get(connection, number))
            _record(connection, at, ended[-1])
    return ended


def _ask_about(connection: Connection, number: int, at: datetime) -> None:
    of_waiting = (turns.c.turn_id == interrupts.c.turn_id) & (turns.c.status == "interrupted")
    unused = select(interrupts.c.interrupt_id).where(interrupts.c.exception == number, interrupts.c.applied.is_(False))
    unused = unused.where(interrupts.c.message == f"{rules.ALLOWED_BY}{number}")
    # The thread's owner may be about to continue with the approval.
    found = connection.execute(unused.join(turns, of_waiting).with_for_update(of=turns)).scalars().all()
    ask_again(connection, found, "", at)
    for one in found:
        _mark(connection, one, 0)
        asked = asked_of(connection, one)
        turn = get_turn(connection, asked.turn_id)
        assert turn is not None, "its row was found above"
        # No event reported the question when the exception allowed its call.
        add_event(connection, turn, "INTERRUPTED", at, trigger=started_by(turn), summary=asked.tool, held_by=(one,))


def of_task(connection: Connection, task_id: str = "") -> list[rules.StandingException]:
    """Return the open exceptions, oldest first, of one task or of all."""
    query = select(exceptions).where(exceptions.c.ended_at_us.is_(None)).order_by(exceptions.c.number)
    query = query.where(exceptions.c.task_id == task_id) if task_id else query
    return [from_row(rules.StandingException, row) for row in connection.execute(query).mappings()]


def listed(connection: Connection, *, task_id: str = "", include_ended: bool = False) -> list[rules.StandingException]:
    """Return exceptions, newest first."""
    query = select(exceptions).order_by(exceptions.c.number.desc()).limit(LARGEST_PAGE)
    query = query.where(exceptions.c.task_id == task_id) if task_id else query
    query = query if include_ended else query.where(exceptions.c.ended_at_us.is_(None))
    return [from_row(rules.StandingException, row) for row in connection.execute(query).mappings()]


def get(connection: Connection, number: int) -> rules.StandingException:
    """Return one exception. Raises NotFound."""
    row = connection.execute(select(exceptions).where(exceptions.c.number == number)).mappings().one_or_none()
    if row is None:
        what = f"no standing exception {number}"
        raise NotFound(what, where="number", hint="see: turnkeeper approvals exceptions list --all")
    return from_row(rules.StandingException, row)


def _record(connection: Connection, at: datetime, one: rules.StandingException) -> None:
    """Record in the chain that an author gave an exception, or that it ended."""
    fact = {
        "kind": "exception",
        "exception": one.number,
        "task": one.task_id,
        "tool": one.tool,
        "args_hash": one.args_hash,
        "any_value_hash": digest(one.any_value_json),
        "category_hash": digest(one.category_json),
        "by": one.given_by,
        "ended_hash": digest(one.ended_why),
        "ended_by": one.ended_by,
    }
    audit.append(connection, at, [fact])
