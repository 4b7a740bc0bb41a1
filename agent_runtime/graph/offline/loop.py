"""One iteration of a loop by rules: recall where it stands, take one step, keep it, say when to go on.

Three kinds of prompt are understood: `count to 10` has a goal, `keep counting` goes on for ever, and `roll a die until
a 6` goes on as long as chance has it. `every 30s` in the prompt sets the pace.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_runtime.graph.context import WAKEUP_TOOL
from agent_runtime.graph.offline.digest import digest
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, refusals
from turnkeeper.times import parse_duration

RULE_BASED = "(Done by the rule-based offline model.)"
ENDLESS_PACE_S = 60
_TOLD = "\n\nEvent: "
_COUNT = re.compile(r"\bcount(?:ing)?\b[^.\n]*?\bto (\d{1,6})\b", re.IGNORECASE)
_ENDLESS = re.compile(r"\b(?:keep (?:on )?(?:count|increment)|increment(?:ing)? (?:the )?count)", re.IGNORECASE)
_ROLL = re.compile(r"\broll\b[^.\n]*\bdie\b[^.\n]*\buntil\b[^.\n]*?\b([1-6])\b( or more\b)?", re.IGNORECASE)
_PACE = re.compile(r"\bevery (\d{1,6} ?[smh])\b", re.IGNORECASE)
_ORDER = re.compile(r"^\s*loop(?: (\d{1,6}[smhd]))?:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_LIST = re.compile(r"^\s*loops\s*$", re.IGNORECASE | re.MULTILINE)
_STOP = re.compile(r"^\s*(stop|pause) loop:\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_EMIT = re.compile(r"^\s*emit:\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a loop's prompt asks for.

    Attributes:
        most: the number to count to; None for no end.
        faces: the faces of the die that end it; none for counting.
        pace_s: seconds between two iterations.
    """

    most: int | None = None
    faces: frozenset[int] = frozenset()
    pace_s: int = 0


def pace(brief: Brief, done: Done) -> Step:
    """Return the next step of an iteration; a prompt of no known kind is a summary of the channel.

    What the prompt tells of the event that set it off is not what is asked.
    """
    brief = replace(brief, prompt=brief.prompt.partition(_TOLD)[0])
    if read_goal(brief.prompt) is None:
        return digest(brief, done)
    return follow((_recall, _keep, _go_on), _close, brief, done)


def read_goal(prompt: str) -> Goal | None:
    """Return what a prompt asks to do again and again; None where it is of no known kind.

    >>> read_goal("Count to 10 in memory, one each time")
    Goal(most=10, faces=frozenset(), pace_s=0)
    >>> read_goal("keep incrementing the count every 5s")
    Goal(most=None, faces=frozenset(), pace_s=5)
    >>> read_goal("Roll a die until a 5 or more")
    Goal(most=None, faces=frozenset({5, 6}), pace_s=0)
    >>> read_goal("check whether CI passed")
    """
    asked = _PACE.search(prompt)
    pace_s = int(parse_duration(asked[1]).total_seconds()) if asked else None
    if found := _ROLL.search(prompt):
        last = 6 if found[2] else int(found[1])
        return Goal(faces=frozenset(range(int(found[1]), last + 1)), pace_s=pace_s or 0)
    if found := _COUNT.search(prompt):
        return Goal(most=int(found[1]), pace_s=pace_s or 0)
    if _ENDLESS.search(prompt):
        return Goal(pace_s=ENDLESS_PACE_S if pace_s is None else pace_s)
    return None


def loop_orders(brief: Brief, _done: Done) -> list[Request]:
    r"""Return the calls that an author's message orders about loops and events.

    >>> [call.tool for call in loop_orders(Brief(prompt="loop 15m: look around\nstop loop: loop-1\nemit: built"), ())]
    ['LoopCreate', 'LoopDelete', 'event_emit']
    """
    every = [(match[1], match[2].strip()) for match in _ORDER.finditer(brief.prompt)]
    calls = [Request(tool="LoopCreate", args={"prompt": text} | ({"every": at} if at else {})) for at, text in every]
    calls += [Request(tool="LoopList")] if _LIST.search(brief.prompt) else []
    for match in _STOP.finditer(brief.prompt):
        action = "pause" if match[1].lower() == "pause" else "delete"
        calls.append(Request(tool="LoopDelete", args={"loop": match[2], "action": action}))
    return calls + [Request(tool="event_emit", args={"name": match[1]}) for match in _EMIT.finditer(brief.prompt)]


