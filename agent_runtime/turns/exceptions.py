"""Standing exceptions that are valid now. Each is checked against its task and category before it is used or shown.

The task comes from the task runner. If the runner does not answer, only the category and the turn's own row are
checked. The row holds the category and whether the task is read-only.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from agent_runtime.model.turn import Category, TurnRecord
from agent_runtime.permissions.categories import Categories
from agent_runtime.permissions.exceptions import REVOKED, StandingException, TaskNow, ended_why
from agent_runtime.store import exceptions as rows
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.event_log import EventLog
from turnkeeper.errors import InvalidInput, NotFound, TurnkeeperError

FindTask = Callable[[str], Awaitable[TaskNow]]


class StandingExceptions:
    """The standing exceptions of all tasks."""

    def __init__(self, store: Store, categories: Categories, find_task: FindTask, log: EventLog) -> None:
        self._store, self._categories, self._find_task, self._log = store, categories, find_task, log

    async def holding(self, turn: TurnRecord) -> list[int]:
        """Return the numbers of the exceptions that apply to a turn; empty unless a fire of its task began the turn."""
        if not turn.fire_id or not turn.task_id:
            return []
        return [one.number for one in await self.review(turn.task_id) if one.category == turn.category]

    async def review(self, task_id: str = "") -> list[StandingException]:
        """End the exceptions of one task, or of all tasks, that are no longer valid; return the valid ones."""
        found = await self._store.read(rows.of_task, task_id)
        tasks = {each: await self._task(each) for each in {one.task_id for one in found}}
        ends, held = dict[int, str](), list[StandingException]()
        for one in found:
            category, is_readable = self._category(one.category)
            if why := ended_why(one, tasks[one.task_id], category) if is_readable else "":
                ends[one.number] = why
            elif is_readable:
                held.append(one)
        if ends:
            self.ended(await self._store.end_exceptions(ends))
        return held

    async def revoke(self, number: int, by: str) -> StandingException:
        """End an exception. An exception that has already ended does not change. Raises NotFound."""
        self.ended(await self._store.end_exceptions({number: REVOKED}, by))
        return await self._store.read(rows.get, number)

    def ended(self, ended: Iterable[StandingException]) -> None:
        """Log the ended exceptions and wake all watchers, because a question may be asked again."""
        for one in ended:
            what: dict[str, Any] = {"exception": one.number, "task_id": one.task_id, "tool": one.tool}
            self._log.emit("exception.ended", **what, reason=one.ended_why, via=one.ended_by)
            self._store.asked.notify()

    async def _task(self, task_id: str) -> TaskNow | None:
        try:
            return await self._find_task(task_id)
        except NotFound:
            return TaskNow(state="deleted", category="", read_only=False)
        except TurnkeeperError:
            return None

    def _category(self, name: str) -> tuple[Category | None, bool]:
        """Return the current category and whether it is known; a half-written file makes it unknown."""
        try:
            return self._categories.get(name), True
        except NotFound:
            return None, True
        except InvalidInput:
            return None, False
