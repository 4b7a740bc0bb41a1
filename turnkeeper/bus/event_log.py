"""The event log: one JSON line for each event, one file for each day, one `O_APPEND` write for each group of lines.

Each process has its own files. All processes share the file of envelope receipts (`turnkeeper/bus/acks.py`). Required
keys: `at` (RFC 3339 UTC), `process`, `pid`, `event`. All other keys are fields of the event: ids, states and counts,
but never a prompt, a message, an argument or a secret.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from turnkeeper.clock import Clock
from turnkeeper.times import rfc3339

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_AS_JSON_DOES = orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_JSON = json.JSONEncoder(separators=(",", ":"), default=str)  # made once: `json.dumps` would make one for each call


class EventLog:
    """Writer of one process's events.

    A line is written completely or not at all, even if several processes write to the same file. An event reports an
    action that has already happened. If the event cannot be logged, the action is not undone. So `emit` raises OSError
    only for a durable event. Other events that cannot be written are lost. One warning goes to stderr until writing
    succeeds again. The first event after that is `events.lost`, with the number of lost events.

    Attributes:
        trouble: why events cannot be written at the moment; empty if they can.
        count: a function that gets all events, including events that cannot be written.
    """

    def __init__(
        self, folder: Path, process: str, clock: Clock, *, prefix: str | None = None, follows_links: bool = True
    ) -> None:
        """Write files whose names begin with `prefix`, by default `events-<process>`.

        If a file is a link, write to its target; without `follows_links`, refuse to write.
        """
        self._folder = folder
        self._prefix = prefix or f"events-{process}"
        self._process = process
        self._clock = clock
        self._flags = _APPEND if follows_links else _APPEND | os.O_NOFOLLOW
        self._day = ""
        self._descriptor: int | None = None
        self._torn = False
        self._lost = 0
        self.trouble = ""
        self.count: Callable[[Sequence[tuple[str, Mapping[str, Any]]]], object] = len

    def emit(self, event: str, *, durable: bool = False, **fields: Any) -> None:
        """Append one event. With `durable`, return after the event is on disk, or raise OSError."""
        self.emit_all([(event, fields)], durable=durable)

    def emit_all(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, durable: bool = False) -> None:
        """Append events like :meth:`append`. Raise an error only with `durable`."""
        missed = [("events.lost", {"count": self._lost})] if self._lost else []
        self.count(events)
        try:
            self.append([*missed, *events], durable=durable)
        except OSError as error:
            if durable:
                raise
            self._lost += len(events)
            if not self.trouble:
                with contextlib.suppress(OSError):  # the log is often on the disk that fails
                    sys.stderr.write(f"warning: {self._folder}: events cannot be written: {error.strerror}\n")
                    sys.stderr.flush()
            self.trouble = f"{self._folder}: events cannot be written: {error.strerror}"
        else:
            self._lost, self.trouble = 0, ""

    def append(self, events: Sequence[tuple[str, Mapping[str, Any]]], *, durable: bool) -> None:
        """Append events, each a name and its fields, in order. They get the same time, and are written at once.

        Raises OSError. Use a single write, because each one releases the interpreter's lock and waits to get it back.
        """
        if not events:
            return
        at = rfc3339(self._clock.now())
        first = {"at": at, "process": self._process, "pid": os.getpid()}
        lines = [_line({**first, "event": event, **fields, **first}) for event, fields in events]
        self._write(at[:10], b"".join(lines), durable=durable)

    def _write(self, day: str, data: bytes, *, durable: bool) -> None:
        descriptor, written = self._open(day), 0
        if self._torn:  # end a line that a full disk cut short, so that it does not become part of the next event
            data = b"\n" + data
        while written < len(data):
            written += os.write(descriptor, data[written:])
            self._torn = not data[:written].endswith(b"\n")
        if durable:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Close the file. A later emit opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self._day = None, ""

    def _open(self, day: str) -> int:
        if self._descriptor is None or day != self._day:
            self.close()
            self._descriptor = os.open(self._folder / f"{self._prefix}-{day}.jsonl", self._flags, 0o600)
            self._day = day
        return self._descriptor


LATE_S = 0.25


@contextlib.contextmanager
def told_if_late(
    log: EventLog, event: Callable[[], Sequence[tuple[str, Mapping[str, Any]]]], *, again: bool = False
) -> Iterator[None]:
    """Log the events that `event` returns if the block, in an event loop, takes longer than `LATE_S`.

    The log then shows the request even while the process waits for its store. If the store answers in time, the events
    of the answer are sufficient. With `again`, repeat the events every `LATE_S` seconds until the block ends.
    """
    import asyncio  # noqa: PLC0415  the supervisor has no event loop, and the module takes 6 MB

    late: asyncio.TimerHandle

    def wait() -> None:
        nonlocal late
        late = asyncio.get_running_loop().call_later(LATE_S, tell)

    def tell() -> None:
        log.emit_all(event())
        if again:
            wait()

    wait()
    try:
        yield
    finally:
        late.cancel()


def record_act(folder: Path, program: str, command: str, subject: str, clock: Clock, *, reason: str = "") -> None:
    """Record an author's command that calls no daemon, and the author's reason if there is one.

    If the log cannot be written, skip the record.
    """
    if os.access(folder, os.W_OK):
        via = f"{program}/cli"
        why: dict[str, Any] = {"reason": reason} if reason else {}
        EventLog(folder, program, clock).emit("act.done", method=command, subject=subject, via=via, **why)


def _line(record: Mapping[str, Any]) -> bytes:
    """Return a record as one line of JSON in ASCII, without control characters."""
    try:
        line = orjson.dumps(record, default=str, option=_AS_JSON_DOES)
    except TypeError:  # only the slower encoder accepts long integers and lone surrogates
        line = b"\x7f"
    return line if line.isascii() and b"\x7f" not in line else f"{_JSON.encode(record)}\n".encode()


def read_events(folder: Path, prefix: str = "events") -> Iterator[dict[str, Any]]:
    """Yield every event of the files with this prefix, ordered by time. Skip incomplete lines and other text."""
    records = []
    for path in sorted(folder.glob(f"{prefix}-*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("at"), str):
                    records.append(record)
    # Without the Z, a whole second sorts before its own fractions.
    yield from sorted(records, key=lambda record: str(record["at"]).removesuffix("Z"))


Told = Callable[[Mapping[str, Any]], None]


def count_events(log: EventLog, counts: Mapping[str, Told]) -> None:
    """Call `counts[name]` with the fields of each event of that name, after the function that `log` already calls."""
    before = log.count

    def take(events: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        before(events)
        for name, fields in events:
            if (told := counts.get(name)) is not None:
                told(fields)

    log.count = take
