"""`agent-runtime revalidation`."""

from typing import Annotated

import typer

from agent_runtime.cli.client import read
from agent_runtime.cli.rows import item_row
from agent_runtime.cli.words import clipped, shown
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, LimitOption, Output, OutputOption, show_rows

app = typer.Typer(help="Pages whose sources changed, to be held against them.", rich_markup_mode=None)
_COLUMNS = (
    Column("ITEM", lambda row: str(row["item_id"])),
    Column("PAGE", lambda row: str(row["page_id"])),
    Column("BECAUSE OF", lambda row: f"{row['cause']}@{row['cause_version']}"),
    Column("THROUGH", lambda row: "-" if row["via"] == row["cause"] else str(row["via"])),
    Column("QUEUED", lambda row: shown(row["queued_at"])),
    Column("STATE", lambda row: str(row["result"] or row["state"])),
    Column("TURN", lambda row: str(row["turn_id"] or "-"), wide=True),
    Column("SETTLED", lambda row: shown(row["settled_at"]), wide=True),
    Column("NOTE", lambda row: clipped(str(row["note"]), 60), wide=True),
)


@app.command("list")
def list_(
    page: Annotated[str, typer.Option("--page", help="Only what is about this page, or because of it.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also what waits no more, and its result.")] = False,
    limit: LimitOption = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the pages that wait to be held against a source that changed, those that wait longest first.

    A task of the category re-validation-walk walks this queue.

    Example: agent-runtime revalidation list
    """
    request = wire.ListRevalidationRequest(page_id=page, all=everything, limit=limit)
    answer = read("ListRevalidation", request)
    rows = [item_row(item) for item in answer.items]
    footer = f"{answer.waiting} waiting" if answer.waiting else "nothing waits"
    show_rows(rows, _COLUMNS, output, name_key="item_id", footer=footer)
