"""huey on its SQLite storage, synced at every commit, as a user would run it: a consumer with four threads.

A task only notes the time: nothing is delivered, no result is kept, which flatters it. Its scheduler looks once a
second, so what counts is the time from the first task begun to the last.
"""

import threading
import time
from pathlib import Path

from huey import SqliteHuey

from benchmarks.peers import answer

WORKERS = 4
_started: list[float] = []
_all = threading.Event()
_due = 0


def main(folder: str) -> None:
    huey = SqliteHuey(filename=str(Path(folder) / "huey.db"), results=False, fsync=True)

    @huey.task()
    def job() -> None:
        _started.append(time.time())
        if len(_started) >= _due:
            _all.set()

    def wave(due: int) -> float:
        """Return the seconds from the first task begun to the last, of so many due at one moment."""
        global _due  # noqa: PLW0603  a task notes it for the module
        _due = due
        _started.clear()
        _all.clear()
        at = time.time() + 3
        # Written as the storage itself would, in one transaction instead of one each.
        rows = [(huey.name, huey.serialize_task(job.s(delay=at - time.time())), at) for _ in range(due)]
        with huey.storage.db(commit=True) as cursor:
            cursor.executemany("INSERT INTO schedule (queue, data, timestamp) VALUES (?, ?, ?)", rows)
        assert _all.wait(timeout=120), f"{len(_started)} of {due} ran"
        return max(_started) - min(_started)

    consumer = huey.create_consumer(workers=WORKERS, periodic=False, initial_delay=0.01, max_delay=0.05)
    consumer.start()
    answer(wave=wave)
