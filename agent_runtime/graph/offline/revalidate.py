"""Re-validation by rules: compare each page of the queue with what changed, fact by fact.

Where both state the same fact differently, the difference is recorded and the page is proposed with the fact as its
source has it now. Where no fact differs, the page still holds, as far as these rules can tell.
"""

import re
from dataclasses import dataclass
from typing import Any

from agent_runtime.graph.offline import rules
from agent_runtime.graph.offline.rules import Brief, Done, Request, Step, answers, call
from agent_runtime.workspace.deviations import Difference, differences

MOST_ITEMS = 3  # of one fire; the others wait for the next


@dataclass(frozen=True, kw_only=True)
class _Finding:
    """One fact of a page that its source states differently."""

    item: str
    page: str
    source: str
    difference: Difference


def revalidate(brief: Brief, done: Done) -> Step:
    """Return the next step of a turn that works through the re-validation queue."""
    return rules.follow((_next, _read, _record, _propose, _settle), _close, brief, done)


def _next(_brief: Brief, _done: Done) -> list[Request]:
    return [call("revalidation_next", limit=MOST_ITEMS)]


def _read(_brief: Brief, done: Done) -> list[Request]:
    wanted = [name for item in _items(done) for name in (item["page"], item["changed"], item["through"])]
    return [call("corpus_read", page=name) for name in dict.fromkeys(wanted)]


def _record(_brief: Brief, done: Done) -> list[Request]:
    first = {(one.page, one.difference): one for one in reversed(_findings(done))}
    return [
        call(
            "deviation_record",
            page=one.page,
            says=one.difference.says,
            found=one.difference.found,
            source=one.source,
            why=f"{one.source} has changed and now states this differently.",
        )
        for one in reversed(first.values())
    ]


def _propose(brief: Brief, done: Done) -> list[Request]:
    """Propose each page that differs with the facts of its sources, where each stands there once, word for word."""
    pages, bodies = _pages(done), dict[str, str]()
    for one in _findings(done) if brief.may("page_propose") else ():
        changed = _replaced(bodies.get(one.page, pages[one.page]["body"]), one.difference)
        if changed and not pages[one.page]["left_out_chars"]:
            bodies[one.page] = changed
    return [
        call(
            "page_propose",
            page=name,
            title=pages[name]["title"],
            body=body,
            tags=list(pages[name]["tags"]),
            version=pages[name]["version"],
        )
        for name, body in bodies.items()
    ]


def _settle(_brief: Brief, done: Done) -> list[Request]:
    differing = {one.item for one in _findings(done)}
    recorded = {answer["page"] for answer in answers(done, "deviation_record")}
    settled = []
    for item in _items(done):
        if item["item"] not in differing and item["page"] in _pages(done):
            settled.append(call("revalidation_settle", item=item["item"], result="holds"))
        elif item["page"] in recorded:
            settled.append(call("revalidation_settle", item=item["item"], result="deviation"))
    return settled


def _close(_brief: Brief, done: Done) -> str:
    if not _items(done) and not rules.refusals(done):
        return ""
    waiting = next((answer["waiting"] for answer in answers(done, "revalidation_next")), 0)
    settled = answers(done, "revalidation_settle")
    held = [one["page"] for one in settled if one["result"] == "holds"]
    said = [f"Compared {rules.counted(len(settled), 'page')} of {waiting} with what changed."]
    said += [f"Still valid: {', '.join(held)}."] if held else []
    said += [f"Recorded deviation {one['deviation_id']} of {one['page']}." for one in answers(done, "deviation_record")]
    return rules.closing([*said, *rules.proposed(done, "page_propose")], done)


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


def _replaced(body: str, difference: Difference) -> str:
    """Return a body with one statement replaced; empty if it does not stand there exactly once."""
    statement = r"\s+".join(map(re.escape, difference.says.split()))
    changed, count = re.subn(statement, lambda _match: difference.found, body)
    return changed if count == 1 else ""
