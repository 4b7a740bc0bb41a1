"""The research sweep by rules: read the pages that the prompt names, propose what each says, linked to it."""

import re
from typing import Any

from agent_runtime.graph.offline.extract import relevant, salient
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, refusals
from agent_runtime.world.model import LONGEST_TITLE
from agent_runtime.world.terms import terms

MOST_PAGES = 5
MOST_POINTS = 5
RULE_BASED = "(Written by the rule-based offline model.)"
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
    return [Request(tool="web_fetch", args={"url": url}) for url in addresses(brief.prompt)[:MOST_PAGES]]


def _propose(brief: Brief, done: Done) -> list[Request]:
    wanted = terms(_ADDRESS.sub(" ", brief.prompt))
    return [
        Request(
            tool="page_propose",
            args={"title": _title(page), "body": _body(page, wanted), "tags": ["research"], "sources": [page["url"]]},
        )
        for page in answers(done, "web_fetch")
    ]


def _title(page: dict[str, Any]) -> str:
    title = " ".join(str(page["title"] or page["url"]).split())
    return title[:LONGEST_TITLE]


def _body(page: dict[str, Any], wanted: list[str]) -> str:
    points = relevant(page["text"], wanted, MOST_POINTS) or salient([page["text"]], MOST_POINTS)
    return "\n".join([*(f"- {point}" for point in points), "", f"Source: {page['url']}, read {page['fetched_at']}."])


def _close(brief: Brief, done: Done) -> str:
    read, proposed = answers(done, "web_fetch"), answers(done, "page_propose")
    if not addresses(brief.prompt):
        return f"The prompt names no address, so nothing was read. {RULE_BASED}"
    said = [f"Read {len(read)} of {len(addresses(brief.prompt))} pages."]
    said += [f"Proposed “{one['title']}” as candidate {one['candidate_id']}." for one in proposed]
    said += [line if line[-1] in ".!?" else f"{line}." for line in refusals(done)]
    return " ".join([*said, RULE_BASED])
