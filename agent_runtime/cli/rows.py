"""Short texts for tables: durations, calls, and the command that answers an approval. Pure."""

import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from turnkeeper.console import Output
from turnkeeper.rpc.forms import Request, option_text, question_of, request_in, ways_of
from turnkeeper.times import format_rough, parse_rfc3339, rfc3339

ID_DIGITS = 10
LONGEST_ARGUMENT = 60
_OPTIONS = {
    "approve": "--approve", "reject": '--reject "why"', "edit": "--edit '{…}'", "respond": '--respond "…"',
}  # fmt: skip
FOR_PEOPLE = frozenset({Output.TABLE, Output.WIDE})


def span(start: str | None, end: str | None) -> str:
    """Format a duration; `-` if it has not ended.

    >>> span("2026-03-02T09:00:00Z", "2026-03-02T09:01:30Z"), span("2026-03-02T09:00:00Z", None)
    ('1m 30s', '-')
    """
    if not start or not end:
        return "-"
    took: datetime = parse_rfc3339(end)
    return format_rough((took - parse_rfc3339(start)).total_seconds())


def left(interrupt: Mapping[str, Any], now: datetime) -> str:
    """Format the time until an approval expires; `-` if it is not pending or never expires.

    >>> asked = {"status": "pending", "expires_at": "2026-03-02T10:00:00Z"}
    >>> left(asked, parse_rfc3339("2026-03-02T09:15:00Z")), left(asked | {"status": "resolved"}, datetime.now(UTC))
    ('in 45m', '-')
    """
    if interrupt["status"] != "pending" or not interrupt["expires_at"]:
        return "-"
    left_s = (parse_rfc3339(interrupt["expires_at"]) - now).total_seconds()
    return f"in {format_rough(left_s)}" if left_s > 0 else "now"


def call_text(tool: str, args: Mapping[str, Any], *, whole: bool = False) -> str:
    """Format a tool call as a function call; shorten long arguments unless `whole`.

    >>> call_text("memory_put", {"tier": "channel", "text": "x" * 100})[:40]
    'memory_put(tier="channel", text="xxxxxxx'
    """
    texts = ((key, json.dumps(value, ensure_ascii=False)) for key, value in args.items())
    given = (f"{key}={text if whole else clipped(text, LONGEST_ARGUMENT)}" for key, text in texts)
    return f"{tool}({', '.join(given)})"


def clipped(text: str, most: int) -> str:
    r"""Return the text on one line, with at most this many characters.

    >>> clipped("one\n  two three", 9)
    'one two …'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def resolve_command(interrupt: Mapping[str, Any]) -> str:
    """Return the command that decides an approval."""
    command = f"turnkeeper approvals resolve {str(interrupt['interrupt_id'])[:ID_DIGITS]}"
    return f"{command} {ways(interrupt)[0]}"


def grants(interrupt: Mapping[str, Any]) -> list[str]:
    """Return the command that grants to a category what an approval lacks; empty if no command can.

    >>> grants({"kind": "permission", "task_name": "t", "category": "garden", "missing_scope": "tool:look"})
    ['turnkeeper categories grant garden tool:look']
    """
    of_graph = f" --graph {shlex.quote(interrupt['graph'])}" if interrupt.get("graph") else ""  # of a second graph
    missing, stem = str(interrupt["missing_scope"]), f"turnkeeper categories grant {interrupt['category']}"
    if not interrupt["task_name"] or interrupt["kind"] not in {"permission", "proposal"}:
        return []
    if interrupt["kind"] == "proposal":  # the scope is granted, but the category is not autonomous
        return [f"{stem} --autonomous"]
    beyond = missing.startswith(("effect:", "recurring:")) or " " in missing  # no list of a category can contain it
    return [] if beyond or not missing else [f"{stem} {missing}{of_graph * missing.startswith('tool:')}"]


def ways(interrupt: Mapping[str, Any]) -> list[str]:
    """Return the options of the command that can decide an approval.

    >>> ways({"kind": "permission"})
    ['--approve', '--reject "why"', "--edit '{…}'"]
    >>> ways({"kind": "question", "args": {}})
    ['--answer "…"', '--approve', '--reject']
    >>> ways({"kind": "question", "args": {"value": {"options": ["yes", "no"]}}})
    ['--answer yes']
    """
    asks, named = request_in(interrupt), ways_of(interrupt)
    if "pick" in named:
        return [f"--answer {shlex.quote(option_text(question_of(interrupt).options[0]))}"]
    if "answer" in named:
        return ['--answer "…"', "--approve", "--reject"]
    several = asks is not None and len(asks.calls) > 1
    return [_OPTIONS[way] for way in named] + ["--call '1 approve' --call …"] * several


def request_text(asks: Request) -> str:
    """Describe in full what a graph asks about: each call, the graph's note on it, and the possible decisions."""
    lines = []
    for number, call in enumerate(asks.calls, 1):
        id_ = f"  (call {call.call_id})" if call.call_id else ""
        lines.append(f"{number}. {call.tool}{id_}" if len(asks.calls) > 1 else f"{call.tool}{id_}")
        lines += [f"   {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in call.args.items()]
        lines += [f"   the graph says: {line}" for line in call.note.splitlines() if line.strip()]
        lines.append(f"   takes: {', '.join(call.takes)}")
    if all(call.counts(asks.form) for call in asks.calls):
        lines.append("an approval lets exactly this call run once, even if the category grants it")
    return "\n".join(lines)


def asked(interrupt: Mapping[str, Any], *, whole: bool = False) -> str:
    """Describe an approval in one line; shorten long arguments unless `whole`."""
    if (asks := request_in(interrupt)) is not None:
        if asks.form == "step":
            return f"may {asks.calls[0].tool} run? {asks.calls[0].note.splitlines()[0]}"
        calls = (call_text(call.tool, call.args, whole=whole) for call in asks.calls)
        return f"{'; '.join(calls)}: the graph asks you"
    if interrupt["kind"] == "question":
        options = " | ".join(map(option_text, question_of(interrupt).options))
        return f"{interrupt['question']}{f' ({options})' if options and question_of(interrupt).text else ''}"
    call = call_text(str(interrupt["tool"]), interrupt["args"], whole=whole)
    why = f": {interrupt['question']}" if interrupt["question"] else ""
    return f"{call} {needs(interrupt)}{why}"


def needs(interrupt: Mapping[str, Any]) -> str:
    """Return the scope that a call lacks; a proposal lacks no scope, but its category is not autonomous."""
    return "needs your approval" if interrupt["kind"] == "proposal" else f"needs {interrupt['missing_scope']}"


def instant(message: Any, field: str) -> str | None:
    """Return an instant of a message as RFC 3339, or None if it is not set."""
    at: datetime | None = getattr(message, field).ToDatetime(tzinfo=UTC) if message.HasField(field) else None
    return None if at is None else rfc3339(at)
