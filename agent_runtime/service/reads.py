"""The service's methods that only read: functions of an open connection. `READS` lists them by their wire names.

The daemon calls them; while no daemon runs, `read_stored` calls them on the store itself.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from sqlalchemy import Connection, Table, func, or_, select

from agent_runtime.model.conversation import project
from agent_runtime.model.decide import UNFINISHED
from agent_runtime.model.mapping import to_message
from agent_runtime.model.trigger import AGENT_KINDS
from agent_runtime.model.turn import TurnRecord
from agent_runtime.permissions.exceptions import StandingException
from agent_runtime.service import memory_items, thread_records
from agent_runtime.store import exceptions, turn_reads
from agent_runtime.store.database import open_stored
from agent_runtime.store.mail import cancelled_among
from agent_runtime.store.schema import candidates, deviations, turns
from agent_runtime.workspace import deviations as deviation_records
from agent_runtime.workspace import pages, revalidation
from agent_runtime.workspace.model import Candidate
from agent_runtime.workspace.workspace import standing
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.rpc.pages import page_of
from turnkeeper.storage.statements import cursor_at, number_of
from turnkeeper.v1 import agent_runtime_pb2 as wire

LONGEST_EXCERPT = 2000  # characters of a candidate's body in a conversation
MOST_OPEN = 200  # newest unfinished turns of a channel that are checked again
MOST_LISTED = 1_000
MOST_READ = 1_000_000  # rows that are read before the requested page is selected from them
LIFECYCLES = ("draft", "canonical")
ORIGINS = ("authored", "agent-produced", "imported", "observed")
_APPROVALS = ("pending", "resolved", "void")
_CANDIDATES = ("candidate", "canonical", "rejected")
_DEVIATIONS = ("open", "accepted", "kept")
_ITEMS = ("waiting", "settled", "replaced")
Spoken = tuple[str, str]  # channel and thread; one of the two may be empty


def list_channels(connection: Connection, request: wire.ListChannelsRequest) -> wire.ListChannelsResponse:
    """Return the channels that have a conversation, newest first."""
    visible = select(turns.c.channel, func.count().label("number")).where(turns.c.visible).group_by(turns.c.channel)
    shown = {row.channel: row.number for row in connection.execute(visible)}
    proposed = _open_by_channel(connection, candidates, "candidate")
    contradicted = _open_by_channel(connection, deviations, "open")
    found = [
        to_message(
            wire.Channel,
            channel,
            turns=shown.get(channel.name, 0),
            proposed=proposed.get(channel.name, 0),
            deviations=contradicted.get(channel.name, 0),
        )
        for channel in turn_reads.list_channels(connection)
    ]
    page, told = page_of(found, "name", limit=request.limit, cursor=request.cursor)
    return wire.ListChannelsResponse(channels=page, **told)


def _open_by_channel(connection: Connection, table: Table, lifecycle: str) -> dict[str, int]:
    query = select(table.c.channel, func.count().label("number")).where(table.c.lifecycle == lifecycle)
    return {row.channel: row.number for row in connection.execute(query.group_by(table.c.channel))}


def get_conversation(connection: Connection, request: wire.GetConversationRequest) -> wire.Conversation:
    """Return the newest turns of a channel or a thread, oldest first; an unused channel or thread has no turns."""
    how = {"limit": request.limit, "before": number_of(request.cursor)}
    found, count, is_more = turn_reads.conversation(connection, request.channel, thread_id=request.thread_id, **how)
    return wire.Conversation(
        channel=request.channel or (found[-1].channel if found else ""),
        turns=conversation_turns(connection, found),
        total=count,
        next_cursor=cursor_at(found[0].number) if is_more else "",
    )


def conversation_turns(connection: Connection, found: Sequence[TurnRecord]) -> list[wire.ConversationTurn]:
    """Return these turns in the form that the conversation shows."""
    ids, found = [turn.turn_id for turn in found], turn_reads.as_shown(connection, found)
    said, asked = turn_reads.messages_of(connection, ids), turn_reads.interrupts_of(connection, ids)
    fires = turns.c.fire_id.in_([turn.fire_id for turn in found if turn.fire_id])
    first = {*connection.execute(select(func.min(turns.c.number)).where(fires).group_by(turns.c.fire_id)).scalars()}
    proposed, contradicted = pages.candidates_of(connection, ids), deviation_records.of_turns(connection, ids)
    shown = [
        project(
            turn,
            said[turn.turn_id],
            asked[turn.turn_id],
            first=turn.number in first or not turn.fire_id,
            proposed=[_shortened(candidate) for candidate in proposed.get(turn.turn_id, ())],
            deviations=[to_message(wire.Deviation, one) for one in contradicted.get(turn.turn_id, ())],
        )
        for turn in found
    ]
    for turn in shown:
        turn.cursor = cursor_at(turn.number)
    return shown


def _shortened(candidate: Candidate) -> wire.Candidate:
    """Return a candidate with the beginning of its body; `ListCandidates` returns the whole body."""
    body = candidate.body
    cut = body if len(body) <= LONGEST_EXCERPT else f"{body[:LONGEST_EXCERPT]}…"
    return to_message(wire.Candidate, candidate, body=cut)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The changes of a channel.

    Attributes:
        shown: the turns that its conversation shows, oldest first.
        newest: the number of the newest turn, shown or not.
        open: the ids of the unfinished turns, shown or not.
    """

    shown: tuple[TurnRecord, ...] = ()
    newest: int = 0
    open: frozenset[str] = frozenset()


