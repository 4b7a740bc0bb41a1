"""`agent-runtime workspace`: pages and their attachments."""

import mimetypes
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.cli.client import change, read
from agent_runtime.cli.rows import FOR_PEOPLE, lines_of, shown
from agent_runtime.cli.workspace.import_pages import LARGEST_FILE, heading, import_, parse
from agent_runtime.model.mapping import Row, to_json
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, Output, OutputOption, note, plain, show_record, show_rows
from turnkeeper.errors import Conflict, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.storage.files import SystemFiles

LARGEST = 2 * 1024 * 1024
PageId = Annotated[str, typer.Argument(metavar="PAGE", help="The page of the attachment.")]
_TEXT, _BYTES = "text/plain", "application/octet-stream"
_COLUMNS = (
    Column("NAME", lambda row: str(row["name"])),
    Column("TYPE", lambda row: str(row["content_type"])),
    Column("BYTES", lambda row: str(row["size"]), right=True),
    Column("ADDED", lambda row: shown(row["added_at"])),
    Column("ORIGIN", lambda row: str(row["origin"])),
    Column("SHA-256", lambda row: str(row["sha256"]), wide=True),
)


def attach(
    page: PageId,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="At most 2 MiB.")],
    name: Annotated[str, typer.Option("--name", help="The attachment's name; by default the file's.")] = "",
    content_type: Annotated[
        str, typer.Option("--type", help="A content type such as text/csv; by default it follows from the file's name.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Attach a file to a page, as its author. An attachment of the same name is replaced.

    Example: agent-runtime workspace attach garden plots.csv
    """
    row = to_json(change("PutAttachment", read_file(page, file, name=name, content_type=content_type)))
    if output in FOR_PEOPLE:
        note(f"{row['name']} is attached to {row['page_id']}: {row['content_type']}, {row['size']} bytes")
    else:
        show_record(row, output, name_key="name", lines=[])


def attachments(page: PageId, output: OutputOption = Output.TABLE) -> None:
    """List the attachments of a page.

    Example: agent-runtime workspace attachments garden
    """
    found = read("ListAttachments", wire.ListAttachmentsRequest(page_id=page)).attachments
    rows = [to_json(one) for one in found]
    footer = "" if rows else f"it has no attachments; to add one: agent-runtime workspace attach {page} FILE"
    show_rows(rows, _COLUMNS, output, name_key="name", footer=footer)


def attachment(
    page: PageId,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The attachment's name, as `workspace attachments` shows it.")
    ],
    to: Annotated[Path | None, typer.Option("--to", help="Write it to this new file instead of printing it.")] = None,
) -> None:
    """Print an attachment of a page, or write it to a new file.

    On a terminal only text is printed, with its control characters escaped.

    Example: agent-runtime workspace attachment garden plots.csv --to plots.csv
    """
    found = read("GetAttachment", wire.GetAttachmentRequest(page_id=page, name=name))
    if to is not None:
        _write_new(to, found.data)
    elif not sys.stdout.isatty():
        sys.stdout.buffer.write(found.data)
    elif _is_text(found.data):
        typer.echo(plain(found.data.decode()))
    else:
        raise InvalidInput(f"is {found.content_type}, no text", where=name, hint="write it to a file: --to FILE")


def read_file(page: str, file: Path, *, name: str = "", content_type: str = "") -> wire.PutAttachmentRequest:
    """Return a file as an attachment. Raises NotFound; InvalidInput for a link, a pipe, or one too large."""
    try:
        data = SystemFiles().read(file, LARGEST)
    except FileNotFoundError as error:
        raise NotFound("no such file", where=str(file)) from error
    except TurnkeeperError as error:
        raise InvalidInput(error.what, where=str(file)) from error
    guessed = mimetypes.guess_type(file.name)[0] or (_TEXT if _is_text(data) else _BYTES)
    return wire.PutAttachmentRequest(
        page_id=page, name=name or file.name, content_type=content_type or guessed, data=data
    )


def _is_text(data: bytes) -> bool:
    try:
        return "\x00" not in data.decode()
    except UnicodeDecodeError:
        return False


def _write_new(path: Path, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Conflict("is there already", where=str(path)) from error
    except OSError as error:
        raise InvalidInput(f"cannot be written: {error.strerror}", where=str(path)) from error
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)


app = typer.Typer(help="The pages that agents read and propose to change.", rich_markup_mode=None)
app.command("import")(import_)
app.command("attach")(attach)
app.command("attachments")(attachments)
app.command("attachment")(attachment)
AttachmentPage = Annotated[str, typer.Argument(metavar="PAGE", help="The page's name: a-z, 0-9 and -.")]
_LONGEST_TITLE = 200
_WORKSPACE_COLUMNS = (
    Column("PAGE", lambda row: str(row["page_id"])),
    Column("TITLE", lambda row: str(row["title"])),
    Column("TAGS", lambda row: ", ".join(row["tags"]) or "-"),
    Column("LIFECYCLE", lambda row: str(row["lifecycle"])),
    Column("ORIGIN", lambda row: str(row["origin"])),
    Column("VERSION", lambda row: str(row["version"]), right=True),
    Column("UPDATED", lambda row: shown(row["updated_at"])),
)


@app.command("list")
def list_(
    tag: Annotated[str, typer.Option("--tag", help="Only pages with this tag.")] = "",
    lifecycle: Annotated[
        str, typer.Option("--lifecycle", help="Only pages of this lifecycle: draft or canonical.")
    ] = "",
    origin: Annotated[
        str, typer.Option("--origin", help="Only pages of this origin: authored, imported, agent-produced or observed.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List the pages of the workspace.

    Example: agent-runtime workspace list --tag release --origin imported
    """
    rows, request = list[Row](), wire.ListPagesRequest(tag=tag, lifecycle=lifecycle, origin=origin)
    while pages := read("ListPages", request).pages:
        rows += [to_json(page, without=("sources", "attachments", "body")) for page in pages]
        request.after = pages[-1].page_id
    none = (
        "no such pages"
        if tag or lifecycle or origin
        else "no pages; put one: agent-runtime workspace put NAME --file FILE"
    )
    show_rows(rows, _WORKSPACE_COLUMNS, output, name_key="page_id", footer="" if rows else none)


@app.command("show")
def show(page: AttachmentPage, output: OutputOption = Output.TABLE) -> None:
    """Show a page: its origin, lifecycle, sources, attachments and body.

    Example: agent-runtime workspace show garden
    """
    _show(to_json(read("GetPage", wire.GetPageRequest(page_id=page))), output)


@app.command("put")
def put(
    page: AttachmentPage,
    file: Annotated[str, typer.Option("--file", help="Take the body from this file; `-` is standard input.")] = "",
    body: Annotated[str, typer.Option("--body", help="The body itself.")] = "",
    title: Annotated[
        str, typer.Option("--title", help="The title; by default the first heading, or the page's name.")
    ] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; repeat the option for more.")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help="A page or address that it is derived from; by default its sources stay."),
    ] = None,
    draft: Annotated[bool, typer.Option("--draft", help="Write a draft instead of a canonical page.")] = False,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", help="A file to attach; repeat the option for more.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a page as its author. It is canonical at once; the version before it is kept.

    A file may begin with front matter, as for `workspace import`. Pages derived from a page that changed are queued
    for re-validation.

    Example: agent-runtime workspace put garden --file garden.md --tag outdoors
    """
    if bool(file) == bool(body):
        raise InvalidInput("give exactly one of --file and --body", where="workspace put")
    text = body or (sys.stdin.read() if file == "-" else _contents(Path(file)))
    files = [read_file(page, path) for path in attach or []]  # before anything is written
    found = parse(f"{page}.md", text) if file else None
    request = wire.PutPageRequest(
        page_id=page,
        title=title or (found.title if found else (heading(text) or page)[:_LONGEST_TITLE]),
        body=found.body if found else text,
        tags=tag or (found.tags if found else ()),
        sources=source or (found.sources if found else ()),
        draft=draft,
    )
    made = change("PutPage", request)
    for one in files:
        change("PutAttachment", one)
    row = to_json(made)
    if output in FOR_PEOPLE:
        doubted = f"; {made.queued} derived from it wait for re-validation" if made.queued else ""
        note(f"{row['page_id']} is at version {row['version']}, {row['origin']} and {row['lifecycle']}{doubted}")
    else:
        _show(row if not files else to_json(read("GetPage", wire.GetPageRequest(page_id=page))), output)


def _contents(file: Path) -> str:
    """Return a UTF-8 file's text. Raises NotFound; InvalidInput, also for one too large, of which nothing is cut."""
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InvalidInput(f"is larger than {LARGEST_FILE} bytes", where=str(file))
        return data.decode()
    except FileNotFoundError as error:
        raise NotFound("no such file", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not UTF-8 at byte {error.start}", where=str(file)) from error
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(file)) from error


def _show(row: Row, output: Output) -> None:
    files = "\n".join(f"{one['name']}  {one['content_type']}, {one['size']} bytes" for one in row["attachments"])
    words = "page=page_id title tags lifecycle origin version updated=updated_at sources attachments body"
    lines = lines_of(row, words, tags=", ".join(row["tags"]), attachments=files)
    show_record(row, output, name_key="page_id", lines=lines)
