"""Answering an author by rules: do what is ordered by name, otherwise quote pages and messages that fit."""

import re
from typing import Any

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, call
from agent_runtime.model.words import terms

QUOTES = "(Written by the rule-based offline model, which quotes and does not reason.)"
UNDERSTOOD = (
    "It understands remember: TEXT, search: TERMS, read: PAGE, fetch: URL, tell AGENT: TEXT, "
    "restart: NOTES, ask researcher: BRIEF, ask reviewer: BRIEF, propose page: TITLE: BODY, loop 15m: PROMPT, loops, "
    "stop loop: ID and emit: EVENT."
)
MOST_QUOTES = 3
LONGEST_PAGE = 1_200
_LINE, _TO_THE_END = re.IGNORECASE | re.MULTILINE, re.IGNORECASE | re.MULTILINE | re.DOTALL
_READING = re.compile(r"^\s*(?:then\s+)?(search|read|fetch):\s*(.+)$", _LINE)
_TELL = re.compile(r"^\s*(?:then\s+)?tell ([a-z][a-z0-9-]{0,31}):\s*(.+)$", re.MULTILINE)
_RESTART = re.compile(r"^\s*(?:then\s+)?restart:\s*(.+)$", _LINE)
_ASK = re.compile(r"^\s*(?:then\s+)?ask (researcher|reviewer):\s*(.+)\Z", _TO_THE_END)
_PAGE = re.compile(r"^\s*(?:then\s+)?propose page:\s*([^:\n]+):\s*(.+)\Z", _TO_THE_END)
_LOOP = re.compile(r"^\s*loop(?: (\d{1,6}[smhd]))?:\s*(.+)$", _LINE)
_LOOPS = re.compile(r"^\s*loops\s*$", _LINE)
_STOP = re.compile(r"^\s*(stop|pause) loop:\s*(\S+)\s*$", _LINE)
_EMIT = re.compile(r"^\s*emit:\s*(\S+)\s*$", _LINE)


