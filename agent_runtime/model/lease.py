"""The lease of a thread: the right to write for the thread, and the proof of this right in each write of a turn.

If machines share a store, each thread has one owner at a time. The owner's lease carries an epoch, which increases with
each new owner. The owner works on the thread under its lease. Each task and thread that it starts inherits the lease.
Each write checks in its own transaction that the epoch is current. A home on one machine has no leases, because the
process's lock is the right to write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from turnkeeper.errors import Conflict


@dataclass(frozen=True)
class Lease:
    """The proof of ownership of a thread: the thread's id, and the epoch of this owner."""

    thread_id: str
    epoch: int


class Fenced(Conflict):
    """Another owner has taken the thread. The process stops its work for the thread, and this write changed nothing."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        super().__init__(f"another owner has taken the thread since epoch {lease.epoch}", where=lease.thread_id)


def current() -> Lease | None:
    """Return the lease of the running code; None if there is none."""
    return _HELD.get()


@contextmanager
def under(lease: Lease | None) -> Iterator[None]:
    """Run the block, and all tasks and threads that it starts, under a lease."""
    before = _HELD.set(lease)
    try:
        yield
    finally:
        _HELD.reset(before)


_HELD: ContextVar[Lease | None] = ContextVar("lease", default=None)
