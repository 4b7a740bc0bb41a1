"""A home that an earlier version made opens with today's code and goes on; a newer one is refused and left as it is."""

import hashlib
import json
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.constellation import Constellation
from turnkeeper.config.home import Home
from turnkeeper.errors import EXIT_CONFLICT, EXIT_DEGRADED

pytestmark = pytest.mark.process

RELEASED = sorted((Path(__file__).parents[1] / "fixtures" / "homes").glob("*.tar.xz"))
# The keys that tell the items of a list apart, the most telling first.
IDENTITY = (
    "deviation_id",
    "candidate_id",
    "interrupt_id",
    "item_id",
    "entry_id",
    "fire_id",
    "turn_id",
    "name",
    "page_id",
)
# What the time that has gone by changes; `lines` are sentences, which may be put better.
NOT_KEPT = frozenset({"next", "next_fire_at", "due_at", "missed", "lines"})
COUNTING = "armed-loop stands at"  # rises as soon as anything runs


class Upgraded(Constellation):
    """A home of an earlier version under today's code.

    Attributes:
        told: what the earlier version's commands said, by command line.
        backup: what it backed up.
    """

    def __init__(self, archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        super().__init__(Home(root=folder / "home"))
        self.told: dict[str, Any] = json.loads((folder / "answers.json").read_text())
        self.backup = folder / "backup"

    def says_still(self, line: str) -> None:
        """Hold what a command says today against what it said then."""
        assert_kept(self.told[line], self.ask(*line.split()), line)


def assert_kept(then: Any, now: Any, where: str) -> None:
    """Insist that everything said then is said now; there may be more."""
    if isinstance(then, dict):
        for key in then.keys() - NOT_KEPT:
            assert key in now, f"{where}: {key} is gone"
            assert_kept(then[key], now[key], f"{where}.{key}")
    elif isinstance(then, list) and then and isinstance(then[0], dict):
        tells = (key for key in IDENTITY if key in then[0] and len({item[key] for item in then}) == len(then))
        key = next(tells, "")
        found = {item[key]: item for item in now} if key else dict(enumerate(now))
        for place, item in enumerate(then):
            name = item[key] if key else place
            assert name in found, f"{where}: {name} is gone"
            assert_kept(item, found[name], f"{where}[{name}]")
    else:
        assert now == then, where


@pytest.fixture(scope="module", params=RELEASED, ids=lambda path: path.name.removesuffix(".tar.xz"))
def archive(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def closed(archive: Path) -> Iterator[Upgraded]:
    """The home with nothing running."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    yield Upgraded(archive, folder)
    shutil.rmtree(folder)


@pytest.fixture
def opened(running: Upgraded) -> Iterator[Upgraded]:
    """The home that runs today's code; after each step its records verify."""
    yield running
    running.command("turnkeeper", "audit", "verify")


@pytest.fixture(scope="module")
def running(archive: Path) -> Iterator[Upgraded]:
    """The home after `turnkeeper up` with today's code, shared by the tests of this module."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    made = Upgraded(archive, folder)
    made.command("turnkeeper", "up")
    yield made
    made.stop()
    shutil.rmtree(folder)


def test_every_task_is_there_with_its_state_and_its_history(closed: Upgraded) -> None:
    lines = [line for line in closed.told if line.startswith("task-runner")]
    assert len(lines) > 40
    for line in lines:
        closed.says_still(line)


def test_the_doctor_is_content(opened: Upgraded) -> None:
    opened.command("turnkeeper", "doctor")


@pytest.mark.parametrize(
    "listing", ["conversation", "candidates", "deviations", "workspace", "memory", "revalidation", "interrupts"]
)
def test_what_agents_and_authors_left_reads_back(opened: Upgraded, listing: str) -> None:
    lines = [line for line in opened.told if line.startswith(f"agent-runtime {listing}")]
    assert lines
    if listing == "memory":
        (line,) = lines
        opened.told[line] = [entry for entry in opened.told[line] if entry["key"] != COUNTING]
    for line in lines:
        opened.says_still(line)


def test_a_file_beside_a_page_reads_back(opened: Upgraded) -> None:
    assert opened.command("agent-runtime", "workspace", "attachment", "garden", "plots.csv") == "plot,owner\n1,Ada\n"


def test_a_wake_that_was_armed_comes_and_the_loop_goes_on(opened: Upgraded) -> None:
    opened.until_outcome("armed-loop", "succeeded", 2)
    entries = {entry["key"]: entry["text"] for entry in opened.ask("agent-runtime", "memory", "list")}
    assert entries[COUNTING] == "2"


def test_an_open_approval_is_given_and_its_turn_and_the_fire_behind_it_go_on(opened: Upgraded) -> None:
    (pending,) = opened.told["agent-runtime interrupts list"]
    (waits,) = opened.ask("agent-runtime", "interrupts", "list")
    assert (waits["expires_at"], waits["reminded_at"]) == (None, None), "it waits without end, as it did then"
    opened.command("agent-runtime", "interrupts", "resolve", pending["interrupt_id"], "--approve")
    anew = opened.until("the question that is asked again", lambda: opened.ask("agent-runtime", "interrupts", "list"))[
        0
    ]
    assert "an earlier version asked, which did not record the tool's values" in anew["question"]
    opened.command("agent-runtime", "interrupts", "resolve", anew["interrupt_id"], "--approve")
    opened.until_outcome("errand", "succeeded")
    opened.until_outcome("held", "succeeded")
    assert "buy seeds" in {entry["text"] for entry in opened.ask("agent-runtime", "memory", "list")}


def test_envelopes_that_waited_for_a_terminal_are_read(opened: Upgraded) -> None:
    waiting = opened.told["agent-runtime inbox list codex"]
    shown = opened.command("agent-runtime", "inbox", "drain", "codex")
    assert [line.partition(">")[2] for line in shown.splitlines()] == [f"{one['text']}</channel>" for one in waiting]
    (done,) = opened.until_outcome("terminal", "succeeded")
    assert done["reason"] == "delivered"


def test_tasks_that_stood_still_go_on(opened: Upgraded) -> None:
    for task, word in (("paused", "resume"), ("disabled", "enable")):
        opened.command("task-runner", word, task)
        opened.command("task-runner", "run", task, "--wait")
        assert opened.ask("task-runner", "show", task)["state"] == "active"
    opened.command("task-runner", "loop", "resume", "paused-loop")
    opened.command("task-runner", "emit", "deploy", "--data", '{"branch": "main"}', "--id", "build-1")
    opened.command("task-runner", "emit", "deploy", "--data", '{"branch": "main"}', "--id", "build-3")
    opened.until_outcome("deploys", "succeeded", 2)
    assert len(opened.history("deploys")) == 2, "what was told of before counts once"


def test_a_message_continues_the_newest_thread(opened: Upgraded) -> None:
    newest = opened.told["agent-runtime conversation show general -n 100"][-1]
    done = opened.attempt("agent-runtime", "send", "general", "search: garden", "--wait")
    assert done.returncode == 0, done.stderr
    assert f"continues thread {newest['thread_id']}" in done.stderr
    assert "every Friday" in done.stdout


def test_a_backup_is_restored_into_a_new_home_and_opens(closed: Upgraded) -> None:
    told = closed.told
    closed.home = Home(root=closed.home.root.with_name("restored"))
    closed.command("turnkeeper", "restore", str(closed.backup))
    for line in (line for line in told if line.startswith("task-runner show")):
        closed.says_still(line)
    closed._environ["TURNKEEPER_HOME"] = str(closed.home.root)
    try:
        closed.command("turnkeeper", "up", "--takeover")
        for listing in (
            "interrupts list",
            "candidates list",
            "workspace show garden",
            "conversation show tasks -n 100",
        ):
            closed.says_still(f"agent-runtime {listing}")
    finally:
        closed.stop()


def of_a_newer_version(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as newer:
        newer.execute("PRAGMA journal_mode=DELETE")  # as a restore leaves it: who opens it to write turns that
        newer.execute("UPDATE alembic_version SET version_num = '0999'")


def digests(home: Home) -> dict[str, str]:
    """Return the content of every file, but for the places where processes keep locks and speak for themselves."""
    files = (path for path in home.root.rglob("*") if path.is_file() and home.run not in path.parents)
    return {
        str(path.relative_to(home.root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if home.logs not in path.parents
    }


@pytest.mark.parametrize(
    ("store", "program", "reading"),
    [("schedules_db", "task-runner", ("list",)), ("agent_db", "agent-runtime", ("turns", "list"))],
)
def test_a_newer_home_is_refused_in_one_line_and_left_as_it_is(
    closed: Upgraded, store: str, program: str, reading: tuple[str, ...]
) -> None:
    path: Path = getattr(closed.home, store)
    of_a_newer_version(path)
    before = digests(closed.home)
    for argv in ((program, "serve"), (program, *reading), ("turnkeeper", "up")):
        done = closed.attempt(*argv)
        assert (done.returncode, done.stdout) == (EXIT_CONFLICT, ""), argv
        line = done.stderr.splitlines()[-1]
        assert f"{path}: " in line
        assert "0999" in line
        assert "upgrade turnkeeper" in line
        assert digests(closed.home) == before, argv
    assert "0999" in closed.command("turnkeeper", "doctor", code=EXIT_DEGRADED)


def test_a_backup_of_a_newer_home_is_not_restored(closed: Upgraded) -> None:
    store = closed.backup / "state" / "agent.db"
    of_a_newer_version(store)
    manifest = json.loads((closed.backup / "manifest.json").read_text())
    manifest["files"]["state/agent.db"] = hashlib.sha256(store.read_bytes()).hexdigest()
    (closed.backup / "manifest.json").write_text(json.dumps(manifest))
    before = digests(closed.home)
    refused = closed.attempt("turnkeeper", "restore", str(closed.backup))
    assert (refused.returncode, f"{store}: " in refused.stderr) == (EXIT_CONFLICT, True)
    assert digests(closed.home) == before