def reply(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that answers a message."""
    if _all_orders(brief):
        return rules.follow((orders, loop_orders, rules.remember), _report, brief, done)
    return rules.follow((_look, _open), _answer, brief, done)


def orders(brief: Brief, _done: Done) -> list[Request]:
    r"""Return the calls that the prompt orders by name: search:, read:, fetch:, tell, restart:, ask, propose page:.

    >>> [one.tool for one in orders(Brief(prompt="search: release\nread: plan\nrestart: go on"), ())]
    ['workspace_search', 'workspace_read', 'lifecycle_request_restart']
    """
    tools = {"search": ("workspace_search", "query"), "read": ("workspace_read", "page"), "fetch": ("web_fetch", "url")}
    named = [(*tools[match[1].lower()], match[2].strip()) for match in _READING.finditer(brief.prompt)]
    calls = [call(tool, **{argument: value}) for tool, argument, value in named]
    calls += [call("agent_send", worker=one[1], text=one[2].strip()) for one in _TELL.finditer(brief.prompt)]
    calls += [call("lifecycle_request_restart", notes=one[1].strip()) for one in _RESTART.finditer(brief.prompt)]
    if asked := _ASK.search(brief.prompt):
        calls.append(call("subagent_run", name=asked[1].lower(), brief=asked[2].strip()))
    elif page := _PAGE.search(brief.prompt):
        calls.append(call("page_propose", title=page[1].strip(), body=page[2].strip()))
    return calls


def loop_orders(brief: Brief, _done: Done) -> list[Request]:
    r"""Return the calls that an author's message orders about loops and events.

    >>> [one.tool for one in loop_orders(Brief(prompt="loop 15m: look around\nstop loop: loop-1\nemit: built"), ())]
    ['LoopCreate', 'LoopDelete', 'event_emit']
    """
    every = [(match[1], match[2].strip()) for match in _LOOP.finditer(brief.prompt)]
    calls = [call("LoopCreate", prompt=text, **({"every": pace} if pace else {})) for pace, text in every]
    calls += [call("LoopList")] if _LOOPS.search(brief.prompt) else []
    for match in _STOP.finditer(brief.prompt):
        action = "pause" if match[1].lower() == "pause" else "delete"
        calls.append(call("LoopDelete", loop=match[2], action=action))
    return calls + [call("event_emit", name=match[1]) for match in _EMIT.finditer(brief.prompt)]


def _all_orders(brief: Brief) -> list[Request]:
    return [*orders(brief, ()), *loop_orders(brief, ()), *rules.remember(brief, ())]


def _look(brief: Brief, _done: Done) -> list[Request]:
    query = " ".join(terms(brief.prompt))
    wanted = [call("workspace_search", query=query, limit=3)] if query else []
    return [one for one in (*wanted, call("conversation_read", since="start")) if brief.may(one.tool)]


def _open(brief: Brief, done: Done) -> list[Request]:
    best = rules.pages_found(done)[:1] if brief.may("workspace_read") else []
    return [call("workspace_read", page=page["page"]) for page in best]


def _answer(brief: Brief, done: Done) -> str:
    wanted = terms(brief.prompt)
    lines = []
    for page in answers(done, "workspace_read"):
        quotes = rules.relevant(page["body"], wanted, MOST_QUOTES)
        lines += [f"{page['title']} ({page['page']}): {quote}" for quote in quotes]
    for conversation in answers(done, "conversation_read"):
        lines += _quoted(conversation["messages"], wanted)
    lines += rules.refusals(done)
    if not lines:
        about = f" about {', '.join(wanted[:6])}" if wanted else ""
        lines = [f"Nothing{about} in the workspace or in this channel.", UNDERSTOOD]
    return "\n".join([*lines, QUOTES])


def _quoted(messages: list[dict[str, Any]], wanted: list[str]) -> list[str]:
    said = [
        f"{message['role']} said: {quote}"
        for message in messages
        if QUOTES not in message["text"] and not _all_orders(Brief(prompt=message["text"]))
        for quote in rules.relevant(message["text"], wanted, 1)
    ]
    return said[-MOST_QUOTES:]


def _report(brief: Brief, done: Done) -> str:
    missing = sorted({one.tool for one in _all_orders(brief)} - brief.offered)
    lines = [line for exchange in done if exchange.ok for line in _told(exchange.tool, exchange.data)]
    lines += rules.refusals(done)
    lines += [f"{tool} is not offered in this category." for tool in missing]
    return "\n".join([*lines, QUOTES])


def _told(tool: str, data: dict[str, Any]) -> list[str]:
    """Return in lines what a call gave; none for a tool that nobody orders."""
    get = data.get
    sentences = {
        "memory_put": f"Remembered in the {get('tier')} memory as {get('key')}.",
        "subagent_run": f"The {get('subagent')} reports:\n{get('report')}",
        "agent_send": f"Sent to {get('worker')}; what it answers comes here.",
        "lifecycle_request_restart": "Asked for a restart; my next turn is shown the notes.",
        "page_propose": f"Proposed page “{get('title')}” as candidate {get('candidate_id')}.",
        "web_fetch": f"{get('title')} ({get('url')}):\n{_cut(str(get('text')))}",
        "workspace_read": f"{get('title')} ({get('page')}):\n{_cut(str(get('body')))}",
        "LoopCreate": f"Loop {get('loop')} is made ({get('fires')}); it ends on {get('expires_at')}.",
        "LoopDelete": f"Loop {get('loop')} is {get('state')}.",
        "event_emit": f"Emitted {get('event')}; {get('listening_tasks')} tasks listen.",
    }
    if tool == "workspace_search":
        found = [f"- {page['page']}: {page['title']}: {page['snippet']}" for page in get("pages", [])]
        return found or ["No page holds these words."]
    if tool == "LoopList":
        return [_loop(loop) for loop in get("loops", [])] or ["There are no loops here."]
    return [sentences[tool]] if tool in sentences else []


def _loop(loop: dict[str, Any]) -> str:
    next_at = loop.get("next_fire_at") or "not set"
    return f"- {loop.get('loop')} ({loop.get('fires')}, {loop.get('state')}, next {next_at}): {loop.get('prompt')}"


def _cut(text: str) -> str:
    return text[:LONGEST_PAGE] + "…" * (len(text) > LONGEST_PAGE)
