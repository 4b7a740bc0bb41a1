"""Texts as a conversation shows them: marks of triggers, Markdown, answers of tools, fields and arguments. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp

from agent_runtime.cli.rows import LONGEST_ARGUMENT, clipped
from agent_runtime.model.mapping import parsed
from turnkeeper.times import format_rough
from turnkeeper.v1 import agent_runtime_pb2 as wire

LONGEST_ANSWER = 1000
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ON_TIME_S = 60.0  # smaller delays are not reported as late
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s")
_BLOCK = re.compile(r"\s*(?:[-*+]\s|\d+[.)]\s|#|>|\||=|-{2,})")
_UTC = frozenset({"UTC", "Etc/UTC", "Etc/UCT", "UCT", "Etc/Universal", "Universal", "Etc/Zulu", "Zulu"})


def broken(text: str) -> str:
    r"""Return Markdown that keeps the line breaks of the text, as writers of chat messages expect.

    >>> broken("- one\nThen\nthis")
    '- one\n\nThen  \nthis'
    """
    found, fenced, before = [], False, ""
    for line in text.splitlines():
        if not fenced and _ITEM.match(before) and line[:1].strip() and not _ITEM.match(line):
            found.append("")
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        found.append(line)
        before = line
    ends = [f"{one}  " if _runs_on(one, then) else one for one, then in zip(found, [*found[1:], ""], strict=True)]
    return "\n".join(ends) if "```" not in text and "~~~" not in text else "\n".join(found)


def _runs_on(line: str, then: str) -> bool:
    return bool(line.strip() and then.strip()) and not _BLOCK.match(line) and not _BLOCK.match(then)


def answer_text(text: str) -> str:
    """Format a tool's answer in one line; for a JSON object, show each field, and the length of each list.

    >>> answer_text('{"pages": [{"page": "garden"}, {}], "more": false, "title": "Garden"}')
    'pages: 2, more: false, title: Garden'
    >>> answer_text("no such page")
    'no such page'
    """
    value = parsed(text) if text.lstrip().startswith("{") else None
    if not isinstance(value, dict) or not value:
        return clipped(text, LONGEST_ANSWER)
    return clipped(", ".join(f"{key}: {_field(one)}" for key, one in value.items()), LONGEST_ANSWER)


def fields_text(text: str, role: str = "agent") -> str:
    r"""Format an agent's JSON object as one line per field, with nested values indented; empty for any other text.

    If the text ends with an ellipsis, its end was cut: format the fields before the cut.

    >>> print(fields_text('{"sky": "rain", "report": {"depth": 7, "at": ["pond", "brook"]}, "late": null}', "agent"))
    sky: rain
    report:
      depth: 7
      at:
        - pond
        - brook
    late: -
    >>> fields_text('[1]', "agent"), fields_text("{not JSON", "agent"), fields_text('{"a": 1}', "author")
    ('', '', '')
    >>> fields_text('{"sky": "rain", "at": ["po…'), fields_text('{"sky": "rain", "dep…')
    ('sky: rain\nat:\n  - po…', 'sky: rain…')
    """
    if role not in {"agent", "values"} or not text.lstrip().startswith("{"):
        return ""
    value, cut = (_before_cut(text[:-1]), "…") if text.endswith("…") else (parsed(text), "")
    return "\n".join(_lines_of(value)) + cut if isinstance(value, dict) and value else ""


def answer_and_values(said: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer of a turn, from its last texts by role, and the fields that its graph returned.

    >>> answer_and_values({"agent": "Done.", "values": '{"depth": 7}'}), answer_and_values({"agent": '{"depth": 7}'})
    ({'answer': 'Done.', 'values': {'depth': 7}}, {'answer': '{"depth": 7}', 'values': {'depth': 7}})
    """
    answer = said.get("agent", "")
    values = parsed(said.get("values") or answer)
    return {"answer": answer, "values": values if isinstance(values, dict) else {}}


def _before_cut(text: str) -> Any:
    """Return the part of a JSON object before its cut, without a name that is cut; an empty object for other texts."""
    whole = (text[:end] + _ends(text[:end]) for end in range(len(text), max(len(text) - LONGEST_ARGUMENT, 0), -1))
    return next(filter(None, map(parsed, whole)), {})


def _ends(text: str) -> str:
    """Return the quote and the brackets that end a cut JSON text."""
    bare, quote, _ = _STRING.sub("", text).partition('"')
    ends: list[str] = []
    for mark in bare:
        if mark in "{[":
            ends.append("}" if mark == "{" else "]")
        elif mark in "]}":
            ends = ends[:-1]
    return quote + "".join(reversed(ends))


def _lines_of(value: object, indent: str = "") -> Iterator[str]:
    """Yield the lines of an object or a list; a list's items follow dashes."""
    named = (
        value.items() if isinstance(value, dict) else [("", one) for one in value] if isinstance(value, list) else []
    )
    for name, one in named:
        head = f"{indent}{name}:" if name else f"{indent}-"
        if isinstance(one, dict | list) and one:
            yield head
            yield from _lines_of(one, f"{indent}  ")
        else:
            said = str(one) if isinstance(one, str) else "-" if one in (None, [], {}) else json.dumps(one)
            yield f"{head} " + said.replace("\n", f"\n{indent}  ")


def _field(value: object) -> str:
    if isinstance(value, list):
        return str(len(value))
    return clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), LONGEST_ARGUMENT)


def arguments_text(args: Mapping[str, Any]) -> str:
    return "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in args.items())


def mark_text(mark: wire.TriggerMark) -> str:
    """Return a trigger's mark in words: the task, its time, the delay, and the number of fires that it represents.

    >>> from datetime import UTC
    >>> mark = wire.TriggerMark(task="daily-digest", timezone="America/New_York", stands_for=1)
    >>> mark.nominal_at.FromDatetime(datetime(2026, 11, 20, 14, tzinfo=UTC))
    >>> mark_text(mark)
    'triggered by daily-digest at 2026-11-20 09:00 America/New_York'
    >>> mark.fired_at.FromDatetime(datetime(2026, 11, 20, 16, tzinfo=UTC))
    >>> mark.stands_for = 3
    >>> mark_text(mark)
    'triggered by daily-digest at 2026-11-20 09:00 America/New_York, 2h late, stands for 3 fires'
    """
    parts = [f"triggered by {mark.task or mark.fire_id}"]
    if mark.HasField("nominal_at"):
        parts[0] += f" at {_local(mark.nominal_at, mark.timezone)}"
        late = mark.fired_at.ToDatetime() - mark.nominal_at.ToDatetime() if mark.HasField("fired_at") else None
        if late is not None and late.total_seconds() > _ON_TIME_S:
            parts.append(f"{format_rough(late.total_seconds())} late")
    if mark.stands_for > 1:
        since = f" since {_local(mark.first_nominal_at, mark.timezone)}" if mark.HasField("first_nominal_at") else ""
        parts.append(f"stands for {mark.stands_for} fires{since}")
    return ", ".join(parts)


def _local(at: Timestamp, timezone: str) -> str:
    """Return an instant in the task's time zone, with seconds only if they are not zero."""
    try:
        zone, name = ZoneInfo(timezone or "UTC"), timezone or "UTC"
    except (ValueError, OSError, KeyError):
        zone, name = ZoneInfo("UTC"), "UTC"  # this machine does not know the zone
    local = datetime.fromtimestamp(at.seconds, zone)
    name = "UTC" if name in _UTC else name
    return f"{local:%Y-%m-%d %H:%M:%S}".removesuffix(":00") + f" {name}"
