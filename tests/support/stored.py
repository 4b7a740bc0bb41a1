"""Rows of a home's stores that no command prints, for the checker of histories. Empty for a home on a server."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from turnkeeper.config.home import Home

Record = dict[str, Any]
_TRIGGERS = "SELECT task_id, event_id FROM triggers"
_CALLS = "SELECT turn_id, tool_calls_json FROM messages WHERE tool_calls_json <> ''"
_AGAIN = "SELECT args_json FROM interrupts WHERE kind = 'question' AND decision = 'answer' AND message = 'run it'"


def triggers_of(home: Home) -> list[Record]:
    """Return the event that triggered each entry of the ledger."""
    return [{"task_id": task_id, "event_id": event_id} for task_id, event_id in _rows(home.schedules_db, _TRIGGERS)]


def calls_of(home: Home) -> tuple[list[Record], list[Record]]:
    """Return the calls of MCP servers' tools, and those that their author let run again."""
    made = [(turn_id, call) for turn_id, said in _rows(home.agent_db, _CALLS) for call in json.loads(said)]
    calls = [
        {"turn_id": turn_id, "call_id": call["id"], "tool": call["name"], "args": call["args"]}
        for turn_id, call in made
        if call["name"].startswith("mcp__")
    ]
    asked = [json.loads(said).get("value", {}) for (said,) in _rows(home.agent_db, _AGAIN)]
    again = [{"tool": _named(one["tool"]), "args": one["args"]} for one in asked if "tool" in one]
    return calls, again


def _named(scope: str) -> str:
    """Return a tool's name for models.

    >>> _named("mcp:desk.note")
    'mcp__desk__note'
    """
    return "mcp__" + scope.removeprefix("mcp:").replace(".", "__", 1)


def _rows(path: Path, query: str) -> list[Any]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        return store.execute(query).fetchall()
