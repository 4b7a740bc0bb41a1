"""`agent-runtime candidates`."""

from collections.abc import Sequence
from difflib import unified_diff
from typing import Annotated, Any

import typer
from rich.text import Text

from agent_runtime.cli.client import Ask, change, pick, read
from agent_runtime.cli.rows import clipped, shown
from agent_runtime.model.mapping import Row, to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, Output, OutputOption, console, note, plain, show_record, show_rows
from turnkeeper.errors import InvalidInput, NotFound

app = typer.Typer(help="What agents proposed. Only you make it canonical.", rich_markup_mode=None)
CandidateId = Annotated[str, typer.Argument(metavar="ID", help="The candidate's id, or the beginning of it.")]
Note = Annotated[str, typer.Option("--note", help="Kept with the decision.")]
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_COLUMNS = (
    Column("ID", lambda row: str(row["candidate_id"])),
    Column("KIND", lambda row: str(row["kind"]).removeprefix("candidate-")),
    Column("CHANNEL", lambda row: str(row["channel"])),
    Column("FROM", lambda row: str(row["task_name"] or row["turn_id"])),
    Column("PROPOSED", lambda row: shown(row["created_at"])),
    Column("LIFECYCLE", lambda row: str(row["lifecycle"])),
    Column("ORIGIN", lambda row: str(row["origin"]), wide=True),
    Column("TURN", lambda row: str(row["turn_id"]), wide=True),
    Column("TITLE", lambda row: clipped(str(row["title"]), 60)),
)


@app.command("list")
def list_(
    channel: Annotated[str, typer.Option("--channel", help="Only those of this channel.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that are decided.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what agents proposed and you have not decided, newest first.

    Example: agent-runtime candidates list --channel general
    """
    answer = read("ListCandidates", wire.ListCandidatesRequest(channel=channel, all=everything))
    rows = [to_json(candidate) for candidate in answer.candidates]
    footer = "decide with: agent-runtime candidates accept|reject ID" if rows else "nothing is proposed"
    show_rows(rows, _COLUMNS, output, name_key="candidate_id", footer=footer)


@app.command("show")
def show(candidate: CandidateId, output: OutputOption = Output.TABLE) -> None:
    """Show a candidate in full, with the turn it came from.

    Example: agent-runtime candidates show c-3f2a
    """
    row = _find(candidate, read)
    about: Any = read("ListDeviations", wire.ListDeviationsRequest())
    _show(row, output, [one for one in about.deviations if one.candidate_id == row["candidate_id"]])


@app.command("diff")
def diff(candidate: CandidateId) -> None:
    """Show what a proposed page would change about the page as it is now; a new page is new throughout.

    Example: agent-runtime candidates diff c-3f2a
    """
    row = _find(candidate, read)
    if not row["page_id"]:
        raise InvalidInput(
            f"candidate {row['candidate_id']} is a summary, which changes no page", where="candidates diff"
        )
    try:
        page = to_json(read("GetPage", wire.GetPageRequest(page_id=row["page_id"])))
    except NotFound:
        page = {"body": "", "version": 0}
    names = (f"{row['page_id']}@{page['version']}", str(row["candidate_id"]))
    lines = unified_diff(page["body"].splitlines(), row["body"].splitlines(), *names, lineterm="")
    for line in lines:
        console().print(Text(plain(line), _COLOURS.get(line[:1], "")), soft_wrap=True)
    if page["version"] != row["base_version"]:
        note(f"made from version {row['base_version']}: the page has changed since, and this cannot be accepted")


@app.command("accept")
def accept(candidate: CandidateId, note: Note = "", output: OutputOption = Output.TABLE) -> None:
    """Accept a candidate: a page becomes canonical in the workspace, a summary in its channel.

    Refused with exit code 4 if the page has changed since it was proposed.

    Example: agent-runtime candidates accept c-3f2a
    """
    _decide(candidate, accept=True, note=note, output=output)


@app.command("reject")
def reject(candidate: CandidateId, note: Note = "", output: OutputOption = Output.TABLE) -> None:
    """Reject a candidate. It stays on record and never becomes part of the workspace.

    Example: agent-runtime candidates reject c-3f2a --note "too long"
    """
    _decide(candidate, accept=False, note=note, output=output)


def _decide(given: str, *, accept: bool, note: str, output: Output) -> None:
    request = wire.DecideCandidateRequest(candidate_id=_find(given, change)["candidate_id"], accept=accept, note=note)
    _show(to_json(change("DecideCandidate", request)), output)


def _find(given: str, ask: Ask) -> Row:
    answer: Any = ask("ListCandidates", wire.ListCandidatesRequest(all=True))
    rows = {candidate.candidate_id: to_json(candidate) for candidate in answer.candidates}
    return rows[pick(list(rows), given, "candidate")]


def _show(row: Row, output: Output, contradicted: Sequence[wire.Deviation] = ()) -> None:
    told = [f"{one.deviation_id}  {one.page_id}: “{one.says}” / “{one.found}”" for one in contradicted]
    lines = [
        ("candidate", row["candidate_id"]),
        ("kind", row["kind"]),
        ("channel", row["channel"]),
        ("title", row["title"]),
        ("lifecycle", row["lifecycle"]),
        ("origin", row["origin"]),
        ("turn", row["turn_id"]),
        ("task", row["task_name"]),
        ("proposed", shown(row["created_at"])),
        ("decided", shown(row["decided_at"]) if row["decided_at"] else ""),
        ("note", row["note"]),
        ("page", f"{row['page_id']}, from version {row['base_version']}" if row["page_id"] else ""),
        ("sources", "\n".join(row["sources"])),
        ("deviations", "\n".join(told)),
        ("body", row["body"]),
    ]
    show_record(row, output, name_key="candidate_id", lines=[(key, value) for key, value in lines if value])
