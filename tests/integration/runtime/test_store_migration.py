"""An `agent.db` that an earlier version made is brought up to date when it is opened, with what is in it."""

import sqlite3

from agent_runtime.store.database import open_database
from turnkeeper.config.home import Home

SINCE_THE_FIRST = """
ALTER TABLE turns DROP COLUMN wake_after_s;
ALTER TABLE turn_events DROP COLUMN wake_after_s;
DROP TABLE token_days;
DROP TABLE deliveries;
DROP TABLE delegations;
DROP TABLE page_links;
DROP TABLE deviations;
DROP TABLE revalidations;
DROP TABLE attachments;
UPDATE alembic_version SET version_num = '0001';
INSERT INTO cancels VALUES ('turn-1', 'enough', 1);
INSERT INTO pages VALUES ('pump', 'Pump', 'New.', '[]', 'agent-produced', 'canonical', 1, 'turn-1', 'c-1', 'author', 1);
INSERT INTO derivations VALUES ('c-1', 'garden', 3), ('c-1', 'https://example.org/', 0), ('c-2', 'garden', 1);
"""


def shape(home: Home) -> dict[str, list[str]]:
    with sqlite3.connect(home.agent_db) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: sorted(row[1] for row in file.execute(f"PRAGMA table_info({table})")) for table in tables}


def test_a_store_of_the_first_version_gets_what_came_since_and_keeps_its_rows(home: Home) -> None:
    open_database(home).close()
    fresh = shape(home)
    with sqlite3.connect(home.agent_db) as file:
        file.executescript(SINCE_THE_FIRST)
    assert shape(home) != fresh
    open_database(home).close()
    assert shape(home) == fresh
    with sqlite3.connect(home.agent_db) as file:
        assert file.execute("SELECT turn_id FROM cancels").fetchall() == [("turn-1",)]
        links = file.execute("SELECT * FROM page_links ORDER BY source").fetchall()
        assert links == [("pump", "garden", 3), ("pump", "https://example.org/", 0)], "what its candidate came from"
