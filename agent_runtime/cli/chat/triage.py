"""`agent-runtime triage`: what waits for the author, one after the other."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from agent_runtime.cli.chat.changes import Change
from agent_runtime.cli.chat.commands import REFUSED, Command, Item, Waiting, parse, perform
from agent_runtime.cli.chat.render import Lines, Panels, Safe, render
from agent_runtime.cli.client import change, complete_channel
from agent_runtime.model.mapping import to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import console, note, plain
from turnkeeper.entropy import SystemEntropy

_WAYS = {
    "candidate": "[a]ccept, [r]eject why",
    "deviation": "[a]ccept what was found, [r] the page stands",
    "permission": "[a]pprove, [r]eject why, [e]dit {…}",
    "proposal": "[a]pprove, [r]eject why, [e]dit {…}",
    "question": "[t]ext of the answer",
}
_SHORT = ("a", "r", "e", "t")


def triage(
    channel: Annotated[
        str, typer.Argument(help="Only what waits in this channel.", autocompletion=complete_channel)
    ] = "",
) -> None:
    """Go through what waits for you: questions, tool calls past a category, proposals, contradictions.

    Example: agent-runtime triage general
    """
    done = left = 0
    for turn in _waiting(channel):
        waiting, item = Waiting(), _item(turn)
        waiting.update(turn)
        _show(turn, item)
        said = _ask(waiting, _WAYS[item.row["kind"] if item.kind == "interrupt" else item.kind])
        if said is None:
            note(f"{done} decided; the rest waits")
            return
        if said.item is None:
            left += 1
            continue
        came = perform(said, channel, SystemEntropy().hex(32), change)
        note(came)
        done, left = (done, left + 1) if came.startswith(REFUSED) else (done + 1, left)
    note(f"{done} decided, {left} left" if done or left else "nothing waits for you")


def _waiting(channel: str) -> Iterator[wire.ConversationTurn]:
    """Yield turns that hold one thing that waits, each."""
    asked: Any = change("ListInterrupts", wire.ListInterruptsRequest(channel=channel))
    for interrupt in asked.interrupts:
        yield wire.ConversationTurn(turn_id=interrupt.turn_id, status="interrupted", interrupts=[interrupt])
    proposed: Any = change("ListCandidates", wire.ListCandidatesRequest(channel=channel))
    for candidate in reversed(proposed.candidates):
        yield wire.ConversationTurn(turn_id=candidate.turn_id, status="succeeded", candidates=[candidate])
    found: Any = change("ListDeviations", wire.ListDeviationsRequest(channel=channel))
    for deviation in reversed(found.deviations):
        yield wire.ConversationTurn(turn_id=deviation.turn_id, status="succeeded", deviations=[deviation])


def _show(turn: wire.ConversationTurn, item: Item) -> None:
    out = console()
    cause = " · ".join(part for part in (item.row["channel"], item.row["task_name"], turn.turn_id) if part)
    layout = Panels(wide=True) if out.is_terminal else Lines(width=out.width, wide=True)
    out.print()
    if out.is_terminal:
        out.print(Safe(Text(plain(cause), "dim")))
    for block in render(Change(kind=item.kind, turn=turn), layout):
        out.print(Safe(block) if out.is_terminal else block, soft_wrap=not out.is_terminal)


def _item(turn: wire.ConversationTurn) -> Item:
    if turn.interrupts:
        return Item(kind="interrupt", row=to_json(turn.interrupts[0]))
    if turn.deviations:
        return Item(kind="deviation", row=to_json(turn.deviations[0]))
    return Item(kind="candidate", row=to_json(turn.candidates[0]))


def _ask(waiting: Waiting, ways: str) -> Command | None:
    """Return what the author decides on the one thing that waits; without an item: skip; None: leave."""
    while True:
        print(f"{ways}, Enter skips, [q]uit: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        verb, _, rest = line.strip().partition(" ")
        if not line or verb in {"q", "quit"}:
            return None
        if not verb or verb in {"s", "skip"}:
            return Command(does="nothing")
        command = (
            parse(f"{verb} 1 {rest}", waiting) if verb in _SHORT else Command(does="problem", text="a, r, e, t or q")
        )
        if command.item is not None:
            return command
        note(command.text)
