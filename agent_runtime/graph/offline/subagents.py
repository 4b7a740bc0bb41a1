"""The subagents by rules: one reads sources and reports, one holds a text against its sources."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from agent_runtime.graph.offline.digest import relevant, salient
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, refusals
from agent_runtime.graph.offline.sweep import addresses
from agent_runtime.model.words import sentences, terms, words

MOST_SOURCES = 5
MOST_POINTS = 3  # of one source
BORNE = 0.75  # of a claim's words, so many stand in one sentence of a source that bears it
RULE_BASED = "(By the rule-based offline model, which compares words and does not reason.)"
_ADDRESS = re.compile(r"https?://\S+")
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
    return items or sentences(_ADDRESS.sub("", "\n".join(lines)))


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
    query = " ".join(terms(_ADDRESS.sub(" ", brief.prompt)))
    return named or ([Request(tool="workspace_search", args={"query": query, "limit": 3})] if query else [])


def _read(_brief: Brief, done: Done) -> list[Request]:
    found = [page for search in answers(done, "workspace_search") for page in search["pages"]]
    return [Request(tool="workspace_read", args={"page": page["page"]}) for page in found[:MOST_SOURCES]]


def _sources(brief: Brief, _done: Done) -> list[Request]:
    return _named(brief)


def _named(brief: Brief) -> list[Request]:
    """Return the readings of what a brief names: addresses anywhere in it, pages in its lines of sources."""
    pages = [page for line in _PAGES.findall(brief.prompt) for page in _PAGE.findall(_ADDRESS.sub(" ", line))]
    calls = [Request(tool="web_fetch", args={"url": url}) for url in addresses(brief.prompt)]
    calls += [Request(tool="workspace_read", args={"page": page}) for page in dict.fromkeys(pages)]
    return calls[:MOST_SOURCES]


def _texts(done: Done) -> dict[str, str]:
    """Return what was read, by the source's name."""
    fetched = {page["url"]: page["text"] for page in answers(done, "web_fetch")}
    return fetched | {page["page"]: page["body"] for page in answers(done, "workspace_read")}


def _report(brief: Brief, done: Done) -> str:
    wanted = terms(_ADDRESS.sub(" ", brief.prompt))
    lines = [
        f"- {point} ({source})"
        for source, text in _texts(done).items()
        for point in relevant(text, wanted, MOST_POINTS) or salient([text], MOST_POINTS)
    ]
    lines += refusals(done)
    return "\n".join([*(lines or ["Nothing was found."]), RULE_BASED])


def _verdict(brief: Brief, done: Done) -> str:
    texts, made = _texts(done), claims(brief.prompt)
    bearing: dict[str, list[str]] = {
        claim: [source for source, text in texts.items() if borne(claim, text)] for claim in made
    }
    held = sum(bool(sources) for sources in bearing.values())
    lines = [f"Checked {_count(made, 'claim')} against {_count(texts, 'source')}: {held} borne out."]
    lines += [f"- borne out by {', '.join(sources)}: {claim}" for claim, sources in bearing.items() if sources]
    lines += [f"- NOT in the sources: {claim}" for claim, sources in bearing.items() if not sources]
    return "\n".join([*lines, *refusals(done), RULE_BASED])


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


SUBAGENTS: Mapping[str, Callable[[Brief, Done], Step]] = MappingProxyType({"researcher": research, "reviewer": review})
"""By the subagent's name."""
