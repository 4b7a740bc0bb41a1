"""The commands `turnkeeper candidates`, `deviations` and `revalidation`: the author's review of proposals."""

from collections.abc import Mapping, Sequence
from difflib import unified_diff
from typing import Annotated, Any

import typer
from rich.text import Text

from agent_runtime.cli.client import Ask, change, complete_channel, find, read, rows
from agent_runtime.cli.rows import FOR_PEOPLE, clipped
from agent_runtime.model.mapping import Row, to_json
from turnkeeper import console as terminal
from turnkeeper.console import Output, OutputOption, console, note, show_record
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, lines_of, listing
from turnkeeper.console.unseen import plain, waiting_line
from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.v1 import agent_runtime_pb2 as wire

app = App("Changes that agents propose to the workspace; the workspace changes only when you accept one.")
deviations_app = App("Contradictions between one of your pages and another statement; only you close one.")
revalidation_app = App("Pages to check again, because one of their sources has changed.")
CandidateId = Annotated[str, typer.Argument(metavar="ID", help="The candidate's id, or the beginning of it.")]
DeviationId = Annotated[str, typer.Argument(metavar="ID", help="The deviation's id, or the beginning of it.")]
OfChannel = Annotated[
    str, typer.Option("--channel", help="Show only the items of this channel.", autocompletion=complete_channel)
]
AlsoDecided = Annotated[bool, typer.Option("--all", help="Also show decided items.")]
Note = Annotated[str, typer.Option("--note", help="A note to store with the decision.")]
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def _began_by(row: Mapping[str, Any]) -> str:
    return str(row["task_name"] or row["turn_id"])


_CANDIDATES = columns(
    "ID=candidate_id KIND CHANNEL FROM=task_name PROPOSED=created_at LIFECYCLE +ORIGIN +TURN=turn_id TITLE",
    kind=lambda row: str(row["kind"]).removeprefix("candidate-"),
    task_name=_began_by,
    title=lambda row: clipped(str(row["title"]), 60),
)
_DEVIATIONS = columns(
    "ID=deviation_id PAGE=page_id CHANNEL FROM=task_name RECORDED=created_at STATE=lifecycle +KIND +ORIGIN "
    "+TURN=turn_id +CANDIDATE=candidate_id FOUND",
    page_id=lambda row: f"{row['page_id']}@{row['page_version']}",
    task_name=_began_by,
    found=lambda row: clipped(str(row["found"]), 60),
)
_ITEMS = columns(
    "ITEM=item_id PAGE=page_id BECAUSE_OF=cause THROUGH=via QUEUED=queued_at STATE +TURN=turn_id +SETTLED=settled_at "
    "+NOTE",
    cause=lambda row: f"{row['cause']}@{row['cause_version']}",
    via=lambda row: "-" if row["via"] == row["cause"] else str(row["via"]),
    state=lambda row: str(row["result"] or row["state"]),
    note=lambda row: clipped(str(row["note"]), 60),
)


@app.command("list")
@listing(_CANDIDATES, "candidate_id")
def list_candidates(
    channel: OfChannel = "", everything: AlsoDecided = False, status: terminal.StatusOption = "", **page: Any
) -> Listed:
    """List the candidates that you have not decided, newest first.

    Example: turnkeeper candidates list --channel general
    """
    request = wire.ListCandidatesRequest(channel=channel, all=everything, status=status, **page)
    answer = read(request)
    found = [to_json(one) for one in answer.candidates]
    footer = "decide with: turnkeeper candidates accept|reject ID" if found else "no candidate is open"
    return Listed(found, footer, answer)


@app.command("show")
def show_candidate(candidate: CandidateId, output: OutputOption = Output.TABLE) -> None:
    """Show a candidate in full, with the turn that proposed it.

    Example: turnkeeper candidates show c-3f2a
    """
    row = _candidate(candidate, read)
    about = rows(read, wire.ListDeviationsRequest())
    _show_candidate(row, output, [one for one in about if one["candidate_id"] == row["candidate_id"]])


@app.command("diff")
def diff(candidate: CandidateId) -> None:
    """Show what a proposed page would change in the current page; in a new page, everything is new.

    Example: turnkeeper candidates diff c-3f2a
    """
    row = _candidate(candidate, read)
    if not row["page_id"]:
        what = f"candidate {row['candidate_id']} is a summary, which changes no page"
        raise InvalidInput(what, where="candidates diff")
    try:
        page = to_json(read(wire.GetPageRequest(page_id=row["page_id"])))
    except NotFound:
        page = {"body": "", "version": 0}
    names = (f"{row['page_id']}@{page['version']}", str(row["candidate_id"]))
    for line in unified_diff(page["body"].splitlines(), row["body"].splitlines(), *names, lineterm=""):
        console().print(Text(plain(line), _COLOURS.get(line[:1], "")), soft_wrap=True)
    if page["version"] != row["base_version"]:
        note(f"made from version {row['base_version']}: the page has changed since, so it cannot be accepted")


@app.command("accept")
def accept(candidate: CandidateId, note: Note = "", output: OutputOption = Output.TABLE) -> None:
    """Accept a candidate: a page becomes part of the workspace, a summary is marked as accepted in its channel.

    An accepted page is called canonical: agents read it as yours.

    The command fails with exit code 4 if the page has changed since the candidate was proposed.

    Example: turnkeeper candidates accept c-3f2a
    """
    _decide(candidate, accept=True, note=note, output=output)


