"""A watch on the calendar file. After a change, the runner reads the file and plans every task again."""

import asyncio
from typing import Any

from task_runner.model.task import TaskState, replace
from task_runner.planner.entries import timetable_of
from task_runner.planner.log_records import LogRecord
from task_runner.planner.planner import pass_over
from task_runner.scheduler.calendar import calendar
from task_runner.scheduler.planning import LARGEST_BATCH, Planned, plan_tasks, write_plans

_Stamp = tuple[Any, ...]


class Watch:
    """An observer that the runner calls regularly to check the calendar file."""

    def __init__(self, home: Any, runner: Any, _settings: object, clock: Any) -> None:
        self._home, self._runner, self._clock = home, runner, clock
        self._seen: _Stamp = ()

    @property
    def trouble(self) -> str:
        """Why the calendar in use cannot be read; empty if it can."""
        return calendar.current().trouble

    async def look(self) -> None:
        """If the file changed, read the calendar, plan each task with it, and save its days.

        If the process is killed, the next start repeats this. If the call fails, the next call repeats it.
        """
        stamp = await asyncio.to_thread(self._stamp)
        if stamp == self._seen:
            return
        before, log = calendar.current(), self._runner.log
        found = await asyncio.to_thread(calendar.use, self._home)
        if found.trouble and found.trouble != before.trouble:
            log.emit("calendar.unreadable", reason=found.trouble[:500])
        if (kept := calendar.kept(self._home)).days != found.days:
            count = await self._plan_again()
            log.emit("calendar.changed", file=found.file, days=len(found.days), tasks=count)
        if (kept.key, kept.days) != (found.key, found.days):
            await asyncio.to_thread(calendar.keep, self._home, found)
        self._seen = () if found.trouble else stamp

    async def _plan_again(self) -> int:
        """Plan each active task again, and reactivate the tasks that the calendar ended."""
        store, now = self._runner.store, self._clock.now()
        tasks = await store.read(lambda session: session.tasks.listed())
        expired = [task.id for task in tasks if task.state is TaskState.EXPIRED]
        done = await store.run(lambda session: take_up(session, expired, now))
        self._runner.log.emit_all(done.events)
        ids = [task.id for task in tasks if task.state is TaskState.ACTIVE or task.id in expired]
        batches = [ids[start : start + LARGEST_BATCH] for start in range(0, len(ids), LARGEST_BATCH)]
        for batch in batches:
            done = await store.run(lambda session, batch=batch: plan_tasks(session, batch, now))
            self._runner.log.emit_all(done.events)
        self._runner.loop.plan_again()
        return len(ids)

    def _stamp(self) -> _Stamp:
        found: list[Any] = [f"{self._clock.now():%Y-%m}"]
        for path in (self._home.config, self._home.root / (calendar.current().file or "config.toml")):
            try:
                known = path.stat()
            except OSError as error:
                found.append(error.errno)
            else:
                found += [known.st_mtime_ns, known.st_size, known.st_ino]
        return tuple(found)


def take_up(session: Any, ids: list[Any], now: Any) -> Planned:
    """Reactivate each of these ended tasks that has future times. Skip its times up to now."""
    plans, records = [], []
    for snapshot in session.tasks.snapshots(ids) if ids else ():
        task, timetable = snapshot.task, timetable_of(snapshot.task.definition)
        if task.state is TaskState.EXPIRED and timetable.next_after(now) is not None:
            active = replace(snapshot, task=replace(task, state=TaskState.ACTIVE))
            plans.append((snapshot, pass_over(active, timetable, task.state.value, now)))
            records.append(LogRecord("task.resumed", {"task_id": task.id, "replay": False}))
    done = write_plans(session, plans)
    return Planned(events=[event for event in done.events if event.name != "task.active"] + records)
