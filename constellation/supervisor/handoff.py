"""Drafts of handoffs: on disk before anything is torn down or started. Light, since the supervisor writes them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from constellation.supervisor import markers
from turnkeeper.config.home import Home
from turnkeeper.times import parse_rfc3339, rfc3339


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What is to be handed over.

    Attributes:
        id: of the restart it belongs to; the envelope's key is made from it.
        kind: `planned` or `crash`.
        text: what agent0 reads.
        at: RFC 3339, when it was written.
    """

    id: str
    kind: str
    text: str
    at: str


def write_draft(home: Home, draft: Draft) -> None:
    """Put a draft on disk, unless this one was written or archived before."""
    path = markers.DRAFT.at(home, id=draft.id)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not os.path.lexists(path) and not os.path.lexists(archive_of(home, draft.id)):
        markers.write_marker(path, asdict(draft))


def drafts(home: Home) -> Iterator[Path]:
    """Yield the drafts that wait, oldest first."""
    return markers.found(home, markers.DRAFT)


def crash_text(at: datetime, process: str, error: str) -> str:
    """Return the text of a handoff after a crash: what is known, and that the rest is not."""
    how = f" ({error})" if error else ""
    return (
        f"{process} ended unplanned; noticed at {rfc3339(at)}{how}. "
        "Unknown: what was under way inside a step that had not ended. "
        "Turns that were running go on from their last checkpoint by themselves, and waiting decisions still wait: "
        "agent-runtime turns list, agent-runtime approvals list."
    )


def archive_of(home: Home, restart: str) -> Path:
    """Return where the copy of a delivered handoff lies."""
    return markers.ARCHIVE.at(home, id=f"{restart}-handoff")


def parse_draft(says: dict[str, Any]) -> Draft | None:
    """Read a draft back; None if it is none."""
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        parse_rfc3339(says["at"])
        return Draft(**{name: str(says[name]) for name in ("id", "kind", "text", "at")})
    return None
