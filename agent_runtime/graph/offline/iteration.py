"""The job of a loop by rules: one iteration.

An iteration reads the loop's state, takes one step, stores the result, and sets the next wake-up. Three kinds of prompt
are understood: `count to 10` has a goal, `keep counting` has no end, and `roll a die until a 6` ends by chance. `every
30s` in the prompt sets the pace.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_runtime.graph.context import WAKEUP_TOOL
from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.conversation import digest
from agent_runtime.graph.offline.rules import Brief, Done, Request, Rule, Step, answers, call
from turnkeeper.times import parse_duration

LOOP_SIGNATURE = "(Done by the rule-based offline model.)"
ENDLESS_PACE_S = 60
_EVENT = "\n\nEvent: "
_COUNT = re.compile(r"\bcount(?:ing)?\b[^.\n]{0,200}?\bto (\d{1,6})\b", re.IGNORECASE)
_ENDLESS = re.compile(r"\b(?:keep (?:on )?(?:count|increment)|increment(?:ing)? (?:the )?count)", re.IGNORECASE)
_ROLL = re.compile(
    r"\broll\b(?:(?!\bdie\b)[^.\n]){0,200}+\bdie\b(?:(?!\buntil\b)[^.\n]){0,200}+\buntil\b"
    r"[^.\n]{0,200}?\b([1-6])\b( or more\b)?",
    re.IGNORECASE,
)
_PACE = re.compile(r"\bevery (\d{1,6} ?[smh])\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The goal in a loop's prompt.

    Attributes:
        most: the number to count to; None for no end.
        faces: the faces of the die that end the loop; empty for counting.
        pace_s: seconds between two iterations.
    """

    most: int | None = None
    faces: frozenset[int] = frozenset()
    pace_s: int = 0


def jobs() -> Mapping[str, Rule]:
    """Return the job of a turn that a self-paced loop starts."""
    return {"loop.wakeup": iterate}


def iterate(brief: Brief, done: Done) -> Step:
    """Return the next step of an iteration; for an unknown kind of prompt, summarize the channel.

    The part of the prompt that describes the triggering event is ignored, because it is not the author's request.
    """
    brief = replace(brief, prompt=brief.prompt.partition(_EVENT)[0])
    if read_goal(brief.prompt) is None:
        return digest(brief, done)
    return rules.follow((_recall, _keep, _go_on), _close_iteration, brief, done)


def read_goal(prompt: str) -> Goal | None:
    """Return the goal in a loop's prompt; None if its kind is unknown.

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


def _key(brief: Brief) -> str:
    return f"{brief.task} stands at"[:100]


def _recall(_brief: Brief, _done: Done) -> list[Request]:
    return [call("memory_read", tier="channel")]


def _keep(brief: Brief, done: Done) -> list[Request]:
    text = f"roll {_before(brief, done) + 1}: {brief.draw}" if _goal(brief).faces else str(_before(brief, done) + 1)
    return [call("memory_put", tier="channel", key=_key(brief), text=text)]


def _go_on(brief: Brief, done: Done) -> list[Request]:
    kept = _kept(done)
    if not answers(done, "memory_put") or _is_reached(_goal(brief), kept):
        return []
    return [call(WAKEUP_TOOL, delay_seconds=_goal(brief).pace_s, reason=f"it stands at {kept}")]


def _close_iteration(brief: Brief, done: Done) -> str:
    goal, kept = _goal(brief), _kept(done)
    if rules.refusals(done):
        return rules.closing([], done, LOOP_SIGNATURE)
    of = f" of {goal.most}" if goal.most is not None else ""
    said = kept.capitalize() if goal.faces else f"The count is {kept}{of}"
    ends = "; that was the goal, so the loop ends" if _is_reached(goal, kept) else ""
    return f"{said}{ends}. {LOOP_SIGNATURE}"


def _is_reached(goal: Goal, kept: str) -> bool:
    number, last = _numbers(kept)
    return last in goal.faces if goal.faces else goal.most is not None and number >= goal.most


def _goal(brief: Brief) -> Goal:
    return read_goal(brief.prompt) or Goal()


def _before(brief: Brief, done: Done) -> int:
    """Return the number of earlier steps from memory; 0 if memory contains none."""
    return next((_numbers(str(entry["text"]))[0] for entry in rules.entries(done) if entry["key"] == _key(brief)), 0)


def _kept(done: Sequence[Any]) -> str:
    return next((str(one.args["text"]) for one in done if one.tool == "memory_put"), "")


def _numbers(text: str) -> tuple[int, int]:
    """Return the number of steps in an entry, and the last face; zeros if the entry has none.

    >>> _numbers("7"), _numbers("roll 3: 6"), _numbers("lost")
    ((7, 0), (3, 6), (0, 0))
    """
    found = [int(number) for number in re.findall(r"\d{1,9}", text)]
    return (found[0] if found else 0), (found[1] if len(found) > 1 else 0)
