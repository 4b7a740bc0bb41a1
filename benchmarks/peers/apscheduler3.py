"""APScheduler 3 as a user would run it: one background scheduler, its jobs in SQLite.

Its default grace of one second drops what it cannot start in time; here it is switched off, so that it may finish.
A job only notes the time: nothing is delivered or synced, which flatters it.
"""

import pickle
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import text

from benchmarks.peers import answer

_started: list[float] = []
_all = threading.Event()
_due = 0


def job() -> None:
    _started.append(time.time())
    if len(_started) >= _due:
        _all.set()


def main(folder: str) -> None:
    store = SQLAlchemyJobStore(url=f"sqlite:///{Path(folder) / 'jobs.sqlite'}")
    scheduler = BackgroundScheduler(timezone=UTC, jobstores={"default": store})
    scheduler.start()

    def idle(count: int) -> int:
        at = datetime.now(UTC) + timedelta(days=300)
        row = {"at": at.timestamp(), "state": _state(scheduler, "date", run_date=at)[1], "count": count}
        with store.engine.begin() as connection:
            connection.execute(text(_COPY), row)
        return count

    def wave(due: int) -> list[float]:
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2 + due // 4000)
        _expect(due)
        _insert(scheduler, store, due, at, "date", run_date=at)
        scheduler.wakeup()
        assert _all.wait(timeout=120), f"{len(_started)} of {due} ran"
        return sorted((moment - at.timestamp()) * 1000 for moment in _started)

    def register(count: int) -> float:
        at, begun = datetime.now(UTC) + timedelta(days=300), time.perf_counter()
        for number in range(count):
            scheduler.add_job(job, "date", run_date=at, id=f"made-{begun}-{number}")
        return time.perf_counter() - begun

    def catch_up(tasks: int, days: int) -> float:
        """Return the seconds from the start until the last of so many minutely jobs, down for days, has run once."""
        scheduler.pause()
        _expect(tasks)
        since = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(days=days)
        _insert(scheduler, store, tasks, since, "cron", minute="*", coalesce=True)
        begun = time.time()
        scheduler.resume()
        scheduler.wakeup()
        assert _all.wait(timeout=300), f"{len(_started)} of {tasks} ran"
        took_s = max(_started) - begun
        scheduler.remove_all_jobs()
        return took_s

    answer(idle=idle, wave=wave, register=register, catch_up=catch_up)


def _expect(due: int) -> None:
    global _due  # noqa: PLW0603  a job is found by its name, so what it notes is the module's
    _due = due
    _started.clear()
    _all.clear()


def _state(scheduler: BackgroundScheduler, trigger: str, **options: Any) -> tuple[dict[str, Any], bytes]:
    made = scheduler.add_job(job, trigger, misfire_grace_time=None, id=f"seed-{time.time()}", **options)
    state = made.__getstate__()
    made.remove()
    return state, pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def _insert(
    scheduler: BackgroundScheduler, store: SQLAlchemyJobStore, count: int, at: datetime, trigger: str, **options: Any
) -> None:
    """Write many jobs as the store itself would, in one transaction instead of one each."""
    state, _ = _state(scheduler, trigger, **options)
    rows = []
    for number in range(count):
        name = f"{at.timestamp()}-{number}"
        body = pickle.dumps({**state, "id": name, "next_run_time": at}, pickle.HIGHEST_PROTOCOL)
        rows.append({"id": name, "next_run_time": at.timestamp(), "job_state": body})
    with store.engine.begin() as connection:
        connection.execute(store.jobs_t.insert(), rows)


_COPY = """
WITH RECURSIVE line(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM line WHERE n < :count)
INSERT INTO apscheduler_jobs (id, next_run_time, job_state) SELECT 'idle-' || n, :at + n, :state FROM line
"""
