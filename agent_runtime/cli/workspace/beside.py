"""The commands of `agent-runtime workspace` about files beside pages."""

import mimetypes
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.cli.client import change, read
from agent_runtime.cli.rows import attachment_row
from agent_runtime.cli.words import shown
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, Output, OutputOption, note, plain, show_record, show_rows
from turnkeeper.errors import Conflict, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.storage.files import SystemFiles

LARGEST = 2 * 1024 * 1024
PageId = Annotated[str, typer.Argument(metavar="PAGE", help="The page that it lies beside.")]
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
    name: Annotated[str, typer.Option("--name", help="Its name there; else the file's.")] = "",
    content_type: Annotated[str, typer.Option("--type", help="Such as text/csv; else by the file's name.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a file beside a page, as its author. One of the same name there is replaced.

    Example: agent-runtime workspace attach garden plots.csv
    """
    row = attachment_row(change("PutAttachment", read_file(page, file, name=name, content_type=content_type)))
    if output in {Output.TABLE, Output.WIDE}:
        note(f"{row['name']} lies beside {row['page_id']}: {row['content_type']}, {row['size']} bytes")
    else:
        show_record(row, output, name_key="name", lines=[])


def attachments(page: PageId, output: OutputOption = Output.TABLE) -> None:
    """List the files beside a page.

    Example: agent-runtime workspace attachments garden
    """
    found = read("ListAttachments", wire.ListAttachmentsRequest(page_id=page)).attachments
    rows = [attachment_row(one) for one in found]
    footer = "" if rows else f"nothing lies beside it; put a file there: agent-runtime workspace attach {page} FILE"
    show_rows(rows, _COLUMNS, output, name_key="name", footer=footer)


def attachment(
    page: PageId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, as `workspace attachments` shows it.")],
    to: Annotated[Path | None, typer.Option("--to", help="Write it to this new file; else print it.")] = None,
) -> None:
    """Print a file that lies beside a page, or write it to a new file.

    On a terminal only text is printed, its control characters written out.

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
