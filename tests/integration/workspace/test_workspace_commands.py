"""The workspace by command: pages, imports, attachments, deviations and the queue, over a runtime in this process."""

import asyncio
import json
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from agent_runtime.cli import app
from agent_runtime.cli.knowledge.workspace import batches, parse, read_folder
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.categories import Categories
from agent_runtime.service.workspace import WorkspaceService, with_reads
from agent_runtime.store.database import open_database
from agent_runtime.store.idempotency import Call
from agent_runtime.store.schema import turns
from agent_runtime.workspace.deviations import DeviationDraft
from agent_runtime.workspace.model import PageDraft
from agent_runtime.workspace.workspace import Workspace
from tests.integration.workspace.conftest import row_of
from tests.support.clock import ManualClock
from tests.support.workspace import list_pages
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.console import bar, run
from turnkeeper.entropy import SystemEntropy

EVIL = "rm\x1b]0;pwned\x07\x1b[2J\u202egnp.exe\r\x9b31m"
RAW = ("\x1b", "\x07", "\x9b", "\u202e", "\r")


@with_reads
class Served(WorkspaceService):
    """The service's methods over a workspace on a loop of its own, called as the commands call a daemon, without a wire."""

    def __init__(self, home: Home) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._database = open_database(home.agent_db)
        self.workspace = Workspace(self._database, SystemClock(), SystemEntropy(), lambda _event, _fields: None)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def stop(self) -> None:
        self._database.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Door:
    """How a command reaches it."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def __getattr__(self, method: str) -> Any:
        return lambda request: self._served.wait(getattr(self._served, method)(request, None))

    def close(self) -> None:
        """Do nothing: a command closes its channel, and this is none."""


@pytest.fixture
def served(home: Home, migrated: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    home.agent_db.write_bytes(migrated)
    made = Served(home)
    monkeypatch.setattr("agent_runtime.cli.client.runtime", lambda _surface="cli": Door(made))
    monkeypatch.setenv("NO_COLOR", "1")
    yield made
    made.stop()


class Commands:
    def __init__(self, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
        self._home, self._capsys = home, capsys
        self.out = self.err = ""

    def __call__(self, *argv: str | Path, code: int = 0) -> str:
        self._capsys.readouterr()
        found = run(app, ["--home", str(self._home.root), *map(str, argv)])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, f"{argv} exited with {found}: {self.out}{self.err}"
        return self.out

    def json(self, *argv: str | Path) -> Any:
        return json.loads(self(*argv, "-o", "json"))


@pytest.fixture
def ar(served: Served, home: Home, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(home, capsys)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder of Markdown: a page with front matter, one below, one derived from both."""
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "no.md").write_text("hidden")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    front = "---\ntitle: 'The garden'\ntags:\n  - Outdoors\n  - plots\nother: kept out\n---\n"
    (folder / "Garden.md").write_text(front + "Plots: 42\n")
    (folder / "deep" / "Über uns.md").write_text("# About us\r\n\r\nWe dig.\r\n", newline="")
    (folder / "a-leaflet.md").write_text("---\nsources: [garden, deep/Über uns.md]\n---\nPlots: 42\n")
    return folder


def test_a_folder_becomes_pages_and_again_nothing_changes(ar: Commands, notes: Path) -> None:
    rows = ar.json("workspace", "import", notes)
    assert {row["page_id"]: row["outcome"] for row in rows} == {
        "garden": "new", "deep-ber-uns": "new", "a-leaflet": "new",
    }  # fmt: skip
    (leaflet, about, garden) = ar.json("workspace", "list", "--origin", "imported")
    assert (garden["title"], garden["tags"], garden["lifecycle"]) == ("The garden", ["outdoors", "plots"], "canonical")
    assert about["title"] == "About us"
    shown = ar.json("workspace", "show", leaflet["page_id"])
    assert shown["sources"] == ["deep-ber-uns@1", "garden@1"]
    assert ar.json("workspace", "show", "garden")["body"] == "Plots: 42\n"
    before = ar.json("workspace", "list")
    ar("workspace", "import", notes)
    assert "3 pages: 0 new, 0 changed, 3 unchanged; 1 files are not Markdown" in ar.err
    assert ar.json("workspace", "list") == before


def test_a_changed_file_is_a_new_version_and_doubts_what_is_derived_from_it(ar: Commands, notes: Path) -> None:
    ar("workspace", "import", notes)
    (notes / "Garden.md").write_text("Plots: 40\n")
    ar("workspace", "import", notes, "--dry-run")
    assert "would import 3 pages: 0 new, 1 changed, 2 unchanged; 1 queued" in ar.err
    assert ar.json("revalidation", "list") == []
    assert "garden" in ar("workspace", "import", notes)
    assert "1 queued for re-validation" in ar.err
    (item,) = ar.json("revalidation", "list", "--page", "garden")
    assert (item["page_id"], item["cause"], item["cause_version"]) == ("a-leaflet", "garden", 2)
    assert "1 waiting" in (ar("revalidation", "list"), ar.err)[1]


