"""Fires that the agent runtime accepted, but that the runner's store lost with its last commits.

After a power loss or the return of an older file, the store may lack a fire that the runtime has. The runner then plans
the time again, and sends the same fire id with different content: at least the sending time differs. The runtime
refuses it, because one id must not name two different fires. The runner asks for the accepted fire, and adopts its turn
if a lost commit explains the refusal. Any other refusal is final.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from task_runner.dispatcher.outcomes import KNOWN_STATES, News, of_turn, record_news
from task_runner.dispatcher.runtime_client import Runtime
from task_runner.model.task import Fire, replace
from task_runner.planner import ledger
from task_runner.planner.log_records import LogRecord, of_fire
from task_runner.scheduler.planning import Planned, complete_request
from task_runner.store.rows import Cause, Key
from task_runner.store.store import Session, Store
from turnkeeper.config.surfaces import offered
from turnkeeper.v1 import agent_runtime_pb2 as wire

CONFLICT = "fire_id"  # the field that the runtime names if it has the fire with different content
_SAME = ("task_id", "thread_id", "channel", "agent", "category")


async def taken_over(
    store: Store,
    runtime: Runtime,
    emit_all: Callable[[list[LogRecord]], object],
    receipts: Sequence[wire.FireReceipt],
    keys: Sequence[Key | None],
) -> list[wire.FireReceipt]:
    """Adopt the accepted fires of refusals that a lost commit explains; return the receipts without these refusals.

    Raises TurnkeeperError if the runtime does not answer.
    """
    answers = list[wire.FireReceipt]()
    for receipt, key in zip(receipts, keys, strict=True):
        answers.append(receipt)
        if receipt.error.field != CONFLICT or key is None or key.fire_id != receipt.fire_id:
            continue
        if (turn := await runtime.turn_of(key.fire_id, key.attempt)) is None:
            continue
        asking = offered("answers", store, runtime, [turn])
        said = await asking if asking else {}
        done = await store.run(partial(_take_over, key=key, turn=turn, said=said.get(key.fire_id, {})))
        if done is not None:
            emit_all(done.events)
            answers[-1] = wire.FireReceipt(fire_id=key.fire_id, attempt=key.attempt, turn_id=turn.turn_id)
            answers[-1].disposition = wire.FireReceipt.DUPLICATE
    return answers


def is_explained(sent: wire.FireRequest, turn: wire.Turn) -> bool:
    """Return True if a lost commit explains why the runtime has a fire with different content.

    The accepted fire must have the same task, thread and permissions. It must have been sent when it was due or later,
    and before `sent`, the first sending that the store knows. Fields that the runtime no longer knows are not compared.
    """
    same = all(getattr(turn, name) in {"", getattr(sent, name)} for name in _SAME)
    accepted = turn.fired_at.ToNanoseconds()
    return same and sent.nominal_at.ToNanoseconds() <= accepted < sent.fired_at.ToNanoseconds()


def _take_over(session: Session, key: Key, turn: wire.Turn, said: Mapping[str, object]) -> Planned | None:
    """Record an accepted fire, its loss, and the state of its turn. Return None if no lost commit explains it."""
    now, sent_at = session.now(), turn.fired_at.ToDatetime(tzinfo=UTC)
    fire = session.fires.by_ids([key.fire_id]).get(key.fire_id)
    found = next(iter(session.fires.unanswered(key.entry_id - 1, 1)), None)
    if fire is None or fire.attempt != key.attempt:
        return None
    if found is not None and found.fire.entry_id == fire.entry_id:
        if not is_explained(complete_request(found), turn):
            return None
        accepted = ledger.accepted(replace(fire, fired_at=sent_at), now, attempt=key.attempt, turn_id=turn.turn_id)
        session.fires.update([accepted])
        if fire.accepted_at is None:
            session.tasks.record_accepted([accepted])
    elif fire.turn_id != turn.turn_id:  # otherwise, an event of its turn arrived first
        return None
    done = Planned(events=_noted(session, fire, turn.turn_id, sent_at, now))
    news = [of_turn(turn, now)._replace(said=said)] if turn.state in KNOWN_STATES else []
    return done + record_news(session, news, now) if news else done


def note(session: Session, fire: Fire, news: News, now: datetime) -> list[LogRecord]:
    """Record that the runtime reports a turn for a fire that the store has not sent. Return the log records."""
    return _noted(session, fire, news.turn_id, news.at, now)


def _noted(session: Session, fire: Fire, turn_id: str, at: datetime, now: datetime) -> list[LogRecord]:
    known = f"agent-runtime had accepted {fire.fire_id}, as {turn_id}, before the store lost it"
    why = f"{known}; that turn counts, and the fire was sent only once"
    session.stoppages.begin(Cause.LOST, fire.task_id, min(at, fire.nominal_at), why)
    session.stoppages.end(Cause.LOST, fire.task_id, now)
    return [of_fire("fire.taken_over", fire, turn_id=turn_id)]
