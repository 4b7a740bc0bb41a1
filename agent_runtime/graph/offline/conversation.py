"""The jobs of a channel by rules: answer its author, and summarize new messages.

If an author's message contains orders, the rules carry them out; otherwise they quote matching pages and messages. A
summary reads the messages since the last summary, proposes the most important sentences, and reports its sources.
"""

import re
from typing import Any

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, call, counted
from agent_runtime.model.words import terms

QUOTES = "(Written by the rule-based offline model, which quotes and does not reason.)"
UNDERSTOOD = (
    "It understands remember: TEXT, search: TERMS, read: PAGE, fetch: URL, tell AGENT: TEXT, "
    "restart: NOTES, ask researcher: BRIEF, ask reviewer: BRIEF, propose page: TITLE: BODY, loop 15m: PROMPT, loops, "
    "stop loop: ID, emit: EVENT and fail: REASON."
)
MOST_QUOTES = 3
LONGEST_PAGE = 1_200
_LINE, _TO_THE_END = re.IGNORECASE | re.MULTILINE, re.IGNORECASE | re.MULTILINE | re.DOTALL
_READING = re.compile(r"^[^\S\n]*+(?:then\s+)?(search|read|fetch):\s*(.+)$", _LINE)
_TELL = re.compile(
    r"^[^\S\n]*+(?:then\s+)?tell ([a-z][a-z0-9-]{0,31}(?:@[a-z][a-z0-9-]{0,31})?):\s*(.+)$", re.MULTILINE
)
_RESTART = re.compile(r"^[^\S\n]*+(?:then\s+)?restart:\s*(.+)$", _LINE)
_ASK = re.compile(r"^[^\S\n]*+(?:then\s+)?ask (researcher|reviewer):\s*(.+)\Z", _TO_THE_END)
_PROPOSE_PAGE = re.compile(r"^[^\S\n]*+(?:then\s+)?propose page:\s*([^:\n]+):\s*(.+)\Z", _TO_THE_END)
_LOOP = re.compile(r"^[^\S\n]*+loop(?: (\d{1,6}[smhd]))?:\s*(.+)$", _LINE)
_LOOPS = re.compile(r"^[^\S\n]*+loops\s*$", _LINE)
_STOP = re.compile(r"^[^\S\n]*+(stop|pause) loop:\s*(\S+)\s*$", _LINE)
_FAIL = re.compile(r"^[^\S\n]*+(?:then\s+)?fail:\s*(.+)$", _LINE)
_EMIT = re.compile(r"^[^\S\n]*+emit:\s*(\S+)\s*$", _LINE)


def reply(brief: Brief, done: Done) -> Step:
    if _all_orders(brief):
        return rules.follow((orders, loop_orders, rules.remember, give_up), _report_orders, brief, done)
    return rules.follow((_look_up, _open_best), _answer_question, brief, done)


def orders(brief: Brief, _done: Done) -> list[Request]:
    r"""Return the calls for the orders in the prompt: search:, read:, fetch:, tell, restart:, ask, propose page:.

    >>> [one.tool for one in orders(Brief(prompt="search: release\nread: plan\nrestart: continue"), ())]
    ['workspace_search', 'workspace_read', 'lifecycle_request_restart']
    """
    tools = {"search": ("workspace_search", "query"), "read": ("workspace_read", "page"), "fetch": ("web_fetch", "url")}
    named = [(*tools[match[1].lower()], match[2].strip()) for match in _READING.finditer(brief.prompt)]
    calls = [call(tool, **{argument: value}) for tool, argument, value in named]
    calls += [call("agent_send", worker=one[1], text=one[2].strip()) for one in _TELL.finditer(brief.prompt)]
    calls += [call("lifecycle_request_restart", notes=one[1].strip()) for one in _RESTART.finditer(brief.prompt)]
    if asked := _ASK.search(brief.prompt):
        calls.append(call("subagent_run", name=asked[1].lower(), brief=asked[2].strip()))
    elif page := _PROPOSE_PAGE.search(brief.prompt):
        calls.append(call("page_propose", title=page[1].strip(), body=page[2].strip()))
    return calls


