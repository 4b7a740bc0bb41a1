"""What the rule-based model does next: a pure function of the turn's brief and of what its calls gave so far."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_REMEMBER = re.compile(r"(?:^|\bthen)\s*remember:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_ORDER = re.compile(r"^\s*(?:then\s+)?(search|read|fetch):\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_TELL = re.compile(r"^\s*(?:then\s+)?tell ([a-z][a-z0-9-]{0,31}):\s*(.+)$", re.MULTILINE)
_RESTART = re.compile(r"^\s*(?:then\s+)?restart:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_ASK = re.compile(r"^\s*(?:then\s+)?ask (researcher|reviewer):\s*(.+)\Z", re.IGNORECASE | re.MULTILINE | re.DOTALL)
_PAGE = re.compile(r"^\s*(?:then\s+)?propose page:\s*([^:\n]+):\s*(.+)\Z", re.IGNORECASE | re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Brief:
    """What the model knows of its turn.

    Attributes:
        prompt: what the turn was asked.
        channel: whose conversation it works in.
        scopes: tool scopes that its category grants.
        memory: memory tiers that its category reaches.
        subagents: subagents that its category may start.
        offered: names of the tools it is offered, also those outside its scopes.
        by_fire: a fire started it; otherwise an author did.
        nominal: the instant the fire stands for, as text; empty for an author's turn.
        stands_for: how many fires it stands for, itself included.
        task: the task of that fire.
        draw: from 1 to 6, by chance.
    """

    prompt: str
    channel: str = ""
    scopes: frozenset[str] = frozenset()
    memory: frozenset[str] = frozenset()
    subagents: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    by_fire: bool = False
    nominal: str = ""
    stands_for: int = 1
    task: str = ""
    draw: int = 1

    def may(self, tool: str) -> bool:
        """Return whether a tool is offered and within the category's scopes."""
        return tool in self.offered and tool.replace("_", ".", 1) in self.scopes


@dataclass(frozen=True, kw_only=True)
class Request:
    """A tool call that the model makes."""

    tool: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A tool call of this turn and what came back.

    Attributes:
        tool: its name.
        args: its arguments.
        ok: it ran; False when it failed or the author refused it.
        text: the answer, JSON where `ok`, otherwise why not.
    """

    tool: str
    args: dict[str, Any]
    ok: bool
    text: str

    @property
    def data(self) -> dict[str, Any]:
        """The answer as an object; empty when it failed or is none."""
        try:
            found = json.loads(self.text) if self.ok else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the model says: calls to make, or the closing text of the turn, which may be empty."""

    calls: tuple[Request, ...] = ()
    text: str = ""


Done = Sequence[Exchange]
Stage = Callable[[Brief, Done], list[Request]]


def follow(stages: Sequence[Stage], close: Callable[[Brief, Done], str], brief: Brief, done: Done) -> Step:
    """Return the calls of the first stage that has calls not made yet; after the last stage, the closing text.

    A stage names its calls from the brief and from what came back; one whose tools have all been tried is over, so
    that a failed or refused call is reported and never repeated.
    """
    tried = {exchange.tool for exchange in done}
    for stage in stages:
        calls = [call for call in stage(brief, done) if call.tool in brief.offered and call.tool not in tried]
        if calls:
            return Step(calls=tuple(calls))
    return Step(text=close(brief, done))


def remember(brief: Brief, _done: Done) -> list[Request]:
    """Return a memory_put for each `remember:` of the prompt, within the category's scopes or not."""
    return [Request(tool="memory_put", args={"tier": "channel", "text": text}) for text in to_remember(brief.prompt)]


def to_remember(prompt: str) -> list[str]:
    r"""Return the texts that a prompt asks to remember.

    >>> to_remember("Catch me up, then remember: CI is green\nremember: ship on Monday")
    ['CI is green', 'ship on Monday']
    """
    return [match[1].strip() for match in _REMEMBER.finditer(prompt)]


def without_orders(prompt: str) -> str:
    """Return what a prompt says beside its `remember:` lines.

    >>> without_orders("Catch me up, then remember: CI is green")
    'Catch me up,'
    """
    return _REMEMBER.sub("", prompt).strip()


def orders(brief: Brief, _done: Done) -> list[Request]:
    r"""Return the calls that the prompt orders by name: search:, read:, fetch:, restart:, propose page:.

    >>> [call.tool for call in orders(Brief(prompt="search: release\nread: plan\nrestart: go on"), ())]
    ['workspace_search', 'workspace_read', 'lifecycle_request_restart']
    """
    tools = {"search": ("workspace_search", "query"), "read": ("workspace_read", "page"), "fetch": ("web_fetch", "url")}
    named = [(*tools[match[1].lower()], match[2].strip()) for match in _ORDER.finditer(brief.prompt)]
    calls = [Request(tool=tool, args={argument: value}) for tool, argument, value in named]
    calls += [
        Request(tool="agent_send", args={"worker": match[1], "text": match[2].strip()})
        for match in _TELL.finditer(brief.prompt)
    ]
    calls += [
        Request(tool="lifecycle_request_restart", args={"notes": match[1].strip()})
        for match in _RESTART.finditer(brief.prompt)
    ]
    asked = _ASK.search(brief.prompt)
    if asked:
        calls.append(Request(tool="subagent_run", args={"name": asked[1].lower(), "brief": asked[2].strip()}))
    page = None if asked else _PAGE.search(brief.prompt)
    if page:
        calls.append(Request(tool="page_propose", args={"title": page[1].strip(), "body": page[2].strip()}))
    return calls


def refusals(done: Done) -> list[str]:
    """Return a sentence for each call that failed or that the author refused."""
    return [f"{exchange.tool} was not done: {exchange.text.strip()}" for exchange in done if not exchange.ok]


def answers(done: Done, tool: str) -> list[dict[str, Any]]:
    """Return what the calls of one tool gave, those that ran."""
    return [exchange.data for exchange in done if exchange.tool == tool and exchange.data]
