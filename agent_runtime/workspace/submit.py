"""The submit boundary, which is the only function that writes to the workspace.

Origin and lifecycle come from the caller and its context, never from the draft, which has no such fields. An agent's
draft always becomes a candidate; only an author's action makes anything canonical.

A turn's page or summary is agent-produced and a candidate; its deviation is agent-produced and open. An author's page
or attachment is authored, or imported in an import; it is canonical, but a page is a draft if the author is drafting.
A decision keeps the origin: it makes a candidate canonical or rejected, and a deviation accepted or kept.

The boundary also links each write to its sources. It records a deviation (origin observed) if a candidate contradicts a
canonical page, and queues for re-validation the pages derived from a changed page.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from agent_runtime.model.turn import TurnContext
from agent_runtime.store.schema import audit, candidates, derivations, page_versions, pages, turns
from agent_runtime.store.turn_events import add_review
from agent_runtime.workspace import deviations, model, revalidation
from agent_runtime.workspace import pages as records
from turnkeeper.errors import Conflict, Denied, InvalidInput
from turnkeeper.storage.chain import digest
from turnkeeper.times import to_us

Decision = model.Acceptance | model.Rejection | deviations.Resolution
Draft = (
    model.PageDraft
    | model.SummaryDraft
    | deviations.DeviationDraft
    | revalidation.Settlement
    | records.AttachmentDraft
    | Decision
)
Written = model.Page | model.Candidate | deviations.Deviation | revalidation.Item | records.Attachment


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The boundary's facts about a write.

    Attributes:
        origin: authored, imported or agent-produced.
        lifecycle: candidate, open, draft, canonical or rejected.
        via: the surface of a decision, or else the author's name.
        turn_id: the agent's turn; empty for an author.
        candidate_id: the proposal that an author accepted; empty otherwise.
    """

    origin: str
    lifecycle: str
    by: str
    via: str = ""
    turn_id: str = ""
    candidate_id: str = ""


def stamp(caller: model.Caller, draft: Draft, proposed: model.Candidate | None = None) -> Stamp:
    """Return origin and lifecycle for a write, by the rules above. Pure.

    Args:
        draft: the write; only its type matters.
        proposed: the candidate, if the write is a decision about one.

    Raises:
        Denied: an agent decides or attaches, or the caller's type is unknown.
    """
    authors = isinstance(draft, Decision | records.AttachmentDraft)
    if isinstance(caller, TurnContext) and not authors and caller.turn_id:
        lifecycle = "open" if isinstance(draft, deviations.DeviationDraft) else "candidate"
        return Stamp(origin="agent-produced", lifecycle=lifecycle, by=caller.agent, turn_id=caller.turn_id)
    if not isinstance(caller, model.Author):
        raise Denied("only an author may decide about proposals", where="submit")
    if proposed is None:
        origin, lifecycle = "imported" if caller.imports else "authored", "draft" if caller.drafting else "canonical"
        return Stamp(origin=origin, lifecycle=lifecycle, by=caller.name)
    return Stamp(
        origin=proposed.origin,
        lifecycle="canonical" if isinstance(draft, model.Acceptance) else "rejected",
        by=caller.name,
        via=caller.via or caller.name,
        turn_id=proposed.turn_id,
        candidate_id=proposed.candidate_id,
    )


def submit(connection: Connection, draft: Draft, caller: model.Caller, *, at: datetime, new_id: str) -> Written:
    """Write to the workspace. No other function writes to the workspace.

    Args:
        connection: an open transaction; if an error occurs, nothing of this write is kept.
        draft: a page, a summary, a deviation, a verdict on an item of the re-validation queue, an attachment, or an
            author's decision about a candidate or a deviation.

    Returns:
        The stored result: a page for an author's page, otherwise the subject of the draft or decision.

    Raises:
        InvalidInput: a field cannot be stored.
        NotFound: no such candidate, page, deviation or item exists.
        Conflict: the subject is already decided, or has changed since.
        Denied: this caller may not make this write.
    """
    if isinstance(draft, model.PageDraft):
        draft = model.check_page(draft)
    mark = stamp(caller, draft)
    if isinstance(caller, TurnContext):
        if isinstance(draft, deviations.DeviationDraft):
            return _record_deviation(connection, draft, caller, at)
        if isinstance(draft, revalidation.Settlement):
            return _settle(connection, draft, caller, at)
        if isinstance(draft, model.PageDraft | model.SummaryDraft):
            return _propose(connection, draft, caller, mark, at=at, new_id=new_id)
        raise Denied("only an author may decide about proposals", where="submit")
    return _by_author(connection, draft, caller, mark, at)