@app.command("reject")
def reject(candidate: CandidateId, note: Note = "", output: OutputOption = Output.TABLE) -> None:
    """Reject a candidate. The candidate stays on record and never becomes part of the workspace.

    Example: turnkeeper candidates reject c-3f2a --note "too long"
    """
    _decide(candidate, accept=False, note=note, output=output)


def _decide(given: str, *, accept: bool, note: str, output: Output) -> None:
    candidate_id = _candidate(given, change)["candidate_id"]
    request = wire.DecideCandidateRequest(candidate_id=candidate_id, accept=accept, note=note)
    _show_candidate(to_json(change(request)), output)


def _candidate(given: str, ask: Ask) -> Row:
    found = rows(ask, wire.ListCandidatesRequest(all=True))
    return find(found, "candidate_id", given, "candidate")


def _show_candidate(row: Row, output: Output, contradicted: Sequence[Row] = ()) -> None:
    about = [f"{one['deviation_id']}  {one['page_id']}: “{one['says']}” / “{one['found']}”" for one in contradicted]
    lines = lines_of(
        row,
        "candidate=candidate_id kind channel title lifecycle origin turn=turn_id task=task_name proposed=created_at "
        "decided=decided_at note page sources deviations body",
        page=f"{row['page_id']}, from version {row['base_version']}" if row["page_id"] else "",
        deviations="\n".join(about),
    )
    show_record(row, output, name_key="candidate_id", lines=lines)


@deviations_app.command("list")
@listing(_DEVIATIONS, "deviation_id")
def list_deviations(
    channel: OfChannel = "", everything: AlsoDecided = False, status: terminal.StatusOption = "", **page: Any
) -> Listed:
    """List the open deviations: contradictions of pages that you have not decided, newest first.

    Example: turnkeeper deviations list --channel general
    """
    request = wire.ListDeviationsRequest(channel=channel, all=everything, status=status, **page)
    answer = read(request)
    found = [to_json(one) for one in answer.deviations]
    undecided = sum(row["lifecycle"] == "open" for row in found)
    decide = "turnkeeper deviations resolve ID --keep-canonical|--accept"
    return Listed(found, f"{undecided} open; decide with: {decide}" if undecided else "no deviation is open", answer)


@deviations_app.command("show")
def show_deviation(deviation: DeviationId, output: OutputOption = Output.TABLE) -> None:
    """Show a deviation in full: the statement of the page, the contradiction, and where it was found.

    Example: turnkeeper deviations show d-3f2a
    """
    _show_deviation(_deviation(deviation, read), output)


@deviations_app.command("resolve")
def resolve(
    deviation: DeviationId,
    keep_canonical: Annotated[bool, typer.Option(help="Keep the page unchanged.")] = False,
    accept: Annotated[
        bool, typer.Option(help="The finding is right; also accept the candidate of the deviation, if any.")
    ] = False,
    note_: Note = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Close a deviation. Agents record deviations but cannot close them.

    If no candidate belongs to the deviation, accepting it changes no page, so write the page yourself.

    Example: turnkeeper deviations resolve d-3f2a --keep-canonical --note "the source is out of date"
    """
    if keep_canonical == accept:
        raise InvalidInput("give exactly one of --keep-canonical and --accept", where="deviations resolve")
    deviation_id = _deviation(deviation, change)["deviation_id"]
    request = wire.ResolveDeviationRequest(deviation_id=deviation_id, accept=accept, note=note_)
    row = to_json(change(request))
    _show_deviation(row, output)
    if accept and not row["candidate_id"] and output in FOR_PEOPLE:
        note(f"this changes no page; to write the page: turnkeeper workspace put {row['page_id']} --file FILE")


def _deviation(given: str, ask: Ask) -> Row:
    found = rows(ask, wire.ListDeviationsRequest(all=True))
    return find(found, "deviation_id", given, "deviation")


def _show_deviation(row: Row, output: Output) -> None:
    lines = lines_of(
        row,
        "deviation=deviation_id kind page says found in why candidate=candidate_id state=lifecycle origin channel "
        "turn=turn_id task=task_name recorded=created_at decided=decided_at note",
        **{"page": f"{row['page_id']}@{row['page_version']}", "in": row["source"] or row["candidate_id"]},
    )
    show_record(row, output, name_key="deviation_id", lines=lines)


@revalidation_app.command("list")
@listing(_ITEMS, "item_id", limit=50)
def list_revalidation(
    page: Annotated[str, typer.Option(help="Only items about this page or caused by it.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also show finished items, with results.")] = False,
    status: terminal.StatusOption = "",
    **cut: Any,
) -> Listed:
    """List the pages that wait for comparison with a changed source; the longest waiting pages come first.

    A task of the category re-validation-walk works through this queue.

    Example: turnkeeper revalidation list
    """
    request = wire.ListRevalidationRequest(page_id=page, all=everything, status=status, **cut)
    answer = read(request)
    footer = f"{answer.waiting} waiting" if answer.waiting else "nothing waits"
    return Listed([to_json(item) for item in answer.items], footer, answer)


def waiting(channel: str) -> str:
    """Return a line about the proposals and contradictions that wait, of one channel or of all; empty if none wait."""
    found = [one for one in read(wire.ListChannelsRequest()).channels if channel in {"", one.name}]
    proposed, deviations = (sum(getattr(one, name) for one in found) for name in ("proposed", "deviations"))
    return waiting_line(waiting=0, proposed=proposed, deviations=deviations)
