"""The research sweep by rules: read the pages and attachments that the prompt names, propose what each says.

Where a prompt names more pages than one fire reads, the next fire goes on after the last one that was read: its address
stands in the channel's memory. Where the prompt asks for a review, a reviewer holds each proposal against its source.
"""

import re

from agent_runtime.graph.offline.digest import relevant, salient
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, refusals
from agent_runtime.model.words import terms
from agent_runtime.workspace.model import LONGEST_TITLE

MOST_PAGES = 5
MOST_POINTS = 5
PLACE = "swept up to"  # with the task's name: the key of the address that the fire before read last
RULE_BASED = "(Written by the rule-based offline model.)"
_ATTACHMENT = re.compile(r"\battachment:([a-z0-9-]+)/(\S*[^\s.,;:!?)\]])", re.ASCII)
_ADDRESS = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:!?)\]]")


def sweep(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that reads pages of the web."""
    return follow((_recall, _fetch, _propose, _review, _keep), _close, brief, done)


def addresses(prompt: str) -> list[str]:
    """Return the addresses that a prompt names, each once.

    >>> addresses("Read https://example.org/a, then (http://example.org/b). Again: https://example.org/a")
    ['https://example.org/a', 'http://example.org/b']
    """
    return list(dict.fromkeys(_ADDRESS.findall(prompt)))


def _recall(brief: Brief, _done: Done) -> list[Request]:
    goes_on = len(addresses(brief.prompt)) > MOST_PAGES and brief.by_fire and brief.may("memory_search")
    return [Request(tool="memory_search", args={"tier": "channel", "query": _place(brief)})] if goes_on else []


def _place(brief: Brief) -> str:
    return f"{brief.task} {PLACE}"[:100]


def _due(brief: Brief, done: Done) -> list[str]:
    """Return the addresses that this fire reads: those after the one where the fire before stopped, and round."""
    named = addresses(brief.prompt)
    entries = [entry for found in answers(done, "memory_search") for entry in found["entries"]]
    last = next((entry["text"] for entry in entries if entry["key"] == _place(brief)), "")
    start = named.index(last) + 1 if last in named else 0
    return [*named[start:], *named[:start]][:MOST_PAGES]


def _review(brief: Brief, done: Done) -> list[Request]:
    if "review" not in brief.prompt.lower() or not brief.may("subagent_run") or "reviewer" not in brief.subagents:
        return []
    made = [exchange.args for exchange in done if exchange.tool == "page_propose" and exchange.ok]
    made = [page for page in made if "://" in page["sources"][0]]  # a reviewer reads pages, not attachments
    briefs = [f"Review:\n{page['body']}\nSources: {', '.join(page['sources'])}" for page in made]
    return [Request(tool="subagent_run", args={"name": "reviewer", "brief": text}) for text in briefs]


def _keep(brief: Brief, done: Done) -> list[Request]:
    if not brief.may("memory_put") or not _recall(brief, done):
        return []
    return [Request(tool="memory_put", args={"tier": "channel", "key": _place(brief), "text": _due(brief, done)[-1]})]


def _fetch(brief: Brief, done: Done) -> list[Request]:
    pages = [Request(tool="web_fetch", args={"url": url}) for url in _due(brief, done)]
    files = attachments(brief.prompt)[:MOST_PAGES]
    return [*pages, *(Request(tool="attachment_read", args={"page": page, "name": name}) for page, name in files)]


def attachments(prompt: str) -> list[tuple[str, str]]:
    """Return the attachments that a prompt names, each once: the page and the file beside it.

    >>> attachments("Read attachment:garden/plots.csv, and (attachment:garden/notes.txt).")
    [('garden', 'plots.csv'), ('garden', 'notes.txt')]
    """
    return list(dict.fromkeys(_ATTACHMENT.findall(prompt)))


def _propose(brief: Brief, done: Done) -> list[Request]:
    wanted = terms(_ATTACHMENT.sub(" ", _ADDRESS.sub(" ", brief.prompt)))
    pages = [
        _proposal(
            page["title"] or page["url"], page["text"], wanted, page["url"], f"{page['url']}, read {page['fetched_at']}"
        )
        for page in answers(done, "web_fetch")
    ]
    files = [
        _proposal(
            f"{file['name']} of {file['page']}", file["text"], wanted, file["page"], f"{file['page']}/{file['name']}"
        )
        for file in answers(done, "attachment_read")
    ]
    return [*pages, *files]


def _proposal(title: str, text: str, wanted: list[str], source: str, cited: str) -> Request:
    points = relevant(text, wanted, MOST_POINTS) or salient([text], MOST_POINTS)
    body = "\n".join([*(f"- {point}" for point in points), "", f"Source: {cited}."])
    named = " ".join(title.split())[:LONGEST_TITLE]
    return Request(tool="page_propose", args={"title": named, "body": body, "tags": ["research"], "sources": [source]})


def _close(brief: Brief, done: Done) -> str:
    read = [*answers(done, "web_fetch"), *answers(done, "attachment_read")]
    proposed = answers(done, "page_propose")
    named = len(addresses(brief.prompt)) + len(attachments(brief.prompt))
    if not named:
        return f"The prompt names no address and no attachment, so nothing was read. {RULE_BASED}"
    said = [f"Read {len(read)} of {named} {'page' if named == 1 else 'pages'}."]
    said += [f"Proposed “{one['title']}” as candidate {one['candidate_id']}." for one in proposed]
    said += [f"The reviewer: {one['report'].splitlines()[0]}" for one in answers(done, "subagent_run")]
    said += [f"The next fire goes on after {_due(brief, done)[-1]}." for _ in answers(done, "memory_put")]
    said += [line if line[-1] in ".!?" else f"{line}." for line in refusals(done)]
    return " ".join([*said, RULE_BASED])
