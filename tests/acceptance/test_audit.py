"""What was decided and how it ended stands in signed records: no edit of them or of the stores goes unnoticed."""

import json
import random  # noqa: TID251  the edits are what their seed says
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import run

import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.config.home import Home
from turnkeeper.constellation.audit.records import examine
from turnkeeper.errors import Corrupt

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
        ("interrupts", "decided_by", "'turnkeeper/cli'"), ("interrupts", "args_json", "'{}'"),
        ("interrupts", "message", "'because'"), ("interrupts", "question", "'May I?'"),
        ("interrupts", "missing_scope", "'another'"),
    ),
}  # fmt: skip


FORGED = """
CREATE TEMP TABLE forged AS SELECT * FROM interrupts LIMIT 1;
UPDATE forged SET number = 1000, interrupt_id = 'forged', decision = '', resolved_at_us = NULL, status = 'resolved';
INSERT INTO interrupts SELECT * FROM forged;
"""
NEW = "DELETE FROM audit WHERE number > 1; DELETE FROM turns; DELETE FROM interrupts; DELETE FROM candidates;"
OF_BEFORE = """UPDATE turns SET grant_json = replace(grant_json, '"graphs":[""],', '')"""
# What is done to the runtime's store, and what a check says of it; nothing of what is no fault.
DONE = {
    FORGED: "agent-runtime: the decision about approval forged is in the store, but has no record",
    "UPDATE turns SET grant_json = x'00', ended_at_us = NULL": "was changed: category is not as recorded",
    "UPDATE turns SET ended_at_us = 'x'": "",
    "UPDATE audit SET at_us = 'x' WHERE number = 3": "record 3 does not follow from the previous one",
    "UPDATE audit SET body = x'00' WHERE number = 3": "agent-runtime: record 3 was edited",
    "UPDATE audit SET content_hash = 7, hash = 'x' WHERE number = 3": "record 3 does not follow from the previous one",
    OF_BEFORE: "",
}


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


@contextmanager
def copied(home: Home, copy: Home) -> Iterator[None]:
    shutil.copytree(home.root, copy.root, ignore=shutil.ignore_patterns("run", "channels", "logs"))
    yield
    shutil.rmtree(copy.root)


def run_script(home: Home, script: str) -> None:
    with closing(sqlite3.connect(home.agent_db, isolation_level=None)) as store:
        store.executescript(script)


def check_what_vanished(home: Home, copy: Home) -> None:
    """Hold that heads and keys that are gone are mentioned, and that a store that is not signed yet is no fault."""
    with copied(home, copy):
        copy.audit_heads.unlink()
        assert any("signed heads: a missing end" in fault for fault in examine(copy).faults)
    with copied(home, copy):
        (copy.keys / "audit.json").unlink()
        with pytest.raises(Corrupt, match="audit"):
            examine(copy)
        copy.keys_made("audit").unlink(missing_ok=True)
        assert f"{copy.keys / 'audit.json'} is gone: the signatures cannot be checked" in examine(copy).faults
    with copied(home, copy):
        run_script(copy, NEW)
        heads = copy.audit_heads.read_text().splitlines(keepends=True)
        copy.audit_heads.write_text("".join(line for line in heads if '"agent-runtime"' not in line))
        found = examine(copy)
        assert (found.faults, found.notes) == ([], ["agent-runtime: no record is signed"])


def test_edits_are_found_and_kills_a_backup_and_a_restore_change_nothing(
    constellation: Constellation, tmp_path: Path
) -> None:
    a_day_of_work(constellation)
    home, backup = constellation.home, tmp_path / "backup"
    assert "every record is unchanged" in constellation.attempt("turnkeeper", "audit", "verify").stderr
    exported = tmp_path / "history.jsonl"
    exported.write_text(constellation.command("turnkeeper", "audit", "export"))
    assert "the pump" not in exported.read_text(), "no text of a person is on record"
    verifier = tmp_path / "verify.py"
    verifier.write_text(constellation.command("turnkeeper", "audit", "export", "--verifier"))
    alone = run([sys.executable, "-I", verifier, exported], capture_output=True, text=True, check=True)
    assert "agent-runtime: " in alone.stdout

    copy, chance = Home(root=tmp_path / "copy"), random.Random(7)
    for number in range(EDITS):
        with copied(home, copy):
            what = edit(copy, chance)
            assert examine(copy).faults, f"edit {number}: {what}"
    for script, said in DONE.items():
        with copied(home, copy):
            run_script(copy, script)
            found = "\n".join(examine(copy).faults)
            assert said in found if said else not found, script
    check_what_vanished(home, copy)

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
