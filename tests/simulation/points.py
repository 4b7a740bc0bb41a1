"""The points of the protocol, and faults that strike when a process passes one for the n-th time.

Most points are failpoints of the daemons. The others are steps of stores and of files, which the simulation runs itself.
A crash takes effect at the next await after the point, so that nothing else of the step reaches the disk or the wire.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from agent_runtime.store.idempotency import Transactions
from tests.simulation.loop import NODE
from turnkeeper.rpc.process import Failpoints

POINTS: Mapping[str, tuple[str, ...]] = {
    "send": ("runner.committed", "runner.handed", "runner.sent"),
    "accept": ("runtime.linked", "runtime.accepted", "runner.receipt"),
    "claim": ("runtime.renamed", "runtime.claimed", "runtime.started"),
    "tool": ("runtime.wrote",),
    "checkpoint": ("runtime.saved",),
    "outcome": ("runtime.finished", "runtime.recorded", "runtime.stored", "runner.stored"),
    "archive": ("runtime.archived",),
}
OF_DELIVERIES: Mapping[str, tuple[str, ...]] = {
    "hear": ("delivery.heard", "delivery.written"),
    "settle": ("delivery.settling", "delivery.settled"),
    "deliver": ("delivery.sending", "delivery.sent", "delivery.recorded"),
}
EFFECTS = ("crash", "lose", "power", "ENOSPC", "EIO")
_PLACES = {"inbox": "runtime.linked", "claimed": "runtime.renamed", "delivered": "runtime.archived"}


def point_of(folder: str) -> str:
    """Return the point that is passed when an envelope gets a name in a folder; empty if there is none."""
    return _PLACES.get(folder, "")


@dataclass
class _Aim:
    point: str
    left: int
    strike: Callable[[], None]


class Points:
    """The faults that wait for a point.

    Attributes:
        struck: how many struck, by effect and step of the protocol.
        passed: how often each point was passed.
    """

    def __init__(self) -> None:
        self._armed: list[_Aim] = []
        self.struck: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()

    def arm(self, what: str, number: int, strike: Callable[[str], None]) -> None:
        """Strike at the `number`-th pass from now. `what` is a point and an effect."""
        point, effect = what.split()
        (step,) = (step for step, points in {**POINTS, **OF_DELIVERIES}.items() if point in points)

        def hit() -> None:
            self.struck[f"{effect} at {step}"] += 1
            strike(effect)

        self._armed.append(_Aim(point, number, hit))

    def clear(self) -> None:
        """Drop the faults that have not struck."""
        self._armed.clear()

    def reach(self, point: str) -> None:
        """Pass a point."""
        node = NODE.get()
        if node is None or node.is_dead:
            return
        self.passed[point] += 1
        for aim in [aim for aim in self._armed if aim.point == point]:
            aim.left -= 1
            if not aim.left:
                self._armed.remove(aim)
                aim.strike()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Make the failpoints of the daemons points of this run within the block."""
        wrote = Transactions.wrote

        def passed(transactions: Transactions, *given: Any) -> None:
            self.reach("runtime.wrote")
            wrote(transactions, *given)

        with (
            patch.object(Failpoints, "reach", lambda _failpoints, name: self.reach(name)),
            patch.object(Transactions, "wrote", passed),
        ):
            yield
