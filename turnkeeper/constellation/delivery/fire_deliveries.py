"""The deliveries of fires, for commands of the runner and for `status`.

Most homes deliver nothing. The outbox takes longer to load than such a command takes, so it is imported late.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC
from importlib import import_module
from typing import Any

from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, TurnkeeperError
from turnkeeper.times import rfc3339

_SECTION = "[delivery]"  # a section in config.toml of every home that has ever delivered something


def entry_name(fire: Any) -> str:
    """Return the name of a ledger entry for its deliveries: the fire id, or else the entry and its newest time."""
    newest = rfc3339(fire.last_nominal_at.ToDatetime(UTC))
    return fire.fire_id or f"{fire.task_id}:{fire.entry_id}:{newest}:skipped"


def sentences(home: Home, fire: Any) -> list[str]:
    """Return a sentence about each delivery of an entry of the ledger, for `explain`. Empty if there is none."""
    if not _delivers(home):
        return []
    outbox: Any = import_module("turnkeeper.constellation.delivery.outbox")
    try:
        return [outbox.sentence(row) for row in outbox.of_fires(home, [entry_name(fire)])]
    except TurnkeeperError as error:
        if isinstance(error, Conflict) and not outbox.load_settings(home).delivery.enabled:
            return []  # no process has created its tables in the shared database
        return [f"Its deliveries cannot be read: {error}"]


def states(home: Home, fires: Collection[Any]) -> list[list[str]]:
    """Return, for each entry of the ledger, the targets and states of its deliveries. Empty if not readable."""
    found, names = defaultdict[str, list[str]](list), [*map(entry_name, fires)]
    if not names or not _delivers(home):
        return [[] for _ in names]
    outbox: Any = import_module("turnkeeper.constellation.delivery.outbox")
    with suppress(TurnkeeperError):  # `explain` tells why; a history without deliveries is still a history
        for row in outbox.of_fires(home, names):
            found[outbox.entry_of(row, names)].append(f"{row.target}: {row.state}")
    return [found[name] for name in names]


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
