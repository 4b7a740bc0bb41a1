"""Handoffs, which tell agent0 what happened before a restart.

Each arrives once, and is archived only after it is delivered. ::

draft in crash-handoffs/ ──► envelope in agent0's inbox ──► copy in restart-archive/ ──► draft removed

Each step is on disk before the next one begins. After a crash in between, the draft exists, and the next tick
continues. If any of agent0's folders contains an envelope with the draft's key, another envelope is not put.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Corrupt, InvalidInput
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.files import SystemFiles
from turnkeeper.times import parse_rfc3339, rfc3339


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A handoff to deliver.

    Attributes:
        id: the id of its restart; the envelope's key is derived from it.
        kind: `planned` or `crash`.
        at: the time when it was written, RFC 3339.
    """

    id: str
    kind: str
    text: str
    at: str


def write_draft(home: Home, draft: Draft) -> None:
    """Write a draft to disk, unless it was written or archived before."""
    path = markers.DRAFT.at(home, id=draft.id)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not os.path.lexists(path) and not os.path.lexists(archive_of(home, draft.id)):
        markers.write_marker(path, asdict(draft))


def drafts(home: Home) -> Iterator[Path]:
    return markers.found(home, markers.DRAFT)


def crash_text(at: datetime, process: str, error: str) -> str:
    """Return the text of a handoff after a crash: the known and the unknown facts."""
    how = f" ({error})" if error else ""
    return (
        f"{process} ended unplanned; noticed at {rfc3339(at)}{how}. "
        "Unknown: what was under way inside a step that had not ended. "
        "Turns that were running continue from their last checkpoint by themselves, and pending decisions still wait: "
        "turnkeeper turns list, turnkeeper approvals list."
    )


def archive_of(home: Home, restart: str) -> Path:
    """Return the path of the copy of a delivered handoff."""
    return markers.ARCHIVE.at(home, id=f"{restart}-handoff")


def parse_draft(says: dict[str, Any]) -> Draft | None:
    """Parse a draft. Return None if the draft is malformed."""
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        parse_rfc3339(says["at"])
        return Draft(**{name: str(says[name]) for name in ("id", "kind", "text", "at")})
    return None


AGENT = "agent0"
SENDER = "watchdog"
_FILES = SystemFiles()


class Deliverer:
    """The part that delivers drafts. The caller holds the watchdog's lock."""

    def __init__(self, home: Home, *, clock: Clock, entropy: Entropy, failpoints: Failpoints) -> None:
        self._home = home
        self._clock = clock
        self._entropy = entropy
        self._failpoints = failpoints
        # Import it here, because a tick without a handoff does not need the bus.
        self._bus = import_module("turnkeeper.bus.inbox")
        self._envelope = import_module("turnkeeper.bus.envelope")

    def deliver_all(self) -> list[str]:
        """Deliver every waiting draft. Return the ids of the delivered drafts. After Exhausted, call it again."""
        return [done for path in drafts(self._home) if (done := self._deliver(path))]

    def _deliver(self, path: Path) -> str:
        says = markers.read_marker(path)
        draft = parse_draft(says) if isinstance(says, dict) else None
        if draft is None:  # an unreadable draft is handed over unchanged, under its own name
            text = f"The handoff in {path.name} cannot be read; its text is unknown."
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
        self._inbox().put(
            self._envelope.Envelope(
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

    def _inbox(self) -> Any:
        place: dict[str, Any] = {"files": _FILES, "clock": self._clock, "entropy": self._entropy}
        return self._bus.open_inbox(self._home, AGENT, hosted=True, **place)

    def _arrived(self, draft: Draft) -> bool:
        """Return True if the envelope is in one of agent0's folders, read in the order in which envelopes move."""
        inbox = self._inbox()
        for folder in self._bus.FOLDERS:
            for name in _FILES.names(self._home.inbox(AGENT) / folder):
                # An envelope without a valid seal does not come from the watchdog.
                with suppress(FileNotFoundError, InvalidInput, Corrupt):
                    if f"-{SENDER}" in name and inbox.read(folder, name).idempotency_key == key_of(draft.id):
                        return True
        return False


def key_of(restart: str) -> str:
    return f"handoff:{restart}"
