"""The submit boundary: the one function through which every write to the workspace goes.

Origin and lifecycle come from who calls and in which context, never from what is written: a draft has no such fields.
An agent's draft becomes a candidate, whatever else is true; only an author's act makes anything canonical.

    caller       draft                    origin           lifecycle
    agent turn   page, summary            agent-produced   candidate
    author       page                     authored         canonical
    author       acceptance               as proposed      canonical
    author       rejection                as proposed      rejected
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from agent_runtime.model import TurnContext
from agent_runtime.world.model import (
    PAGE,
    SUMMARY,
    Acceptance,
    Author,
    Caller,
    Candidate,
    Page,
    PageDraft,
    Rejection,
    SummaryDraft,
    check_channel,
    check_page,
    check_text,
    check_title,
    is_address,
)
from agent_runtime.world.queries import get_candidate, get_page, to_candidate
from agent_runtime.world.tables import candidates, derivations, page_versions, pages
from turnkeeper.clock import to_us
from turnkeeper.errors import Conflict, Denied, NotFound

Draft = PageDraft | SummaryDraft | Acceptance | Rejection


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What the boundary says about a write.

    Attributes:
        origin: authored or agent-produced.
        lifecycle: candidate, canonical or rejected.
        by: the author's or the agent's name.
        turn_id: the agent's turn; empty for an author.
        candidate_id: the proposal that an author accepted; empty otherwise.
    """

    origin: str
    lifecycle: str
    by: str
    turn_id: str = ""
    candidate_id: str = ""


def stamp(caller: Caller, draft: Draft, proposed: Candidate | None = None) -> Stamp:
    """Return origin and lifecycle for a write, by the table above. Pure.

    Args:
        caller: who writes.
        draft: what is written; only its kind matters.
        proposed: for a decision, the candidate that it is about.

    Raises:
        Denied: an agent decides, or a caller of no known kind writes.
    """
    decides = isinstance(draft, Acceptance | Rejection)
    if isinstance(caller, TurnContext) and not decides and caller.turn_id:
        return Stamp(origin="agent-produced", lifecycle="candidate", by=caller.agent, turn_id=caller.turn_id)
    if not isinstance(caller, Author):
        raise Denied("only an author's act decides what is proposed", where="submit")
    if proposed is None:
        return Stamp(origin="authored", lifecycle="canonical", by=caller.name)
    return Stamp(
        origin=proposed.origin,
        lifecycle="canonical" if isinstance(draft, Acceptance) else "rejected",
        by=caller.name,
        turn_id=proposed.turn_id,
        candidate_id=proposed.candidate_id,
    )


def submit(connection: Connection, draft: Draft, caller: Caller, *, at: datetime, new_id: str) -> Page | Candidate:
    """Write to the workspace: the only way.

    Args:
        connection: an open transaction; on any error nothing of this write is kept.
        draft: a page, a summary, or an author's decision about a candidate.
        caller: an author or a running turn.
        at: the instant of the write.
        new_id: the id of a candidate, should one come to be.

    Returns:
        The page as it now is, for an author's page; otherwise the candidate as it now is.

    Raises:
        InvalidInput: a field that cannot be stored.
        NotFound: no such candidate.
        Conflict: the candidate is decided already, or its page changed since it was proposed.
        Denied: this caller may not do this.
    """
    if isinstance(draft, Acceptance | Rejection):
        return _decide(connection, draft, caller, at)
    if isinstance(draft, PageDraft):
        draft = check_page(draft)
    mark = stamp(caller, draft)
    if isinstance(caller, TurnContext):
        return _propose(connection, draft, caller, mark, at=at, new_id=new_id)
    if not isinstance(draft, PageDraft):
        raise Denied("summaries are proposed by agents and decided by the author", where="submit")
    return _put_page(connection, draft, mark, at)


def _propose(
    connection: Connection,
    draft: PageDraft | SummaryDraft,
    caller: TurnContext,
    mark: Stamp,
    *,
    at: datetime,
    new_id: str,
) -> Candidate:
    row = _kind_of(connection, draft, caller) | {
        "candidate_id": new_id,
        "title": check_title(draft.title),
        "body": check_text(draft.body, "body"),
        "origin": mark.origin,
        "lifecycle": mark.lifecycle,
        "turn_id": mark.turn_id,
        "thread_id": caller.thread_id,
        "agent": mark.by,
        "task_name": caller.task_name,
        "created_at_us": to_us(at),
        "decided_at_us": None,
        "decided_by": "",
        "note": "",
    }
    connection.execute(insert(candidates).values(row))
    if isinstance(draft, PageDraft):
        _derive(connection, new_id, draft.sources)
    return get_candidate(connection, new_id)


