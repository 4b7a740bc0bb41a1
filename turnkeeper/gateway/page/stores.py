"""The page's reads of the stores themselves: the times in which nothing was sent, and the tokens of turns.

The reads ask no daemon, so they work while a daemon is down. Each read has its own connection, which cannot write.
"""

from collections.abc import Generator, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import required
from turnkeeper.storage.sqlite_files import reading
from turnkeeper.times import from_us, to_us

_OUTAGES = """
SELECT 'agent runtime away' AS cause, '' AS why, from_us, to_us, lasts FROM outages
UNION ALL SELECT cause, why, from_us, to_us, lasts FROM stoppages WHERE task_id = ''
"""
_TURNS = "SELECT task_name, channel, started_at_us, tokens_in, tokens_out FROM turns ORDER BY number DESC"


class Outage(NamedTuple):
    """A time in which nothing was sent: the daemon that was away, and why. While it lasts, `end` is the present."""

    daemon: str
    says: str
    begin: datetime
    end: datetime


class Spent(NamedTuple):
    """The tokens that models read and wrote in the turns of one task, or of one channel's messages, on one day."""

    day: str
    name: str
    turns: int
    tokens_in: int
    tokens_out: int


def outages(home: Home, url: str, now: datetime) -> list[Outage]:
    """Return the recorded outages. Raises TurnkeeperError."""
    return [
        Outage(
            "agent-runtime" if "agent runtime" in row["cause"] else "task-runner",
            row["cause"].rstrip(",") + (f": {row['why']}" if row["why"] else ""),
            from_us(row["from_us"]),
            now if row["lasts"] else from_us(row["to_us"]),
        )
        for row in _rows(home.schedules_db, url, "runner", _OUTAGES)
    ]


def spent(home: Home, url: str, since: datetime) -> list[Spent]:
    """Return the tokens of turns that began at `since` or later, by local day and name. Raises TurnkeeperError."""
    found: dict[tuple[str, str], Spent] = {}
    with closing(_rows(home.agent_db, url, "runtime", _TURNS)) as rows:
        for row in rows:
            if row["started_at_us"] < to_us(since):
                break
            day = f"{from_us(row['started_at_us']).astimezone():%Y-%m-%d}"
            name = row["task_name"] or f"messages in {row['channel']}"
            _, _, turns, read, wrote = found.get((day, name), Spent(day, name, 0, 0, 0))
            found[day, name] = Spent(day, name, turns + 1, read + row["tokens_in"], wrote + row["tokens_out"])
    return list(found.values())


def _rows(path: Path, url: str, schema: str, query: str) -> Generator[Mapping[str, Any]]:
    """Yield the rows of a query on a home's file or, with a URL, on the shared database. Raises TurnkeeperError."""
    if url:
        with closing(required("shared-snapshot", url, schema, named=True)) as store:
            yield from store.execute(query)
    else:
        with reading(path) as file:
            yield from file.execute(query)
