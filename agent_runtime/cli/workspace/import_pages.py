"""`agent-runtime workspace import`: a folder of Markdown becomes pages. A second import changes nothing."""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.cli.client import change, read
from agent_runtime.cli.rows import FOR_PEOPLE
from agent_runtime.model.mapping import Row, to_message
from agent_runtime.workspace.model import LARGEST_BODY, LONGEST_TITLE, MOST_SOURCES, MOST_TAGS, is_address, slug
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.console import Column, Output, OutputOption, bar, note, show_rows
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError
from turnkeeper.storage.files import SystemFiles

MOST_FILES = 20_000
LARGEST_FILE = LARGEST_BODY + 16 * 1024  # room for what stands before the body
_SUFFIXES = (".md", ".markdown")
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^(title|tags|sources)[ \t]*:[ \t]*(.*)$(?:\n((?:[ \t]*-[ \t].*(?:\n|\Z))+))?", re.MULTILINE)
_PART = re.compile(r"""\s*(?:"[^"]*"|'[^']*')\s*(?=,|\Z)|[^,]+""")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One file as a page.

    Attributes:
        path: the file, below the folder.
        page_id: from its path: `notes/Garden plan.md` is `notes-garden-plan`.
        title: of its front matter, else its first heading, else its file's name.
        body: what follows the front matter.
        tags: of its front matter.
        sources: likewise: pages of the folder or the workspace, and addresses on the web.
    """

    path: str
    page_id: str
    title: str
    body: str
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a folder holds: pages in the order in which they can be written, what is wrong, and what is no Markdown."""

    pages: tuple[Found, ...]
    problems: tuple[str, ...]
    left_out: int


def read_folder(root: Path) -> Reading:
    """Read every Markdown file below a folder; hidden files and folders are passed over.

    Links, pipes, files too large or not UTF-8, and two files that would be one page are problems, each named.

    Raises:
        NotFound: there is no such folder.
        InvalidInput: it is no folder, or holds more than 20,000 files.
    """
    if not root.exists():
        raise NotFound("no such folder", where=str(root))
    if not root.is_dir():
        raise InvalidInput("is not a folder", where=str(root), hint="for one file: agent-runtime workspace put")
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
    r"""Return a file's text as a page. Raises InvalidInput.

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
        raise InvalidInput("holds a NUL character", where=path)
    if len(body.encode()) > LARGEST_BODY:
        raise InvalidInput(f"is larger than {LARGEST_BODY} bytes", where=path)
    shown = title[:LONGEST_TITLE].strip() or "Untitled"
    return Found(path=path, page_id=slug(stem), title=shown, body=body, tags=tags, sources=sources)


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield files below a folder by name, and what is wrong with those that may not be read; links are not followed."""
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
                raise InvalidInput(f"holds more than {MOST_FILES} files", where=str(root))
            if entry.is_symlink():
                yield path, "is a symbolic link, which an import does not follow"
            elif entry.is_dir():
                folders.append(path)
            elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                yield path, "is not a plain file"
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

    What holds a comma itself stands in quotes, or on a line of its own.
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
            problems.append(f"{one.path}: would be the page {one.page_id}, as {first[one.page_id]} is")
        first.setdefault(one.page_id, one.path)
    return problems


def _in_order(found: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """Return pages so that what one is derived from comes before it; a circle is a problem."""
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
LARGEST_BATCH = 1 << 20  # bytes of bodies
MOST_NAMED = 20
_COLUMNS = (
    Column("PAGE", lambda row: str(row["page_id"])),
    Column("OUTCOME", lambda row: str(row["outcome"])),
    Column("VERSION", lambda row: str(row["version"]), right=True),
    Column("FILE", lambda row: str(row["file"])),
)


def import_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder; every .md file in it or below it becomes a page.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would happen to each file; change nothing.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Import a folder of Markdown as its author. The pages are canonical at once; unchanged ones stay as they are.

    Front matter between two lines of --- may give title, tags and sources. If one file cannot be imported, nothing is
    written. An import that is interrupted later continues when you run it again.

    Example: agent-runtime workspace import notes --dry-run
    """
    found = read_folder(folder)
    _refuse(found, folder)
    rows = list[Row]()
    with bar("importing", len(found.pages)) as count:
        for batch in batches(found.pages):
            request = wire.ImportPagesRequest(
                pages=[to_message(wire.PutPageRequest, page) for page in batch], dry_run=dry_run
            )
            done = change("ImportPages", request).pages
            rows += [_row(page, one) for page, one in zip(batch, done, strict=True)]
            count(len(batch))
    changed = [row for row in rows if row["outcome"] != "unchanged"]
    people = output in FOR_PEOPLE
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
    raise InvalidInput(
        f"{some} cannot be imported, so nothing was", where=str(folder), hint="correct these files or move them away"
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
                yield f"{page.path}: is derived from {source}, which is no page of the folder or the workspace"


def _is_page(page_id: str) -> bool:
    try:
        read("GetPage", wire.GetPageRequest(page_id=page_id))
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
    doubted = f"; {queued} queued for re-validation, because what they are derived from changed" if queued else ""
    left_out = f"; {found.left_out} files are no Markdown" if found.left_out else ""
    return f"{'would import' if dry_run else 'imported'} {len(rows)} pages: {counts}{doubted}{left_out}"
