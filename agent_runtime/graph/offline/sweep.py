"""The research sweep by rules: read the pages and attachments that the prompt names, propose what each says."""

import re

from agent_runtime.graph.offline.extract import relevant, salient
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, refusals
from agent_runtime.world.model import LONGEST_TITLE
from agent_runtime.world.terms import terms

MOST_PAGES = 5
MOST_POINTS = 5
RULE_BASED = "(Written by the rule-based offline model.)"
_ATTACHMENT = re.compile(r"\battachment:([a-z0-9-]+)/(\S*[^\s.,;:!?)\]])", re.ASCII)
_ADDRESS = re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:!?)\]]")


def sweep(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that reads pages of the web."""
    return follow((_fetch, _propose), _close, brief, done)


def addresses(prompt: str) -> list[str]:
    """Return the addresses that a prompt names, each once.

    >>> addresses("Read https://example.org/a, then (http://example.org/b). Again: https://example.org/a")
    ['https://example.org/a', 'http://example.org/b']
    """
    return list(dict.fromkeys(_ADDRESS.findall(prompt)))


def _fetch(brief: Brief, _done: Done) -> list[Request]:
    pages = [Request(tool="web_fetch", args={"url": url}) for url in addresses(brief.prompt)[:MOST_PAGES]]
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
    said += [line if line[-1] in ".!?" else f"{line}." for line in refusals(done)]
    return " ".join([*said, RULE_BASED])
