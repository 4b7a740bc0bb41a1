"""Commands that read answer from a home of an earlier version while nothing runs there, and leave its stores alone."""

import hashlib
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_runtime.cli import client
from tests.support.constellation import Constellation
from tests.test_commands import COMMANDS
from turnkeeper.config.home import Home
from turnkeeper.console.commands import Group
from turnkeeper.errors import EXIT_CONFLICT, EXIT_DEGRADED, EXIT_NOT_FOUND
from turnkeeper.storage.schema_revision import older_stores, revision_of

pytestmark = pytest.mark.process
HOMES = Path(__file__).parents[1] / "fixtures" / "homes"
FULL = HOMES / "0.1.0.tar.xz"  # it has one of everything
ARCHIVES = [FULL, *sorted(HOMES.glob("killed/*.tar.xz"))]
RUNNER, RUNTIME = "schedules.db", "agent.db"
# Each command that reads, with the stores that it reads. A word in capitals is the first of its kind in the home.
READS = {
    "task list": RUNNER,
    "task list --state active": RUNNER,
    "task show TASK": RUNNER,
    "task next TASK": RUNNER,
    "task history TASK": RUNNER,
    "task explain TASK": RUNNER,
    "task simulate --from 2026-11-24T00:00:00Z --to 2026-11-25T00:00:00Z": RUNNER,
    "task export": RUNNER,
    "task apply --dry-run FOLDER/task.toml": RUNNER,
    "task apply --diff --prune FOLDER/task.toml": RUNNER,
    "task edit TASK --dry-run --prompt Hello": RUNNER,
    "task backfill TIMED --dry-run --from 2026-11-21T00:00:00Z --to 2026-11-21T01:00:00Z": RUNNER,
    "task create new --dry-run --every 1h --prompt Hello --category loop --channel general": RUNNER,
    "task import --crontab FOLDER/crontab --category loop --channel general --dry-run": RUNNER,
    "loop create --dry-run 5m Hello": RUNNER,
    "loop list": RUNNER,
    "conversation list": RUNTIME,
    "conversation show general": RUNTIME,
    "approvals list": RUNTIME,
    "approvals show APPROVAL": RUNTIME,
    "approvals exceptions list": RUNTIME,
    "interrupts list": RUNTIME,
    "interrupts show APPROVAL": RUNTIME,
    "interrupts exceptions list": RUNTIME,
    "candidates list": RUNTIME,
    "candidates show CANDIDATE": RUNTIME,
    "candidates diff PROPOSAL": RUNTIME,
    "deviations list": RUNTIME,
    "deviations show DEVIATION": RUNTIME,
    "revalidation list": RUNTIME,
    "turns list": RUNTIME,
    "turns show TURN": RUNTIME,
    "threads list": RUNTIME,
    "threads show THREAD": RUNTIME,
    "threads import FOLDER/theirs.sqlite --channel general --dry-run": "",
    "workspace list": RUNTIME,
    "workspace show PAGE": RUNTIME,
    "workspace attachments PAGE": RUNTIME,
    "workspace attachment PAGE plots.csv": RUNTIME,
    "memory list": RUNTIME,
    "memory namespaces": RUNTIME,
    "memory get ENTRY --tier workspace": RUNTIME,
    "memory search seeds": RUNTIME,
    "categories rehearse FOLDER/loop.toml": RUNTIME,
    "status": f"{RUNNER} {RUNTIME}",
    "doctor": f"{RUNNER} {RUNTIME}",
    "events --since 2000-01-01": f"{RUNNER} {RUNTIME}",
    "query QUESTION": f"{RUNNER} {RUNTIME}",
    "report --to FOLDER/report.html": f"{RUNNER} {RUNTIME}",
    "audit verify": "",
    "audit export": "",
    "backup FOLDER/backup": "",
    "erase --text Ada --dry-run": "",
    "inbox list": "",
    "inbox quarantine": "",
    "categories list": "",
    "categories show loop": "",
    "categories check FOLDER/loop.toml": "",
    "graph check": "",
    "assistants list": "",
    "config show": "",
    "deliver list": "",
    "deliver log": "",
    "folders list": "",
    "hooks list": "",
    "keys list": "",
    "logs": "",
    "model": "",
    "peers list": "",
    "peers status": "",
    "tools list": "",
    "web keys list": "",
}
# Commands that change something, that a person answers, or that only a running daemon can answer.
OTHERS = """
assistants show|approvals approve|approvals decide|approvals exceptions revoke|approvals resolve|candidates accept
candidates reject|categories grant|cordon|deliver add|deliver delete|deliver edit|deliver send|deliver test|deviations resolve|down|drain|emit|escalate|folders add|folders delete|forget
graph install|inbox drain|inbox requeue|inbox send|inbox watch|hooks add|hooks delete|init|interrupts approve|interrupts decide|interrupts exceptions revoke|interrupts resolve
keys rotate|loop delete|loop pause|loop reschedule|loop restore|loop resume|loop stop|loop tick|mcp|memory forget
memory put|memory update|migrate|move|pause|peers add|peers invite|peers delete|quiet|restart|restore|resume|send|service install
service uninstall|task cancel|task delete|task disable|task pause|task restore|task resume|task run
task tick|threads put|tools accept|tools add|triage|turns cancel|uncordon|up|watchdog suspend|watchdog tick|web keys make|web keys revoke|web open
web serve|workspace attach|workspace import|workspace put
"""
# What stands for a word in capitals: the command that lists such things, the field with the name, and what its kind has in it.
NAMES = {
    "TASK": ("task-runner list", "name", ""),
    "TIMED": ("task-runner list", "name", "every "),
    "APPROVAL": ("agent-runtime interrupts list", "interrupt_id", ""),
    "CANDIDATE": ("agent-runtime candidates list --all", "candidate_id", ""),
    "PROPOSAL": ("agent-runtime candidates list --all", "candidate_id", "page"),
    "DEVIATION": ("agent-runtime deviations list --all", "deviation_id", ""),
    "TURN": ("agent-runtime turns list --status succeeded", "turn_id", ""),  # one that a start does not resume
    "THREAD": ("agent-runtime threads list", "thread_id", ""),
    "PAGE": ("agent-runtime workspace list", "page_id", ""),
    "ENTRY": ("agent-runtime memory list --tier workspace", "key", ""),
}
CODES = {
    "status": EXIT_DEGRADED,  # what was killed is meant to run
    "doctor": EXIT_DEGRADED,
    "erase --text Ada --dry-run": EXIT_CONFLICT,  # a turn is not over
    "graph check": EXIT_NOT_FOUND,  # the home has no graph of its own
    "tools list": EXIT_NOT_FOUND,  # nor tools of its author
}
# Commands that keep writers waiting: SQLite then moves the log of a killed process into the file.
LOCKS = {"backup FOLDER/backup", "threads import FOLDER/theirs.sqlite --channel general --dry-run"}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def archive(request: pytest.FixtureRequest) -> Path:
    """A home that an earlier version left, packed."""
    path: Path = request.param
    return path


