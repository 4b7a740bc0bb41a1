"""Files beside pages: an author puts them there, agents read those that are text, and a backup holds them."""

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.workspace.model import Author, PageDraft
from agent_runtime.workspace.pages import MOST_ON_A_PAGE, AttachmentDraft, get_attachment
from agent_runtime.workspace.submit import submit
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import Begin, Told, call
from tests.support.clock import ManualClock
from tests.support.workspace import put_page
from turnkeeper.config.home import Home
from turnkeeper.constellation.upkeep.backup import back_up
from turnkeeper.errors import Denied, Exhausted, InvalidInput, NotFound
from turnkeeper.storage.database import Database


def file(name: str = "plots.csv", data: bytes = b"plot,free\n1,yes\n", kind: str = "text/csv") -> AttachmentDraft:
    return AttachmentDraft(page_id="garden", name=name, content_type=kind, data=data)


@pytest.fixture
async def garden(workspace: Workspace) -> None:
    await put_page(workspace, PageDraft(page_id="garden", title="Garden", body="Plots."))


async def test_a_file_is_the_authors_and_one_of_the_same_name_takes_its_place(
    workspace: Workspace, garden: None, told: Told
) -> None:
    made = await workspace.authors.attach(file())
    assert (made.origin, made.lifecycle, made.size) == ("authored", "canonical", 16)
    assert made.sha256 == sha256(file().data).hexdigest()
    assert told[-1] == ("attachment.put", {
        "page_id": "garden", "size": 16, "sha256": made.sha256, "origin": "authored", "lifecycle": "canonical",
    })  # fmt: skip
    again = await workspace.authors.attach(file(data=b"new"), author=Author(imports=True))
    assert (again.size, again.origin) == (3, "imported")
    _, data = await workspace.read(lambda connection: get_attachment(connection, "garden", "plots.csv"))
    assert data == b"new"


async def test_an_agent_attaches_nothing(
    workspace: Workspace, garden: None, begin: Begin, database: Database, clock: ManualClock
) -> None:
    context = begin(named="conversation")
    with pytest.raises(Denied, match="only an author"):
        await database.run(lambda connection: submit(connection, file(), context, at=clock.now(), new_id=""))
    assert not [
        spec.scope
        for spec in workspace_tools(workspace)
        if spec.scope.startswith("attachment") and spec.effect != "read"
    ]


async def test_a_turn_reads_text_and_of_the_rest_is_told_what_it_is(
    workspace: Workspace, garden: None, begin: Begin
) -> None:
    context = begin(named="research-sweep")
    await workspace.authors.attach(file())
    found, text = await workspace.read_attachment(call(context), "garden", "plots.csv")
    assert (found.content_type, text) == ("text/csv", "plot,free\n1,yes\n")
    for draft, why in (
        (file("photo.png", b"\x89PNG", "image/png"), "is image/png, 4 bytes; only text can be read"),
        (file("latin.txt", b"caf\xe9", "text/plain"), "is not UTF-8 at byte 3"),
        (file("nul.txt", b"a\x00b", "text/plain"), "NUL"),
    ):
        await workspace.authors.attach(draft)
        with pytest.raises(InvalidInput, match=why):
            await workspace.read_attachment(call(context), "garden", draft.name)
    with pytest.raises(NotFound, match="use one of: latin.txt"):
        await workspace.read_attachment(call(context), "garden", "nosuch")


@pytest.mark.parametrize(
    "draft",
    [
        file(name=""), file(name="../x"), file(name="a/b"), file(name=".hidden"), file(name="a\nb"), file(name="x" * 101),
        file(name="\ud800"), file(data=b""), file(data=b"x" * (2 * 1024 * 1024 + 1)), file(kind="text"),
        file(kind="text/csv; charset=x"), file(kind="text/csv\n"),
    ],
    ids=str,
)  # fmt: skip
async def test_what_is_no_attachment_is_refused(workspace: Workspace, garden: None, draft: AttachmentDraft) -> None:
    with pytest.raises(InvalidInput):
        await workspace.authors.attach(draft)


async def test_a_page_has_its_fill(workspace: Workspace, garden: None) -> None:
    for number in range(MOST_ON_A_PAGE):
        await workspace.authors.attach(file(f"{number}.csv"))
    with pytest.raises(Exhausted, match="50 attachments"):
        await workspace.authors.attach(file("more.csv"))
    await workspace.authors.attach(file("7.csv", b"in place of the other"))
    with pytest.raises(NotFound):
        await workspace.authors.attach(
            AttachmentDraft(page_id="nosuch", name="a", content_type="text/plain", data=b"x")
        )


@pytest.mark.sqlite_only("turnkeeper backup copies files")
async def test_a_backup_holds_them(
    workspace: Workspace, garden: None, home: Home, database: Database, tmp_path: Path
) -> None:
    await workspace.authors.attach(file())
    back_up(home, tmp_path / "copy", datetime(2026, 11, 21, tzinfo=UTC))
    import sqlite3

    with sqlite3.connect(tmp_path / "copy" / "state" / "agent.db") as copy:
        rows: list[Any] = copy.execute("SELECT name, data FROM attachments").fetchall()
    assert rows == [("plots.csv", file().data)]
