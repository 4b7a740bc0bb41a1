"""The command `turnkeeper categories rehearse`, which replays past turns under a proposed category."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, or_, select

from agent_runtime.cli.rehearse import rehearsal
from agent_runtime.cli.rows import FOR_PEOPLE, call_text, clipped
from agent_runtime.model.mapping import Row
from agent_runtime.model.turn import Category
from agent_runtime.permissions.lint import read_draft, read_draft_text
from agent_runtime.store.database import open_stored
from agent_runtime.store.schema import turns
from agent_runtime.store.turn_reads import interrupts_of, messages_of
from agent_runtime.tools.agents import agent_tools, subagent_tools
from agent_runtime.tools.restart import lifecycle_tools
from agent_runtime.tools.workspace import workspace_tools
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.config.surfaces import offered
from turnkeeper.console import Output, note, show_record, show_rows, time_given
from turnkeeper.console.lists import columns
from turnkeeper.errors import InvalidInput
from turnkeeper.storage.schema_revision import older_stores, told
from turnkeeper.times import from_us, rfc3339, to_us

AT_ONCE = 500


def past_turns(
    connection: Connection, *, channel: str = "", task: str = "", since: datetime | None = None, limit: int
) -> list[rehearsal.PastTurn]:
    """Return turns with their tool calls, newest first.

    Args:
        task: only turns of the task with this name or id.
        since: only turns that began at this time or later.
    """
    query = select(turns).order_by(turns.c.number.desc()).limit(limit)
    query = query.where(turns.c.channel == channel) if channel else query
    query = query.where(or_(turns.c.task_name == task, turns.c.task_id == task)) if task else query
    query = query.where(turns.c.started_at_us >= to_us(since)) if since else query
    rows = [*connection.execute(query).mappings()]
    calls: dict[str, tuple[rehearsal.PastCall, ...]] = {}
    waited: set[str] = set()
    for start in range(0, len(rows), AT_ONCE):
        ids = [row["turn_id"] for row in rows[start : start + AT_ONCE]]
        calls |= {
            turn_id: tuple(
                rehearsal.PastCall(at=record.at, tool=call.name, args=call.args)
                for record in said
                for call in record.said.tool_calls
            )
            for turn_id, said in messages_of(connection, ids).items()
        }
        waited |= {turn_id for turn_id, asked in interrupts_of(connection, ids).items() if asked}
    return [
        rehearsal.PastTurn(
            turn_id=row["turn_id"],
            task_name=row["task_name"],
            channel=row["channel"],
            by_fire=row["trigger"] == "fire",
            read_only=row["read_only"],
            calls=calls[row["turn_id"]],
            tokens=row["tokens_in"] + row["tokens_out"],
            seconds=None if row["turn_id"] in waited else _seconds(row["started_at_us"], row["ended_at_us"]),
        )
        for row in rows
    ]


def _seconds(start: int, end: int | None) -> float | None:
    return None if end is None else (from_us(end) - from_us(start)).total_seconds()


_WORDS = {"pass": "passes", "ask": "asks", "propose": "asks once", "refuse": "is refused"}
_COLUMNS = columns(
    "AT TURN=turn_id TASK=task_name +CHANNEL CALL WOULD MISSING +WHY",
    call=lambda row: clipped(call_text(row["tool"], row["args"]), 60),
    would=lambda row: _WORDS[row["would"]],
    why=lambda row: str(row["reason"]),
)
_OFFERED = {"pass": "yes", "propose": "asks before the first", "ask": "asks each time", "hidden": "is not offered"}
_TOOLS = columns("TOOL=tool SCOPE=scope ALLOWED=would", would=lambda row: _OFFERED[row["would"]])


@dataclass(frozen=True)
class Found:
    """A rehearsal. `held_back`: the file declares the category autonomous, but the settings do not allow that."""

    category: Category
    turns: list[rehearsal.PastTurn]
    outcome: rehearsal.Rehearsal
    tools: list[rehearsal.Offer]
    held_back: bool


def rehearse_file(place: Home, file: Path, *, channel: str, task: str, since: str, limit: int, name: str = "") -> Found:
    """Rehearse the category of a file; `name` replaces the name of the smallest sufficient category.

    Raises NotFound or InvalidInput, for the file, the name or `since`.
    """
    settings = load_settings(place)
    category, declared = read_draft(file, settings)
    turns = _past(place, channel=channel, task=task, since=_since(since), limit=limit)
    nowhere: Any = None  # the tools report their scopes and are never called
    foreign = any(agent.graph for agent in settings.agents.values())  # a graph's own tools have no scope map
    own = [*workspace_tools(nowhere), *agent_tools(nowhere), *lifecycle_tools(nowhere)]
    own += offered("loop-tools", nowhere) or ()
    specs = [] if foreign else [*own, *subagent_tools(nowhere), *(offered("folder-tools", nowhere, ".", nowhere) or ())]
    tools = {spec.tool.name: rehearsal.ToolFacts(scope=spec.scope, effect=spec.effect) for spec in specs}
    supplied = {} if foreign else offered("supplied-facts", settings, place) or {}
    tools |= {name: rehearsal.ToolFacts(scope=scope, effect=effect) for name, (scope, effect) in supplied.items()}
    outcome = rehearsal.rehearse(category, turns, tools)
    if name:
        outcome = replace(outcome, least=replace(outcome.least, name=name))
        read_draft_text(Path(f"{name}.toml"), rehearsal.to_toml(outcome.least), settings)  # refuses an invalid name
    return Found(category, turns, outcome, rehearsal.offers(category, tools), declared and not category.autonomous)


def show(found: Found, output: Output, *, only_least: bool) -> None:
    """Print a rehearsal, or only the smallest sufficient category."""
    least = _text(found)
    if only_least and output in FOR_PEOPLE:
        print(least)
        return
    row: Row = {
        "category": found.category.name,
        "turns": len(found.turns),
        "calls": [_call(one) for one in found.outcome.judged],
        "tools": [asdict(one) for one in found.tools],
        "overruns": [_overrun(one) for one in found.outcome.overruns],
        "least": found.outcome.least.to_dict(),
        "least_toml": least + "\n",
    }
    if output not in FOR_PEOPLE:
        show_record(
            row["least"] if only_least else row, output, name_key="name" if only_least else "category", lines=[]
        )
        return
    if not found.turns:
        show_rows(row["tools"], _TOOLS, output, name_key="tool")
        note("no such turns; a fire could use the tools as listed, within the category's tiers, channels and hosts")
        return
    calls = [call for call in row["calls"] if output is Output.WIDE or call["would"] != "pass"]
    show_rows(calls, _COLUMNS, output, name_key="turn_id")
    for overrun in row["overruns"]:
        note(
            f"{overrun['turn_id']} would end early: it used {overrun['seen']:,} {overrun['limit']}, but the category "
            f"allows {overrun['allowed']:,}"
        )
    for line in _summary(found):
        note(line)
    note("the smallest sufficient category:")
    print(least)


def _past(place: Home, *, channel: str, task: str, since: datetime | None, limit: int) -> list[rehearsal.PastTurn]:
    if place.agent_db in older_stores(place):
        note(told(place.agent_db))
    database = open_stored(place)
    if database is None:
        return []
    try:
        work = database.submit(
            lambda connection: past_turns(connection, channel=channel, task=task, since=since, limit=limit)
        )
        return work.result()
    finally:
        database.close()


def _since(text: str) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(time_given(text, past=True)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        hint = "write for example 7d, yesterday 9am or 2026-11-01T00:00:00Z"
        raise InvalidInput(f"{text[:80]!r} is neither a duration nor an instant", where="--since", hint=hint) from error


def _summary(found: Found) -> list[str]:
    judged = found.outcome.judged
    passed = sum(one.would == "pass" for one in judged)
    name = found.category.name
    of = f"{_count(judged, 'call')} of {_count(found.turns, 'turn')}"
    lines = [f"{of}: {passed} would pass, {len(judged) - passed} would not"]
    if found.held_back and any(one.would == "propose" for one in judged):
        lines.append(f"{name} is declared autonomous, but [categories] autonomous_allowed does not name it")
    hopeless = sum(one.hopeless for one in judged)
    if hopeless:
        lines.append(f"{hopeless} would ask under any category: a read-only task, or arguments that name nothing")
    return lines


def _text(found: Found) -> str:
    comment = f"What {_count(found.outcome.judged, 'call')} of {_count(found.turns, 'past turn')} needed, and no more."
    if found.outcome.least.autonomous:
        comment += "\nTurns of tasks wrote: to let them do so unasked, name it in [categories] autonomous_allowed too."
    return rehearsal.to_toml(found.outcome.least, comment=comment)


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _call(one: rehearsal.Judged) -> Row:
    return {
        "turn_id": one.turn.turn_id,
        "task_name": one.turn.task_name,
        "channel": one.turn.channel,
        "at": rfc3339(one.call.at),
        "tool": one.call.tool,
        "args": dict(one.call.args),
        "scope": one.scope,
        "would": one.would,
        "missing": one.missing,
        "reason": one.reason,
        "hopeless": one.hopeless,
    }


def _overrun(one: rehearsal.Overrun) -> Row:
    return {"turn_id": one.turn.turn_id, "limit": one.limit, "seen": one.seen, "allowed": one.allowed}
