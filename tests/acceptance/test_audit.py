"""What was decided and how it ended stands in signed records: no edit of them or of the stores goes unnoticed."""

import json
import random  # noqa: TID251  the edits are what their seed says
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from subprocess import run

import pytest

from constellation.audit.records import examine
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.config.home import Home

pytestmark = pytest.mark.process

PAST_ITS_CATEGORY = "Summarise the garden, then remember: the pump was replaced"
EDITS = 200
# Rows and columns of the stores that records tell of.
TOLD = {
    "schedules_db": (
        ("fires", "outcome", "'failed'"), ("fires", "turn_id", "'turn-x'"), ("fires", "reason", "'because'"),
    ),
    "agent_db": (
        ("turns", "status", "'cancelled'"), ("turns", "task_id", "'another'"), ("turns", "grant_json", "'{}'"),
        ("interrupts", "decision", "'reject'"), ("interrupts", "args_hash", "'2.0'"),
        ("interrupts", "decided_by", "'turnkeeper/cli'"),
    ),
}  # fmt: skip


def a_day_of_work(constellation: Constellation) -> None:
    """Let fires succeed, let the author decide, kill both daemons, and end in order."""
    constellation.create("daily", "--in", "1s")
    constellation.until_outcome("daily", "succeeded")
    constellation.create("errand", "--in", "1s", "--prompt", PAST_ITS_CATEGORY)
    constellation.until_outcome("errand", "interrupted")
    (pending,) = constellation.ask("agent-runtime", "approvals", "list")
    for daemon in (AGENT_RUNTIME, TASK_RUNNER):
        constellation.kill(daemon)
    constellation.start()
    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    constellation.until_outcome("errand", "succeeded")
    constellation.command("agent-runtime", "send", "general", "hello", "--wait")
    constellation.stop()


def edit(home: Home, chance: random.Random) -> str:
    """Change something at random that is on record; say what."""
    what = chance.choice(["body", "content_hash", "hash", "number", "at_us", "remove", "swap", "cut", "row", "heads"])
    if what == "heads":
        lines = home.audit_heads.read_text().splitlines()
        head = json.loads(lines[chance.randrange(len(lines))])
        field = chance.choice(["hash", "signature", "public"])
        head[field] = head[field][::-1]
        home.audit_heads.write_text("\n".join([*lines, json.dumps(head), ""]))
        return f"heads {field}"
    name = chance.choice(list(TOLD))
    with closing(sqlite3.connect(getattr(home, name), isolation_level=None)) as store:
        last = store.execute("SELECT max(number) FROM audit").fetchone()[0]
        number = chance.randint(1, last)
        if what == "row":
            table, column, value = chance.choice(TOLD[name])
            store.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid = (SELECT max(rowid) FROM {table})")
            return f"{table}.{column}"
        body, *_ = store.execute("SELECT body FROM audit WHERE number = ?", [number]).fetchone()
        at = chance.randrange(len(body))
        statement, *values = {
            "body": ("UPDATE audit SET body = ? WHERE number = ?", f"{body[:at]}~{body[at + 1 :]}", number),
            "content_hash": ("UPDATE audit SET content_hash = ? WHERE number = ?", chance.randbytes(32), number),
            "hash": ("UPDATE audit SET hash = ? WHERE number = ?", chance.randbytes(32), number),
            "number": ("UPDATE audit SET number = ? WHERE number = ?", last + 5, number),
            "at_us": ("UPDATE audit SET at_us = at_us + 1 WHERE number = ?", number),
            "remove": ("DELETE FROM audit WHERE number = ?", number),
            "cut": ("DELETE FROM audit WHERE number >= ?", number),
            "swap": (
                "UPDATE audit SET (body, content_hash, hash) = (SELECT body, content_hash, hash FROM audit"
                " WHERE number = ?) WHERE number = ?",
                number % last + 1, number,
            ),
        }[what]  # fmt: skip
        store.execute(statement, values)
        return f"{name} {what} {number}"


def test_edits_are_found_and_kills_a_backup_and_a_restore_change_nothing(
    constellation: Constellation, tmp_path: Path
) -> None:
    a_day_of_work(constellation)
    home, backup = constellation.home, tmp_path / "backup"
    assert "every record is as it was written" in constellation.attempt("turnkeeper", "audit", "verify").stderr
    exported = tmp_path / "history.jsonl"
    exported.write_text(constellation.command("turnkeeper", "audit", "export"))
    assert "the pump" not in exported.read_text(), "no text of a person is on record"
    verifier = tmp_path / "verify.py"
    verifier.write_text(constellation.command("turnkeeper", "audit", "export", "--verifier"))
    alone = run([sys.executable, "-I", verifier, exported], capture_output=True, text=True, check=True)
    assert "agent-runtime: " in alone.stdout

    copy, chance = Home(root=tmp_path / "copy"), random.Random(7)
    for number in range(EDITS):
        shutil.copytree(home.root, copy.root, ignore=shutil.ignore_patterns("run", "checkpoints*", "channels", "logs"))
        what = edit(copy, chance)
        assert examine(copy).faults, f"edit {number}: {what}"
        shutil.rmtree(copy.root)

    constellation.command("turnkeeper", "backup", str(backup))
    constellation.command("turnkeeper", "restore", str(backup))
    constellation.command("turnkeeper", "up", "--takeover")
    constellation.command("agent-runtime", "send", "general", "hello again", "--wait")
    constellation.stop()
    assert examine(home).faults == []
    with closing(sqlite3.connect(home.agent_db)) as store, store:
        store.execute("UPDATE audit SET body = replace(body, 'approve', 'reject')")
    refused = constellation.attempt("turnkeeper", "audit", "verify")
    assert refused.returncode == 1
    assert "was edited" in refused.stdout
