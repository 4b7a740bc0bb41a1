"""`agent-runtime workspace import`: a folder of Markdown becomes pages, origin imported; again, and nothing changes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.cli.client import change, read
from agent_runtime.cli.rows import Row
from agent_runtime.cli.workspace.import_pages import Found, Reading, read_folder
from agent_runtime.workspace.model import is_address
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, Output, OutputOption, note, show_rows
from turnkeeper.console.bar import bar
from turnkeeper.errors import InvalidInput, NotFound

MOST_IN_A_BATCH = 50
LARGEST_BATCH = 1 << 20  # bytes of bodies
MOST_NAMED = 20
_COLUMNS = (
    Column("PAGE", lambda row: str(row["page_id"])),
    Column("OUTCOME", lambda row: str(row["outcome"])),
    Column("VERSION", lambda row: str(row["version"]), right=True),
    Column("FILE", lambda row: str(row["file"])),
)


def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Every .md file below it becomes a page.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would become of each; change nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Import a folder of Markdown as its author: canonical at once, origin imported; what is unchanged stays.

    Front matter between two lines of --- may give title, tags and sources. One file that cannot be taken stops the
    whole before anything is written; what breaks off later goes on where it was when run again.

    Example: agent-runtime workspace import notes --dry-run
    """
    found = read_folder(folder)
    _refuse(found, folder)
    rows = list[Row]()
    with bar("importing", len(found.pages)) as count:
        for batch in batches(found.pages):
            request = wire.ImportPagesRequest(pages=[_request(page) for page in batch], dry_run=dry_run)
            done = change("ImportPages", request).pages
            rows += [_row(page, one) for page, one in zip(batch, done, strict=True)]
            count(len(batch))
    changed = [row for row in rows if row["outcome"] != "unchanged"]
    people = output in {Output.TABLE, Output.WIDE}
    show_rows(changed if people else rows, _COLUMNS, output, name_key="page_id")
    if people:
        note(_summary(rows, found, dry_run=dry_run))


def batches(pages: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield the pages in their order, so many at once as one request carries."""
    batch, size = list[Found](), 0
    for page in pages:
        more = len(page.body.encode())
        if batch and (len(batch) == MOST_IN_A_BATCH or size + more > LARGEST_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(page)
        size += more
    if batch:
        yield batch


def _refuse(found: Reading, folder: Path) -> None:
    """Raise InvalidInput if anything cannot be imported; each problem is named on stderr."""
    problems = [*found.problems, *_unknown_sources(found)]
    if not problems:
        if not found.pages:
            raise InvalidInput("holds no Markdown", where=str(folder), hint="files end in .md")
        return
    for problem in problems[:MOST_NAMED]:
        note(problem)
    if len(problems) > MOST_NAMED:
        note(f"and {len(problems) - MOST_NAMED} more")
    some = "1 file" if len(problems) == 1 else f"{len(problems)} files"
    raise InvalidInput(f"{some} cannot be imported, so nothing was", where=str(folder), hint="mend or move them away")


def _unknown_sources(found: Reading) -> Iterator[str]:
    here, known = {page.page_id for page in found.pages}, dict[str, bool]()
    for page in found.pages:
        for source in page.sources:
            if source in here or is_address(source):
                continue
            if source not in known:
                known[source] = _is_page(source)
            if not known[source]:
                yield f"{page.path}: is derived from {source}, which is no page of the folder or the workspace"


def _is_page(page_id: str) -> bool:
    try:
        read("GetPage", wire.GetPageRequest(page_id=page_id))
    except NotFound:
        return False
    return True


def _request(page: Found) -> wire.PutPageRequest:
    return wire.PutPageRequest(
        page_id=page.page_id, title=page.title, body=page.body, tags=page.tags, sources=page.sources
    )


def _row(page: Found, one: wire.ImportedPage) -> Row:
    found = {"page_id": one.page_id, "outcome": one.outcome, "version": one.version}
    return found | {"queued": one.queued, "file": page.path}


def _summary(rows: Sequence[Row], found: Reading, *, dry_run: bool) -> str:
    outcomes = Counter(row["outcome"] for row in rows)
    counts = ", ".join(f"{outcomes[name]} {name}" for name in ("new", "changed", "unchanged"))
    queued = sum(row["queued"] for row in rows)
    doubted = f"; {queued} queued for re-validation, because what they are derived from changed" if queued else ""
    left_out = f"; {found.left_out} files are no Markdown" if found.left_out else ""
    return f"{'would import' if dry_run else 'imported'} {len(rows)} pages: {counts}{doubted}{left_out}"
