"""The deliveries of fires, for commands of the runner and for `status`.

Most homes deliver nothing. The outbox takes longer to load than such a command takes, so it is imported late.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, TurnkeeperError

_SECTION = "[delivery]"  # a section in config.toml of every home that has ever delivered something


def sentences(home: Home, name: str) -> list[str]:
    """Return a sentence about each delivery of a named entry of the ledger, for `explain`. Empty if there is none."""
    if not _delivers(home):
        return []
    outbox: Any = import_module("turnkeeper.constellation.delivery.outbox")
    try:
        return [outbox.sentence(row) for row in outbox.of_fires(home, [name])]
    except TurnkeeperError as error:
        if isinstance(error, Conflict) and not outbox.load_settings(home).delivery.enabled:
            return []  # no process has created its tables in the shared database
        return [f"Its deliveries cannot be read: {error}"]


def states(home: Home, names: Collection[str]) -> dict[str, list[str]]:
    """Return, by the name of an entry of the ledger, the target and state of its deliveries. Empty if not readable."""
    found = defaultdict[str, list[str]](list)
    if not names or not _delivers(home):
        return found
    outbox: Any = import_module("turnkeeper.constellation.delivery.outbox")
    with suppress(TurnkeeperError):  # `explain` tells why; a history without deliveries is still a history
        for row in outbox.of_fires(home, names):
            found[outbox.entry_of(row, names)].append(f"{row.target}: {row.state}")
    return found


def findings(home: Home) -> Iterator[tuple[str, str, str]]:
    """Yield a process, a fault and a remedy for each target whose deliveries fail. Empty if they cannot be read."""
    if not _delivers(home):
        return
    outbox: Any = import_module("turnkeeper.constellation.delivery.outbox")
    with suppress(TurnkeeperError):
        for (target, why), count in outbox.failing(home).items():
            what = f"{count} {'delivery' if count == 1 else 'deliveries'} to {target} failed: {why}"
            yield "delivery", what, "they are tried again; see: turnkeeper deliver log --waiting"


def _delivers(home: Home) -> bool:
    try:
        return _SECTION in home.config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
