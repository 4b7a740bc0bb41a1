"""The research sweep by rules: read the pages and attachments that the prompt names, propose what each says.

Where a prompt names more pages than one fire reads, the next fire goes on after the last one that was read: its address
stands in the channel's memory. Where the prompt asks for a review, a reviewer holds each proposal against its source.

The subagents by rules: one reads sources and reports, one holds a text against its sources.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from agent_runtime.graph.offline.digest import relevant, salient
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, refusals
from agent_runtime.model.words import sentences, terms, words
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


MOST_SOURCES = 5
MOST_QUOTES = 3  # of one source
BORNE = 0.75  # of a claim's words, so many stand in one sentence of a source that bears it
COMPARED = "(By the rule-based offline model, which compares words and does not reason.)"
_URL = re.compile(r"https?://\S+")
_PAGES = re.compile(r"^\s*(?:sources?|pages?):\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_PAGE = re.compile(r"(?<![\w/.:-])([a-z0-9][a-z0-9-]{0,99})(?:@\d+)?(?![\w/.:-])")
_SOURCE_LINE = re.compile(
    r"^\s*(?:sources?|pages?|claims?|text|review|check)\b[^\n]*:\s*$|^\s*(?:sources?|pages?):.*$", re.IGNORECASE
)


def research(brief: Brief, done: Done) -> Step:
    """Return the next step of a researcher: read what the brief names, or what a search finds; say what bears on it."""
    return follow((_find, _read), _report, brief, done)


def review(brief: Brief, done: Done) -> Step:
    """Return the next step of a reviewer: read the sources that the brief names, check each claim against them."""
    return follow((_sources,), _verdict, brief, done)


def claims(prompt: str) -> list[str]:
    r"""Return the claims of a text: its list items, or else its sentences, without lines that only name sources.

    >>> claims("Check:\n- The pump is new.\n- It is blue.\nSources: pump, https://example.org/a")
    ['The pump is new.', 'It is blue.']
    """
    lines = [line for line in prompt.splitlines() if not _SOURCE_LINE.match(line)]
    items = [line.strip()[2:].strip() for line in lines if line.strip().startswith(("- ", "* "))]
    return items or sentences(_URL.sub("", "\n".join(lines)))


def borne(claim: str, text: str) -> bool:
    """Return whether a sentence of a source holds most of a claim's words, and all of its numbers.

    >>> borne("The pump costs 40 euros", "In March it broke. The new pump costs 40 euros a year.")
    True
    >>> borne("The pump costs 45 euros", "In March it broke. The new pump costs 40 euros a year.")
    False
    """
    wanted = set(terms(claim)) or set(words(claim))
    numbers = {word for word in words(claim) if any(map(str.isdigit, word))}
    found = (set(words(sentence)) for sentence in sentences(text))
    return any(numbers <= said and len(wanted & said) >= BORNE * len(wanted) for said in found) if wanted else False


def _find(brief: Brief, _done: Done) -> list[Request]:
    named = _named(brief)
    query = " ".join(terms(_URL.sub(" ", brief.prompt)))
    return named or ([Request(tool="workspace_search", args={"query": query, "limit": 3})] if query else [])


def _read(_brief: Brief, done: Done) -> list[Request]:
    found = [page for search in answers(done, "workspace_search") for page in search["pages"]]
    return [Request(tool="workspace_read", args={"page": page["page"]}) for page in found[:MOST_SOURCES]]


def _sources(brief: Brief, _done: Done) -> list[Request]:
    return _named(brief)


def _named(brief: Brief) -> list[Request]:
    """Return the readings of what a brief names: addresses anywhere in it, pages in its lines of sources."""
    pages = [page for line in _PAGES.findall(brief.prompt) for page in _PAGE.findall(_URL.sub(" ", line))]
    calls = [Request(tool="web_fetch", args={"url": url}) for url in addresses(brief.prompt)]
    calls += [Request(tool="workspace_read", args={"page": page}) for page in dict.fromkeys(pages)]
    return calls[:MOST_SOURCES]


def _texts(done: Done) -> dict[str, str]:
    """Return what was read, by the source's name."""
    fetched = {page["url"]: page["text"] for page in answers(done, "web_fetch")}
    return fetched | {page["page"]: page["body"] for page in answers(done, "workspace_read")}


def _report(brief: Brief, done: Done) -> str:
    wanted = terms(_URL.sub(" ", brief.prompt))
    lines = [
        f"- {point} ({source})"
        for source, text in _texts(done).items()
        for point in relevant(text, wanted, MOST_QUOTES) or salient([text], MOST_QUOTES)
    ]
    lines += refusals(done)
    return "\n".join([*(lines or ["Nothing was found."]), COMPARED])


def _verdict(brief: Brief, done: Done) -> str:
    texts, made = _texts(done), claims(brief.prompt)
    bearing: dict[str, list[str]] = {
        claim: [source for source, text in texts.items() if borne(claim, text)] for claim in made
    }
    held = sum(bool(sources) for sources in bearing.values())
    lines = [f"Checked {_count(made, 'claim')} against {_count(texts, 'source')}: {held} borne out."]
    lines += [f"- borne out by {', '.join(sources)}: {claim}" for claim, sources in bearing.items() if sources]
    lines += [f"- NOT in the sources: {claim}" for claim, sources in bearing.items() if not sources]
    return "\n".join([*lines, *refusals(done), COMPARED])


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


SUBAGENTS: Mapping[str, Callable[[Brief, Done], Step]] = MappingProxyType({"researcher": research, "reviewer": review})
"""By the subagent's name."""
