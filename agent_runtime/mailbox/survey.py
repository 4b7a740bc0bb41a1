"""What lies in the inboxes of a home, as rows. Looks only: makes no folder, takes nothing, needs no lock."""

import contextlib
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from agent_runtime.model.agents import hosted_on
from turnkeeper.bus.envelope import LARGEST_BYTES, Envelope, decode
from turnkeeper.bus.file_names import ns_of
from turnkeeper.bus.limits import REASON
from turnkeeper.bus.quarantine import Quarantine
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import Corrupt, InvalidInput, NotFound
from turnkeeper.storage.files import SystemFiles
from turnkeeper.storage.locking import reader_of
from turnkeeper.times import from_us, rfc3339

Row = dict[str, Any]
_AGENT = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)


def agents_with_inboxes(home: Home) -> list[str]:
    """Return the agents that have an inbox, by name, numbers in order."""
    folder = home.inbox("agent0").parent
    found = [name for name in os.listdir(folder) if _AGENT.fullmatch(name)] if folder.is_dir() else []
    return sorted((name for name in found if (folder / name).is_dir()), key=_natural)


def existing(home: Home, agent: str) -> Path:
    """Return an agent's folder. Raises NotFound where nothing was ever put for it, InvalidInput for no name."""
    folder = home.inbox(agent)
    if not folder.is_dir():
        raise NotFound(f"{agent} has no inbox", where=str(folder), hint="see: agent-runtime inbox list")
    return folder


def inbox_rows(home: Home) -> list[Row]:
    """Return one row an inbox: how much lies where, since when, and who reads it."""
    of_runtime = hosted_on(home)
    return [_inbox_row(home.inbox(agent), of_runtime=agent in of_runtime) for agent in agents_with_inboxes(home)]


def envelope_rows(home: Home, agent: str, limit: int) -> list[Row]:
    """Return the envelopes that wait or are being worked on, in order, at most `limit`."""
    folder = existing(home, agent)
    rows: list[Row] = []
    for place in ("claimed", "inbox"):
        for name in _names(folder / place):
            if len(rows) >= limit:
                return rows
            # What is no envelope is set aside, with its reason, when it is claimed; what is gone was.
            with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError):
                envelope = decode(SystemFiles().read(folder / place / name, LARGEST_BYTES))
                rows.append({"place": place, **envelope_row(name, envelope)})
    return rows


def quarantine_rows(home: Home, agent: str = "") -> list[Row]:
    """Return what was set aside, of one agent or of all."""
    rows: list[Row] = []
    for one in [agent] if agent else agents_with_inboxes(home):
        if not (existing(home, one) / "quarantine").is_dir():
            continue
        quarantine = Quarantine(home.inbox(one), files=SystemFiles(), clock=SystemClock())
        rows += [
            {"agent": one, "name": item.name, "reason": item.reason, "at": _written(item.at)}
            for item in quarantine.items()
        ]
    return rows


def envelope_row(name: str, envelope: Envelope) -> Row:
    """Return an envelope as a row, with every field that it has."""
    return {
        "name": name,
        "id": envelope.id,
        "from": envelope.sender,
        "to": envelope.to,
        "kind": envelope.kind,
        "thread": envelope.thread,
        "swarm": envelope.swarm,
        "idempotency_key": envelope.idempotency_key,
        "requires_ack": envelope.requires_ack,
        "at": rfc3339(envelope.at),
        "text": envelope.text,
        "meta": envelope.meta,
    }


def _inbox_row(folder: Path, *, of_runtime: bool) -> Row:
    lying = {place: _names(folder / place) for place in ("inbox", "claimed", "delivered", "quarantine")}
    put_ns = [ns for name in lying["inbox"] if (ns := ns_of(name)) is not None]
    return {
        "agent": folder.name,
        "waiting": len(lying["inbox"]),
        "claimed": len(lying["claimed"]),
        "delivered": len(lying["delivered"]),
        "quarantined": sum(not name.endswith(REASON) for name in lying["quarantine"]),
        "oldest_at": rfc3339(from_us(min(put_ns) // 1000)) if put_ns else None,
        "hosted": of_runtime,
        "reader": reader_of(folder) or None,
    }


def _names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)


def _written(at: datetime | None) -> str | None:
    return rfc3339(at) if at is not None else None
