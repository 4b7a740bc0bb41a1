"""The shutdown messages to agents in terminals: one envelope for each, and a minute to read it.

An agent gets one only if its inbox has a reader. An envelope that is not read in time is withdrawn, because it would be
wrong after the next start. If machines share a database, no agent gets one, because other machines continue to deliver.
"""

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.toml_file import shared_url_in
from turnkeeper.constellation.supervisor import daemons
from turnkeeper.entropy import Entropy
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.files import SystemFiles
from turnkeeper.storage.locking import reader_of

PATIENCE_S = 60.0
_SENDER = "watchdog"
_TEXT = "Turnkeeper is going down. Nothing is delivered to you until it is started again. Messages for you are kept."
_UNTOLD = "got no message: other machines that share the database may continue to deliver to it"
_HOSTED = re.compile(r"agent[0-9]+|.*@.*", re.ASCII)  # agent0 and workers, and agents of peers
_FILES = SystemFiles()


def read_now(home: Home) -> list[str]:
    """Return the agents in terminals whose inboxes have a reader now, by name."""
    folder = home.inbox("agent0").parent
    readers = {path.name: _reader(path) for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    # Processes of the constellation are not terminals, and are stopped with the others.
    ours = tuple(one.name for one in (daemons.AGENT_RUNTIME, *daemons.OPTIONAL))
    return [agent for agent, reader in readers.items() if reader and not reader.startswith(ours)]


def tell_all(home: Home, *, clock: SystemClock, entropy: Entropy) -> dict[str, str]:
    """Send a shutdown to each agent whose inbox has a reader, and wait for the readers. Return the outcomes by name."""
    told, how = {}, _untold(home) if shared_url_in(home.config) else {}
    for agent in read_now(home):
        try:
            told[agent] = _Shutdown(home, agent, clock, entropy)
        except TurnkeeperError as error:  # its inbox is full, or cannot be written
            how[agent] = f"could not be sent the shutdown: {error}"
    try:
        clock.poll(lambda: not any(each.is_open() for each in told.values()), timeout_s=PATIENCE_S, every_s=0.1)
    finally:
        how |= {agent: each.settle() for agent, each in told.items()}
    return how


def _untold(home: Home) -> dict[str, str]:
    """For each agent in a terminal of this machine, return by name a note that the agent got no message."""
    folder = home.inbox("agent0").parent
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return {agent: _UNTOLD for agent in found if _HOSTED.fullmatch(agent) is None}


class _Shutdown:
    """The shutdown envelope of one agent."""

    def __init__(self, home: Home, agent: str, clock: SystemClock, entropy: Entropy) -> None:
        """Put the envelope. Raises TurnkeeperError."""
        # Import it here, because most constellations have no agent in a terminal.
        bus, envelope = import_module("turnkeeper.bus.inbox"), import_module("turnkeeper.bus.envelope")
        place: dict[str, Any] = {"files": _FILES, "clock": clock, "entropy": entropy}
        self._inbox = bus.open_inbox(home, agent, hosted=False, **place)
        self._key = f"shutdown:{entropy.hex(16)}"
        sent: dict[str, Any] = {
            "id": entropy.hex(32),
            "sender": _SENDER,
            "to": agent,
            "kind": "shutdown",
            "text": _TEXT,
        }
        sent |= {"idempotency_key": self._key, "requires_ack": True, "at": clock.now()}
        self._name = self._inbox.put(envelope.Envelope(**sent)).name

    def is_open(self) -> bool:
        """Return True if a reader may still take the envelope."""
        return self._state() in {"waiting", "claimed"} and bool(_reader(self._inbox.folder))

    def settle(self) -> str:
        """Withdraw the envelope if no reader took it. Return its outcome."""
        state = self._state()
        if state in {"delivered", "gone"}:
            return "took the shutdown"
        read = bool(_reader(self._inbox.folder))
        with suppress(TurnkeeperError, OSError):
            self._inbox.withdraw(self._name, claimed=not read)
        return f"did not read the shutdown within {PATIENCE_S:.0f}s" if read else "ended"

    def _state(self) -> str:
        states = import_module("turnkeeper.bus.folders").envelope_states
        return str(states(self._inbox.folder, {self._key: self._name}, _FILES)[self._key])


def _reader(folder: Path) -> str:
    try:
        return reader_of(folder)
    except OSError:
        return ""
