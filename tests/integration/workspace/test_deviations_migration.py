"""A store that kept one record for all candidates that say the same keeps one for each from now on."""

import sqlite3

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from agent_runtime.store.database import MIGRATIONS, open_database
from turnkeeper.config.home import Home

AS_IT_WAS = """
DROP INDEX IF EXISTS deviations_open;
CREATE UNIQUE INDEX deviations_open ON deviations (page_id, says, found) WHERE lifecycle = 'open';
INSERT INTO deviations VALUES (
    'd-1', 'contradiction', 'general', 'garden', 1, 'a', 'b', '', 'c-1', '', 'observed', 'open',
    'turn-1', 'th', 'agent0', '', 1, NULL, '', ''
);
"""


def index(home: Home) -> list[str]:
    with sqlite3.connect(home.agent_db) as file:
        return [str(row[0]) for row in file.execute("SELECT sql FROM sqlite_master WHERE name = 'deviations_open'")]


def test_records_of_before_are_kept_and_told_apart_by_candidate(home: Home) -> None:
    config = Config()
    config.set_main_option("script_location", MIGRATIONS)
    config.set_main_option("path_separator", "os")
    engine = sa.create_engine(f"sqlite:///{home.agent_db}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0008")
    engine.dispose()
    with sqlite3.connect(home.agent_db) as file:
        file.executescript(AS_IT_WAS)
    open_database(home.agent_db).close()
    assert "candidate_id" in index(home)[0]
    with sqlite3.connect(home.agent_db) as file:
        assert file.execute("SELECT deviation_id, candidate_id FROM deviations").fetchall() == [("d-1", "c-1")]
