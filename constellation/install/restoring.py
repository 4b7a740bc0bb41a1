"""Restore: a backup becomes the home. Nothing runs on it meanwhile, and what was there is moved aside, not removed."""

import os
import shutil
import sqlite3
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

from constellation.install.backup import MANIFEST, check_backup
from constellation.supervisor.daemons import DAEMONS, SUPERVISOR
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict
from turnkeeper.storage.locking import ProcessLock


def restore(home: Home, source: Path, at: datetime) -> Path | None:
    """Make the backup `source` the home; return where the earlier home lies now, None where there was none.

    The runtime's store gets a new incarnation, so that the runner asks anew what became of every open fire.

    Raises:
        Conflict: something runs on the home.
        InvalidInput, Corrupt: as :func:`check_backup`; nothing was touched.
    """
    check_backup(source)
    fresh = home.root.with_name(f".{home.root.name}.restoring-{os.getpid()}")
    try:
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(MANIFEST))
        fresh.chmod(0o700)
        restored = Home(root=fresh)
        restored.create()
        _renew(restored)
        return _swap(home, fresh, at)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(home: Home, fresh: Path, at: datetime) -> Path | None:
    if not os.path.lexists(home.root):
        fresh.rename(home.root)
        return None
    home.check()
    aside = home.root.with_name(f"{home.root.name}.before-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}")
    if os.path.lexists(aside):
        raise Conflict("is there already", where=str(aside), hint="try again in a second")
    with ExitStack() as held:
        if home.run.is_dir():
            for daemon in (SUPERVISOR, *DAEMONS):
                held.enter_context(ProcessLock(home, daemon.name))  # raises Conflict: it runs
        home.root.rename(aside)
        fresh.rename(home.root)
    for daemon in (SUPERVISOR, *DAEMONS):
        (aside / "state" / "run" / f"{daemon.name}.pid").unlink(missing_ok=True)
        (home.pid(daemon.name)).unlink(missing_ok=True)
    return aside


def _renew(home: Home) -> None:
    """Let the runtime draw a new incarnation when it starts."""
    if home.agent_db.exists():
        with closing(sqlite3.connect(home.agent_db, isolation_level=None)) as store:
            store.execute("DELETE FROM meta WHERE key = 'incarnation'")
