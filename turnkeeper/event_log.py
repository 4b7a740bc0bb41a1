"""The event trail: JSONL facts, one file for each process and day, one `O_APPEND` write a line.

Every kind of run writes the same records, so that one history checker reads them all. Required keys: `at` (RFC 3339
UTC), `process`, `pid`, `event`. The rest are fields of the event: ids, states, counts; never a prompt, a message, an
argument or a secret.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnkeeper.clock import Clock
from turnkeeper.times import rfc3339

_JSON = json.JSONEncoder(separators=(",", ":"), default=str)  # made once: `json.dumps` makes one for each call


class EventLog:
    """Appends events of one process. A line is whole or absent, also with several writers on one file.

    Events tell what has happened; a trail that cannot be written undoes none of it. So only a durable event raises
    OSError. Others that the machine has no room for are lost, which is said once on stderr until writing works again.
    """

    def __init__(self, folder: Path, process: str, clock: Clock) -> None:
        self._folder = folder
        self._process = process
        self._clock = clock
        self._day = ""
        self._descriptor: int | None = None
        self._torn = False
        self._silent = False

    def emit(self, event: str, *, durable: bool = False, **fields: Any) -> None:
        """Append one event; with `durable`, return only when it is on disk, or raise OSError."""
        self.emit_all([(event, fields)], durable=durable)

    def emit_all(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, durable: bool = False) -> None:
        """Append events, each a name and its fields, in order, at one time and in one write.

        A write lets go of the interpreter's lock, and getting it back beside a busy thread costs more than the write.
        """
        if not events:
            return
        at = rfc3339(self._clock.now())
        first = {"at": at, "process": self._process, "pid": os.getpid()}
        lines = (_JSON.encode({**first, "event": event, **fields}) for event, fields in events)
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            self._write(at[:10], data, durable=durable)
        except OSError as error:
            if durable:
                raise
            if not self._silent:
                sys.stderr.write(f"warning: {self._folder}: events cannot be written: {error.strerror}\n")
            self._silent = True
        else:
            self._silent = False

    def _write(self, day: str, data: bytes, *, durable: bool) -> None:
        descriptor, written = self._open(day), 0
        if self._torn:  # what a full disk cut short must not swallow the event after it
            data = b"\n" + data
        while written < len(data):
            written += os.write(descriptor, data[written:])
            self._torn = not data[:written].endswith(b"\n")
        if durable:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Close the file; a later emit opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self._day = None, ""

    def _open(self, day: str) -> int:
        if self._descriptor is None or day != self._day:
            self.close()
            path = self._folder / f"events-{self._process}-{day}.jsonl"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor, self._day = os.open(path, flags, 0o600), day
        return self._descriptor


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield every whole event in the folder's trails, by time. A torn last line, left by a crash, is passed over."""
    records = []
    for path in sorted(folder.glob("events-*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            records.append(record)
    yield from sorted(records, key=lambda record: str(record["at"]))
