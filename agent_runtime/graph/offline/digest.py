"""The catch-up summary by rules: read what is new, propose the sentences that say most, report what was read."""

from typing import Any

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, call, counted
from agent_runtime.model.words import terms

MOST_PAGES = 2
MOST_POINTS = 5
_INSTRUCTIONS = frozenset({"catch", "summarise", "summarize", "summary", "report", "digest", "happened", "propose"})


def digest(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that summarises its channel."""
    return rules.follow((_read, _open, _propose, rules.remember), _close, brief, done)


def _read(brief: Brief, _done: Done) -> list[Request]:
    query = " ".join(term for term in terms(rules.without_remember(brief.prompt)) if term not in _INSTRUCTIONS)
    wanted = [call("conversation_read", since="last-summary"), call("memory_read", tier="channel")]
    wanted += [call("workspace_search", query=query)] if query else []
    return [one for one in wanted if brief.may(one.tool)]


def _open(brief: Brief, done: Done) -> list[Request]:
    pages = _new_pages(done)[:MOST_PAGES] if brief.may("workspace_read") else []
    return [call("workspace_read", page=page["page"]) for page in pages]


def _propose(brief: Brief, done: Done) -> list[Request]:
    if not _worth_saying(done):
        return []
    when = f", {brief.nominal}" if brief.nominal else ""
    return [call("summary_propose", title=f"Catch-up for {brief.channel}{when}", body=_body(done))]


def _worth_saying(done: Done) -> bool:
    """Return whether something is new since the last summary; the first summary of a channel always is."""
    conversation = _conversation(done)
    first = bool(conversation) and conversation.get("since") is None
    return first or bool(conversation.get("messages")) or bool(_new_pages(done))


def _body(done: Done) -> str:
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


def _close(brief: Brief, done: Done) -> str:
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
    """Return when the last summary was made, RFC 3339 in UTC, which compares as text; empty if there was none."""
    return str(_conversation(done).get("since") or "")


def _new_entries(done: Done) -> list[dict[str, Any]]:
    return [entry for entry in rules.entries(done) if entry["updated_at"] > _since(done)]


def _new_pages(done: Done) -> list[dict[str, Any]]:
    return [page for page in rules.pages_found(done) if page["updated_at"] > _since(done)]


def _speaker(messages: list[dict[str, Any]], point: str) -> str:
    start = point.rstrip("…")
    return next((message["role"] for message in messages if start in " ".join(message["text"].split())), "said")
