"""`agent-runtime conversation`."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from agent_runtime.cli.reach import read, runtime
from agent_runtime.cli.rows import Row, candidate_row, channel_row, conversation_row
from agent_runtime.cli.view import hung, turn_lines
from agent_runtime.cli.words import shown
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, LimitOption, Output, OutputOption, console, note, show_rows
from turnkeeper.errors import NotFound

app = typer.Typer(help="What happened in each channel, as its author reads it.", rich_markup_mode=None)
Channel = Annotated[str, typer.Argument(help="The channel's name, as `conversation list` shows it.")]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Stay, and print what is new until Ctrl-C.")]
_PEOPLE = {Output.TABLE, Output.WIDE}
_COLUMNS = (
    Column("CHANNEL", lambda row: str(row["channel"])),
    Column("TURNS", lambda row: str(row["turns"]), right=True),
    Column("WAITING", lambda row: str(row["waiting"] or "-"), right=True),
    Column("LAST", lambda row: shown(row["last_at"])),
)


@app.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """List the channels that have a conversation, and how many decisions wait in each.

    Example: agent-runtime conversation list
    """
    channels = read("ListChannels", wire.ListChannelsRequest()).channels
    waiting = sum(channel.waiting for channel in channels)
    footer = f"{waiting} decision{'s' if waiting > 1 else ''} waiting: agent-runtime interrupts list" if waiting else ""
    rows = [channel_row(channel) for channel in channels]
    show_rows(rows, _COLUMNS, output, name_key="channel", footer=footer if rows else "no conversations yet")


@app.command("show")
def show(
    channel: Channel, follow: Follow = False, limit: LimitOption = 50, output: OutputOption = Output.TABLE
) -> None:
    """Show a channel's conversation, oldest first: what triggered each turn, what was said, called and proposed.

    A turn that waits for you shows the command that answers it. `-o wide` shows tool answers in full.

    Example: agent-runtime conversation show general --follow
    """
    found = read("GetConversation", wire.GetConversationRequest(channel=channel, limit=limit))
    turns = list(found.turns)
    if not turns and not follow:
        raise NotFound(f"no conversation in channel {channel[:80]!r}", hint="see: agent-runtime conversation list")
    if follow:
        _follow(channel, limit, output)
    elif output in _PEOPLE:
        _print(turns, _candidates(channel), wide=output is Output.WIDE)
    else:
        show_rows([conversation_row(turn) for turn in turns], (), output, name_key="turn_id")


def _print(turns: Iterable[wire.ConversationTurn], candidates: dict[str, list[Row]], *, wide: bool) -> None:
    out = console()
    for turn in turns:
        for line in turn_lines(turn, candidates.get(turn.turn_id, []), width=out.width, wide=wide):
            out.print(hung(line, out), soft_wrap=True)
        out.print()


def _follow(channel: str, limit: int, output: Output) -> None:
    """Print each turn as it comes; of a turn that changed, the lines that are new."""
    out, printed = console(), dict[str, Counter[str]]()
    caller = runtime()
    note("following; Ctrl-C ends it")
    for turn in caller.WatchConversation(wire.WatchConversationRequest(channel=channel, limit=limit)):
        if output not in _PEOPLE:
            typer.echo(json.dumps(conversation_row(turn), ensure_ascii=False))
            continue
        before = printed.get(turn.turn_id, Counter())
        lines = turn_lines(
            turn, _candidates(channel).get(turn.turn_id, []), width=out.width, wide=output is Output.WIDE
        )
        for line in lines:
            if not before[line.plain]:
                out.print(hung(line, out), soft_wrap=True)
        out.file.flush()
        printed[turn.turn_id] = before | Counter(line.plain for line in lines)


def _candidates(channel: str) -> dict[str, list[Row]]:
    """Return the channel's candidates by the turn that proposed them."""
    answer: Any = read("ListCandidates", wire.ListCandidatesRequest(channel=channel, all=True))
    by_turn = dict[str, list[Row]]()
    for candidate in answer.candidates:
        by_turn.setdefault(candidate.turn_id, []).append(candidate_row(candidate))
    return by_turn