def newest_turns(connection: Connection, of: Spoken, *, limit: int, begin: int = 0) -> Changed:
    """Return the newest shown turns of a conversation from number `begin` on, and its unfinished turns."""
    there = turn_reads.spoken_in(*of)
    # Read this first, because a turn that begins during the other reads then has a higher number.
    newest = connection.execute(select(func.max(turns.c.number)).where(*there)).scalar() or 0
    shown = select(turns.c.turn_id).where(*there, turns.c.visible, turns.c.number >= begin)
    ids = list(
        connection.execute(
            shown.order_by(turns.c.number.desc()).limit(min(limit or 50, turn_reads.LARGEST_PAGE))
        ).scalars()
    )
    open_ = select(turns.c.turn_id).where(*there, turns.c.status.in_(UNFINISHED))
    unfinished = set(connection.execute(open_.order_by(turns.c.number.desc()).limit(MOST_OPEN)).scalars())
    return _changed(connection, ids, unfinished - set(ids), newest)


def changed_turns(connection: Connection, of: Spoken, *, after: int, open_: Collection[str]) -> Changed:
    """Return the changes of a conversation after turn `after`, and the current state of the open turns."""
    fresh = select(turns.c.turn_id, turns.c.number).where(*turn_reads.spoken_in(*of))
    fresh = fresh.where(or_(turns.c.number > after, turns.c.turn_id.in_(open_)))
    rows = connection.execute(fresh.order_by(turns.c.number.desc()).limit(2 * turn_reads.LARGEST_PAGE)).all()
    newest = max((row.number for row in rows), default=after)
    return _changed(connection, [row.turn_id for row in rows], (), max(newest, after))


def _changed(connection: Connection, ids: Sequence[str], besides: Collection[str], newest: int) -> Changed:
    found = turn_reads.get_turns(connection, ids)
    open_ = [turn.turn_id for turn in found if turn.status in UNFINISHED][-MOST_OPEN:]
    shown = tuple(turn for turn in found if turn.visible)
    return Changed(shown=shown, newest=newest, open=frozenset([*list(besides)[: MOST_OPEN - len(open_)], *open_]))


def get_turn(connection: Connection, request: wire.GetTurnRequest) -> wire.Turn:
    """Return one turn. Raises NotFound."""
    turn = turn_reads.get_turn(connection, request.turn_id)
    if turn is None:
        raise NotFound(f"no turn {request.turn_id[:80]!r}", hint="see: turnkeeper turns list")
    return turn_message(connection, turn)


def list_turns(connection: Connection, request: wire.ListTurnsRequest) -> wire.ListTurnsResponse:
    """Return turns, newest first, page by page."""
    turn_reads.check_status(request.status)
    wanted = {"channel": request.channel, "thread_id": request.thread_id, "status": request.status}
    before = number_of(request.cursor)
    found, count = turn_reads.list_turns(connection, **wanted, limit=request.limit, before=before)
    more = len(found) == min(request.limit or 50, turn_reads.LARGEST_PAGE)
    return wire.ListTurnsResponse(
        turns=turn_messages(connection, found), total=count, next_cursor=cursor_at(found[-1].number) if more else ""
    )


