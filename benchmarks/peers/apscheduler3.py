"""APScheduler 3 as a user would run it: one background scheduler, its jobs in SQLite. Prints one JSON document.

`main(DUE, IDLE)` runs DUE jobs at one moment among IDLE ones of next year. Import it to run it: a job is found again
by the name of this module, which must not be `__main__`.

Its default grace of one second drops what it cannot start in time; here it is switched off, so that it may finish.
A job only notes the time: nothing is delivered or synced, which flatters it.
"""

import json
import pickle
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

LEAD_S = 4.0
_started: list[float] = []
_all = threading.Event()
_due = 0


def job() -> None:
    _started.append(time.time())
    if len(_started) >= _due:
        _all.set()


def main(due: int, idle: int) -> None:
    global _due  # noqa: PLW0603  a job is found by its name, so what it notes is the module's
    _due = due
    with tempfile.TemporaryDirectory() as folder:
        store = SQLAlchemyJobStore(url=f"sqlite:///{Path(folder) / 'jobs.sqlite'}")
        scheduler = BackgroundScheduler(timezone=UTC, jobstores={"default": store})
        scheduler.start(paused=True)
        _fill(scheduler, store, idle, datetime.now(UTC) + timedelta(days=300))
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=LEAD_S + 1 + due / 4000)
        _fill(scheduler, store, due, at)
        scheduler.resume()
        scheduler.wakeup()
        finished = _all.wait(timeout=120)
        lateness = sorted((moment - at.timestamp()) * 1000 for moment in _started)
        print(json.dumps({"finished": finished, "ran": len(_started), "lateness_ms": lateness}), flush=True)
        scheduler.shutdown(wait=False)


def _fill(scheduler: BackgroundScheduler, store: SQLAlchemyJobStore, count: int, at: datetime) -> None:
    """Write many jobs as the store itself would, in one transaction instead of one each."""
    if not count:
        return
    made = scheduler.add_job(job, "date", run_date=at, misfire_grace_time=None, id=f"seed-{at.timestamp()}")
    state = made.__getstate__()
    rows = []
    for number in range(count - 1):
        name = f"{at.timestamp()}-{number}"
        body = pickle.dumps({**state, "id": name}, pickle.HIGHEST_PROTOCOL)
        rows.append({"id": name, "next_run_time": at.timestamp(), "job_state": body})
    if rows:
        with store.engine.begin() as connection:
            connection.execute(store.jobs_t.insert(), rows)
