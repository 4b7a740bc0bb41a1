"""Answering an author by rules: do what is ordered by name, otherwise quote pages and messages that fit."""

from typing import Any

from agent_runtime.graph.offline.digest import relevant
from agent_runtime.graph.offline.loop import loop_orders, told_of_loops
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, orders, refusals, remember
from agent_runtime.model.words import terms

RULE_BASED = "(Written by the rule-based offline model, which quotes and does not reason.)"
UNDERSTOOD = (
    "It understands remember: TEXT, search: TERMS, read: PAGE, fetch: URL, tell AGENT: TEXT, "
    "restart: NOTES, ask researcher: BRIEF, ask reviewer: BRIEF, propose page: TITLE: BODY, loop 15m: PROMPT, loops, "
    "stop loop: ID and emit: EVENT."
)
MOST_QUOTES = 3
LONGEST_PAGE = 1_200


def reply(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that answers a message."""
    if _is_order(brief.prompt):
        return follow((orders, loop_orders, remember), _report, brief, done)
    return follow((_look, _open), _answer, brief, done)


def _look(brief: Brief, _done: Done) -> list[Request]:
    query = " ".join(terms(brief.prompt))
    wanted = [
        *([Request(tool="workspace_search", args={"query": query, "limit": 3})] if query else []),
        Request(tool="conversation_read", args={"since": "start"}),
    ]
    return [call for call in wanted if brief.may(call.tool)]


def _open(brief: Brief, done: Done) -> list[Request]:
    pages = [page for search in answers(done, "workspace_search") for page in search["pages"]]
    best = pages[:1] if brief.may("workspace_read") else []
    return [Request(tool="workspace_read", args={"page": page["page"]}) for page in best]


def _answer(brief: Brief, done: Done) -> str:
    wanted = terms(brief.prompt)
    lines = []
    for page in answers(done, "workspace_read"):
        lines += [f"{page['title']} ({page['page']}): {quote}" for quote in relevant(page["body"], wanted, MOST_QUOTES)]
    for hearing in answers(done, "conversation_read"):
        lines += _quoted(hearing, wanted)
    lines += refusals(done)
    if not lines:
        about = f" about {', '.join(wanted[:6])}" if wanted else ""
        lines = [f"Nothing{about} in the workspace or in this channel.", UNDERSTOOD]
    return "\n".join([*lines, RULE_BASED])


def _quoted(hearing: dict[str, Any], wanted: list[str]) -> list[str]:
    said = [
        f"{message['role']} said: {quote}"
        for message in hearing["messages"]
        if RULE_BASED not in message["text"] and not _is_order(message["text"])
        for quote in relevant(message["text"], wanted, 1)
    ]
    return said[-MOST_QUOTES:]


def _is_order(text: str) -> bool:
    return bool(_ordered(Brief(prompt=text)))


def _ordered(brief: Brief) -> list[Request]:
    return [*orders(brief, ()), *loop_orders(brief, ()), *remember(brief, ())]


def _report(brief: Brief, done: Done) -> str:
    missing = sorted({call.tool for call in _ordered(brief)} - brief.offered)
    lines = [line for exchange in done if exchange.ok for line in _told(exchange.tool, exchange.data)]
    lines += refusals(done)
    lines += [f"{tool} is not offered in this category." for tool in missing]
    return "\n".join([*lines, RULE_BASED])


def _told(tool: str, data: dict[str, Any]) -> list[str]:
    sentences = {
        "memory_put": f"Remembered in the {data.get('tier')} memory as {data.get('key')}.",
        "subagent_run": f"The {data.get('subagent')} reports:\n{data.get('report')}",
        "agent_send": f"Sent to {data.get('worker')}; what it answers comes here.",
        "lifecycle_request_restart": "Asked for a restart; my next turn is shown the notes.",
    }
    if tool in sentences:
        return sentences[tool].splitlines()
    if tool == "page_propose":
        return [f"Proposed page “{data.get('title')}” as candidate {data.get('candidate_id')}."]
    if tool == "web_fetch":
        text = str(data.get("text"))
        return [f"{data.get('title')} ({data.get('url')}):", text[:LONGEST_PAGE] + "…" * (len(text) > LONGEST_PAGE)]
    if tool == "workspace_read":
        body = str(data.get("body"))
        return [f"{data.get('title')} ({data.get('page')}):", body[:LONGEST_PAGE] + "…" * (len(body) > LONGEST_PAGE)]
    if tool == "workspace_search":
        found = [f"- {page['page']}: {page['title']}: {page['snippet']}" for page in data.get("pages", [])]
        return found or ["No page holds these words."]
    return told_of_loops(tool, data)