def _by_author(connection: Connection, draft: Draft, caller: model.Author, mark: Stamp, at: datetime) -> Written:
    if isinstance(draft, model.PageDraft):
        return _put_page(connection, draft, mark, at)
    if isinstance(draft, records.AttachmentDraft):
        records.get_page(connection, draft.page_id)
        checked = records.check_attachment(draft)
        return records.put_attachment(
            connection, checked, origin=mark.origin, lifecycle=mark.lifecycle, by=mark.by, at=at
        )
    if isinstance(draft, model.Acceptance | model.Rejection):
        return _decide(connection, draft, caller, at)
    if isinstance(draft, deviations.Resolution):
        return _resolve(connection, draft, caller, mark, at)
    raise Denied("only agents write this; authors decide about it", where="submit")


def _propose(
    connection: Connection,
    draft: model.PageDraft | model.SummaryDraft,
    caller: TurnContext,
    mark: Stamp,
    *,
    at: datetime,
    new_id: str,
) -> model.Candidate:
    row = _kind_of(connection, draft, caller) | {
        "candidate_id": new_id,
        "title": model.check_title(draft.title),
        "body": model.check_text(draft.body, "body"),
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
    add_review(connection, mark.turn_id, "PROPOSED", at, about=[new_id], summary=str(row["title"]))
    if isinstance(draft, model.PageDraft):
        _derive(connection, new_id, draft.sources)
        _observe(connection, draft, new_id, deviations.Writer.of(caller, "observed"), at)
        if row["base_version"] != (now := _version_of(connection, draft.page_id)):
            _observe_stale(connection, draft.page_id, now, candidates.c.candidate_id == new_id, at=at)
    return records.get_candidate(connection, new_id)


def _observe(
    connection: Connection, draft: model.PageDraft, candidate_id: str, writer: deviations.Writer, at: datetime
) -> None:
    """Record the contradictions between a candidate and the canonical pages that it replaces or was derived from."""
    held_against = dict.fromkeys((draft.page_id, *(source for source in draft.sources if not model.is_address(source))))
    query = select(pages).where(pages.c.page_id.in_(held_against), pages.c.lifecycle == "canonical")
    for row in connection.execute(query.order_by(pages.c.page_id)).all():
        place = deviations.Place(page_id=row.page_id, page_version=row.version, candidate_id=candidate_id)
        for found in deviations.differences(row.body, draft.body):
            deviations.record(connection, place, found, writer, at)


def _derive(connection: Connection, candidate_id: str, sources: Sequence[str]) -> None:
    """Link a candidate to its sources. Raises NotFound for a missing page."""
    rows = [
        {"candidate_id": candidate_id, "source": source, "page_version": version}
        for source, version in _versions(connection, sources)
    ]
    if rows:
        connection.execute(insert(derivations), rows)


def _versions(connection: Connection, sources: Sequence[str]) -> list[tuple[str, int]]:
    """Return sources with the current versions of pages, 0 for addresses. Raises NotFound."""
    return [
        (source, 0 if model.is_address(source) else records.get_page(connection, source).version) for source in sources
    ]


def _kind_of(
    connection: Connection, draft: model.PageDraft | model.SummaryDraft, caller: TurnContext
) -> dict[str, Any]:
    if isinstance(draft, model.SummaryDraft):
        channel = model.check_channel(draft.channel)
        return {"kind": model.SUMMARY, "channel": channel, "page_id": "", "base_version": 0, "tags": "[]"}
    return {
        "kind": model.PAGE,
        "channel": caller.channel,
        "page_id": draft.page_id,
        "base_version": _base_of(connection, draft, caller),
        "tags": json.dumps(draft.tags),
    }


def _base_of(connection: Connection, draft: model.PageDraft, turn: TurnContext) -> int:
    """Return the version that a draft names, or else the newest version at the start of the draft's turn.

    The turn may not know later changes of the page.
    """
    now = _version_of(connection, draft.page_id)
    if draft.version:
        if draft.version > now:
            raise InvalidInput(f"page {draft.page_id} has no version {draft.version}", where="version")
        return draft.version
    began = connection.execute(select(turns.c.started_at_us).where(turns.c.turn_id == turn.turn_id)).scalar()
    if began is None:
        return now
    for table in (pages, page_versions):
        there = (table.c.page_id == draft.page_id) & (table.c.updated_at_us <= began)
        found = connection.execute(select(func.max(table.c.version)).where(there)).scalar()
        if found is not None:
            return int(found)
    return 0


def _decide(
    connection: Connection, draft: model.Acceptance | model.Rejection, caller: model.Caller, at: datetime
) -> model.Candidate:
    proposed = records.get_candidate(connection, draft.candidate_id)
    mark = stamp(caller, draft, proposed)
    if proposed.lifecycle != "candidate":
        raise Conflict(f"candidate {proposed.candidate_id} is already {proposed.lifecycle}")
    accept = isinstance(draft, model.Acceptance)
    if accept and proposed.kind == model.PAGE:
        _accept_page(connection, proposed, mark, at)
    deviations.close_of_candidate(connection, proposed.candidate_id, accept=accept, by=mark.via, at=at)
    decision = {
        "lifecycle": mark.lifecycle,
        "decided_at_us": to_us(at),
        "decided_by": mark.via,
        "note": model.check_text(draft.note, "note", 4096),
    }
    connection.execute(update(candidates).where(candidates.c.candidate_id == proposed.candidate_id).values(decision))
    _record(connection, at, proposed.candidate_id, mark.lifecycle, proposed.body, mark.via)
    about, verdict = [proposed.candidate_id], "accepted" if accept else "rejected"
    add_review(connection, proposed.turn_id, "REVIEWED", at, about=about, summary=f"{verdict}: {proposed.title}")
    return records.get_candidate(connection, proposed.candidate_id)


def _resolve(
    connection: Connection, draft: deviations.Resolution, caller: model.Author, mark: Stamp, at: datetime
) -> deviations.Deviation:
    found = deviations.get_deviation(connection, draft.deviation_id)
    if found.lifecycle != "open":
        raise Conflict(f"deviation {found.deviation_id} is already {found.lifecycle}")
    note = model.check_text(draft.note, "note", deviations.LONGEST_NOTE)
    deviations.close(connection, found.deviation_id, accept=draft.accept, by=caller.via or mark.by, note=note, at=at)
    about, verdict = [found.deviation_id], "accepted" if draft.accept else "kept"
    add_review(connection, found.turn_id, "REVIEWED", at, about=about, summary=f"{verdict}: {found.found}")
    if draft.accept and found.candidate_id:
        _decide(connection, model.Acceptance(candidate_id=found.candidate_id, note=note), caller, at)
    return deviations.get_deviation(connection, found.deviation_id)


def _accept_page(connection: Connection, proposed: model.Candidate, mark: Stamp, at: datetime) -> None:
    now = _version_of(connection, proposed.page_id)
    if now != proposed.base_version:
        what = f"page {proposed.page_id} is at version {now}, the proposal was made at version {proposed.base_version}"
        raise Conflict(what, hint="reject it, or put the page yourself: turnkeeper workspace put")
    draft = model.PageDraft(page_id=proposed.page_id, title=proposed.title, body=proposed.body, tags=proposed.tags)
    _put_page(connection, draft, mark, at)
    revalidation.keep_versions(connection, proposed.page_id, proposed.turn_id)
    query = select(derivations).where(derivations.c.candidate_id == proposed.candidate_id)
    sources = [(row.source, row.page_version) for row in connection.execute(query).all()]
    if sources:
        revalidation.add_links(connection, proposed.page_id, sources)
        revalidation.queue_outdated(connection, proposed.page_id, at)


def _put_page(connection: Connection, draft: model.PageDraft, mark: Stamp, at: datetime) -> model.Page:
    """Write a page. A page without sources keeps its earlier sources."""
    before = connection.execute(select(pages).where(pages.c.page_id == draft.page_id)).one_or_none()
    if before is not None and before.lifecycle == "canonical" and mark.lifecycle == "draft":
        raise Conflict(f"page {draft.page_id} is canonical", hint="give the draft another page id")
    if draft.sources:
        revalidation.set_links(connection, draft.page_id, _versions(connection, draft.sources))
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
        kept = dict(before._mapping)  # noqa: SLF001  the row's public mapping
        connection.execute(insert(page_versions).values(kept))
        connection.execute(update(pages).where(pages.c.page_id == draft.page_id).values(row))
        others = candidates.c.candidate_id != mark.candidate_id
        if (before.title, before.body) != (draft.title, draft.body):
            revalidation.queue_derived(connection, draft.page_id, before.version + 1, at)
        else:  # other tags do not affect pages derived from this page
            others &= candidates.c.page_id == draft.page_id
        _observe_stale(connection, draft.page_id, before.version + 1, others, at=at)
    return records.get_page(connection, draft.page_id)


def _observe_stale(
    connection: Connection, page_id: str, version: int, which: ColumnElement[bool], *, at: datetime
) -> None:
    """Record each pending candidate that changes a page or derives from it, based on an old version, once."""
    linked = (derivations.c.candidate_id == candidates.c.candidate_id) & (derivations.c.source == page_id)
    waiting = select(candidates, derivations.c.page_version).outerjoin(derivations, linked)
    about = (candidates.c.page_id == page_id) | derivations.c.page_version.is_not(None)
    for row in connection.execute(waiting.where(candidates.c.lifecycle == "candidate", about, which)).all():
        writer = deviations.Writer(
            **{name: getattr(row, name) for name in deviations.Writer.__dataclass_fields__} | {"origin": "observed"}
        )
        base = row.base_version if row.page_id == page_id else row.page_version
        found = deviations.Difference(
            says=f"page {page_id} has changed since",
            found=f"candidate {row.candidate_id} was made from version {base} of it",
        )
        place = deviations.Place(
            page_id=page_id, page_version=version, kind="stale-base", candidate_id=row.candidate_id
        )
        deviations.record(connection, place, found, writer, at)


def _version_of(connection: Connection, page_id: str) -> int:
    return connection.execute(select(pages.c.version).where(pages.c.page_id == page_id)).scalar() or 0


def _record_deviation(
    connection: Connection, draft: deviations.DeviationDraft, turn: TurnContext, at: datetime
) -> deviations.Deviation:
    """Record a turn's contradiction of a canonical page, and settle the item of the queue that it answers.

    Raises:
        InvalidInput: the page is not canonical, or does not contain the quoted statement.
        NotFound: no such page or item exists.
        Conflict: the item is not waiting.
    """
    page = records.get_page(connection, draft.page_id)
    if page.lifecycle != "canonical":
        raise InvalidInput(
            f"page {page.page_id} is a {page.lifecycle}; only canonical pages can be contradicted", where="page"
        )
    says, found = (
        model.check_text(text, field, deviations.LONGEST_STATEMENT).strip()
        for field, text in (("says", draft.says), ("found", draft.found))
    )
    if not says or not deviations.quotes(page.body, says):
        raise InvalidInput(f"is not in the text of page {page.page_id}", where="says", hint="quote it word for word")
    if not found or found == says:
        raise InvalidInput("must be the statement that contradicts the page", where="found")
    model.check_sources([draft.source] if draft.source else [])
    why = model.check_text(draft.why, "why", deviations.LONGEST_NOTE)
    place = deviations.Place(page_id=page.page_id, page_version=page.version, source=draft.source, why=why)
    writer = deviations.Writer.of(turn, "agent-produced")
    deviation_id, _ = deviations.record(connection, place, deviations.Difference(says=says, found=found), writer, at)
    if draft.item_id:
        _settle(connection, revalidation.Settlement(item_id=draft.item_id, result="deviation", note=why), turn, at)
    return deviations.get_deviation(connection, deviation_id)


def _settle(
    connection: Connection, draft: revalidation.Settlement, turn: TurnContext, at: datetime
) -> revalidation.Item:
    """Take an item out of the queue, if the turn's result can be verified.

    Raises:
        InvalidInput: no such result exists.
        NotFound: no such item exists.
        Conflict: the item is not waiting, or the turn's deviation or proposal does not exist.
        Denied: the result is `holds`, but a deviation of the page from this source is open.
    """
    item = revalidation.get_item(connection, draft.item_id)
    if item.state != "waiting":
        raise Conflict(f"item {item.item_id} is already {item.state}", hint="read the queue again")
    if draft.result not in revalidation.RESULTS:
        known = ", ".join(revalidation.RESULTS)
        raise InvalidInput(f"{draft.result[:40]!r} is not a result", where="result", hint=known)
    standing = deviations.open_on(connection, item.page_id)
    if draft.result == "holds" and any(one.source in {item.cause, item.via} for one in standing):
        raise Denied(f"a deviation of page {item.page_id} is open; only the author can close it", where="result")
    if draft.result == "deviation" and not standing:
        raise Conflict(f"no deviation of page {item.page_id} is recorded", hint="record it first")
    if draft.result == "candidate":
        waits = (candidates.c.page_id == item.page_id) & (candidates.c.lifecycle == "candidate")
        if connection.execute(select(candidates.c.candidate_id).where(waits).limit(1)).one_or_none() is None:
            raise Conflict(f"no change to page {item.page_id} is proposed", hint="propose it first")
    model.check_text(draft.note, "note", deviations.LONGEST_NOTE)
    revalidation.settle_item(connection, item, draft, turn.turn_id, at)
    return revalidation.get_item(connection, item.item_id)


def _record(connection: Connection, at: datetime, candidate_id: str, verdict: str, text: str, by: str) -> None:
    """Record in the chain a verdict about a candidate, the text, and the channel of the decision."""
    fact = {"kind": "candidate", "candidate": candidate_id, "verdict": verdict, "text_hash": digest(text), "by": by}
    audit.append(connection, at, [fact])
