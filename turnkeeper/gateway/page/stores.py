"""The page's reads of the stores themselves: outages, tokens of turns, decisions, and the newest fires of each task.

The reads ask no daemon, so they work while a daemon is down. Each read has its own connection, which cannot write.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import offered, required
from turnkeeper.storage.sqlite_files import reading
from turnkeeper.times import from_us, to_us

_OUTAGES = """
SELECT 'agent runtime away' AS cause, '' AS why, from_us, to_us, lasts FROM outages
UNION ALL SELECT cause, why, from_us, to_us, lasts FROM stoppages WHERE task_id = ''
"""
_TURNS = "SELECT task_name, channel, started_at_us, tokens_in, tokens_out, models_json FROM turns ORDER BY number DESC"
MOST_RUNS, MOST_STRIPS, MOST_DECIDED = 12, 1000, 20
_DECIDED = f"""
SELECT CASE WHEN tool = '' THEN question ELSE tool END AS about, decision, decided_by, resolved_at_us AS at_us,
  message AS note, task_name, turn_id FROM interrupts JOIN turns USING (turn_id)
WHERE interrupts.status = 'resolved' AND interrupts.kind <> 'pause'
UNION ALL SELECT title, lifecycle, decided_by, decided_at_us, note, task_name, turn_id FROM candidates
WHERE decided_at_us IS NOT NULL
UNION ALL SELECT page_id, lifecycle, decided_by, decided_at_us, note, task_name, turn_id FROM deviations
WHERE decided_at_us IS NOT NULL ORDER BY at_us DESC LIMIT {MOST_DECIDED}
"""  # noqa: S608  our own text
# Leave out fires that were never sent and became part of another entry. The tasks are in the order of the page's list.
_SHOWN = "NOT (outcome = 'coalesced' AND covers = 0 AND fired_us IS NULL) AND outcome <> 'pruned'"
_RUNS = f"""
WITH listed AS (
  SELECT id, name, coalesce((
    SELECT entry_id FROM fires WHERE task_id = id AND {_SHOWN} ORDER BY entry_id DESC LIMIT 1 OFFSET {MOST_RUNS - 1}
  ), 0) AS first FROM tasks WHERE state <> 'deleted' ORDER BY wake_us IS NULL, wake_us, name LIMIT {MOST_STRIPS}
)
SELECT name, outcome, reason, nominal_us, due_us, fired_us FROM listed
JOIN fires ON task_id = id AND entry_id >= first WHERE {_SHOWN} ORDER BY entry_id
"""  # noqa: S608  our own text


class Run(NamedTuple):
    """A fire of a task in a strip. `late_s` is 0 for a fire that was not sent."""

    outcome: str
    reason: str
    at: datetime
    late_s: float


class Decided(NamedTuple):
    """A decision that was made on an approval, a proposal or a deviation.

    Attributes:
        about: the tool, the question, or the title of the page.
        decision: the decision on an approval, or the new state of anything else.
        decided_by: the origin of the decision, PROGRAM/SURFACE/KEY; empty if unknown, or if an approval expired.
        note: the reason or the answer.
    """

    about: str
    decision: str
    decided_by: str
    at_us: int
    note: str
    task_name: str
    turn_id: str

    @property
    def at(self) -> datetime:
        return from_us(self.at_us)


class Outage(NamedTuple):
    """A period without sends: the daemon that did not answer, and why. While it lasts, `end` is the present."""

    daemon: str
    says: str
    begin: datetime
    end: datetime


class Spent(NamedTuple):
    """The tokens that one model read and wrote in the turns of a task, or of a channel's messages, on one day.

    Attributes:
        turns: the number of turns; each turn counts only for its first model.
        model: empty for an unknown model.
    """

    day: str
    name: str
    model: str
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
    """Return the tokens of turns that began at `since` or later, by local day, name and model."""
    found: dict[tuple[str, str, str], Spent] = {}
    with closing(_rows(home.agent_db, url, "runtime", _TURNS)) as rows:
        for row in rows:
            if row["started_at_us"] < to_us(since):
                break
            day = f"{from_us(row['started_at_us']).astimezone():%Y-%m-%d}"
            name = row["task_name"] or f"messages in {row['channel']}"
            sums = {"tokens_in": row["tokens_in"], "tokens_out": row["tokens_out"]}
            models = json.loads(row["models_json"] or "{}") or {"": sums}
            for number, (model, used) in enumerate(models.items()):
                *_, turns, read, wrote = found.get((day, name, model), Spent(day, name, model, 0, 0, 0))
                tokens = read + used["tokens_in"], wrote + used["tokens_out"]
                found[day, name, model] = Spent(day, name, model, turns + (number == 0), *tokens)
    return list(found.values())


def decisions(home: Home, url: str) -> list[Decided]:
    """Return the newest decisions, newest first. Raises TurnkeeperError."""
    return [Decided(**row) for row in _rows(home.agent_db, url, "runtime", _DECIDED)]


def queues(home: Home, url: str, limits: Mapping[str, Any], now: datetime) -> list[Mapping[str, Any]]:
    """Return each queue with its limits and its use, by name. Raises TurnkeeperError."""
    read = partial(_rows, home.schedules_db, url, "runner")
    return offered("queues of a store", read, limits, now) or []


def runs(home: Home, url: str) -> dict[str, list[Run]]:
    """Return the newest fires of each task by its name, the newest fire last. Raises TurnkeeperError."""
    found: dict[str, list[Run]] = {}
    for row in _rows(home.schedules_db, url, "runner", _RUNS):
        late_s = max(0.0, (row["fired_us"] - row["due_us"]) / 1e6) if row["fired_us"] else 0.0
        run = Run(row["outcome"], row["reason"], from_us(row["nominal_us"]), late_s)
        found.setdefault(row["name"], []).append(run)
    return found


def _rows(path: Path, url: str, schema: str, query: str) -> Generator[Mapping[str, Any]]:
    """Yield the rows of a query on a home's file or, given a URL, on the shared database. Raises TurnkeeperError."""
    if url:
        with closing(required("shared-snapshot", url, schema, named=True)) as store:
            yield from store.execute(query)
    else:
        with reading(path) as file:
            yield from file.execute(query)
