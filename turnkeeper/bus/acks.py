"""Receipts for envelopes: a line in the day's ledger, and an `ack` envelope to a sender that asked for one.

`logs/channel-acks-<date>.jsonl` is a trail like the events: JSON lines, one `O_APPEND` write each, so that several
processes share a file. A line names the envelope and never carries its text. Both are made before the envelope is
archived; a crash in between makes them again, under the same ids.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.port import Claimed, Put
from turnkeeper.bus.quota import machine_errors
from turnkeeper.clock import Clock
from turnkeeper.times import rfc3339


class AckLedger:
    """Appends receipts of one process."""

    def __init__(self, folder: Path, process: str, clock: Clock) -> None:
        self._folder = folder
        self._process = process
        self._clock = clock

    def received(self, claimed: Claimed, *, durable: bool = True) -> None:
        """Append a received line; with `durable`, return only when it is on disk. Raises Exhausted."""
        self.received_all([claimed], durable=durable)

    def received_all(self, claimed: Sequence[Claimed], *, durable: bool) -> None:
        """Append a received line for each, in one write. Raises Exhausted."""
        if not claimed:
            return
        at = rfc3339(self._clock.now())
        first = {"at": at, "process": self._process, "pid": os.getpid(), "event": "envelope.received"}
        lines = (json.dumps(first | _receipt(item), separators=(",", ":")) for item in claimed)
        path = self._folder / f"channel-acks-{at[:10]}.jsonl"
        with machine_errors(path):
            _append(path, "".join(f"{line}\n" for line in lines).encode(), durable=durable)


def _receipt(claimed: Claimed) -> dict[str, Any]:
    envelope = claimed.envelope
    return {
        "id": ack_id(envelope),
        "envelope": envelope.id,
        "name": claimed.name,
        "from": envelope.sender,
        "agent": envelope.to,
        "kind": envelope.kind,
        "thread": envelope.thread,
        "requires_ack": envelope.requires_ack,
    }


def _append(path: Path, line: bytes, *, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        written = 0
        while written < len(line):
            written += os.write(descriptor, line[written:])
        if durable:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def ack_id(envelope: Envelope) -> str:
    """Return the id of an envelope's receipt: the same however often it is made."""
    text = json.dumps([envelope.to, envelope.sender, envelope.id])
    return f"ack-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def ack_of(envelope: Envelope, *, at: datetime) -> Envelope:
    """Return the `ack` envelope that answers one which asked for it."""
    receipt = ack_id(envelope)
    return Envelope(
        id=receipt,
        sender=envelope.to,
        to=envelope.sender,
        kind="ack",
        thread=envelope.thread,
        swarm=envelope.swarm,
        idempotency_key=receipt,
        text="",
        at=at,
        meta={"envelope": envelope.id},
    )


def acknowledge(
    claimed: Claimed, *, ledger: AckLedger, clock: Clock, put_to: Callable[[str], Callable[[Envelope], Put] | None]
) -> Put | None:
    """Write the received line; if the sender asked for an ack and has an inbox, put one there. Call before archive.

    Args:
        claimed: what was received.
        ledger: where the line goes.
        clock: when the ack is written.
        put_to: returns how to put into an agent's inbox, None for a sender that has none (an author, a channel).

    Raises:
        Exhausted: no room in the sender's inbox; do it again later, before archiving.
    """
    ledger.received(claimed)
    put = put_to(claimed.envelope.sender) if claimed.envelope.requires_ack else None
    return put(ack_of(claimed.envelope, at=clock.now())) if put is not None else None


def read_acks(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the receipts of every day by time, each id once. A torn last line, left by a crash, is passed over."""
    records: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("channel-acks-*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
                records.setdefault(str(record["id"]), record)
            except (ValueError, KeyError, TypeError):
                continue
    yield from sorted(records.values(), key=lambda record: str(record["at"]))