def loop_orders(brief: Brief, _done: Done) -> list[Request]:
    r"""Return the calls for the orders about loops and events in an author's message.

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


def give_up(brief: Brief, _done: Done) -> list[Request]:
    """Return the call that ends the turn as failed, if the prompt orders it, so that a failure can be tried."""
    return [call("turn_fail", reason=found[1].strip())] if (found := _FAIL.search(brief.prompt)) else []


def _all_orders(brief: Brief) -> list[Request]:
    return [*orders(brief, ()), *loop_orders(brief, ()), *rules.remember(brief, ()), *give_up(brief, ())]


def _look_up(brief: Brief, _done: Done) -> list[Request]:
    query = " ".join(terms(brief.prompt))
    wanted = [call("workspace_search", query=query, limit=3)] if query else []
    return [one for one in (*wanted, call("conversation_read", since="start")) if brief.may(one.tool)]


def _open_best(brief: Brief, done: Done) -> list[Request]:
    best = rules.pages_found(done)[:1] if brief.may("workspace_read") else []
    return [call("workspace_read", page=page["page"]) for page in best]


def _answer_question(brief: Brief, done: Done) -> str:
    wanted = terms(brief.prompt)
    lines = []
    for page in answers(done, "workspace_read"):
        quotes = rules.relevant(page["body"], wanted, MOST_QUOTES)
        if not quotes and set(wanted) & set(terms(page["title"])):
            quotes = rules.salient([page["body"]], MOST_QUOTES)  # the author asked for its title
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


def _report_orders(brief: Brief, done: Done) -> str:
    missing = sorted({one.tool for one in _all_orders(brief)} - brief.offered)
    lines = [line for exchange in done if exchange.ok for line in _outcome(exchange.tool, exchange.data)]
    lines += rules.refusals(done)
    lines += [f"{tool} is not offered in this category." for tool in missing]
    return "\n".join([*lines, QUOTES])


def _outcome(tool: str, data: dict[str, Any]) -> list[str]:
    """Return the result of a call as lines; empty for a tool that no order uses."""
    get = data.get
    sentences = {
        "memory_put": f"Remembered in the {get('tier')} memory as {get('key')}.",
        "subagent_run": f"The {get('subagent')} reports:\n{get('report')}",
        "agent_send": f"Sent to {get('worker')}; its answer comes here.",
        "lifecycle_request_restart": "Asked for a restart; my next turn is shown the notes.",
        "page_propose": f"Proposed page “{get('title')}” for you to accept or reject ({get('candidate_id')}).",
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


MOST_PAGES = 2
MOST_POINTS = 5
_INSTRUCTIONS = frozenset({"catch", "summarise", "summarize", "summary", "report", "digest", "happened", "propose"})


def digest(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that summarizes its channel."""
    return rules.follow((_read_news, _open_new_pages, _propose_summary, rules.remember), _close_digest, brief, done)


def _read_news(brief: Brief, _done: Done) -> list[Request]:
    query = " ".join(term for term in terms(rules.without_remember(brief.prompt)) if term not in _INSTRUCTIONS)
    wanted = [call("conversation_read", since="last-summary"), call("memory_read", tier="channel")]
    wanted += [call("workspace_search", query=query)] if query else []
    return [one for one in wanted if brief.may(one.tool)]


def _open_new_pages(brief: Brief, done: Done) -> list[Request]:
    pages = _new_pages(done)[:MOST_PAGES] if brief.may("workspace_read") else []
    return [call("workspace_read", page=page["page"]) for page in pages]


def _propose_summary(brief: Brief, done: Done) -> list[Request]:
    if not _worth_saying(done):
        return []
    when = f", {brief.nominal}" if brief.nominal else ""
    return [call("summary_propose", title=f"Catch-up for {brief.channel}{when}", body=_summary(done))]


def _worth_saying(done: Done) -> bool:
    """Return whether there are new messages since the last summary; True for the first summary of a channel."""
    conversation = _conversation(done)
    first = bool(conversation) and conversation.get("since") is None
    return first or bool(conversation.get("messages")) or bool(_new_pages(done))


def _summary(done: Done) -> str:
    conversation, pages = _conversation(done), answers(done, "workspace_read")
    messages = conversation.get("messages", [])
    since = " since the last summary" if conversation.get("since") else ""
    read = f"{counted(len(messages), 'message')}{since}, {counted(len(pages), 'page')} on the subject."
    parts = [read.capitalize()]
    said = rules.salient((message["text"] for message in messages), MOST_POINTS)
    parts += [f"- {_speaker(messages, point)}: {point}" for point in said]
    query = [word for one in done if one.tool == "workspace_search" for word in terms(one.args["query"])]
    for page in pages:
        points = rules.relevant(page["body"], query, 2) or rules.salient([page["body"]], 2)
        parts += [f"- {page['title']} ({page['page']}): {point}" for point in points]
    parts += [f"- remembered: {entry['text']}" for entry in _new_entries(done)[:MOST_POINTS]]
    return "\n".join(parts)


def _close_digest(brief: Brief, done: Done) -> str:
    candidates, kept = rules.proposed(done, "summary_propose"), answers(done, "memory_put")
    if not (candidates or rules.refusals(done) or kept or brief.stands_for > 1):
        return ""
    messages = counted(len(_conversation(done).get("messages", [])), "new message")
    notes = counted(len(_new_entries(done)), "remembered note")
    pages = [page["page"] for page in answers(done, "workspace_read")]
    named = f" ({', '.join(pages)})" if pages else ""
    said = [f"Read {messages}, {notes} and {counted(len(pages), 'page')}{named} in {brief.channel}."]
    said += candidates or ["Nothing new since the last summary, so nothing is proposed."]
    said += [f"Remembered it in the {one['tier']} memory." for one in kept]
    if brief.stands_for == 1:
        return rules.closing(said, done)
    missed = f"This turn stands for {brief.stands_for} missed fires, the last of {brief.nominal or 'unknown'}."
    return rules.closing(said, done, f"{missed} {rules.RULE_BASED}")


def _conversation(done: Done) -> dict[str, Any]:
    return next(iter(answers(done, "conversation_read")), {})


def _since(done: Done) -> str:
    """Return the time of the last summary, RFC 3339 in UTC, which sorts as text; empty if there was no summary."""
    return str(_conversation(done).get("since") or "")


def _new_entries(done: Done) -> list[dict[str, Any]]:
    return [entry for entry in rules.entries(done) if entry["updated_at"] > _since(done)]


def _new_pages(done: Done) -> list[dict[str, Any]]:
    return [page for page in rules.pages_found(done) if page["updated_at"] > _since(done)]


def _speaker(messages: list[dict[str, Any]], point: str) -> str:
    start = point.rstrip("…")
    return next((message["role"] for message in messages if start in " ".join(message["text"].split())), "said")
