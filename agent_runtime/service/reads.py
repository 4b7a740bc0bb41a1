"""What the service answers to questions, from an open connection; also for a command line that finds the daemon down.

Each function has the name of its method on the wire, and changes nothing.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from agent_runtime.model.conversation import interrupt_message, project, stamp
from agent_runtime.model.trigger import AGENT_KINDS
from agent_runtime.model.turn import TurnRecord
from agent_runtime.service import conversation_reads
from agent_runtime.service.messages import candidate_message, deviation_message
from agent_runtime.store import turn_reads
from agent_runtime.store.schema import turns
from agent_runtime.workspace import pages
from agent_runtime.workspace.model import Candidate
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import NotFound

LONGEST_EXCERPT = 2000  # characters of a candidate's body in a conversation


def list_channels(connection: Connection, _request: wire.ListChannelsRequest) -> wire.ListChannelsResponse:
    """Answer which channels have a conversation, the newest first."""
    counts, waiting = _visible_turns(connection), conversation_reads.undecided(connection)
    found = [
        wire.Channel(
            name=channel.name,
            turns=counts.get(channel.name, 0),
            waiting=channel.waiting,
            last_at=stamp(channel.last_at),
            proposed=waiting.candidates.get(channel.name, 0),
            deviations=waiting.deviations.get(channel.name, 0),
        )
        for channel in turn_reads.list_channels(connection)
    ]
    return wire.ListChannelsResponse(channels=found)


def get_conversation(connection: Connection, request: wire.GetConversationRequest) -> wire.Conversation:
    """Answer the newest turns of a channel, oldest first; a channel that nobody has used has none."""
    found = turn_reads.conversation(connection, request.channel, limit=request.limit)
    return wire.Conversation(channel=request.channel, turns=conversation_turns(connection, found))


def conversation_turns(connection: Connection, found: Sequence[TurnRecord]) -> list[wire.ConversationTurn]:
    """Return these turns as the conversation shows them."""
    ids = [turn.turn_id for turn in found]
    said, asked = turn_reads.messages_of(connection, ids), turn_reads.interrupts_of(connection, ids)
    first = _first_turns(connection, [turn.fire_id for turn in found if turn.fire_id])
    proposed, found_out = pages.candidates_of(connection, ids), conversation_reads.deviations_of(connection, ids)
    return [
        project(
            turn,
            said[turn.turn_id],
            asked[turn.turn_id],
            first=turn.number in first or not turn.fire_id,
            proposed=[_shortened(candidate) for candidate in proposed.get(turn.turn_id, ())],
            deviations=[deviation_message(deviation) for deviation in found_out.get(turn.turn_id, ())],
        )
        for turn in found
    ]


def get_turn(connection: Connection, turn_id: str) -> wire.Turn:
    """Answer one turn. Raises NotFound."""
    turn = turn_reads.get_turn(connection, turn_id)
    if turn is None:
        raise NotFound(f"no turn {turn_id[:80]!r}", hint="see: agent-runtime turns list")
    return turn_message(connection, turn)


def list_turns(connection: Connection, request: wire.ListTurnsRequest) -> wire.ListTurnsResponse:
    """Answer turns, newest first."""
    found = turn_reads.list_turns(
        connection,
        channel=request.channel,
        thread_id=request.thread_id,
        status=request.status,
        limit=request.limit,
    )
    return wire.ListTurnsResponse(turns=[turn_message(connection, turn) for turn in found])


def list_threads(connection: Connection, request: wire.ListThreadsRequest) -> wire.ListThreadsResponse:
    """Answer threads, the one with the newest turn first."""
    found = conversation_reads.list_threads(
        connection, channel=request.channel, thread_id=request.thread_id, limit=request.limit
    )
    return wire.ListThreadsResponse(threads=[_thread_message(thread) for thread in found])


def turn_message(connection: Connection, turn: TurnRecord) -> wire.Turn:
    """Return a turn of the turn table, with its newest event."""
    event = turn_reads.newest_event(connection, turn.turn_id)
    return wire.Turn(
        turn_id=turn.turn_id,
        thread_id=turn.thread_id,
        channel=turn.channel,
        agent=turn.agent,
        category=turn.category,
        status=turn.status,
        trigger="agent" if turn.kind in AGENT_KINDS.values() else turn.trigger,
        fire_id=turn.fire_id,
        task_name=turn.task_name,
        attempt=turn.attempt,
        started_at=stamp(turn.started_at),
        ended_at=stamp(turn.ended_at),
        summary=turn.summary,
        error=turn.error,
        cancel_requested=turn_reads.is_cancelled(connection, turn.turn_id),
        state=wire.TurnEvent.State.Value(event.state) if event else wire.TurnEvent.STATE_UNSPECIFIED,
        sequence=event.sequence if event else 0,
        tokens_in=turn.tokens_in,
        tokens_out=turn.tokens_out,
        wake_after_s=event.wake_after_s if event else None,
    )


def list_interrupts(connection: Connection, request: wire.ListInterruptsRequest) -> wire.ListInterruptsResponse:
    """Answer what authors are asked, oldest first."""
    found = turn_reads.list_interrupts(connection, channel=request.channel, include_settled=request.all)
    return wire.ListInterruptsResponse(interrupts=[interrupt_message(record) for record in found])


def list_candidates(connection: Connection, request: wire.ListCandidatesRequest) -> wire.ListCandidatesResponse:
    """Answer what agents proposed, newest first."""
    found = pages.list_candidates(connection, channel=request.channel, include_decided=request.all)
    return wire.ListCandidatesResponse(candidates=[candidate_message(candidate) for candidate in found])


def _thread_message(thread: conversation_reads.ThreadRecord) -> wire.Thread:
    newest = thread.newest
    return wire.Thread(
        thread_id=newest.thread_id,
        channel=newest.channel,
        agent=newest.agent,
        category=newest.category,
        task_name=newest.task_name,
        status=newest.status,
        turns=thread.turns,
        waiting=thread.waiting,
        first_at=stamp(thread.first_at),
        last_at=stamp(newest.started_at),
        last_turn_id=newest.turn_id,
        tokens_in=thread.tokens_in,
        tokens_out=thread.tokens_out,
    )


def _shortened(candidate: Candidate) -> wire.Candidate:
    """Return a candidate with the beginning of its body: `ListCandidates` has all of it."""
    found = candidate_message(candidate)
    if len(found.body) > LONGEST_EXCERPT:
        found.body = f"{found.body[:LONGEST_EXCERPT]}…"
    return found


def _visible_turns(connection: Connection) -> dict[str, int]:
    """Count the turns that each channel's conversation shows. (A sum over a boolean column would be a boolean.)"""
    query = select(turns.c.channel, func.count().label("number")).where(turns.c.visible).group_by(turns.c.channel)
    return {row.channel: row.number for row in connection.execute(query)}


def _first_turns(connection: Connection, fire_ids: Sequence[str]) -> frozenset[int]:
    """Return the numbers of the turns that were each the first of one of these fires."""
    query = select(func.min(turns.c.number)).where(turns.c.fire_id.in_(fire_ids)).group_by(turns.c.fire_id)
    return frozenset(connection.execute(query).scalars())
