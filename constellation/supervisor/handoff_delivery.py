"""Delivers handoffs, which tell agent0 what happened before: each once, and none is archived undelivered.

::

    draft in crash-handoffs/ ──► envelope in agent0's inbox ──► copy in restart-archive/ ──► draft removed

Each arrow is on disk before the next begins. A crash in between leaves the draft, and the next tick goes on from what
it finds: an envelope with the draft's key is not put again, wherever in agent0's folders it has got to by then.
"""

from dataclasses import asdict
from pathlib import Path

from constellation.supervisor import markers
from constellation.supervisor.handoff import Draft, archive_of, drafts, parse_draft
from turnkeeper.bus.envelope import LARGEST_BYTES, Envelope, decode
from turnkeeper.bus.inbox import FOLDERS, Inbox
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Corrupt, InvalidInput
from turnkeeper.process import Failpoints
from turnkeeper.storage.files import SystemFiles
from turnkeeper.times import rfc3339

AGENT = "agent0"
SENDER = "watchdog"
_FILES = SystemFiles()


class Deliverer:
    """Delivers drafts. The caller holds the watchdog's lock."""

    def __init__(self, home: Home, *, clock: Clock, entropy: Entropy, failpoints: Failpoints) -> None:
        self._home = home
        self._clock = clock
        self._entropy = entropy
        self._failpoints = failpoints

    def deliver_all(self) -> list[str]:
        """Deliver every draft that waits; return the ids of those delivered now. Raises Exhausted: do it again."""
        return [done for path in drafts(self._home) if (done := self._deliver(path))]

    def _deliver(self, path: Path) -> str:
        says = markers.read_marker(path)
        draft = parse_draft(says) if isinstance(says, dict) else None
        if draft is None:  # unreadable: handed over as what it is, under its own name
            text = f"A handoff that cannot be read lies in {path.name}; what it said is unknown."
            draft = Draft(id=path.stem, kind="crash", text=text, at=rfc3339(self._clock.now()))
        archive = archive_of(self._home, draft.id)
        if markers.read_marker(archive) is None:
            if not self._arrived(draft):
                self._failpoints.reach("handoff.before_inbox")
                self._put(draft)
            self._failpoints.reach("handoff.in_inbox")
            archive.parent.mkdir(mode=0o700, exist_ok=True)
            markers.write_marker(archive, asdict(draft))
        self._failpoints.reach("handoff.archived")
        markers.clear_marker(path)
        return draft.id

    def _put(self, draft: Draft) -> None:
        inbox = Inbox(self._home.inbox(AGENT), files=_FILES, clock=self._clock, entropy=self._entropy)
        inbox.put(
            Envelope(
                id=self._entropy.hex(32),
                sender=SENDER,
                to=AGENT,
                kind="handoff",
                text=draft.text,
                at=self._clock.now(),
                idempotency_key=key_of(draft.id),
                meta={"restart": draft.id, "reason": draft.kind},
            )
        )

    def _arrived(self, draft: Draft) -> bool:
        """Tell whether the envelope is in any of agent0's folders, looked through in the order in which it moves."""
        for folder in FOLDERS:
            place = self._home.inbox(AGENT) / folder
            for name in _FILES.names(place) if place.is_dir() else ():
                if f"-{SENDER}" not in name:
                    continue
                try:
                    if decode(_FILES.read(place / name, LARGEST_BYTES)).idempotency_key == key_of(draft.id):
                        return True
                except (FileNotFoundError, InvalidInput, Corrupt):
                    continue
        return False


def key_of(restart: str) -> str:
    """Return the envelope's idempotency key."""
    return f"handoff:{restart}"
