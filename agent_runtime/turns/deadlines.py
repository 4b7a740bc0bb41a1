"""Approval deadlines: remind the author, raise an alert and expire the approval, each once.

Deadlines are absolute instants stored with the question, so they survive restarts and power-off. The store also records
each step. If the process dies after an approval expires and before its turn resumes, the stored decision counts like an
author's answer, and the next process resumes the turn. If several deadlines are overdue, only expiry counts.

An alert is a marker file that the supervisor sends like its own alerts (docs/lifecycle.md). The file is written before
the store records the alert; after a kill in between, it is written again. When the approval is no longer pending, an
unsent alert is withdrawn.

If machines share the store, each runs such a timer. The first to record an alert keeps it; others withdraw theirs.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from agent_runtime.model.turn import InterruptRecord
from agent_runtime.store.turn_reads import timed_interrupts
from agent_runtime.turns.lanes import Lanes
from agent_runtime.turns.turns import Event, Parts
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.times import rfc3339

LONGEST_WAIT_S = 30.0  # if an approval has a deadline, because the wall clock may change, or the machine may sleep
IDLE_S = 3600.0  # the longest wait if no approval has a deadline
TROUBLE_S = 2.0
_ALERTS = "escalate-failed-{}-approvals"
Tell = Callable[[Event, InterruptRecord, str], None]


class Deadlines:
    """One timer for all pending approvals."""

    def __init__(self, parts: Parts, lanes: Lanes, tell: Tell, *, home: Home, clock: Clock) -> None:
        """Use `lanes` to continue a thread after a decision, and `tell` to notify the author."""
        self._store, self._log, self._failpoints = parts.store, parts.log, parts.failpoints
        self._lanes, self._tell, self._home, self._clock = lanes, tell, home, clock
        # Another machine may have asked the question and stopped since.
        self._idle_s = LONGEST_WAIT_S if parts.mailboxes.is_shared else IDLE_S
        self._files = parts.files

    async def run(self) -> None:
        """Handle due deadlines until cancelled; look again at each deadline and after each new question."""
        while True:
            news = self._store.asked.next()
            try:
                wait_s = await self.do_due()
            except Exception as error:  # noqa: BLE001  recorded; approvals stay pending, and the next try is soon
                self._log.emit("approvals.trouble", reason=f"{type(error).__name__}: {error}"[:500])
                wait_s = TROUBLE_S
            await self._clock.wait(news, wait_s)

    async def do_due(self) -> float:
        """Handle all deadlines that are due; return how many seconds to wait before the next check."""
        for item in await self._store.expire():
            self._failpoints.reach("runtime.approval_expired")
            why = f"no answer by {rfc3339(item.expires_at)}" if item.expires_at else ""
            self._log.emit("interrupt.expired", **_names(item), reason=why, waited_s=item.waited_s)
            self._tell("expired", item, item.interrupt_id)
            self._lanes.put_decision(item.thread_id)
        waiting, now = await self._store.read(timed_interrupts), self._clock.now()
        for item in waiting:
            if _is_due(item.expires_at, now):
                continue  # the alert just became due; the next check, at once, expires the approval
            if item.reminded_at is None and _is_due(item.remind_at, now):
                await self._remind(item)
            if item.escalated_at is None and _is_due(item.escalate_at, now):
                await self._escalate(item)
        self._withdraw_alerts(waiting)
        left = [(at - self._clock.now()).total_seconds() for item in waiting for at in _next_times(item, now)]
        return min(max(min(left, default=LONGEST_WAIT_S), 0.0), LONGEST_WAIT_S) if waiting else self._idle_s

    async def _remind(self, item: InterruptRecord) -> None:
        if await self._store.told(item.interrupt_id, "reminded_at"):
            self._failpoints.reach("runtime.approval_reminded")
            self._log.emit("interrupt.reminded", **_names(item))
            self._tell("reminder", item, item.interrupt_id)

    async def _escalate(self, item: InterruptRecord) -> None:
        self._write_alert(item)
        self._failpoints.reach("runtime.approval_escalated")
        if await self._store.told(item.interrupt_id, "escalated_at"):
            self._log.emit("interrupt.escalated", durable=True, **_names(item))
        else:  # another machine raised the alert, or the approval is no longer pending
            self._files.unlink(self._alert_of(item))

    def _write_alert(self, item: InterruptRecord) -> None:
        place = self._alert_of(item)
        if os.path.lexists(place):
            return
        about, of = item.tool or "a question", item.task_name or f"channel {item.channel}"
        since = rfc3339(item.created_at.replace(microsecond=0))
        text = f"{about} of {of} has waited for your decision since {since}; see: turnkeeper approvals list"
        says = {"text": f"turnkeeper: approvals: {text} ({self._home.root})", "tried_at": None}
        fresh = place.with_name(f".{place.name}.new-{os.getpid()}")
        self._files.unlink(fresh)
        self._files.write_synced(fresh, json.dumps(says, sort_keys=True).encode())
        self._files.rename(fresh, place)
        self._files.sync_folder(place.parent)

    def _withdraw_alerts(self, waiting: Sequence[InterruptRecord]) -> None:
        wanted = {self._alert_of(item) for item in waiting}
        for place in self._home.run.parent.glob(_ALERTS.format("*")):
            if place not in wanted:
                self._files.unlink(place)

    def _alert_of(self, item: InterruptRecord) -> Path:
        name = hashlib.sha256(item.interrupt_id.encode()).hexdigest()[:16]
        return self._home.run.parent / _ALERTS.format(name)


def _is_due(at: datetime | None, now: datetime) -> bool:
    return at is not None and at <= now


def _next_times(item: InterruptRecord, now: datetime) -> list[datetime]:
    """Return the next deadlines of a pending approval. Past reminders and alerts are left out; a past expiry is not."""
    ahead = [at for at in (item.remind_at, item.escalate_at) if at is not None and at > now]
    return ahead if item.expires_at is None else [*ahead, item.expires_at]


def _names(item: InterruptRecord) -> dict[str, Any]:
    return {"interrupt_id": item.interrupt_id, "turn_id": item.turn_id, "thread_id": item.thread_id}