def told_of_loops(tool: str, data: dict[str, Any]) -> list[str]:
    """Return in lines what a call about loops or events came to; none for any other."""
    if tool == "LoopCreate":
        return [f"Loop {data.get('loop')} is made ({data.get('fires')}); it ends on {data.get('expires_at')}."]
    if tool == "LoopDelete":
        return [f"Loop {data.get('loop')} is {data.get('state')}."]
    if tool == "event_emit":
        return [f"Told of {data.get('event')}; {data.get('listening_tasks')} tasks listen."]
    if tool == "LoopList":
        return [_line(loop) for loop in data.get("loops", [])] or ["There are no loops here."]
    return []


def _line(loop: dict[str, Any]) -> str:
    next_at = loop.get("next_fire_at") or "not set"
    return f"- {loop.get('loop')} ({loop.get('fires')}, {loop.get('state')}, next {next_at}): {loop.get('prompt')}"


def _key(brief: Brief) -> str:
    return f"{brief.task} stands at"[:100]


def _recall(_brief: Brief, _done: Done) -> list[Request]:
    return [Request(tool="memory_read", args={"tier": "channel"})]


def _keep(brief: Brief, done: Done) -> list[Request]:
    text = f"roll {_before(brief, done) + 1}: {brief.draw}" if _goal(brief).faces else str(_before(brief, done) + 1)
    return [Request(tool="memory_put", args={"tier": "channel", "key": _key(brief), "text": text})]


def _go_on(brief: Brief, done: Done) -> list[Request]:
    kept = _kept(done)
    if not answers(done, "memory_put") or _is_reached(_goal(brief), kept):
        return []
    return [Request(tool=WAKEUP_TOOL, args={"delay_seconds": _goal(brief).pace_s, "reason": f"it stands at {kept}"})]


def _close(brief: Brief, done: Done) -> str:
    goal, kept, failed = _goal(brief), _kept(done), refusals(done)
    if failed:
        return " ".join([*(line if line[-1] in ".!?" else f"{line}." for line in failed), RULE_BASED])
    of = f" of {goal.most}" if goal.most is not None else ""
    said = kept.capitalize() if goal.faces else f"The count is {kept}{of}"
    ends = "; that was the goal, so the loop ends" if _is_reached(goal, kept) else ""
    return f"{said}{ends}. {RULE_BASED}"


def _is_reached(goal: Goal, kept: str) -> bool:
    """Return whether a loop is where its prompt wants it."""
    number, last = _numbers(kept)
    return last in goal.faces if goal.faces else goal.most is not None and number >= goal.most


def _goal(brief: Brief) -> Goal:
    return read_goal(brief.prompt) or Goal()


def _before(brief: Brief, done: Done) -> int:
    """Return how many steps there were before this iteration, as memory tells; none where it does not."""
    entries = [entry for found in answers(done, "memory_read") for entry in found["entries"]]
    return next((_numbers(str(entry["text"]))[0] for entry in entries if entry["key"] == _key(brief)), 0)


def _kept(done: Sequence[Any]) -> str:
    return next((str(one.args["text"]) for one in done if one.tool == "memory_put"), "")


def _numbers(text: str) -> tuple[int, int]:
    """Return the number of steps that an entry tells, and the last face; zeros where it tells none.

    >>> _numbers("7"), _numbers("roll 3: 6"), _numbers("lost")
    ((7, 0), (3, 6), (0, 0))
    """
    found = [int(number) for number in re.findall(r"\d{1,9}", text)]
    return (found[0] if found else 0), (found[1] if len(found) > 1 else 0)
