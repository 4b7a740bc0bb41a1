"""`agent-runtime conversation`."""

import sys
from typing import Annotated

import typer

from agent_runtime.cli.chat.follow import Following, follow_on_terminal
from agent_runtime.cli.chat.screen import JsonView, LineView, Screen, View
from agent_runtime.cli.client import complete_channel, read
from agent_runtime.cli.rows import FOR_PEOPLE, shown, waiting_line
from agent_runtime.model.mapping import to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, LimitOption, Output, OutputOption, console, note, show_rows
from turnkeeper.errors import NotFound

app = typer.Typer(help="What happened in each channel, as its author reads it.", rich_markup_mode=None)
Channel = Annotated[
    str, typer.Argument(help="The channel's name, as `conversation list` shows it.", autocompletion=complete_channel)
]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Stay, and print what is new until Ctrl-C.")]
LONGEST_WAIT_S = 3600.0
_COLUMNS = (
    Column("CHANNEL", lambda row: str(row["channel"])),
    Column("TURNS", lambda row: str(row["turns"]), right=True),
    Column("WAITING", lambda row: str(row["waiting"] or "-"), right=True),
    Column("PROPOSED", lambda row: str(row["proposed"] or "-"), right=True),
    Column("DEVIATIONS", lambda row: str(row["deviations"] or "-"), right=True),
    Column("LAST", lambda row: shown(row["last_at"])),
)


@app.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """List the channels that have a conversation, and how many decisions wait in each.

    Example: agent-runtime conversation list
    """
    channels = read("ListChannels", wire.ListChannelsRequest()).channels
    rows = [to_json(channel) for channel in channels]
    counts = {name: sum(row[name] for row in rows) for name in ("waiting", "proposed", "deviations")}
    footer = waiting_line(**counts)
    show_rows(rows, _COLUMNS, output, name_key="channel", footer=footer if rows else "no conversations yet")


@app.command("show")
def show(
    channel: Channel, follow: Follow = False, limit: LimitOption = 50, output: OutputOption = Output.TABLE
) -> None:
    """Show a channel's conversation, oldest first: what triggered each turn, what was said, called and proposed.

    A turn that waits for you shows the command that answers it. `-o wide` shows tool answers in full.

    Example: agent-runtime conversation show general --follow
    """
    if follow:
        follow_channel(channel, limit, output)
        return
    found = read("GetConversation", wire.GetConversationRequest(channel=channel, limit=limit))
    turns = list(found.turns)
    if not turns:
        raise NotFound(f"no conversation in channel {channel[:80]!r}", hint="see: agent-runtime conversation list")
    if output in FOR_PEOPLE:
        out, wide = console(), output is Output.WIDE
        view: View = Screen(out, wide=wide) if out.is_terminal else LineView(out, wide=wide)
        for turn in turns:
            view.take(turn)
        _tell_more(channel, len(turns))
    else:
        show_rows([to_json(turn) for turn in turns], (), output, name_key="turn_id")


def _tell_more(channel: str, shown_: int) -> None:
    """Say when there is more than was shown."""
    channels = read("ListChannels", wire.ListChannelsRequest()).channels
    there = next((one.turns for one in channels if one.name == channel), 0)
    if there > shown_:
        note(f"the newest {shown_} of {there} turns; -n {min(there, 1000)} shows more")


def follow_channel(channel: str, limit: int, output: Output) -> None:
    """Print each turn as it comes, and what is new of it, until Ctrl-C."""
    people = output in FOR_PEOPLE
    if people and console().is_terminal and not console().is_dumb_terminal:
        follow_on_terminal(channel, limit=limit, wide=output is Output.WIDE)
        return
    following = Following(channel, limit=limit, live=people)
    following.start()
    note("following; Ctrl-C ends it")
    view: View = LineView(console(), wide=output is Output.WIDE) if people else JsonView()
    while True:
        following.show(view, LONGEST_WAIT_S)
        sys.stdout.flush()
