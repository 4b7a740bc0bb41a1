"""The command that imports the threads of an author's own LangGraph program."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_runtime.cli.client import PROCESS, runtime
from agent_runtime.model.mapping import to_json
from agent_runtime.service.threads import import_alone, read_only
from turnkeeper.console import Output, OutputOption, named_home, note, show_rows
from turnkeeper.console.lists import columns
from turnkeeper.errors import Unreachable
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.v1 import agent_runtime_pb2 as wire

LONGEST_IMPORT_S = 600.0
_IMPORTED = columns(
    "THREAD=thread_id CHANNEL STATE #TURNS #CHECKPOINTS WAITS", waits=lambda row: "for you" if row["waits"] else "-"
)


def import_threads(request: Any) -> Any:
    """Import threads: through the daemon, or into the store if the daemon does not run."""
    place = named_home()
    if request.dry_run and not place.agent_db.exists():
        return read_only(request)
    try:
        with closing(runtime()) as caller:
            return caller.ImportThreads(request, deadline_s=LONGEST_IMPORT_S)
    except Unreachable:
        with ProcessLock(place, PROCESS):
            return asyncio.run(import_alone(place, request))


def add(app: typer.Typer) -> None:
    """Add the command to the group of threads."""
    app.command("import")(import_)


def import_(
    file: Annotated[Path, typer.Argument(help="A checkpoints.sqlite, as langgraph-checkpoint-sqlite writes it.")],
    thread: Annotated[list[str] | None, typer.Option(help="Only the thread with this id; may be repeated.")] = None,
    channel: Annotated[str, typer.Option(help="Their channel; default: for each thread a channel with its id.")] = "",
    category: Annotated[str, typer.Option(help="Category of their turns; default conversation.")] = "",
    graph: Annotated[str, typer.Option(help="Their graph; default: the default graph.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Only show what would be imported.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Import the threads of your own LangGraph program with their history: all of them, or none.

    The file is only read. A second import changes nothing; it is refused if a thread has continued in the file since.

    Example: turnkeeper threads import ./checkpoints.sqlite
    """
    path = str(file.expanduser().absolute())
    request = wire.ImportThreadsRequest(
        path=path, thread_ids=thread or (), channel=channel, category=category, graph=graph, dry_run=dry_run
    )
    found = [to_json(one) for one in import_threads(request).threads]
    waiting = [row["channel"] for row in found if row["waits"] and row["state"] == "imported"]
    footer = "" if found else "the file has no threads"
    if found:
        see = f"see: turnkeeper conversation show {found[0]['channel']}"
        footer = "nothing was written: this is a dry run" if dry_run else see
    show_rows(found, _IMPORTED, output, name_key="thread_id", footer=footer)
    if waiting and not dry_run:
        note(f"waiting for you: {len(waiting)}; see: turnkeeper approvals list")
