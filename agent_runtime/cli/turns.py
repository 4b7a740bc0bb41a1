"""`agent-runtime turns`.

`agent-runtime threads`.
"""

from typing import Annotated, Any

import typer

from agent_runtime.cli.client import Ask, change, complete_channel, pick, read
from agent_runtime.cli.rows import clipped, shown, span
from agent_runtime.model.decide import FINISHED
from agent_runtime.model.mapping import Row, to_json
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
    row = to_json(_find(turn, read))
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
    row = to_json(answer)
    show_record(row, output, name_key="turn_id", lines=_lines(row))
    if answer.status == "running":
        note("it stops at its next await")
    elif _is_over(row):
        note("it was over already, and stays as it is")


def turn_rows(request: wire.ListTurnsRequest) -> list[Row]:
    """Return the rows of the turns that are asked for."""
    answer: Any = read("ListTurns", request)
    return [to_json(turn) for turn in answer.turns]


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


threads_app = typer.Typer(help="Threads: what turns build upon, one after the other.", rich_markup_mode=None)
ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id, or the beginning of it.")]
MOST_LOOKED_AT = 1000
_COLUMNS = (
    Column("THREAD", lambda row: str(row["thread_id"])),
    Column("CHANNEL", lambda row: str(row["channel"])),
    Column("TASK", lambda row: str(row["task_name"] or "-")),
    Column("STATE", lambda row: str(row["status"])),
    Column("WAITING", lambda row: str(row["waiting"] or "-"), right=True),
    Column("TURNS", lambda row: str(row["turns"]), right=True),
    Column("LAST", lambda row: shown(row["last_at"])),
    Column("AGENT", lambda row: str(row["agent"])),
    Column("CATEGORY", lambda row: str(row["category"]), wide=True),
    Column("TOKENS", lambda row: f"{row['tokens_in'] + row['tokens_out']:,}", wide=True, right=True),
    Column("FIRST", lambda row: shown(row["first_at"]), wide=True),
    Column("LAST TURN", lambda row: str(row["last_turn_id"]), wide=True),
)


@threads_app.command("list")
def list_threads(
    channel: Annotated[
        str, typer.Option("--channel", help="Only threads of this channel.", autocompletion=complete_channel)
    ] = "",
    limit: LimitOption = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List threads, the one with the newest turn first.

    Example: agent-runtime threads list --channel general
    """
    rows = _threads(wire.ListThreadsRequest(channel=channel, limit=limit))
    waiting = sum(row["waiting"] for row in rows)
    plural = "s" if waiting > 1 else ""
    footer = f"{waiting} decision{plural} waiting: agent-runtime approvals list" if waiting else ""
    show_rows(rows, _COLUMNS, output, name_key="thread_id", footer=footer if rows else "no threads yet")


@threads_app.command("show")
def show_threads(thread: ThreadId, limit: LimitOption = 20, output: OutputOption = Output.TABLE) -> None:
    """Show a thread: where it stands, and its newest turns.

    Example: agent-runtime threads show task-5877fe71
    """
    row = _threads_find(thread)
    lines = [
        ("thread", row["thread_id"]),
        ("state", row["status"]),
        ("waiting", f"{row['waiting']}: agent-runtime approvals list" if row["waiting"] else ""),
        ("channel", row["channel"]),
        ("agent", row["agent"]),
        ("task", row["task_name"]),
        ("category", row["category"]),
        ("turns", str(row["turns"])),
        ("tokens", f"{row['tokens_in']:,} read, {row['tokens_out']:,} written"),
        ("first turn", shown(row["first_at"])),
        ("last turn", shown(row["last_at"])),
    ]
    found = turn_rows(wire.ListTurnsRequest(thread_id=row["thread_id"], limit=limit))
    whole = row | {"newest_turns": found}
    show_record(whole, output, name_key="thread_id", lines=[(key, value) for key, value in lines if value])
    if output in {Output.TABLE, Output.WIDE}:
        typer.echo()
        show_rows(found, TURN_COLUMNS, output, name_key="turn_id")
        if row["turns"] > len(found):
            note(
                f"the newest {len(found)} of {row['turns']} turns: agent-runtime turns list --thread {row['thread_id']}"
            )


def _threads_find(given: str) -> Row:
    exact = _threads(wire.ListThreadsRequest(thread_id=given))
    if exact:
        return exact[0]
    rows = {row["thread_id"]: row for row in _threads(wire.ListThreadsRequest(limit=MOST_LOOKED_AT))}
    return rows[pick(list(rows), given, "thread")]


def _threads(request: wire.ListThreadsRequest) -> list[Row]:
    answer: Any = read("ListThreads", request)
    return [to_json(thread) for thread in answer.threads]
