"""The commands `turnkeeper workspace`: pages, their attachments, and the import of a folder of Markdown.

A second import of the same folder changes nothing.
"""

import mimetypes
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_runtime.cli.client import change, read
from agent_runtime.cli.knowledge.memory import named
from agent_runtime.cli.rows import FOR_PEOPLE
from agent_runtime.model.mapping import Row, to_json, to_message
from agent_runtime.workspace.model import LARGEST_BODY, LONGEST_TITLE, MOST_SOURCES, MOST_TAGS, is_address, slug
from turnkeeper.console import Output, OutputOption, bar, note, show_record, show_rows
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, lines_of, listing
from turnkeeper.console.unseen import plain
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError
from turnkeeper.storage.files import SystemFiles, write_new
from turnkeeper.v1 import agent_runtime_pb2 as wire

LARGEST_ATTACHMENT = 2 * 1024 * 1024  # bytes
OfPage = Annotated[str, typer.Argument(metavar="PAGE", help="The page of the attachment.")]
_TEXT, _BYTES = "text/plain", "application/octet-stream"
_ATTACHMENTS = columns("NAME TYPE=content_type #BYTES=size ADDED=added_at ORIGIN +SHA-256=sha256")


def attach(
    page: OfPage,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="At most 2 MiB.")],
    name: Annotated[str, typer.Option(help="The attachment's name; default the file's name.")] = "",
    content_type: Annotated[
        str, typer.Option("--type", help="A content type such as text/csv; by default it follows from the file's name.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Attach a file to a page, as its author. An attachment with the same name is replaced.

    Example: turnkeeper workspace attach garden plots.csv
    """
    row = to_json(named(change, read_file(page, file, name=name, content_type=content_type)))
    if output in FOR_PEOPLE:
        note(f"{row['name']} is attached to {row['page_id']}: {row['content_type']}, {row['size']} bytes")
    else:
        show_record(row, output, name_key="name", lines=[])


@listing(_ATTACHMENTS, "name")
def attachments(page: OfPage, **cut: Any) -> Listed:
    """List the attachments of a page.

    Example: turnkeeper workspace attachments garden
    """
    answer = named(read, wire.ListAttachmentsRequest(page_id=page, **cut))
    rows = [to_json(one) for one in answer.attachments]
    footer = "" if rows else f"the page has no attachments; to add one: turnkeeper workspace attach {page} FILE"
    return Listed(rows, footer, answer)


def attachment(
    page: OfPage,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The attachment's name, as `workspace attachments` shows it.")
    ],
    to: Annotated[Path | None, typer.Option(help="Write to this new file instead of printing.")] = None,
) -> None:
    """Print an attachment of a page, or write it to a new file.

    On a terminal, only text is printed, with its control characters escaped.

    Example: turnkeeper workspace attachment garden plots.csv --to plots.csv
    """
    found = named(read, wire.GetAttachmentRequest(page_id=page, name=name))
    if to is not None:
        write_new(to, found.data)
    elif not sys.stdout.isatty():
        sys.stdout.buffer.write(found.data)
    elif _is_text(found.data):
        typer.echo(plain(found.data.decode()))
    else:
        raise InvalidInput(f"is {found.content_type}, not text", where=name, hint="write it to a file: --to FILE")


def read_file(page: str, file: Path, *, name: str = "", content_type: str = "") -> wire.PutAttachmentRequest:
    """Read a file as an attachment. Raises NotFound; InvalidInput for a link, a pipe, or a file that is too large."""
    try:
        data = SystemFiles().read(file, LARGEST_ATTACHMENT)
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


MOST_FILES = 20_000
LARGEST_FILE = LARGEST_BODY + 16 * 1024  # additional bytes for the front matter
_SUFFIXES = (".md", ".markdown")
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^(title|tags|sources)[ \t]*:[ \t]*(.*)$(?:\n((?:[ \t]*-[ \t].*(?:\n|\Z))+))?", re.MULTILINE)
_PART = re.compile(r"""\s*(?:"[^"]*"|'[^']*')\s*(?=,|\Z)|[^,]+""")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file that becomes a page.

    Attributes:
        path: the path relative to the folder.
        page_id: the id made from the path: `notes/Garden plan.md` becomes `notes-garden-plan`.
        title: from the front matter, else the first heading, else the file's name.
        body: the text after the front matter.
        sources: from the front matter: pages of the folder or the workspace, and addresses on the web.
    """

    path: str
    page_id: str
    title: str
    body: str
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The contents of a folder: pages in the order in which they can be written, problems, and skipped files."""

    pages: tuple[Found, ...]
    problems: tuple[str, ...]
    left_out: int


def read_folder(root: Path) -> Reading:
    """Read every Markdown file below a folder; skip hidden files and folders.

    Each link, each pipe, each file that is too large or not UTF-8, and each duplicate page id is a problem.

    Raises:
        NotFound: the folder does not exist.
        InvalidInput: the path is not a folder, or it contains more than 20,000 files.
    """
    if not root.exists():
        raise NotFound("no such folder", where=str(root))
    if not root.is_dir():
        raise InvalidInput("is not a folder", where=str(root), hint="for one file: turnkeeper workspace put")
    found, problems, left_out = list[Found](), list[str](), 0
    for path, problem in _walk(root):
        if problem:
            problems.append(f"{path}: {problem}")
        elif not path.name.lower().endswith(_SUFFIXES):
            left_out += 1
        else:
            try:
                found.append(_read(root, path))
            except TurnkeeperError as error:
                problems.append(f"{path}: {error.what}")
    problems += _doubles(found)
    pages, circle = _in_order(found)
    return Reading(pages=tuple(pages), problems=(*problems, *circle), left_out=left_out)


def parse(path: str, text: str) -> Found:
    r"""Convert a file's text to a page. Raises InvalidInput.

    >>> parse("Plan.md", "---\ntitle: The plan\ntags: [a, Big Things]\n---\nShip.\n")
    Found(path='Plan.md', page_id='plan', title='The plan', body='Ship.\n', tags=('a', 'big-things'), sources=())
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    front = _FRONT.match(text)
    body = text[front.end() :] if front else text
    given = _FIELD.finditer(front[1]) if front else ()
    fields = {match[1]: _values(match[1], match[2].strip(), match[3] or "") for match in given}
    stem = path.rpartition(".")[0]
    title = " ".join((fields.get("title") or [heading(body) or stem.rpartition("/")[2]])[0].split())
    tags = tuple(dict.fromkeys(slug(tag) for tag in fields.get("tags", [])))
    sources = tuple(dict.fromkeys(_source(one) for one in fields.get("sources", [])))
    if len(tags) > MOST_TAGS or len(sources) > MOST_SOURCES:
        raise InvalidInput(f"has more than {MOST_TAGS} tags or {MOST_SOURCES} sources", where=path)
    if not body.strip():
        raise InvalidInput("holds no text", where=path)
    if "\x00" in text:
        raise InvalidInput("contains a NUL character", where=path)
    if len(body.encode()) > LARGEST_BODY:
        raise InvalidInput(f"is larger than {LARGEST_BODY} bytes", where=path)
    shown = title[:LONGEST_TITLE].strip() or "Untitled"
    return Found(path=path, page_id=slug(stem), title=shown, body=body, tags=tags, sources=sources)


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files below a folder by name, and the problems of unreadable files; links are not followed."""
    count, folders = 0, [root]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            yield folder, f"cannot be read: {error.strerror}"
            continue
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            count += 1
            if count > MOST_FILES:
                raise InvalidInput(f"contains more than {MOST_FILES} files", where=str(root))
            if entry.is_symlink():
                yield path, "is a symbolic link, which an import does not follow"
            elif entry.is_dir():
                folders.append(path)
            elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                yield path, "is not a regular file"
            else:
                yield path, ""


def _read(root: Path, path: Path) -> Found:
    data = SystemFiles().read(path, LARGEST_FILE)
    try:
        text = data.decode()
        name = str(path.relative_to(root))
        name.encode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not UTF-8 at byte {error.start}", where=str(path)) from error
    except UnicodeEncodeError as error:
        raise InvalidInput("has a name that is not UTF-8", where=str(path)) from error
    return parse(name, text)


def _values(field: str, inline: str, listed: str) -> list[str]:
    """Return the values of a field of front matter: `a, b`, `[a, b]`, or lines that begin with a dash; a title is one.

    A value that contains a comma needs quotes or a line of its own.
    """
    if listed:
        parts = [line.strip().removeprefix("-") for line in listed.splitlines()]
    elif field == "title":
        parts = [inline]
    else:
        parts = _PART.findall(inline[1:-1] if inline.startswith("[") and inline.endswith("]") else inline)
    values = (value.strip().strip("'\"").strip() for value in parts)
    return [value for value in values if value]


def _source(value: str) -> str:
    if is_address(value):
        return value
    stem, _, suffix = value.rpartition(".")
    return slug(stem if f".{suffix.lower()}" in _SUFFIXES else value)


def heading(body: str) -> str:
    """Return the first heading of a Markdown text, or an empty text."""
    headings = (line.lstrip("#").strip() for line in body.splitlines() if line.startswith("#"))
    return next(filter(None, headings), "")


def _doubles(found: Sequence[Found]) -> list[str]:
    first, problems = dict[str, str](), list[str]()
    for one in found:
        if one.page_id in first:
            problems.append(f"{one.path}: would become the page {one.page_id}, as {first[one.page_id]} would")
        first.setdefault(one.page_id, one.path)
    return problems


def _in_order(found: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """Sort pages so that each follows its sources; a cycle is a problem."""
    by_id = {one.page_id: one for one in found}
    graph = {
        one.page_id: {source for source in one.sources if source in by_id and source != one.page_id} for one in found
    }
    try:
        return [by_id[page_id] for page_id in TopologicalSorter(graph).static_order()], []
    except CycleError as error:
        return list(by_id.values()), [
            f"{by_id[error.args[1][0]].path}: is derived from itself: {' from '.join(error.args[1])}"
        ]


MOST_IN_A_BATCH = 50
LARGEST_BATCH = 1 << 20  # total bytes of bodies
MOST_NAMED = 20
_OUTCOMES = columns("PAGE=page_id OUTCOME #VERSION FILE")


def import_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder; every .md file in it or below it becomes a page.")
    ],
    dry_run: Annotated[bool, typer.Option(help="Show the result for each file without writing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Import a folder of Markdown as its author. The pages are effective at once; unchanged pages stay as they are.

    Front matter between two lines of --- may give title, tags and sources. If one file cannot be imported, nothing is
    written. If an import is interrupted, run it again to continue.

    Example: turnkeeper workspace import notes --dry-run
    """
    found = read_folder(folder)
    _refuse(found, folder)
    rows = list[Row]()
    with bar("importing", len(found.pages)) as count:
        for batch in batches(found.pages):
            request = wire.ImportPagesRequest(
                pages=[to_message(wire.PutPageRequest, page) for page in batch], dry_run=dry_run
            )
            done = change(request).pages
            rows += [_row(page, one) for page, one in zip(batch, done, strict=True)]
            count(len(batch))
    changed = [row for row in rows if row["outcome"] != "unchanged"]
    people = output in FOR_PEOPLE
    show_rows(changed if people else rows, _OUTCOMES, output, name_key="page_id")
    if people:
        note(_summary(rows, found, dry_run=dry_run))


def batches(pages: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield the pages in order, in batches that fit into one request."""
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
    """Raise InvalidInput if a file cannot be imported; print each problem on stderr."""
    problems = [*found.problems, *_unknown_sources(found)]
    if not problems:
        if not found.pages:
            raise InvalidInput("contains no Markdown", where=str(folder), hint="the names of these files end in .md")
        return
    for problem in problems[:MOST_NAMED]:
        note(problem)
    if len(problems) > MOST_NAMED:
        note(f"and {len(problems) - MOST_NAMED} more")
    some = "1 file" if len(problems) == 1 else f"{len(problems)} files"
    raise InvalidInput(
        f"{some} cannot be imported, so no file was imported", where=str(folder), hint="correct or move these files"
    )


def _unknown_sources(found: Reading) -> Iterator[str]:
    here, known = {page.page_id for page in found.pages}, dict[str, bool]()
    for page in found.pages:
        for source in page.sources:
            if source in here or is_address(source):
                continue
            if source not in known:
                known[source] = _is_page(source)
            if not known[source]:
                yield f"{page.path}: is derived from {source}, which is not a page of the folder or the workspace"


def _is_page(page_id: str) -> bool:
    try:
        read(wire.GetPageRequest(page_id=page_id))
    except NotFound:
        return False
    return True


def _row(page: Found, one: wire.ImportedPage) -> Row:
    found = {"page_id": one.page_id, "outcome": one.outcome, "version": one.version}
    return found | {"queued": one.queued, "file": page.path}


def _summary(rows: Sequence[Row], found: Reading, *, dry_run: bool) -> str:
    outcomes = Counter(row["outcome"] for row in rows)
    counts = ", ".join(f"{outcomes[name]} {name}" for name in ("new", "changed", "unchanged"))
    queued = sum(row["queued"] for row in rows)
    doubted = f"; {queued} queued for re-validation, because one of their sources has changed" if queued else ""
    left_out = f"; {found.left_out} files are not Markdown" if found.left_out else ""
    return f"{'would import' if dry_run else 'imported'} {len(rows)} pages: {counts}{doubted}{left_out}"


app = App("The pages that agents read and propose to change.")
app.command("import")(import_)
app.command("attach")(attach)
app.command("attachments")(attachments)
app.command("attachment")(attachment)
PageId = Annotated[str, typer.Argument(metavar="PAGE", help="The page's name: a-z, 0-9 and -.")]
_PAGES = columns("PAGE=page_id TITLE TAGS LIFECYCLE ORIGIN #VERSION UPDATED=updated_at")


@app.command("list")
@listing(_PAGES, "page_id")
def list_(
    tag: Annotated[str, typer.Option(help="Only pages with this tag.")] = "",
    lifecycle: Annotated[str, typer.Option(help="Only pages of this lifecycle: draft or canonical.")] = "",
    origin: Annotated[
        str, typer.Option(help="Only pages of this origin: authored, imported, agent-produced or observed.")
    ] = "",
) -> Listed:
    """List the pages of the workspace.

    Example: turnkeeper workspace list --tag release --origin imported
    """
    rows, request = list[Row](), wire.ListPagesRequest(tag=tag, lifecycle=lifecycle, origin=origin)
    while pages := read(request).pages:
        rows += [to_json(page, without=("sources", "attachments", "body")) for page in pages]
        request.after = pages[-1].page_id
    none = (
        "no such pages"
        if tag or lifecycle or origin
        else "no pages; put one: turnkeeper workspace put NAME --file FILE"
    )
    return Listed(rows, "" if rows else none)


@app.command("show")
def show(page: PageId, output: OutputOption = Output.TABLE) -> None:
    """Show a page: its origin, lifecycle, sources, attachments and body.

    Example: turnkeeper workspace show garden
    """
    _show(to_json(named(read, wire.GetPageRequest(page_id=page))), output)


@app.command("put")
def put(
    page: PageId,
    file: Annotated[str, typer.Option(help="Take the body from this file; `-` is standard input.")] = "",
    body: Annotated[str, typer.Option(help="The body as text.")] = "",
    title: Annotated[str, typer.Option(help="The title; by default the first heading, or the page's name.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A tag; repeat the option for more.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="A page or address from which it is derived; by default its sources stay.")
    ] = None,
    draft: Annotated[bool, typer.Option(help="Write a draft, which is not yet effective.")] = False,
    attach: Annotated[list[Path] | None, typer.Option(help="A file to attach; repeat the option for more.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a page as its author. The page is effective at once; the previous version is kept.

    A file may begin with front matter, as for `workspace import`. Pages derived from a changed page are queued for
    re-validation.

    Example: turnkeeper workspace put garden --file garden.md --tag outdoors
    """
    if bool(file) == bool(body):
        raise InvalidInput("give exactly one of --file and --body", where="workspace put")
    text = body or (sys.stdin.read() if file == "-" else _contents(Path(file)))
    files = [read_file(page, path) for path in attach or []]  # read before any page is written
    found = parse(f"{page}.md", text) if file else None
    request = wire.PutPageRequest(
        page_id=page,
        title=title or (found.title if found else (heading(text) or page)[:LONGEST_TITLE]),
        body=found.body if found else text,
        tags=tag or (found.tags if found else ()),
        sources=source or (found.sources if found else ()),
        draft=draft,
    )
    made = change(request)
    for one in files:
        change(one)
    row = to_json(made)
    if output in FOR_PEOPLE:
        doubted = f"; {made.queued} derived pages wait for re-validation" if made.queued else ""
        note(f"{row['page_id']} is at version {row['version']}, {row['origin']} and {row['lifecycle']}{doubted}")
    else:
        _show(row if not files else to_json(read(wire.GetPageRequest(page_id=page))), output)


def _contents(file: Path) -> str:
    """Return a UTF-8 file's text. Raises NotFound; InvalidInput, also if the file is too large: it is not truncated."""
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
