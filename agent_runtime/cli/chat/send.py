"""`agent-runtime send`."""

import sys
from typing import Annotated, Any

import typer

from agent_runtime.cli.client import change, complete_channel, read
from agent_runtime.cli.rows import asked, resolve_command
from agent_runtime.model.mapping import to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.clock import SystemClock
from turnkeeper.console import note, plain, status
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Denied, InvalidInput, TurnkeeperError
from turnkeeper.times import parse_duration

Channel = Annotated[
    str,
    typer.Argument(
        help="The channel to write into; a new name begins a new conversation.", autocompletion=complete_channel
    ),
]
Words = Annotated[str, typer.Argument(metavar="TEXT", help="What to say; `-` reads it from standard input.")]
Thread = Annotated[str, typer.Option("--thread", help="Continue this thread instead of the newest turn's.")]
New = Annotated[bool, typer.Option("--new", help="Begin a new thread.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")]
Patience = Annotated[str, typer.Option("--timeout", help="How long --wait waits at most.")]
_POLL_S = 0.1
_ENDED = frozenset({"succeeded", "silent", "failed", "cancelled"})
_WAITING = frozenset({"interrupted", "paused"})
_KEPT = "kept"  # taken, and put aside until the thread's questions are answered


def send(
    channel: Channel, text: Words, thread: Thread = "", new: New = False, wait: Wait = False, timeout: Patience = "10m"
) -> None:
    """Say something in a channel's conversation. It continues the thread of the newest turn there.

    With --wait the exit code is 0 when the turn ended well, 1 when it failed or was cancelled, and 7 when it waits for
    your decision.

    Example: agent-runtime send general "When was the pump replaced?" --wait
    """
    if thread and new:
        raise InvalidInput("--thread and --new exclude each other", where="thread")
    patience_s = parse_duration(timeout, field="--timeout").total_seconds()
    words = sys.stdin.read() if text == "-" else text
    request = wire.SendMessageRequest(
        channel=channel, text=words, thread_id=thread, new_thread=new, request_id=SystemEntropy().hex(32)
    )
    sent = change("SendMessage", request)
    note(f"{'continues' if sent.continues else 'begins'} thread {sent.thread_id} as {sent.turn_id}")
    if sent.takes_over:
        note(f"this takes over {sent.takes_over}, which paced itself there: it ends")
    if sent.pending_interrupts:
        count = len(sent.pending_interrupts)
        note(f"{count} decision{'s' if count > 1 else ''} waiting on this thread: agent-runtime approvals list")
    if wait:
        with status("waiting for the answer"):
            turn = _await(sent.turn_id, patience_s)
        _print_answer(channel, turn)


def _await(turn_id: str, patience_s: float) -> wire.Turn:
    """Return the turn once it has ended or waits for the author.

    Raises:
        Denied: the thread waits for the author first, and the turn does not begin before that.
        TurnkeeperError: it took too long; the turn goes on.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + patience_s
    while clock.monotonic() < deadline:
        turn: wire.Turn = change("GetTurn", wire.GetTurnRequest(turn_id=turn_id))
        if turn.status in _ENDED | _WAITING:
            return turn
        if turn.status == _KEPT:
            raise Denied(turn.summary, hint="see: agent-runtime approvals list, or turns list --status paused")
        clock.block(_POLL_S)
    hint = f"see: agent-runtime turns show {turn_id}"
    raise TurnkeeperError(f"no answer within {patience_s:.0f} s; the turn goes on", hint=hint)


def _print_answer(channel: str, turn: wire.Turn) -> None:
    found: Any = read("GetConversation", wire.GetConversationRequest(channel=channel or turn.channel, limit=50))
    rows = [to_json(one) for one in found.turns if one.turn_id == turn.turn_id]
    for message in (message for row in rows for message in row["messages"] if message["role"] == "agent"):
        if message["text"].strip():
            typer.echo(plain(message["text"].strip()))
    if turn.status in {"failed", "cancelled"}:
        raise TurnkeeperError(f"the turn {turn.status}: {turn.error or 'no reason is recorded'}", where=turn.turn_id)
    if turn.status in _WAITING:
        pending = [one for row in rows for one in row["interrupts"] if one["status"] == "pending"]
        what = "; ".join(asked(one) for one in pending) or turn.status
        hint = f"answer with: {resolve_command(pending[0])}" if pending else "see: agent-runtime approvals list"
        raise Denied(f"the turn waits for you: {what}", hint=hint)
