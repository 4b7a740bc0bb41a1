"""Receipts for envelopes: a line in the ledger of the day, and an `ack` envelope to a sender that asked for one.

`logs/channel-acks-<date>.jsonl` is an event log that all processes share. A line names the envelope and never contains
its text. Both receipts are written before the envelope is archived. If the process crashes in between, the next process
writes both receipts again with the same ids.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.event_log import EventLog, read_events
from turnkeeper.bus.inbox import Claimed, Put
from turnkeeper.clock import Clock
from turnkeeper.storage.files import machine_errors

_PREFIX = "channel-acks"


class AckLedger:
    """The writer of one process's receipts."""

    def __init__(self, folder: Path, process: str, clock: Clock) -> None:
        self._folder = folder
        self._log = EventLog(folder, process, clock, prefix=_PREFIX, follows_links=False)

    def received(self, claimed: Sequence[Claimed], *, durable: bool = True) -> None:
        """Append a received line for each envelope in one write. With `durable`, sync to disk. Raises Exhausted."""
        with machine_errors(self._folder):
            self._log.append([("envelope.received", _receipt(item)) for item in claimed], durable=durable)


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


def ack_id(envelope: Envelope) -> str:
    """Return the id of an envelope's receipt. Each call for the same envelope returns the same id."""
    text = json.dumps([envelope.to, envelope.sender, envelope.id])
    return f"ack-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def ack_of(envelope: Envelope, *, at: datetime, by_key: bool = False) -> Envelope:
    """Return the `ack` envelope that acknowledges an envelope.

    With `by_key`, envelopes that share an idempotency key share one ack, so that an inbox stores only one.
    """
    receipt = ack_id(replace(envelope, id=envelope.idempotency_key) if by_key else envelope)
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
    """Write the received line. If the sender wants an ack and has an inbox, put one there. Call before archive.

    Args:
        put_to: returns the put function of an agent's inbox, or None for an author or a channel, which has no inbox.

    Raises:
        Exhausted: the sender's inbox is full; retry later, before archiving.
    """
    ledger.received([claimed])
    put = put_to(claimed.envelope.sender) if claimed.envelope.requires_ack else None
    return put(ack_of(claimed.envelope, at=clock.now())) if put is not None else None


def read_acks(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the receipts of all days, ordered by time. Yield each id once."""
    records: dict[str, dict[str, Any]] = {}
    for record in read_events(folder, _PREFIX):
        records.setdefault(str(record.get("id", "")), record)
    yield from (record for id_, record in records.items() if id_)
