"""The right to write for a thread: what it is called, and how it reaches every write that is made for a turn.

Where several machines share a store, a thread has one owner at a time. Its lease carries an epoch, which rises with
each owner. Whoever deals with the thread does so under its lease: every task and thread that it starts inherits it, and
each write proves in its own transaction that the epoch is still the thread's. In a home of one machine there is no
lease: the process's lock is the right to write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from turnkeeper.errors import Conflict


@dataclass(frozen=True)
class Lease:
    """What the owner of a thread proves: the thread, and the epoch since which it owns it."""

    thread_id: str
    epoch: int


class Fenced(Conflict):
    """Another owner has taken the thread: whoever meets this stops, and nothing was written."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        super().__init__(f"another owner has taken the thread since epoch {lease.epoch}", where=lease.thread_id)


def current() -> Lease | None:
    """Return the lease under which this runs; None where there is none."""
    return _HELD.get()


@contextmanager
def under(lease: Lease | None) -> Iterator[None]:
    """Run the block, and whatever it starts, under a lease."""
    before = _HELD.set(lease)
    try:
        yield
    finally:
        _HELD.reset(before)


_HELD: ContextVar[Lease | None] = ContextVar("lease", default=None)