def test_a_file_is_put_whole_or_not_at_all(ar: Commands, tmp_path: Path) -> None:
    file, front = tmp_path / "long.md", "---\ntitle: Long\n---\n"
    for rest in ("x" * 400_000, "x" * (256 * 1024 - 4)):
        file.write_text(f"{front}{rest}THE END\n")
        ar("workspace", "put", "long", "--file", file, code=2)
        assert "is larger than" in ar.err
    file.write_text(f"{front}{'x' * (256 * 1024 - 8)}THE END\n")
    ar("workspace", "put", "long", "--file", file)
    assert ar.json("workspace", "show", "long")["body"] == f"{'x' * (256 * 1024 - 8)}THE END\n"


@pytest.mark.parametrize("text", ["\ufeff---\ntitle: Plan\n---\nShip.\n", "---\r\ntitle: Plan\r\n---\r\nShip.\r\n"])
def test_front_matter_is_known_however_an_editor_wrote_it(ar: Commands, tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.md").write_bytes(text.encode())
    ar("workspace", "put", "plan", "--file", tmp_path / "plan.md")
    shown = ar.json("workspace", "show", "plan")
    assert (shown["title"], shown["body"]) == ("Plan", "Ship.\n")


@pytest.mark.parametrize(
    ("front", "tags", "sources"),
    [
        ("tags: visitors, spring\nsources: garden, https://example.org/a", "visitors spring",
         "garden https://example.org/a"),
        ("tags: [visitors, spring]\nsources: [garden]", "visitors spring", "garden"),
        ("tags: spring\nsources: 'https://example.org/a,b', garden", "spring", "https://example.org/a,b garden"),
        ("tags:\n- spring\nsources:\n- https://example.org/a,b\n", "spring", "https://example.org/a,b"),
    ],
)  # fmt: skip
def test_tags_and_sources_are_parted_by_commas(front: str, tags: str, sources: str) -> None:
    found = parse("a.md", f"---\ntitle: One, two\n{front}\n---\nText")
    assert (found.title, " ".join(found.tags), " ".join(found.sources)) == ("One, two", tags, sources)


def test_what_cannot_be_imported_is_named_and_nothing_is(ar: Commands, notes: Path) -> None:
    (notes / "link.md").symlink_to(notes / "Garden.md")
    os.mkfifo(notes / "pipe.md")
    (notes / "latin.md").write_bytes(b"caf\xe9")
    (notes / "big.md").write_text("x" * (300 * 1024))
    (notes / "nul.md").write_text("a\x00b")
    (notes / "empty.md").write_text(" \n")
    (notes / "garden!.md").write_text("twice")
    (notes / "lost.md").write_text("---\nsources: nowhere\n---\nText")
    (notes / f"evil{EVIL.replace('/', '')}.md").write_bytes(b"\xff")
    ar("workspace", "import", notes, code=2)
    for part in (
        "link.md: is a symbolic link", "pipe.md: is not a regular file", "latin.md: is not UTF-8 at byte 3",
        "big.md: is larger than", "nul.md: contains a NUL", "empty.md: holds no text",
        "garden!.md: would become the page garden", "lost.md: is derived from nowhere", "9 files cannot be imported",
    ):  # fmt: skip
        assert part in ar.err
    assert not any(raw in ar.err for raw in RAW)
    assert ar.json("workspace", "list") == []


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_a_folder_that_is_none_is_refused(ar: Commands, tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    if what == "file":
        place.write_text("x")
    elif what == "empty":
        place.mkdir()
    ar("workspace", "import", place, code=3 if what == "missing" else 2)
    assert str(place) in ar.err


def test_a_circle_of_sources_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nsources: b\n---\nA")
    (tmp_path / "b.md").write_text("---\nsources: a\n---\nB")
    (problem,) = read_folder(tmp_path).problems
    assert "is derived from itself" in problem


def test_an_import_of_many_goes_in_batches_that_fit_the_wire_and_keeps_the_order() -> None:
    pages = [parse(f"{number}.md", "x" * 200_000) for number in range(12)]
    sent = list(batches(pages))
    assert [page for batch in sent for page in batch] == pages
    assert all(sum(len(page.body) for page in batch) <= 1 << 20 for batch in sent)
    assert [len(batch) for batch in batches([parse(f"{number}.md", "x") for number in range(120)])] == [50, 50, 20]


def test_a_list_goes_on_behind_what_one_answer_holds(ar: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.workspace.pages.MOST_ROWS", 2)
    for name in "abcde":
        ar("workspace", "put", name, "--body", "x", "--tag", "odd" if name in "ace" else "even")
    assert ar("workspace", "list", "-o", "name").split() == list("abcde")
    assert ar("workspace", "list", "-o", "name", "--tag", "odd").split() == list("ace")


async def test_a_batch_with_one_bad_page_writes_none(workspace: Any) -> None:
    good, bad = (
        PageDraft(page_id="good", title="t", body="b"),
        PageDraft(page_id="bad", title="t", body="b", tags=("!",)),
    )
    with pytest.raises(Exception, match="tags"):
        await workspace.authors.import_pages([good, bad])
    assert await list_pages(workspace) == []


def test_a_bar_comes_after_a_second_and_only_on_a_terminal(clock: ManualClock) -> None:
    import io

    from rich.console import Console

    for terminal in (True, False):
        out = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        with bar("importing", 10, clock=clock, out=out) as count:
            count(2)
            assert out.file.getvalue() == ""  # type: ignore[attr-defined]
            clock.advance(2)
            count(3)
        assert ("importing" in out.file.getvalue()) is terminal  # type: ignore[attr-defined]


def test_pages_are_put_with_sources_drafts_and_files_and_found_again(ar: Commands, tmp_path: Path) -> None:
    data = tmp_path / "plots.csv"
    data.write_text("plot,free\n1,yes\n")
    ar("workspace", "put", "garden", "--body", "Plots: 42", "--attach", str(data))
    made = ar.json("workspace", "put", "leaflet", "--body", "Plots: 42", "--source", "garden", "--draft")
    assert (made["lifecycle"], made["sources"]) == ("draft", ["garden@1"])
    assert [row["page_id"] for row in ar.json("workspace", "list", "--lifecycle", "draft")] == ["leaflet"]
    assert ar.json("workspace", "list", "--lifecycle", "draft", "--origin", "imported") == []
    ar("workspace", "put", "leaflet", "--body", "Plots: 42")
    assert ar.json("workspace", "show", "leaflet")["sources"] == ["garden@1"], "what names none keeps its own"
    ar("workspace", "put", "leaflet", "--body", "x", "--draft", code=4)
    ar("workspace", "put", "garden", "--body", "Plots: 40")
    assert "1 derived pages wait for re-validation" in ar.err
    (beside,) = ar.json("workspace", "show", "garden")["attachments"]
    assert (beside["name"], beside["content_type"], beside["origin"]) == ("plots.csv", "text/csv", "authored")
    ar("workspace", "list", "--lifecycle", "candidate", code=2)
    assert "candidates list" in ar.err


def test_files_lie_beside_pages(ar: Commands, tmp_path: Path) -> None:
    file = tmp_path / "photo"
    file.write_bytes(b"\x00\x01")
    ar("workspace", "attach", "garden", file, code=3)
    ar("workspace", "put", "garden", "--body", "x")
    ar("workspace", "attach", "garden", file)
    (row,) = ar.json("workspace", "attachments", "garden")
    assert (row["name"], row["content_type"], row["size"]) == ("photo", "application/octet-stream", 2)
    copy = tmp_path / "copy"
    ar("workspace", "attachment", "garden", "photo", "--to", str(copy))
    assert copy.read_bytes() == b"\x00\x01"
    ar("workspace", "attachment", "garden", "photo", "--to", str(copy), code=4)
    ar("workspace", "attachment", "garden", "nosuch", code=3)
    assert "use one of: photo" in ar.err
    (tmp_path / "large").write_bytes(b"x" * (2 * 1024 * 1024 + 1))
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    for name in ("large", "link", "pipe"):
        ar("workspace", "attach", "garden", tmp_path / name, code=2)
    ar("workspace", "attach", "garden", file, "--name", "../x", code=2)
    ar("workspace", "attach", "garden", file, "--type", "no type", code=2)


@pytest.fixture
def deviation(served: Served, home: Home) -> str:
    """A deviation that a turn recorded, every text of it hostile."""
    workspace, category = served.workspace, Categories(home, Settings()).get("conversation")

    async def record() -> str:
        context = TurnContext(
            turn_id="turn-1", thread_id="thread-1", channel="general", agent="agent0", category=category,
            fire_id="fire-1", task_name=f"walk{EVIL}",
        )  # fmt: skip
        await workspace.authors.put(PageDraft(page_id="garden", title="Garden" + EVIL.replace("\r", ""), body=EVIL))
        row = row_of(context, ManualClock())
        await workspace.write(lambda connection: connection.execute(insert(turns).values(row)))
        draft = DeviationDraft(page_id="garden", says=EVIL.strip(), found=f"other {EVIL}", why=EVIL)
        made = await workspace.record_deviation(Call(context=context, key="k"), draft)
        return str(made.result["deviation_id"])

    return str(served.wait(record()))


def test_deviations_are_listed_shown_and_closed_by_the_author(ar: Commands, deviation: str) -> None:
    assert deviation in ar("deviations", "list")
    assert "1 open; decide with" in ar.err
    assert ar.json("deviations", "list", "--channel", "elsewhere") == []
    assert ar.json("deviations", "show", deviation[:6])["lifecycle"] == "open"
    ar("deviations", "resolve", deviation, code=2)
    ar("deviations", "resolve", deviation, "--accept", "--keep-canonical", code=2)
    ar("deviations", "resolve", "d-none", "--accept", code=3)
    ar("deviations", "resolve", deviation, "--accept", "--note", "so be it")
    assert "this changes no page" in ar.err
    assert ar.json("deviations", "list") == []
    (closed,) = ar.json("deviations", "list", "--all")
    assert (closed["lifecycle"], closed["note"]) == ("accepted", "so be it")
    ar("deviations", "resolve", deviation, "--keep-canonical", code=4)


def test_a_candidate_is_held_against_the_page_it_would_change(ar: Commands, served: Served, deviation: str) -> None:
    context = TurnContext(
        turn_id="turn-1", thread_id="thread-1", channel="general", agent="agent0", category=ample(), fire_id="fire-1"
    )

    def propose(page_id: str, body: str, key: str, version: int = 0) -> str:
        draft = PageDraft(page_id=page_id, title="Plots" + EVIL.replace("\r", ""), body=body, version=version)
        made = served.wait(served.workspace.propose(Call(context=context, key=key), draft))
        return str(made.result["candidate_id"])

    ar("workspace", "put", "plots", "--body", "Plots: 42\nSame.")
    changed, new = propose("plots", f"Plots: 40\nSame.\n{EVIL}", "1", 1), propose("fresh", "New.", "2")
    shown = ar("candidates", "diff", changed)
    assert ("-Plots: 42" in shown, "+Plots: 40" in shown, " Same." in shown, "plots@1" in shown) == (True,) * 4
    assert "+New." in ar("candidates", "diff", new)
    assert "“Plots: 42” / “Plots: 40”" in ar("candidates", "show", changed)
    assert ar.json("candidates", "show", changed)["base_version"] == 1
    ar("workspace", "put", "plots", "--body", "Plots: 41")
    for command in (("candidates", "diff", changed), ("candidates", "show", changed), ("candidates", "list")):
        ar(*command)
        assert not [raw for raw in RAW if raw in ar.out + ar.err], command
    assert "cannot be accepted" in (ar("candidates", "diff", changed), ar.err)[1]


def ample() -> Category:
    tools = frozenset({"page.propose", "deviation.record"})
    return Category(name="any", tools=tools, writes=frozenset({"candidate-page", "deviation"}))


def test_with_the_daemon_down_all_of_it_is_still_read_and_nothing_is_changed(
    served: Served, ar: Commands, deviation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("text")
    ar("workspace", "attach", "garden", file)
    ar("workspace", "put", "leaflet", "--body", "x", "--source", "garden")
    ar("workspace", "put", "garden", "--body", "y")
    monkeypatch.undo()
    asked = (
        ("workspace", "show", "garden"), ("workspace", "attachments", "garden"), ("deviations", "list"),
        ("deviations", "show", deviation), ("revalidation", "list"), ("workspace", "list", "--origin", "authored"),
    )  # fmt: skip
    for command in asked:
        assert ar.json(*command), command
    ar("workspace", "put", "garden", "--body", "z", code=5)
    ar("workspace", "attach", "garden", file, code=5)
    ar("workspace", "import", tmp_path, code=2)
    ar("deviations", "resolve", deviation, "--accept", code=5)
    assert ar.json("deviations", "show", deviation)["lifecycle"] == "open"


def test_nothing_that_was_written_commands_the_terminal(ar: Commands, deviation: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text(EVIL)
    ar("workspace", "attach", "garden", file, "--name", "evil\u202egnp.exe")
    for command in (
        ("workspace", "list"), ("workspace", "show", "garden"), ("workspace", "attachments", "garden"),
        ("deviations", "list", "-o", "wide"), ("deviations", "show", deviation),
        ("deviations", "resolve", deviation, "--keep-canonical", "--note", EVIL), ("revalidation", "list"),
        ("deviations", "list", "--all", "-o", "json"), ("workspace", "show", "garden", "-o", "jsonl"),
        ("workspace", "attachments", "garden", "-o", "name"),
    ):  # fmt: skip
        ar(*command)
        assert not [raw for raw in RAW if raw in ar.out + ar.err], command
    assert "\\x1b]0;pwned" in ar("deviations", "show", deviation)
