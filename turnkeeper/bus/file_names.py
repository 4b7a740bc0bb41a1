"""File names on the bus: nanoseconds (20 digits), pid, random hex, sequence, sender. They sort in writing order.

The order holds between processes and over a clock that steps back: a put that begins after another was answered gets
a later name. The last nanosecond given out stands in `.newest`, read and raised under its lock; the names that lie in
the folders make good a file that was lost or is behind.
"""

import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.times import to_us

MARK = ".newest"
_NAME = re.compile(r"(\d{20})-(\d{1,10})-[0-9a-f]{8}-\d{6,12}-[a-z0-9-]+\.json", re.ASCII)
_LATEST_NS = 9 * 10**18  # in the year 2255; a forged name beyond it does not push ours there
_DIGITS = 20


class Names:
    """Draws names for one agent's folder."""

    def __init__(self, folder: Path, *, clock: Clock, entropy: Entropy) -> None:
        self._mark = folder / MARK
        self._clock = clock
        self._entropy = entropy
        self._last_ns = -1
        self._sequence = 0

    def draw(self, senders: Sequence[str], *, lying: Iterable[str]) -> list[str]:
        """Return one name for each sender, later than every name drawn before; `lying` is read at the first draw."""
        if self._last_ns < 0:
            self._last_ns = max((ns_of(name) or 0 for name in lying), default=0)
        first = self._reserve(len(senders))
        return [self._name(first + place, sender) for place, sender in enumerate(senders)]

    def tag(self) -> str:
        """Return digits that tell apart what a foreign writer gave one name."""
        return self._entropy.hex(8)

    def _reserve(self, count: int) -> int:
        descriptor = os.open(self._mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            newest = max(self._last_ns, _number(os.pread(descriptor, _DIGITS, 0)))
            first = max(newest + 1, to_us(self._clock.now()) * 1000)
            self._last_ns = first + count - 1
            os.pwrite(descriptor, f"{self._last_ns:020d}".encode(), 0)
        finally:
            os.close(descriptor)  # gives the lock back
        return first

    def _name(self, ns: int, sender: str) -> str:
        self._sequence += 1
        return f"{ns:020d}-{os.getpid()}-{self._entropy.hex(8)}-{self._sequence:06d}-{sender}.json"


def ns_of(name: str) -> int | None:
    """Return the nanoseconds in a name of ours, None for a foreign one.

    >>> ns_of("01772442000000000000-7-0a1b2c3d-000001-author.json")
    1772442000000000000
    """
    found = _NAME.fullmatch(name)
    ns = int(found[1]) if found else _LATEST_NS
    return ns if ns < _LATEST_NS else None


def writer_of(temporary: str) -> int | None:
    """Return the pid in the name of a temporary file of ours, None for anything else.

    >>> writer_of(".01772442000000000000-7-0a1b2c3d-000001-author.json.tmp")
    7
    """
    if not (temporary.startswith(".") and temporary.endswith(".tmp")):
        return None
    found = _NAME.fullmatch(temporary[1:-4])
    return int(found[2]) if found else None


def _number(digits: bytes) -> int:
    return int(digits) if len(digits) == _DIGITS and digits.isdigit() and int(digits) < _LATEST_NS else 0
