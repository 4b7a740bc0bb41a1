"""A job of the offline model: call the author's tools as a prompt orders, so that they can be tried without a key.

An order is a line such as `use mcp:desk.note: {"text": "buy bread"}`. Its call passes the guard like any other call.
"""

import json
import re
from typing import Any

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import Brief, Done, Request, Rule, Step

_USE = re.compile(r"^[^\S\n]*+(?i:then )?(?i:use) (mcp:[\w-]+\.|tools:)([\w.-]+)(?::[^\S\n]*+([^\n]*))?$", re.MULTILINE)


def job(brief: Brief) -> Rule | None:
    """Return the rule for a prompt with orders; None for a prompt without orders."""
    return _use if _USE.search(brief.prompt) else None


def _use(brief: Brief, done: Done) -> Step:
    return rules.follow((_calls, _give_up), _report, brief, done)


def _give_up(brief: Brief, done: Done) -> list[Request]:
    """Return the call that ends a fire's turn as failed, if a call failed and the author did not refuse it."""
    failed = rules.refusals([one for one in done if "the author refused" not in one.text])
    return [rules.call("turn_fail", reason=" ".join(failed))] if failed and brief.may("turn_fail") else []


def _calls(brief: Brief, _done: Done) -> list[Request]:
    r"""Return the calls that a prompt orders, without calls whose arguments cannot be read.

    >>> _calls(Brief(prompt='Hello.\nuse mcp:desk.note: {"text": "buy bread"}\nuse tools:beds\nuse tools:water: 2'), ())
    [Request(tool='mcp__desk__note', args={'text': 'buy bread'}), Request(tool='beds', args={})]
    """
    found = [(_name(order), _arguments(order)) for order in _USE.finditer(brief.prompt)]
    return [Request(tool=name, args=args) for name, args in found if args is not None]


def _name(order: re.Match[str]) -> str:
    """Return the tool's name for models."""
    return order[2] if order[1] == "tools:" else f"mcp__{order[1][4:-1]}__{order[2]}"


def _arguments(order: re.Match[str]) -> dict[str, Any] | None:
    try:
        found = json.loads(order[3] or "{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _report(brief: Brief, done: Done) -> str:
    said = [f"{one.tool} answered: {one.data.get('result', one.text)}" for one in done if one.ok]
    for order in _USE.finditer(brief.prompt):
        if _arguments(order) is None:
            said.append(f"{order[1]}{order[2]} was not called: write its arguments as a JSON object.")
        elif _name(order) not in brief.offered:
            said.append(f"{order[1]}{order[2]} is not offered: turnkeeper tools list, then turnkeeper restart.")
    return rules.closing(said, done)