def turn_message(connection: Connection, turn: TurnRecord) -> wire.Turn:
    """Return a row of the turn table as a message, with the turn's newest event."""
    (found,) = turn_messages(connection, [turn])
    return found


def turn_messages(connection: Connection, found: Sequence[TurnRecord]) -> list[wire.Turn]:
    """Return turns as messages with their newest events, with as few statements as for one turn."""
    progress = _progress(connection, [turn.turn_id for turn in found])
    return [_turn_message(turn, progress[turn.turn_id]) for turn in turn_reads.as_shown(connection, found)]


def _turn_message(turn: TurnRecord, fields: dict[str, Any]) -> wire.Turn:
    trigger = "agent" if turn.kind in AGENT_KINDS.values() else turn.trigger
    if fields["state"] == wire.TurnEvent.PAUSED and turn.status == "succeeded":
        fields["state"] = wire.TurnEvent.SUCCEEDED  # the thread continued with the awaited fire
    return to_message(wire.Turn, turn, trigger=trigger, **fields)


def progress_fields(connection: Connection, turn_id: str) -> dict[str, Any]:
    """Return the fields of `wire.Turn` that come from its newest event and a stored cancellation."""
    return _progress(connection, [turn_id])[turn_id]


def _progress(connection: Connection, turn_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    newest, cancelled = turn_reads.newest_events(connection, turn_ids), cancelled_among(connection, turn_ids)
    found = {}
    for turn_id in turn_ids:
        event = newest.get(turn_id)
        found[turn_id] = {
            "state": wire.TurnEvent.State.Value(event.state) if event else wire.TurnEvent.STATE_UNSPECIFIED,
            "sequence": event.sequence if event else 0,
            "wake_after_s": event.wake_after_s if event else None,
            "cancel_requested": turn_id in cancelled,
        }
    return found


def list_interrupts(connection: Connection, request: wire.ListInterruptsRequest) -> wire.ListInterruptsResponse:
    """Return the approvals, oldest first."""
    every = request.all or bool(request.status)
    wanted = {"channel": request.channel, "thread_id": request.thread_id}
    found = turn_reads.list_interrupts(connection, **wanted, include_settled=every)
    shown, told = page_of(found, "interrupt_id", **_cut(request), of="status", known=_APPROVALS)
    return wire.ListInterruptsResponse(interrupts=[to_message(wire.Interrupt, record) for record in shown], **told)


def list_exceptions(connection: Connection, request: wire.ListExceptionsRequest) -> wire.ListExceptionsResponse:
    """Return the standing exceptions, newest first."""
    found = exceptions.listed(connection, task_id=request.task_id, include_ended=request.all)
    shown, told = page_of(found, "number", limit=request.limit, cursor=request.cursor)
    return wire.ListExceptionsResponse(exceptions=[exception_message(one) for one in shown], **told)


def exception_message(one: StandingException) -> wire.StandingException:
    return to_message(wire.StandingException, one, any_value=one.any_value, category_revision=one.category_revision)


def list_candidates(connection: Connection, request: wire.ListCandidatesRequest) -> wire.ListCandidatesResponse:
    """Return the proposals of agents, newest first."""
    every = request.all or bool(request.status)
    found = pages.list_candidates(connection, channel=request.channel, include_decided=every)
    shown, told = page_of(found, "candidate_id", **_cut(request), of="lifecycle", known=_CANDIDATES)
    return wire.ListCandidatesResponse(candidates=[to_message(wire.Candidate, one) for one in shown], **told)


def list_pages(connection: Connection, request: wire.ListPagesRequest) -> wire.ListPagesResponse:
    """Return the workspace's pages without their bodies. Raises InvalidInput if the lifecycle or origin is unknown."""
    for field, value, known in (("lifecycle", request.lifecycle, LIFECYCLES), ("origin", request.origin, ORIGINS)):
        if value and value not in known:
            seen = " (candidates: turnkeeper candidates list)" if value == "candidate" else ""
            hint = f"use one of: {', '.join(known)}{seen}"
            raise InvalidInput(f"no page has the {field} {value[:40]!r}", where=field, hint=hint)
    found = pages.list_pages(
        connection, tag=request.tag, lifecycle=request.lifecycle, origin=request.origin, after=request.after
    )
    return wire.ListPagesResponse(pages=[to_message(wire.Page, page, body="") for page in found])


def get_page(connection: Connection, request: wire.GetPageRequest) -> wire.Page:
    """Return one page, its sources and its attachments. Raises NotFound."""
    found = standing(connection, request.page_id)
    files = [to_message(wire.Attachment, one) for one in found.attachments]
    return to_message(wire.Page, found.page, sources=found.sources, attachments=files)


def get_attachment(connection: Connection, request: wire.GetAttachmentRequest) -> wire.Attachment:
    """Return an attachment of a page, with its bytes. Raises NotFound."""
    found, data = pages.get_attachment(connection, request.page_id, request.name)
    return to_message(wire.Attachment, found, data=data)


def list_attachments(connection: Connection, request: wire.ListAttachmentsRequest) -> wire.ListAttachmentsResponse:
    """Return the attachments of a page, without their bytes. Raises NotFound if the page does not exist."""
    pages.get_page(connection, request.page_id)
    found = pages.list_attachments(connection, request.page_id)
    shown, told = page_of(found, "name", limit=request.limit, cursor=request.cursor)
    return wire.ListAttachmentsResponse(attachments=[to_message(wire.Attachment, one) for one in shown], **told)


def list_deviations(connection: Connection, request: wire.ListDeviationsRequest) -> wire.ListDeviationsResponse:
    """Return the deviations, newest first."""
    every = request.all or bool(request.status)
    found = deviation_records.list_deviations(connection, channel=request.channel, include_decided=every)
    shown, told = page_of(found, "deviation_id", **_cut(request), of="lifecycle", known=_DEVIATIONS)
    return wire.ListDeviationsResponse(deviations=[to_message(wire.Deviation, one) for one in shown], **told)


def get_deviation(connection: Connection, request: wire.GetDeviationRequest) -> wire.Deviation:
    """Return one deviation. Raises NotFound."""
    return to_message(wire.Deviation, deviation_records.get_deviation(connection, request.deviation_id))


def list_revalidation(connection: Connection, request: wire.ListRevalidationRequest) -> wire.ListRevalidationResponse:
    """Return the pages to compare with changed sources; the longest waiting pages come first."""
    every = request.all or bool(request.status)
    found = revalidation.list_items(connection, page_id=request.page_id, include_settled=every, limit=MOST_READ)
    cut = _cut(request) | {"limit": min(request.limit or MOST_LISTED, MOST_LISTED)}
    shown, told = page_of(found, "item_id", **cut, of="state", known=_ITEMS)
    waiting = revalidation.count_waiting(connection)
    items = [to_message(wire.RevalidationItem, item) for item in shown]
    return wire.ListRevalidationResponse(items=items, waiting=waiting, **told)


def _cut(request: Any) -> dict[str, Any]:
    return {"limit": request.limit, "cursor": request.cursor, "status": request.status}


Read = Callable[[Connection, Any], Any]
LISTS: dict[str, Read] = {  # each answer is empty before the daemon's first start
    "ListChannels": list_channels,
    "GetConversation": get_conversation,
    "ListTurns": list_turns,
    "ListThreads": thread_records.list_threads,
    "ListInterrupts": list_interrupts,
    "ListExceptions": list_exceptions,
    "ListCandidates": list_candidates,
    "ListPages": list_pages,
    "ListDeviations": list_deviations,
    "ListRevalidation": list_revalidation,
    "ListMemory": memory_items.list_memory,
    "ListMemoryNamespaces": memory_items.list_namespaces,
    "SearchMemory": memory_items.search_memory,
}
READS: Mapping[str, Read] = LISTS | {
    "GetTurn": get_turn,
    "GetThread": thread_records.get_thread,
    "GetPage": get_page,
    "ListAttachments": list_attachments,
    "GetAttachment": get_attachment,
    "GetDeviation": get_deviation,
    "GetMemory": memory_items.get_memory,
}


def read_stored(home: Home, method: str, request: Any) -> Any:
    """Answer a reading method from the store, opened read-only: change nothing and migrate nothing.

    Raises:
        NotFound: there is no store yet, and the method is not a list; or the method itself raises it.
    """
    database = open_stored(home)
    if database is None:
        if method in LISTS:
            return get_type_hints(LISTS[method])["return"]()
        raise NotFound("no daemon has run here yet", where=str(home.root), hint="start it with: turnkeeper up")
    try:
        return database.submit(lambda connection: READS[method](connection, request)).result()
    finally:
        database.close()
