"""Pruning of old history in small batches. For each task, one entry remains that records the pruned range.

If several runners share the store, only one of them prunes at a time, and the pass of any other runner ends.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from task_runner.model.task import OPEN, Fire, FireKind, Outcome
from task_runner.planner import entries
from task_runner.store.schema import audit
from task_runner.store.store import Session, Store
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.storage.statements import alone

_NAME = "pruning the ledger"
LARGEST_BATCH = 500
FIRST_AFTER_S = 60.0
# Between two batches the store is free for other work.
BETWEEN_BATCHES_S = 0.05


class Pruned(NamedTuple):
    """The result of one batch.

    Attributes:
        reached: the number of the last entry examined; None if all entries that are old enough have been examined.
    """

    reached: int | None
    removed: int


class Pruner:
    """A pass through the ledger, oldest entries first, that prunes entries older than the retention time."""

    def __init__(self, store: Store, *, clock: Clock, log: EventLog, keep: timedelta) -> None:
        self._store, self._clock, self._log, self._keep = store, clock, log, keep

    async def pass_over(self) -> int:
        """Go through the ledger once, each batch in its own transaction; return the number of entries removed."""
        before, after, removed = self._clock.now() - self._keep, 0, 0
        while True:
            done = await self._store.run(partial(prune_batch, before=before, after=after))
            removed += done.removed
            if done.reached is None:
                break
            after = done.reached
            await self._clock.sleep(BETWEEN_BATCHES_S)
        while await self._store.run(partial(_forget, before=before)) == LARGEST_BATCH:
            await self._clock.sleep(BETWEEN_BATCHES_S)
        await self._store.transact(partial(_prune_records, at=self._clock.now(), before=before, rows=removed))
        if removed:
            self._log.emit("history.pruned", entries=removed)
        return removed


def _forget(session: Session, before: datetime) -> int:
    return session.events.forget_before(before, LARGEST_BATCH) if session.alone(_NAME) else 0


def _prune_records(connection: Connection, at: datetime, before: datetime, *, rows: int) -> None:
    if rows or alone(connection, _NAME):  # always record the entries that this pass has pruned
        audit.prune(connection, at, before, rows=rows)


def prune_batch(session: Session, before: datetime, after: int, limit: int = LARGEST_BATCH) -> Pruned:
    """Prune old entries among the next `limit` in planning order. A pass ends at an entry from `before` or later."""
    if not session.alone(_NAME):
        return Pruned(None, 0)
    entries = session.locked(lambda: session.fires.numbered(after, limit))
    old: dict[str, list[Fire]] = defaultdict(list)
    for fire in entries:
        if _is_old(fire, before):
            old[fire.task_id].append(fire)
    removed = sum(_prune(session, task_id, fires) for task_id, fires in old.items())
    ended = len(entries) < limit or entries[-1].nominal_at >= before
    return Pruned(None if ended else entries[-1].entry_id, removed)


def _is_old(fire: Fire, before: datetime) -> bool:
    settled = fire.outcome not in OPEN and fire.outcome is not Outcome.PRUNED
    return settled and fire.last_at < before and (fire.ended_at is None or fire.ended_at < before)


def _prune(session: Session, task_id: str, old: Sequence[Fire]) -> int:
    """Remove entries of one task. Entries that cover scheduled times are removed only before the first kept one."""
    covering = [fire for fire in old if fire.kind is FireKind.SCHEDULED and fire.count]
    gone = [fire for fire in old if fire not in covering]
    kept_from = session.fires.first_covered(task_id, {fire.entry_id for fire in covering})
    covering = [fire for fire in covering if kept_from is None or fire.last_at < kept_from]
    if covering:
        pruned = session.fires.pruned(task_id)
        run = entries.merged((*covering, *([pruned] if pruned else [])))
        into = pruned or covering[0]
        # The record of all pruned entries replaces the oldest one in the ledger.
        record = Fire(
            task_id=into.task_id,
            entry_id=into.entry_id,
            nominal_at=run.last_at,
            due_at=run.last_at,
            outcome=Outcome.PRUNED,
            count=run.count,
            first_at=run.first_at,
            last_at=run.last_at,
            policy=into.policy,
        )
        session.fires.update([record])
        session.fires.leave_tails({fire.entry_id for fire in covering})
        gone += [fire for fire in covering if fire.entry_id != into.entry_id]
    session.fires.remove({fire.entry_id for fire in gone})
    session.events.forget([fire.entry_id for fire in gone if fire.kind is FireKind.EVENT])
    return len(gone)