@pytest.fixture
def stopped(archive: Path) -> Iterator[Constellation]:
    """The home, with nothing running."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    yield Constellation(Home(root=folder / "home"))
    shutil.rmtree(folder)


@pytest.fixture
def files(tmp_path: Path, stopped: Constellation) -> Path:
    """Files that commands read."""
    (tmp_path / "task.toml").write_text(
        '[[task]]\nname = "new"\nevery = "1h"\ncategory = "loop"\nchannel = "general"\nprompt = "Hello"\n'
    )
    (tmp_path / "crontab").write_text("0 7 * * * echo hello\n")
    with SqliteSaver.from_conn_string(str(tmp_path / "theirs.sqlite")) as theirs:
        theirs.setup()
    shutil.copy(HOMES.parents[2] / "categories" / "loop.toml", tmp_path)
    return tmp_path


def stores(home: Home, *, whole: bool = True) -> list[str | None]:
    """Return the schemas of the stores, and with `whole` the content of their files and logs."""
    places = [home.schedules_db, home.agent_db]
    files = [file for path in places for file in (path, path.with_name(f"{path.name}-wal")) if file.exists()] * whole
    said = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.stat().st_size]
    return [*map(revision_of, places), *said]


def named(home: Constellation) -> dict[str, str]:
    """Return the values of the placeholders in capitals."""
    found = {}
    for word, (line, field, kind) in NAMES.items():
        rows = [row for row in home.ask(*line.split()) if kind in (row.get("schedule") or row.get("kind") or "")]
        found |= {word: rows[0][field]} if rows else {}
    return found


def test_every_command_that_reads_answers_and_changes_no_store(
    archive: Path, stopped: Constellation, files: Path
) -> None:
    is_older = {path.name for path in older_stores(stopped.home)}
    names = named(stopped) | {"FOLDER": str(files), "QUESTION": "SELECT count(*) FROM fires"}
    said = {}
    for line, read in READS.items():
        argv = [names.get(word, word.replace("FOLDER", names["FOLDER"])) for word in line.split()]
        if NAMES.keys() & {*argv}:
            assert archive != FULL, f"the home lacks what this names: {line}"
            continue
        whole = bool(is_older) and line not in LOCKS  # a dry run opens a store of today, and SQLite empties its log
        before = stores(stopped.home, whole=whole)
        client._note_once.cache_clear()
        done = stopped.attempt("turnkeeper", *argv)
        printed = done.stdout + done.stderr
        trouble = [f"exit code {done.returncode}: {printed}"] * (done.returncode not in {0, CODES.get(line, 0)})
        trouble += [
            f"no word of {name}" for name in is_older & {*read.split()} if f"{name} has an older" not in printed
        ]
        trouble += ["changed a store"] * (stores(stopped.home, whole=whole) != before)
        said |= {line: trouble} if trouble else {}
    assert not said, "\n".join(map(str, said.items()))


def test_every_command_is_in_one_of_the_lists() -> None:
    known = {
        " ".join(path[1:])
        for path, command in COMMANDS.items()
        if path[0] == "turnkeeper" and not isinstance(command, Group)
    }
    others = {*re.split(r"[|\n]", OTHERS.strip())}
    reads = {next((name for name in known if f"{line} ".startswith(f"{name} ")), line) for line in READS}
    assert reads | others == known
