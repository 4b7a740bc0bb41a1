"""What an agent's next turn is shown: handoffs from the bus and notes from files; and what waits at the start."""

from typing import Any

from sqlalchemy import Connection, func, select

from agent_runtime.mailbox.mailboxes import Delivery
from agent_runtime.model.trigger import sendable
from agent_runtime.store.mail import Handoff, add_handoff, put_notes
from agent_runtime.store.schema import keys
from agent_runtime.store.turn_reads import list_interrupts
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.event_log import EventLog
from turnkeeper.storage.files import SystemFiles

SENDER = "watchdog"
LARGEST_NOTES = 1 << 20  # bytes of a notes file; how much of it is shown is bounded apart
_MARKERS = ("escalate-failed-*", "*-crashloop-suspected")  # as docs/lifecycle.md says


class HandoffIntake:
    """Keeps handoffs until a turn is shown them."""

    def __init__(self, store: Store, *, home: Home, clock: Clock, log: EventLog) -> None:
        self._store = store
        self._home = home
        self._clock = clock
        self._log = log
        self._files = SystemFiles()

    async def receive(self, delivery: Delivery) -> None:
        """Keep a handoff; when this returns it is on disk, once, however often its envelope comes."""
        envelope, at = delivery.claimed.envelope, self._clock.now()
        key = envelope.idempotency_key or envelope.id
        item = Handoff(key=key, agent=delivery.agent, kind="handoff", sender=envelope.sender, text=envelope.text)
        fresh = await self._store.write(add_handoff, item, at)
        self._log.emit("handoff.received", agent=delivery.agent, id=envelope.id, key=key, fresh=fresh)

    async def take_up_notes(self, agent: str) -> None:
        """Keep what `state/notes/<agent>.md` says for the agent's next turn; the file stays as it is."""
        path, at = self._home.run.parent / "notes" / f"{agent}.md", self._clock.now()
        try:
            text = self._files.read(path, LARGEST_NOTES).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return
        except (TurnkeeperError, OSError) as error:
            self._log.emit("notes.unreadable", agent=agent, reason=f"{type(error).__name__}: {error}"[:500])
            return
        if text:
            key = f"notes:{agent}:{self._store.epoch}"
            item = Handoff(key=key, agent=agent, kind="notes", sender=agent, text=sendable(text, LARGEST_NOTES))
            await self._store.write(put_notes, item, at)

    async def waiting_at_start(self) -> dict[str, Any]:
        """Return how much waits for the author as the runtime starts.

        `waiting`: undecided approvals; `held`: fires that wait for them; `alarms`: markers of the watchdog that
        something is wrong.
        """

        def count(connection: Connection) -> tuple[int, int]:
            waits = (keys.c.became == "held") & ~keys.c.released
            held = connection.execute(select(func.count()).select_from(keys).where(waits)).scalar() or 0
            return len(list_interrupts(connection)), held

        waiting, held = await self._store.read(count)
        alarms = sum(1 for pattern in _MARKERS for _ in self._home.run.parent.glob(pattern))
        return {"waiting": waiting, "held": held, "alarms": alarms}
