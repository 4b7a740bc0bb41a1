"""The categories of running turns as they are now: a look can narrow one, and nothing widens it again in that turn."""

import threading
from collections.abc import Callable
from dataclasses import replace

from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import intersect
from turnkeeper.errors import InvalidInput, NotFound

GetCategory = Callable[[str], Category]


class Narrowing:
    """What each running turn may still do. A category that is gone or cannot be read grants nothing."""

    def __init__(self, get_category: GetCategory) -> None:
        """Take the function that gives a category as it is at this moment; it raises NotFound or InvalidInput."""
        self._get = get_category
        self._held: dict[str, Category] = {}
        self._lock = threading.Lock()  # sync tools look from threads of their own

    def begin(self, turn_id: str, grant: Category) -> Category:
        """Return what a turn may do as it begins or goes on: what was left of its grant, and is still granted now."""
        category = intersect(grant, self._now(grant.name))
        with self._lock:
            self._held[turn_id] = category
        return category

    def end(self, turn_id: str) -> Category:
        """Return what is left of a turn's grant, and forget the turn. It must have begun."""
        with self._lock:
            return self._held.pop(turn_id)

    def __call__(self, context: TurnContext) -> TurnContext:
        """Return the turn under its category as it is at this moment; one that does not run now is granted nothing.

        What a tool left running behind it, a task or a thread, still sees its turn when that is over.
        """
        now = self._now(context.category.name)
        with self._lock:
            left = self._held.get(context.turn_id)
            if left is not None:
                left = self._held[context.turn_id] = intersect(left, now)
        category = intersect(context.category, left)
        return context if category == context.category else replace(context, category=category)

    def _now(self, name: str) -> Category | None:
        try:
            return self._get(name)
        except (NotFound, InvalidInput):
            return None
