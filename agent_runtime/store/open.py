"""Opening `agent.db`: by the daemon that owns it, or read-only beside it."""

from turnkeeper.config.home import Home
from turnkeeper.errors import NotFound
from turnkeeper.storage.database import Database

MIGRATIONS = "agent_runtime.store:migrations"


def open_database(home: Home, *, read_only: bool = False) -> Database:
    """Open the runtime's store and bring its schema up to date. Raises Corrupt; NotFound if there is none to read."""
    if read_only and not home.agent_db.exists():
        raise NotFound("nothing has run here yet", where=str(home.agent_db), hint="start the daemon: turnkeeper up")
    return Database(home.agent_db, migrations=MIGRATIONS, read_only=read_only)
