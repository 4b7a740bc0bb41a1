"""Memory that an earlier version kept is there afterwards, as what agents wrote."""

import sqlite3

from agent_runtime.store.database import open_database
from agent_runtime.workspace import memory as entries
from agent_runtime.workspace.memory import Shelf
from turnkeeper.config.home import Home

AS_IT_WAS = """
DROP TABLE memory;
CREATE TABLE memory (
    entry_id VARCHAR(64) NOT NULL PRIMARY KEY, tier VARCHAR(16) NOT NULL, owner VARCHAR(256) NOT NULL,
    key VARCHAR(100) NOT NULL, text TEXT NOT NULL, written_by VARCHAR(64) NOT NULL, turn_id VARCHAR(128) NOT NULL,
    created_at_us BIGINT NOT NULL, updated_at_us BIGINT NOT NULL,
    CONSTRAINT memory_provenance CHECK (written_by <> '' AND turn_id <> '')
);
CREATE UNIQUE INDEX memory_by_owner ON memory (tier, owner, key);
CREATE INDEX memory_by_age ON memory (tier, owner, updated_at_us);
INSERT INTO memory VALUES ('m-1', 'channel', 'general', 'bucket', 'blue', 'agent0', 'turn-1', 1, 2);
UPDATE alembic_version SET version_num = '0005';
"""


def schema(home: Home) -> list[str]:
    with sqlite3.connect(home.agent_db) as file:
        return sorted(str(row[0]) for row in file.execute("SELECT sql FROM sqlite_master WHERE tbl_name = 'memory'"))


def test_entries_of_before_are_kept_under_the_new_rules(home: Home) -> None:
    open_database(home).close()
    fresh = schema(home)
    with sqlite3.connect(home.agent_db) as file:
        file.executescript(AS_IT_WAS)
    opened = open_database(home)
    try:
        shelf = Shelf(tier="channel", owner="general")
        entry = opened.submit(lambda connection: entries.get(connection, shelf, "bucket")).result()
    finally:
        opened.close()
    assert (entry.text, entry.origin, entry.form, entry.turn_id) == ("blue", "agent-produced", "text", "turn-1")
    assert schema(home) == fresh
