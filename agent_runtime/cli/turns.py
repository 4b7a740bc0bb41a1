"""`agent-runtime turns`."""

from typing import Annotated, Any

import typer

from agent_runtime.cli.channels import complete_channel
from agent_runtime.cli.client import Ask, change, pick, read
from agent_runtime.cli.rows import Row, turn_row
from agent_runtime.cli.words import clipped, shown, span
from agent_runtime.model.decide import FINISHED
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, LimitOption, Output, OutputOption, note, show_record, show_rows
from turnkeeper.errors import NotFound

app = typer.Typer(help="Runs of the agent, whatever started them.", rich_markup_mode=None)
TurnId = Annotated[str, typer.Argument(metavar="TURN", help="The turn's id, or the beginning of it.")]
_MOST_LOOKED_AT = 1000
TURN_COLUMNS = (
    Column("TURN", lambda row: str(row["turn_id"])),
    Column("STATUS", lambda row: str(row["status"])),
    Column("TRIGGER", lambda row: str(row["task_name"] or row["trigger"])),
    Column("CHANNEL", lambda row: str(row["channel"])),
    Column("CATEGORY", lambda row: str(row["category"])),
    Column("STARTED", lambda row: shown(row["started_at"])),
    Column("TOOK", lambda row: span(row["started_at"], row["ended_at"]), right=True),
    Column("TOKENS", lambda row: f"{row['tokens_in'] + row['tokens_out']:,}", right=True),
    Column("THREAD", lambda row: str(row["thread_id"]), wide=True),
    Column("AGENT", lambda row: str(row["agent"]), wide=True),
    Column("FIRE", lambda row: str(row["fire_id"] or "-"), wide=True),
    Column("ATTEMPT", lambda row: str(row["attempt"] or "-"), wide=True, right=True),
    Column("SUMMARY", lambda row: clipped(str(row["error"] or row["summary"]), 60)),
)


@app.command("list")
def list_(
    channel: Annotated[
        str, typer.Option("--channel", help="Only turns of this channel.", autocompletion=complete_channel)
    ] = "",
    thread: Annotated[str, typer.Option("--thread", help="Only turns of this thread.")] = "",
    status: Annotated[str, typer.Option("--status", help="Only turns that are running, interrupted, failed …")] = "",
    limit: LimitOption = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List turns, newest first.

    Example: agent-runtime turns list --status failed -n 10
    """
    request = wire.ListTurnsRequest(channel=channel, thread_id=thread, status=status, limit=limit)
    rows = turn_rows(request)
    show_rows(rows, TURN_COLUMNS, output, name_key="turn_id", footer="" if rows else "no such turns")


@app.command("show")
def show(turn: TurnId, output: OutputOption = Output.TABLE) -> None:
    """Show one turn: what started it, how it stands, and how it ended.

    Example: agent-runtime turns show turn-8ddc61
    """
    row = turn_row(_find(turn, read))
    show_record(row, output, name_key="turn_id", lines=_lines(row))


@app.command("cancel")
def cancel(
    turn: TurnId,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the turn.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel a turn: it stops at its next await, what was checkpointed stays, and its thread can go on.

    The cancel is on disk when this returns, also if the turn needs a moment to stop.

    Example: agent-runtime turns cancel turn-8ddc61 --reason "wrong prompt"
    """
    turn_id = _find(turn, change).turn_id
    answer = change("CancelTurn", wire.CancelTurnRequest(turn_id=turn_id, reason=reason))
    row = turn_row(answer)
    show_record(row, output, name_key="turn_id", lines=_lines(row))
    if answer.status == "running":
        note("it stops at its next await")
    elif _is_over(row):
        note("it was over already, and stays as it is")


def turn_rows(request: wire.ListTurnsRequest) -> list[Row]:
    """Return the rows of the turns that are asked for."""
    answer: Any = read("ListTurns", request)
    return [turn_row(turn) for turn in answer.turns]


def _find(given: str, ask: Ask) -> wire.Turn:
    try:
        exact: wire.Turn = ask("GetTurn", wire.GetTurnRequest(turn_id=given))
    except NotFound:
        newest: Any = ask("ListTurns", wire.ListTurnsRequest(limit=_MOST_LOOKED_AT)).turns
        turn_id = pick([turn.turn_id for turn in newest], given, "turn")
        found: wire.Turn = next(turn for turn in newest if turn.turn_id == turn_id)
        return found
    return exact


def _is_over(row: Row) -> bool:
    return row["status"] in FINISHED


def _lines(row: Row) -> list[tuple[str, str]]:
    cause = f"task {row['task_name']}, fire {row['fire_id']}, attempt {row['attempt']}" if row["fire_id"] else "author"
    lines = [
        ("turn", row["turn_id"]),
        ("status", row["status"] + (" (cancel requested)" if row["cancel_requested"] and not _is_over(row) else "")),
        ("started by", cause),
        ("channel", row["channel"]),
        ("thread", row["thread_id"]),
        ("agent", row["agent"]),
        ("category", row["category"]),
        ("started", shown(row["started_at"])),
        ("ended", shown(row["ended_at"])),
        ("took", span(row["started_at"], row["ended_at"])),
        ("tokens", f"{row['tokens_in']:,} read, {row['tokens_out']:,} written"),
        ("summary", row["summary"]),
        ("error", row["error"]),
    ]
    return [(key, str(value)) for key, value in lines if value]
