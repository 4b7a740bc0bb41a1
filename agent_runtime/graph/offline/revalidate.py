"""The re-validation walk by rules: hold each page of the queue against what changed, fact by fact.

Where both state the same fact differently, the difference is recorded and the page proposed with the fact as its source
has it now. Where none differs, the page still holds, as far as these rules can tell.
"""

import re
from dataclasses import dataclass
from typing import Any

from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, follow, refusals
from agent_runtime.workspace.deviations import Difference, differences

RULE_BASED = "(Written by the rule-based offline model.)"
MOST_ITEMS = 3  # of one fire; the others wait for the next


@dataclass(frozen=True, kw_only=True)
class _Finding:
    """One fact of a page that its source states differently."""

    item: str
    page: str
    source: str
    difference: Difference


def walk(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that walks the re-validation queue."""
    return follow((_next, _read, _record, _propose, _settle), _close, brief, done)


def _next(_brief: Brief, _done: Done) -> list[Request]:
    return [Request(tool="revalidation_next", args={"limit": MOST_ITEMS})]


def _read(_brief: Brief, done: Done) -> list[Request]:
    wanted = [name for item in _items(done) for name in (item["page"], item["changed"], item["through"])]
    return [Request(tool="corpus_read", args={"page": name}) for name in dict.fromkeys(wanted)]


def _record(_brief: Brief, done: Done) -> list[Request]:
    once = {(one.page, one.difference): one for one in reversed(_findings(done))}
    return [
        Request(
            tool="deviation_record",
            args={
                "page": one.page,
                "says": one.difference.says,
                "found": one.difference.found,
                "source": one.source,
                "why": f"{one.source} has changed and now states this differently.",
            },
        )
        for one in reversed(once.values())
    ]


def _propose(brief: Brief, done: Done) -> list[Request]:
    """Propose each page that differs with the facts of its sources, where each stands there once, word for word."""
    pages, wanted = _pages(done), dict[str, str]()
    for one in _findings(done) if brief.may("page_propose") else ():
        body = wanted.get(one.page, pages[one.page]["body"])
        changed = _put_in_place(body, one.difference)
        if changed and not pages[one.page]["left_out_chars"]:
            wanted[one.page] = changed
    return [
        Request(
            tool="page_propose",
            args={
                "page": name,
                "title": pages[name]["title"],
                "body": body,
                "tags": list(pages[name]["tags"]),
                "version": pages[name]["version"],
            },
        )
        for name, body in wanted.items()
    ]


def _settle(_brief: Brief, done: Done) -> list[Request]:
    differing = {one.item for one in _findings(done)}
    recorded = {answer["page"] for answer in answers(done, "deviation_record")}
    settled = []
    for item in _items(done):
        if item["item"] not in differing and item["page"] in _pages(done):
            settled.append(Request(tool="revalidation_settle", args={"item": item["item"], "result": "holds"}))
        elif item["page"] in recorded:
            settled.append(Request(tool="revalidation_settle", args={"item": item["item"], "result": "deviation"}))
    return settled


def _close(_brief: Brief, done: Done) -> str:
    if not _items(done) and not refusals(done):
        return ""
    waiting = next((answer["waiting"] for answer in answers(done, "revalidation_next")), 0)
    verdicts = answers(done, "revalidation_settle")
    held = [one["page"] for one in verdicts if one["result"] == "holds"]
    said = [f"Held {_count(len(verdicts), 'page')} of {waiting} against what changed."]
    said += [f"Still valid: {', '.join(held)}."] if held else []
    said += [f"Recorded deviation {one['deviation_id']} of {one['page']}." for one in answers(done, "deviation_record")]
    said += [f"Proposed “{one['title']}” as candidate {one['candidate_id']}." for one in answers(done, "page_propose")]
    said += [line if line[-1] in ".!?" else f"{line}." for line in refusals(done)]
    return " ".join([*said, RULE_BASED])


def _items(done: Done) -> list[dict[str, Any]]:
    return [item for answer in answers(done, "revalidation_next") for item in answer["items"]]


def _pages(done: Done) -> dict[str, dict[str, Any]]:
    return {answer["page"]: answer for answer in answers(done, "corpus_read")}


def _findings(done: Done) -> list[_Finding]:
    """Return what differs, item by item."""
    pages = _pages(done)
    return [
        _Finding(item=item["item"], page=item["page"], source=source, difference=difference)
        for item in _items(done)
        for source in dict.fromkeys((item["changed"], item["through"]))
        if item["page"] in pages and source in pages
        for difference in differences(pages[item["page"]]["body"], pages[source]["body"])
    ]


def _put_in_place(body: str, difference: Difference) -> str:
    """Return a body with one statement exchanged; empty where it does not stand there exactly once."""
    statement = r"\s+".join(map(re.escape, difference.says.split()))
    changed, count = re.subn(statement, lambda _match: difference.found, body)
    return changed if count == 1 else ""


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
