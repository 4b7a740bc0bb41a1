"""The runtime's records in the store's chain: ids, names and hashes, in the transaction of the change."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection, func, select

from agent_runtime.model.decide import FINISHED
from agent_runtime.model.mapping import canonical
from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import InterruptRecord, TurnRecord
from agent_runtime.permissions.exceptions import StandingException
from agent_runtime.store.schema import audit, exceptions, interrupts, turns
from turnkeeper.storage.chain import digest
from turnkeeper.storage.statements import storable
from turnkeeper.times import to_us


def known(connection: Connection, at: datetime) -> dict[str, int]:
    """Return, by kind, the newest number before the first record of the chain; for candidates, the time."""
    newest = {"turn": turns.c.number, "decision": interrupts.c.number, "exception": exceptions.c.number}
    return {
        "candidate": to_us(at),
        **{kind: connection.execute(select(func.max(column))).scalar() or 0 for kind, column in newest.items()},
    }


def put_end(connection: Connection, at: datetime, turn: TurnRecord | Trigger, status: str) -> None:
    """Record the end of a turn, and its category. Write nothing for a turn that continues."""
    if status not in FINISHED:
        return
    grant = turn.grant_json if isinstance(turn, TurnRecord) else canonical(turn.grant.to_dict())
    fact = {
        "kind": "turn",
        "turn": turn.turn_id,
        "fire": turn.fire_id,
        "attempt": turn.attempt,
        "task": turn.task_id,
        "thread": storable(turn.thread_id),
        "agent": turn.agent,
        "category": turn.grant.name,
        "category_hash": digest(grant),
        "outcome": status,
    }
    audit.append(connection, at, [fact])


def put_decisions(connection: Connection, at: datetime, decided: Iterable[InterruptRecord]) -> None:
    """Record decisions about approvals and questions, and their channel. An empty decision means a withdrawal."""
    facts = [
        {
            "kind": "decision",
            "approval": one.interrupt_id,
            "turn": one.turn_id,
            "tool": one.tool,
            "missing_scope": one.missing_scope,
            "args_hash": one.args_hash,
            "category": one.category,
            "decision": one.decision,
            "edited_hash": digest(one.edited_json),
            "shown_hash": digest(one.args_json),
            "question_hash": digest(one.question),
            "message_hash": digest(one.message),
            "by": one.decided_by,
        }
        for one in decided
    ]
    audit.append(connection, at, facts)


def put_exception(connection: Connection, at: datetime, one: StandingException) -> None:
    """Record a standing exception that an author gave, or the end of one."""
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


def put_verdict(connection: Connection, at: datetime, candidate_id: str, verdict: str, text: str, by: str) -> None:
    """Record that an author accepted or rejected a candidate with this text, and the channel of the decision."""
    fact = {"kind": "candidate", "candidate": candidate_id, "verdict": verdict, "text_hash": digest(text), "by": by}
    audit.append(connection, at, [fact])
