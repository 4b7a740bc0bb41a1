"""`agent-runtime deviations`.

`agent-runtime revalidation`.
"""

from typing import Annotated, Any

import typer

from agent_runtime.cli.client import Ask, change, pick, read
from agent_runtime.cli.rows import clipped, shown
from agent_runtime.model.mapping import Row, to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, LimitOption, Output, OutputOption, note, show_record, show_rows
from turnkeeper.errors import InvalidInput

app = typer.Typer(help="Where something contradicts a canonical page. Only you close one.", rich_markup_mode=None)
DeviationId = Annotated[str, typer.Argument(metavar="ID", help="The deviation's id, or the beginning of it.")]
_COLUMNS = (
    Column("ID", lambda row: str(row["deviation_id"])),
    Column("PAGE", lambda row: f"{row['page_id']}@{row['page_version']}"),
    Column("CHANNEL", lambda row: str(row["channel"])),
    Column("FROM", lambda row: str(row["task_name"] or row["turn_id"])),
    Column("RECORDED", lambda row: shown(row["created_at"])),
    Column("STATE", lambda row: str(row["lifecycle"])),
    Column("KIND", lambda row: str(row["kind"]), wide=True),
    Column("ORIGIN", lambda row: str(row["origin"]), wide=True),
    Column("TURN", lambda row: str(row["turn_id"]), wide=True),
    Column("CANDIDATE", lambda row: str(row["candidate_id"] or "-"), wide=True),
    Column("FOUND", lambda row: clipped(str(row["found"]), 60)),
)


@app.command("list")
def list_(
    channel: Annotated[str, typer.Option("--channel", help="Only those of this channel.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that are decided.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List where something contradicts a canonical page and you have not decided, newest first.

    Example: agent-runtime deviations list --channel general
    """
    answer = read("ListDeviations", wire.ListDeviationsRequest(channel=channel, all=everything))
    rows = [to_json(deviation) for deviation in answer.deviations]
    undecided = sum(row["lifecycle"] == "open" for row in rows)
    decide = "agent-runtime deviations resolve ID --keep-canonical|--accept"
    footer = f"{undecided} open; decide with: {decide}" if undecided else "no deviation is open"
    show_rows(rows, _COLUMNS, output, name_key="deviation_id", footer=footer)


@app.command("show")
def show(deviation: DeviationId, output: OutputOption = Output.TABLE) -> None:
    """Show a deviation in full: what the page says, what contradicts it, and where that stands.

    Example: agent-runtime deviations show d-3f2a
    """
    _show(_find(deviation, read), output)


@app.command("resolve")
def resolve(
    deviation: DeviationId,
    keep_canonical: Annotated[bool, typer.Option("--keep-canonical", help="The page stands as it is.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="What was found is right; the candidate it is about is accepted, too.")
    ] = False,
    note_: Annotated[str, typer.Option("--note", help="Kept with the decision.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Close a deviation. Agents record them and cannot close one.

    Accepting one that no candidate is about changes no page: put the page yourself.

    Example: agent-runtime deviations resolve d-3f2a --keep-canonical --note "the source is out of date"
    """
    if keep_canonical == accept:
        raise InvalidInput("wants exactly one of --keep-canonical and --accept", where="deviations resolve")
    found = _find(deviation, change)
    request = wire.ResolveDeviationRequest(deviation_id=found["deviation_id"], accept=accept, note=note_)
    row = to_json(change("ResolveDeviation", request))
    _show(row, output)
    if accept and not row["candidate_id"] and output in {Output.TABLE, Output.WIDE}:
        note(f"no page is changed by this; write it: agent-runtime workspace put {row['page_id']} --file FILE")


def _find(given: str, ask: Ask) -> Row:
    answer: Any = ask("ListDeviations", wire.ListDeviationsRequest(all=True))
    rows = {deviation.deviation_id: to_json(deviation) for deviation in answer.deviations}
    return rows[pick(list(rows), given, "deviation")]


def _show(row: Row, output: Output) -> None:
    lines = [
        ("deviation", row["deviation_id"]),
        ("kind", row["kind"]),
        ("page", f"{row['page_id']}@{row['page_version']}"),
        ("says", row["says"]),
        ("found", row["found"]),
        ("in", row["source"] or row["candidate_id"]),
        ("why", row["why"]),
        ("candidate", row["candidate_id"]),
        ("state", row["lifecycle"]),
        ("origin", row["origin"]),
        ("channel", row["channel"]),
        ("turn", row["turn_id"]),
        ("task", row["task_name"]),
        ("recorded", shown(row["created_at"])),
        ("decided", shown(row["decided_at"]) if row["decided_at"] else ""),
        ("note", row["note"]),
    ]
    show_record(row, output, name_key="deviation_id", lines=[(key, value) for key, value in lines if value])


revalidation_app = typer.Typer(help="Pages whose sources changed, to be held against them.", rich_markup_mode=None)
_REVALIDATION_COLUMNS = (
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


@revalidation_app.command("list")
def list_revalidation(
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
    rows = [to_json(item) for item in answer.items]
    footer = f"{answer.waiting} waiting" if answer.waiting else "nothing waits"
    show_rows(rows, _REVALIDATION_COLUMNS, output, name_key="item_id", footer=footer)