def _derive(connection: Connection, candidate_id: str, sources: Sequence[str]) -> None:
    """Link a candidate to what it was derived from. Raises NotFound for a page that is not there."""
    rows = []
    for source in sources:
        version = 0 if is_address(source) else get_page(connection, source).version
        rows.append({"candidate_id": candidate_id, "source": source, "page_version": version})
    if rows:
        connection.execute(insert(derivations), rows)


def _kind_of(connection: Connection, draft: PageDraft | SummaryDraft, caller: TurnContext) -> dict[str, Any]:
    if isinstance(draft, SummaryDraft):
        channel = check_channel(draft.channel)
        return {"kind": SUMMARY, "channel": channel, "page_id": "", "base_version": 0, "tags": "[]"}
    return {
        "kind": PAGE,
        "channel": caller.channel,
        "page_id": draft.page_id,
        "base_version": _version_of(connection, draft.page_id),
        "tags": json.dumps(draft.tags),
    }


def _decide(connection: Connection, draft: Acceptance | Rejection, caller: Caller, at: datetime) -> Candidate:
    found = connection.execute(select(candidates).where(candidates.c.candidate_id == draft.candidate_id)).one_or_none()
    if found is None:
        raise NotFound(f"no candidate {draft.candidate_id[:64]!r}", hint="see: agent-runtime candidates list")
    proposed = to_candidate(found)
    mark = stamp(caller, draft, proposed)
    if proposed.lifecycle != "candidate":
        raise Conflict(f"candidate {proposed.candidate_id} is {proposed.lifecycle} already")
    if isinstance(draft, Acceptance) and proposed.kind == PAGE:
        _accept_page(connection, proposed, mark, at)
    decision = {
        "lifecycle": mark.lifecycle,
        "decided_at_us": to_us(at),
        "decided_by": mark.by,
        "note": check_text(draft.note, "note", 4096),
    }
    connection.execute(
        update(candidates).where(candidates.c.candidate_id == proposed.candidate_id).values(decision),
    )
    return get_candidate(connection, proposed.candidate_id)


def _accept_page(connection: Connection, proposed: Candidate, mark: Stamp, at: datetime) -> None:
    now = _version_of(connection, proposed.page_id)
    if now != proposed.base_version:
        what = f"page {proposed.page_id} is at version {now}, the proposal was made at version {proposed.base_version}"
        raise Conflict(what, hint="reject it, or put the page yourself: agent-runtime workspace put")
    draft = PageDraft(page_id=proposed.page_id, title=proposed.title, body=proposed.body, tags=proposed.tags)
    _put_page(connection, draft, mark, at)


def _put_page(connection: Connection, draft: PageDraft, mark: Stamp, at: datetime) -> Page:
    before = connection.execute(select(pages).where(pages.c.page_id == draft.page_id)).one_or_none()
    row = {
        "page_id": draft.page_id,
        "title": draft.title,
        "body": draft.body,
        "tags": json.dumps(draft.tags),
        "origin": mark.origin,
        "lifecycle": mark.lifecycle,
        "version": before.version + 1 if before else 1,
        "turn_id": mark.turn_id,
        "candidate_id": mark.candidate_id,
        "updated_by": mark.by,
        "updated_at_us": to_us(at),
    }
    if before is None:
        connection.execute(insert(pages).values(row))
    else:
        _keep(connection, before)
        connection.execute(update(pages).where(pages.c.page_id == draft.page_id).values(row))
    return get_page(connection, draft.page_id)


def _keep(connection: Connection, before: Row[Any]) -> None:
    connection.execute(insert(page_versions).values(dict(before._mapping)))  # noqa: SLF001  the row's public mapping


def _version_of(connection: Connection, page_id: str) -> int:
    return connection.execute(select(pages.c.version).where(pages.c.page_id == page_id)).scalar() or 0
