"""The port of the bus: what a sender and a reader may rely on, whatever carries the envelopes.

`tests/conformance/bus/` is this page as tests, and runs over every backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from turnkeeper.bus.envelope import Envelope
from turnkeeper.errors import TurnkeeperError


@dataclass(frozen=True, kw_only=True)
class Put:
    """What a put came to.

    Attributes:
        name: the envelope's name on the bus; the earlier one's for a duplicate.
        fresh: False where an envelope with this key lay here already, so that nothing was written.
    """

    name: str
    fresh: bool


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """An envelope that this process has taken and must archive or quarantine.

    Attributes:
        name: its name on the bus.
        envelope: what it says, checked.
    """

    name: str
    envelope: Envelope


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """What was set aside, whole.

    Attributes:
        name: its name in quarantine; :meth:`Bus.requeue` takes it.
        reason: why, in one line.
        at: when it was set aside; None where the reason is lost.
    """

    name: str
    reason: str
    at: datetime | None


class Bus(Protocol):
    """One agent's envelopes. Any number of processes put; those that claim are processes of that agent.

    An envelope that was answered for is in exactly one of four places: waiting, claimed, delivered, quarantined. It
    is handed out at least once, byte for byte as it was put, in the order of the answers. Of several envelopes with
    one key, at most one is handed out, by the backend or by the unique row of the agent that reads it.
    """

    async def put(self, envelope: Envelope) -> Put:
        """Put one envelope; when this returns it survives power loss. Raises InvalidInput or Exhausted."""

    async def put_all(self, envelopes: Sequence[Envelope]) -> list[Put | TurnkeeperError]:
        """Put many; answer for each, in order: what it came to, or the error that met it alone."""

    async def known(self, key: str) -> Envelope | None:
        """Return the envelope with this key that waits or is claimed, as far as this process knows."""

    async def waiting(self) -> int:
        """Return how many envelopes wait."""

    async def claim(self, limit: int) -> list[Claimed]:
        """Take up to `limit` waiting envelopes, in order. Malformed ones go to quarantine. Raises Exhausted."""

    async def adopt(self) -> list[Claimed]:
        """Return what earlier processes claimed and never archived. Only while no other process claims."""

    async def archive(self, claimed: Claimed) -> None:
        """End an envelope: when this returns it is delivered, durably. Doing it twice changes nothing."""

    async def quarantine(self, name: str, reason: str) -> None:
        """Set a claimed envelope aside, whole, with the reason."""

    async def quarantined(self) -> list[Quarantined]:
        """Return what was set aside, in order."""

    async def requeue(self, name: str) -> Put:
        """Let a quarantined envelope wait again, once it is valid. Raises NotFound, InvalidInput or Exhausted."""
