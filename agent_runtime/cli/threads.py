"""`agent-runtime threads`."""

from typing import Annotated, Any

import typer

from agent_runtime.cli.channels import complete_channel
from agent_runtime.cli.client import pick, read
from agent_runtime.cli.rows import Row, thread_row
from agent_runtime.cli.turns import TURN_COLUMNS, turn_rows
from agent_runtime.cli.words import shown
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, LimitOption, Output, OutputOption, note, show_record, show_rows

app = typer.Typer(help="Threads: what turns build upon, one after the other.", rich_markup_mode=None)
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


@app.command("list")
def list_(
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
    footer = f"{waiting} decision{plural} waiting: agent-runtime interrupts list" if waiting else ""
    show_rows(rows, _COLUMNS, output, name_key="thread_id", footer=footer if rows else "no threads yet")


@app.command("show")
def show(thread: ThreadId, limit: LimitOption = 20, output: OutputOption = Output.TABLE) -> None:
    """Show a thread: where it stands, and its newest turns.

    Example: agent-runtime threads show task-5877fe71
    """
    row = _find(thread)
    lines = [
        ("thread", row["thread_id"]),
        ("state", row["status"]),
        ("waiting", f"{row['waiting']}: agent-runtime interrupts list" if row["waiting"] else ""),
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


def _find(given: str) -> Row:
    exact = _threads(wire.ListThreadsRequest(thread_id=given))
    if exact:
        return exact[0]
    rows = {row["thread_id"]: row for row in _threads(wire.ListThreadsRequest(limit=MOST_LOOKED_AT))}
    return rows[pick(list(rows), given, "thread")]


def _threads(request: wire.ListThreadsRequest) -> list[Row]:
    answer: Any = read("ListThreads", request)
    return [thread_row(thread) for thread in answer.threads]
