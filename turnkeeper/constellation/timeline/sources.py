"""Reads the sources of the timeline: trails, receipts, stores, markers and restart statuses. Changes nothing.

If a source cannot be read completely, :attr:`Sources.skipped` names it with the reason.
"""

import contextlib
import heapq
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.timeline.records import TRAIL, Record
from turnkeeper.constellation.timeline.stores import TOLD, Stores, Wanted, plain, shared_url
from turnkeeper.times import from_us, parse_rfc3339, rfc3339, to_us

LONGEST_LINE = 1 << 20
_DISORDER = 256  # records of one file that may be out of order
_FILE = re.compile(r"(events-.+|channel-acks)-(\d{4}-\d\d-\d\d)\.jsonl")
_FACTS = frozenset({"at", "process", "pid", "event"})


class Sources:
    """All sources of a home's history.

    Attributes:
        skipped: the reason for each file that could not be read, by name.
    """

    def __init__(self, home: Home) -> None:
        self.skipped: dict[str, str] = {}
        self._home = home
        self.stores = Stores(home, self.skipped)

    def read(self, wanted: Wanted) -> list[Iterator[Record]]:
        return [*self.trails(wanted), *self.stores.read(wanted), self._markers(wanted), self.restarts(wanted)]

    def news(self, wanted: Wanted) -> list[Iterator[Record]]:
        """Return the records of the trails or, if machines share a database, the database's records of all machines."""
        if not shared_url(self._home):
            return self.trails(wanted)
        self.stores.renew()
        own = [(record for record in stream if record.kind not in TOLD) for stream in self.trails(wanted)]
        return [*own, *self.stores.read(wanted)]

    def trails(
        self, wanted: Wanted, names: tuple[str, ...] = ("",), *, newest_first: bool = False
    ) -> list[Iterator[Record]]:
        """Return the trail of each process, and the receipts of envelopes.

        With `newest_first`, begin with the newest day. Read only files whose names begin with one of `names`.
        """
        streams: dict[str, list[Path]] = {}
        for path in sorted(self._home.logs.glob("*.jsonl")):
            named = _FILE.fullmatch(path.name)
            if named and path.name.startswith(names) and self._in_days(named[2], wanted):
                streams.setdefault(named[1], []).append(path)
        return [self._of_trail(paths[::-1] if newest_first else paths, wanted) for paths in streams.values()]

    @staticmethod
    def _in_days(day: str, wanted: Wanted) -> bool:
        first, last = (rfc3339(from_us(max(0, us)))[:10] for us in (wanted.since_us, wanted.until_us))
        return first <= day <= last

    def _of_trail(self, paths: list[Path], wanted: Wanted) -> Iterator[Record]:
        needles = [os.fsencode(one) for one in wanted.ids]
        return _by_time(record for path in paths for record in self._of_file(path, wanted, needles))

    def _of_file(self, path: Path, wanted: Wanted, needles: list[bytes]) -> Iterator[Record]:
        source, damaged = ("acks" if path.name.startswith("channel-acks") else TRAIL), 0
        try:
            with path.open("rb") as file:
                for line in whole_lines(file):
                    if needles and not any(needle in line for needle in needles):
                        continue
                    record = read_line(line, source) if line else None
                    if record is None:
                        damaged += 1
                    elif wanted.in_time(record.at_us):
                        yield record
        except OSError as error:
            self.skipped[path.name] = error.strerror or str(error)
        if damaged:
            self.skipped[path.name] = f"{damaged} damaged {'line' if damaged == 1 else 'lines'}"

    def _markers(self, wanted: Wanted) -> Iterator[Record]:
        kinds = [kind for kind in markers.KINDS if kind not in {markers.STATUS, markers.PROGRESS, markers.ARCHIVE}]
        found = []
        for kind in kinds:
            for path in markers.found(self._home, kind):
                with contextlib.suppress(FileNotFoundError):
                    at_us = path.stat().st_mtime_ns // 1000
                    fields = {"path": str(path.relative_to(self._home.root)), "meaning": kind.meaning} | _said(path)
                    found.append(Record(at_us, "marker", "marker.stands", kind.writer, fields))
        yield from _in_order(found, wanted)

    def restarts(self, wanted: Wanted) -> Iterator[Record]:
        """Return the newest phase of each start, and the reason if a start failed."""
        found = []
        for path in markers.found(self._home, markers.STATUS):
            says = markers.read_marker(path)
            if not isinstance(says, dict) or not isinstance(at_us := _instant(says.get("at")), int):
                self.skipped[path.name] = "cannot be read"
                continue
            fields = {"daemon" if name == "process" else name: value for name, value in says.items() if name != "at"}
            found.append(Record(at_us, "restart-status", "restart.phase", "watchdog", plain(fields)))
        yield from _in_order(found, wanted)


def _in_order(found: list[Record], wanted: Wanted) -> Iterator[Record]:
    named = (record for record in found if not wanted.ids or wanted.ids & {*map(str, record.fields.values())})
    return iter(sorted((record for record in named if wanted.in_time(record.at_us)), key=lambda one: one.at_us))


def _said(path: Path) -> dict[str, str]:
    says = markers.read_marker(path)
    if not isinstance(says, dict):
        return {"reason": "it cannot be read"}
    return {"reason": str(said)} if (said := says.get("error") or says.get("reason") or says.get("text")) else {}


def whole_lines(file: Any) -> Iterator[bytes]:
    """Yield the lines of a trail without line ends. A line that is too long is empty; omit an unfinished line."""
    while line := file.readline(LONGEST_LINE):
        if line.endswith(b"\n"):
            yield line[:-1]
        elif len(line) == LONGEST_LINE:
            while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            yield b""


def read_line(line: bytes, source: str) -> Record | None:
    """Return the record in a line of a trail. Return None if the line contains no record."""
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            said = json.loads(line)  # this parser accepts long integers and lone surrogates
        except (ValueError, RecursionError):
            return None
    at_us = _instant(said.get("at")) if isinstance(said, dict) else None
    if at_us is None or not isinstance(said.get("event"), str):
        return None
    fields = {name: value for name, value in said.items() if name not in _FACTS}
    return Record(at_us, source, said["event"], str(said.get("process", "")), fields | {"pid": said.get("pid")})


def _instant(text: object) -> int | None:
    try:
        return to_us(parse_rfc3339(str(text)))
    except ValueError:
        return None


def _by_time(records: Iterator[Record]) -> Iterator[Record]:
    """Yield the records of one file in order of time, if they are not far out of it."""
    heap: list[tuple[int, int, Record]] = []
    for number, record in enumerate(records):
        entry = (record.at_us, number, record)
        if len(heap) < _DISORDER:
            heapq.heappush(heap, entry)
        else:
            yield heapq.heappushpop(heap, entry)[2]
    while heap:
        yield heapq.heappop(heap)[2]
